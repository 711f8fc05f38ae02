// Reports of the stand-in to its host: lines through NCCL's logger, and the count of the host's
// misuses. Any thread may call them.
#pragma once
#include "standin/plugin_abi.h"

namespace ferry::standin {

void BeginReporting(abi::Logger logger, bool abort_on_misuse);
// Another host in the process: all hosts get all lines. False for one that gets them already, and
// where there are too many.
bool AddLogger(abi::Logger logger);

[[gnu::format(printf, 2, 3)]] void Log(abi::LogLevel level, const char* format, ...);

// The host has broken a rule of the plugin's. Counts and logs it; aborts if that is asked for.
// Returns abi::kInternalError, which is what the original returns where it notices at all.
[[gnu::format(printf, 1, 2)]] int Misuse(const char* format, ...);

}  // namespace ferry::standin
