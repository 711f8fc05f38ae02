// The log lines of network plugins.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "ferry/net/nccl_abi/abi.h"

// Log lines of plugins. Their interface does not identify the writer, so all plugins of a process
// share this log.
namespace ferry::tcpx {

// The logger to pass to plugins. Writes to the log (warnings as warnings; of the rest, what
// NCCL_DEBUG and NCCL_DEBUG_SUBSYS ask for as "info" whatever the log's level is, and others as
// "debug") and keeps the last warnings. Any thread, for as long as the process lives.
net::nccl_abi::Logger PluginLogger() noexcept;

// Whether NCCL's own log would have a line of this level (abi::LogLevel) and of these subsystems,
// with these values of NCCL_DEBUG and NCCL_DEBUG_SUBSYS; null: not set.
bool AsksForLine(const char* debug, const char* subsystems, int level, unsigned long flags);

struct PluginLine {
  int level = 0;  // nccl_abi::LogLevel
  std::string text;
};
// The last warnings, at most 8, oldest first; only those since `mark`, a value of PluginLogMark().
std::vector<PluginLine> PluginWarnings(std::uint64_t mark = 0);
std::uint64_t PluginLogMark();

// Explains a known message that plugins write before they fail, with the fix; "" for other lines.
// "rx no cmsg" and similar lines end the process from inside the plugin.
std::string MeaningOf(const std::string& line);

// Makes the process, when it exits, explain on stderr the last such line, if there was one.
void ExplainEndOfProcess();

}  // namespace ferry::tcpx
