// JSON from and for other processes, with errors as values.
#pragma once
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ferry/core/result.h"
#include "tools/support/json_fwd.h"

namespace ferry::tools {

// Parses text from another process without exceptions. Errors of all functions here: kCorrupt.
Result<Json> ParseJson(std::string_view text);
Result<std::uint64_t> NumberField(const Json& object, const char* name);
// Errors: kInvalidArgument, too.
Result<std::uint64_t> BoundedField(const Json& object, const char* name, std::uint64_t low,
                                   std::uint64_t high);
Result<double> RealField(const Json& object, const char* name);
Result<std::string> TextField(const Json& object, const char* name);
Result<std::vector<std::byte>> BytesField(const Json& object, const char* name);  // of ToHex
// A boolean field; false if it is missing.
bool FlagField(const Json& object, const char* name);

// The JSON text on one line; bytes that are not UTF-8 are replaced.
std::string DumpJson(const Json& value);
std::string ToHex(std::span<const std::byte> bytes);

// {"error": {"code": ..., "message": ...}}
Json ErrorToJson(const Error& error);
// The inverse of the above: the error that the message reports, or Ok.
Status ErrorFromJson(const Json& message);

}  // namespace ferry::tools
