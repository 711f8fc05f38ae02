// Records and explains the log lines of network plugins.
#include "ferry/tcpx/host/plugin_log.h"

#include <fmt/core.h>
#include <strings.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iterator>
#include <mutex>
#include <string_view>

#include "ferry/core/fork.h"
#include "ferry/core/log.h"
#include "ferry/core/stderr_line.h"

namespace ferry::tcpx {
namespace {

constexpr std::size_t kMaxLines = 8;

class Lines {
 public:
  void Add(int level, const std::string& text) {
    const std::lock_guard lock(mutex_);
    ++added_;
    lines_.push_back({level, text});
    if (lines_.size() > kMaxLines) lines_.pop_front();
    // Kept apart from lines_, so that later lines do not push it out: it explains an exit that may
    // follow.
    if (!MeaningOf(text).empty()) fatal_ = text;
  }
  std::uint64_t added() const {
    const std::lock_guard lock(mutex_);
    return added_;
  }
  std::vector<PluginLine> Since(std::uint64_t mark) const {
    const std::lock_guard lock(mutex_);
    // `mark` is a count of lines; those beyond the last kMaxLines are gone.
    const std::uint64_t fresh = added_ - std::min(mark, added_);
    const std::size_t count = fresh < lines_.size() ? fresh : lines_.size();
    return {lines_.end() - static_cast<std::ptrdiff_t>(count), lines_.end()};
  }
  std::string fatal() const {
    const std::lock_guard lock(mutex_);
    return fatal_;
  }

 private:
  mutable std::mutex mutex_;
  std::deque<PluginLine> lines_;
  std::uint64_t added_ = 0;
  std::string fatal_;
};

// Never destroyed: plugin threads keep running while the process exits. A forked child has its own:
// it may be forked while a thread holds the mutex, which its exit() would wait for.
Lines& TheLines() {
  static PerProcess<Lines> lines;
  return lines.Get();
}

// Names of NCCL_DEBUG, in the order of abi::LogLevel.
constexpr const char* kLevels[] = {"NONE", "VERSION", "WARN", "INFO", "ABORT", "TRACE"};
// Names of NCCL_DEBUG_SUBSYS; the n-th has bit n.
constexpr const char* kSubsystems[] = {"INIT",      "COLL", "P2P",     "SHM",  "NET",   "GRAPH",
                                       "TUNING",    "ENV",  "ALLOC",   "CALL", "PROXY", "NVLS",
                                       "BOOTSTRAP", "REG",  "PROFILE", "RAS"};
constexpr const char* kUsualSubsystems = "INIT,BOOTSTRAP,ENV";  // without NCCL_DEBUG_SUBSYS

bool IsSame(std::string_view a, const char* b) {
  return a.size() == std::strlen(b) && ::strncasecmp(a.data(), b, a.size()) == 0;
}

// "NET,INIT", or "^NET" for all others; ALL for all. Unknown names are nothing, as in NCCL.
unsigned long MaskOf(std::string_view list) {
  const bool excludes = list.starts_with('^');
  if (excludes) list.remove_prefix(1);
  unsigned long named = 0;
  while (!list.empty()) {
    const std::string_view name = list.substr(0, list.find(','));
    list.remove_prefix(std::min(name.size() + 1, list.size()));
    if (IsSame(name, "ALL")) named = ~0UL;
    for (std::size_t i = 0; i < std::size(kSubsystems); ++i) {
      if (IsSame(name, kSubsystems[i])) named |= 1UL << i;
    }
  }
  return excludes ? ~named : named;
}

bool IsAskedFor(int level, unsigned long flags) {
  static const char* const debug = std::getenv("NCCL_DEBUG");
  static const char* const subsystems = std::getenv("NCCL_DEBUG_SUBSYS");
  return AsksForLine(debug, subsystems, level, flags);
}

// The signature is NCCL's.
__attribute__((format(printf, 5, 6))) void WritePluginLine(int level, unsigned long flags,
                                                           const char* file, int line,
                                                           const char* format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  const int length = std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  // If formatting fails, `text` is undefined; the format string still shows the subject.
  if (length < 0) std::snprintf(text, sizeof text, "%s", format);
  if (level == net::nccl_abi::kLogWarn || level == net::nccl_abi::kLogAbort) {
    TheLines().Add(level, text);
    Log(LogLevel::kWarn, "plugin", "{} ({}:{})", text, file == nullptr ? "?" : file, line);
  } else if (IsAskedFor(level, flags)) {
    LogAsked(LogLevel::kInfo, "plugin", "{} ({}:{})", text, file == nullptr ? "?" : file, line);
  } else {
    Log(LogLevel::kDebug, "plugin", "{} ({}:{})", text, file == nullptr ? "?" : file, line);
  }
}

struct Symptom {
  const char* text;
  const char* meaning;
};
// Parts of messages of GPUDirect-TCPX 3.1.9, some of which come just before it ends the process.
constexpr Symptom kSymptoms[] = {
    {"rx no cmsg",
     "data came by the ordinary way and not into the GPU: its flow was not steered to a queue of "
     "the receive-datapath daemon. Check that the daemon runs, that "
     "NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX names its sockets, that the interface belongs to this "
     "GPU, and that the peer is on another machine; 'ferry doctor' looks for each"},
    {"landed on host memory",
     "the interface did not split headers from data; 'ethtool --show-priv-flags' must show "
     "enable-header-split on, which the receive-datapath daemon sets up"},
    {"cmsg truncated",
     "a receive came in more pieces than the plugin has room for; use smaller chunks "
     "(NCCL_DYNAMIC_CHUNK_SIZE) or a larger MTU"},
    {"segs, failstop",
     "a receive came in more than 2048 pieces; use smaller chunks or a larger MTU"},
    {"request too many pages",
     "a receive came in more than 2048 pieces; use smaller chunks or a larger MTU"},
    {"unable to allocate requests",
     "more than 16 requests were in flight on one connection; this is a bug of the caller's"},
    {"invalid request", "a request was tested out of turn; this is a bug of the caller's"},
};

// The plugin calls exit() on some errors. No log here: the process is being torn down.
void SayWhyOnExit() {
  const std::string fatal = TheLines().fatal();
  if (fatal.empty()) return;
  WriteStderrLine(fmt::format("ferry: the network plugin said \"{}\" before the process ended: {}",
                              fatal, MeaningOf(fatal)),
                  LineLimit::kNone);
}

}  // namespace

net::nccl_abi::Logger PluginLogger() noexcept { return WritePluginLine; }

bool AsksForLine(const char* debug, const char* subsystems, int level, unsigned long flags) {
  if (debug == nullptr) return false;
  int most = 0;
  for (std::size_t i = 0; i < std::size(kLevels); ++i) {
    if (IsSame(debug, kLevels[i])) most = static_cast<int>(i);
  }
  return level <= most &&
         (flags & MaskOf(subsystems == nullptr ? kUsualSubsystems : subsystems)) != 0;
}

std::vector<PluginLine> PluginWarnings(std::uint64_t mark) { return TheLines().Since(mark); }

std::uint64_t PluginLogMark() { return TheLines().added(); }

std::string MeaningOf(const std::string& line) {
  for (const Symptom& symptom : kSymptoms) {
    if (line.find(symptom.text) != std::string::npos) return symptom.meaning;
  }
  return {};
}

void ExplainEndOfProcess() {
  static const bool registered = std::atexit(SayWhyOnExit) == 0;
  (void)registered;
}

}  // namespace ferry::tcpx
