// The log lines of network plugins.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "ferry/net/plugin/abi.h"

// What plugins say. Their interface has no place for whose words they are, so all plugins of a
// process share this.
namespace ferry::net::plugin {

// To be given to plugins. Writes to the log (warnings as such, the rest as "debug") and keeps the
// last lines. Any thread, and as long as the process lives.
abi::Logger PluginLogger() noexcept;

struct PluginLine {
  int level = 0;  // abi::LogLevel
  std::string text;
};
// The last warnings, at most 8, oldest first; those since `mark`, a value of PluginLogMark().
std::vector<PluginLine> PluginWarnings(std::uint64_t mark = 0);
std::uint64_t PluginLogMark();

// What a line that plugins of this field write before they fail means, with what to do: "" for
// others. "rx no cmsg" and its like end the process from inside the plugin.
std::string MeaningOf(const std::string& line);

// Has the process say on its end, on stderr, what the last of such lines means, if there was one.
void ExplainEndOfProcess();

}  // namespace ferry::net::plugin
