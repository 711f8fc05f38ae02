// Reports of the stand-in to its host: lines through NCCL's logger, and the count of the host's
// misuses. Any thread may call them.
#pragma once
#include <cstddef>

#include "standin/plugin_abi.h"

namespace ferry::standin {

void BeginReporting(abi::Logger logger, bool abort_on_misuse);
// Another host in the process: all hosts get all lines. A host is known by its logger, which init()
// never passes on as null. One thread at a time, as BeginReporting().
inline constexpr std::size_t kMaxHosts = 8;
enum class NewHost : unsigned char {
  kAdded,
  kKnown,  // its logger gets the lines already
  kTooMany,
};
NewHost AddLogger(abi::Logger logger);

[[gnu::format(printf, 2, 3)]] void Log(abi::LogLevel level, const char* format, ...);

// The host has broken a rule of the plugin's. Counts and logs it; aborts if that is asked for.
// Returns abi::kInternalError, which is what the original returns where it notices at all.
[[gnu::format(printf, 1, 2)]] int Misuse(const char* format, ...);

}  // namespace ferry::standin
