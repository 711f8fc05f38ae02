// Implements parsing and field access of JSON from other processes.

#include "tools/support/json.h"

#include <fmt/core.h>

#include <array>
#include <charconv>

namespace ferry::tools {
namespace {

Error Missing(const char* name, const char* what) {
  return Error(Code::kCorrupt,
               fmt::format("the peer's message has no \"{}\" that is {}; use the same version of "
                           "ferry on both sides",
                           name, what));
}

constexpr std::array kCodes = {Code::kInvalidArgument, Code::kUnsupported, Code::kUnavailable,
                               Code::kRefused,         Code::kCancelled,   Code::kTimedOut,
                               Code::kPeerLost,        Code::kDeviceLost,  Code::kCorrupt,
                               Code::kInternal};

// The codes mean what this side can do: a peer that was interrupted is lost to us.
Code CodeFromPeer(const std::string& name) {
  for (const Code code : kCodes) {
    if (name == CodeName(code)) return code == Code::kCancelled ? Code::kPeerLost : code;
  }
  return Code::kInternal;
}

}  // namespace

Result<Json> ParseJson(std::string_view text) {
  Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!value.is_object()) {
    return Error(Code::kCorrupt,
                 fmt::format("the peer sent {} bytes that are no JSON object; use the same version "
                             "of ferry on both sides",
                             text.size()));
  }
  return value;
}

Result<std::uint64_t> NumberField(const Json& object, const char* name) {
  const auto field = object.find(name);
  if (field == object.end() || !field->is_number_unsigned()) {
    return Missing(name, "a whole number");
  }
  return field->get<std::uint64_t>();
}

Result<std::uint64_t> BoundedField(const Json& object, const char* name, std::uint64_t low,
                                   std::uint64_t high) {
  FERRY_TRY_ASSIGN(const std::uint64_t value, NumberField(object, name));
  if (value >= low && value <= high) return value;
  return Error(Code::kInvalidArgument,
               fmt::format("{} {} is out of range; allowed is {}..{}", name, value, low, high));
}

Result<double> RealField(const Json& object, const char* name) {
  const auto field = object.find(name);
  if (field == object.end() || !field->is_number()) return Missing(name, "a number");
  return field->get<double>();
}

Result<std::string> TextField(const Json& object, const char* name) {
  const auto field = object.find(name);
  if (field == object.end() || !field->is_string()) return Missing(name, "a text");
  return field->get<std::string>();
}

Result<std::vector<std::byte>> BytesField(const Json& object, const char* name) {
  FERRY_TRY_ASSIGN(const std::string hex, TextField(object, name));
  std::vector<std::byte> bytes(hex.size() / 2);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    unsigned value = 0;
    const char* const at = hex.data() + 2 * i;
    if (std::from_chars(at, at + 2, value, 16).ptr != at + 2) return Missing(name, "hexadecimal");
    bytes[i] = static_cast<std::byte>(value);
  }
  if (hex.size() % 2 != 0) return Missing(name, "hexadecimal");
  return bytes;
}

bool FlagField(const Json& object, const char* name) {
  const auto field = object.find(name);
  return field != object.end() && field->is_boolean() && field->get<bool>();
}

std::string DumpJson(const Json& value) {
  return value.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

std::string ToHex(std::span<const std::byte> bytes) {
  std::string hex;
  hex.reserve(2 * bytes.size());
  for (const std::byte byte : bytes) hex += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return hex;
}

Json ErrorToJson(const Error& error) {
  return Json{{"error", Json{{"code", CodeName(error.code())}, {"message", error.message()}}}};
}

Status ErrorFromJson(const Json& message) {
  const auto error = message.find("error");
  if (error == message.end()) return Ok();
  if (!error->is_object()) return Missing("error", "an object");
  FERRY_TRY_ASSIGN(const std::string code, TextField(*error, "code"));
  FERRY_TRY_ASSIGN(std::string text, TextField(*error, "message"));
  return Error(CodeFromPeer(code), "the server says: " + std::move(text));
}

}  // namespace ferry::tools
