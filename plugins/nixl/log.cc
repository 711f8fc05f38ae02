// Writes lines in the form of NIXL's log and maps error codes to NIXL's outcomes.
#include "plugins/nixl/log.h"

#include <fmt/core.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <cctype>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "ferry/core/log_limiter.h"
#include "ferry/core/stderr_line.h"

namespace ferry::nixl {
namespace {

LogLevel Threshold() noexcept {
  static const LogLevel level = [] {
    const char* const text = std::getenv("NIXL_LOG_LEVEL");
    return LogLevelOf(text == nullptr ? "" : text);
  }();
  return level;
}

std::string Line(LogLevel level, std::string_view text, SourceLoc at) {
  timeval now{};
  (void)gettimeofday(&now, nullptr);
  tm local{};
  (void)localtime_r(&now.tv_sec, &local);
  const char* const slash = std::strrchr(at.file, '/');
  return fmt::format("{}{:02}{:02} {:02}:{:02}:{:02}.{:06} {:7} {}:{}] FERRY: {}",
                     "DIWEF"[static_cast<int>(level)], local.tm_mon + 1, local.tm_mday,
                     local.tm_hour, local.tm_min, local.tm_sec, now.tv_usec, syscall(SYS_gettid),
                     slash == nullptr ? at.file : slash + 1, at.line, text);
}

}  // namespace

LogLevel LogLevelOf(std::string_view text) noexcept {
  switch (text.empty() ? '\0' : std::toupper(static_cast<unsigned char>(text.front()))) {
    case 'T':
    case 'D': return LogLevel::kDebug;
    case 'I': return LogLevel::kInfo;
    case 'E': return LogLevel::kError;
    case 'F': return LogLevel::kFatal;
    default: return LogLevel::kWarning;
  }
}

void Log(LogLevel level, std::string_view text, SourceLoc at) noexcept {
  if (level < Threshold()) return;
  try {
    WriteStderrLine(Line(level, text, at),
                    level == LogLevel::kDebug ? LineLimit::kNone : LineLimit::kPerSecond);
  } catch (...) {
    WriteStderrLine("FERRY: out of memory", LineLimit::kPerSecond);
  }
}

void LogPeer(LogLevel level, const std::string& peer, std::string_view text,
             SourceLoc at) noexcept {
  if (level < Threshold()) return;
  try {
    const auto before = PeerLogLimiter().Admit(peer.substr(0, peer.rfind(':')));
    if (!before) return;
    Log(level,
        *before == 0 ? std::string(text) : fmt::format("{} (and {} more before)", text, *before),
        at);
  } catch (...) {
    Log(level, text, at);
  }
}

abi::Outcome OutcomeOf(Code code) noexcept {
  switch (code) {
    case Code::kInvalidArgument: return abi::Outcome::kInvalidParam;
    case Code::kUnsupported: return abi::Outcome::kNotSupported;
    case Code::kRefused: return abi::Outcome::kNotAllowed;
    case Code::kCancelled: return abi::Outcome::kCanceled;
    case Code::kPeerLost: return abi::Outcome::kRemoteDisconnect;
    default: return abi::Outcome::kBackend;
  }
}

abi::Outcome Fail(std::string_view what, const Error& error) noexcept {
  try {
    Log(LogLevel::kError, fmt::format("{}: {}", what, error.ToString()), error.where());
  } catch (...) {
    Log(LogLevel::kError, what);
  }
  return OutcomeOf(error.code());
}

}  // namespace ferry::nixl
