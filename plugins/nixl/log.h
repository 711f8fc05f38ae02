// Lines on stderr in the form of NIXL's own, as NIXL_LOG_LEVEL asks for.
#pragma once
#include <string>
#include <string_view>

#include "ferry/core/result.h"
#include "plugins/nixl/abi.h"

namespace ferry::nixl {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kFatal };

// The level of a text of NIXL_LOG_LEVEL, in any case; warnings for an unknown one, which is NIXL's
// default.
LogLevel LogLevelOf(std::string_view text) noexcept;

// Writes one line if NIXL_LOG_LEVEL, as it was at the first line, includes its level, and if stderr
// takes it without blocking; control characters are escaped. Above the level of debugging there are
// at most kMaxLinesPerSecond. NIXL's own log library cannot be linked: its names differ in each
// wheel. Any thread.
void Log(LogLevel level, std::string_view text, SourceLoc at = SourceLoc::Current()) noexcept;
// The same for a line that the peer at this address, "host:port", can cause: at most kPeerLines a
// second for each host.
void LogPeer(LogLevel level, const std::string& peer, std::string_view text,
             SourceLoc at = SourceLoc::Current()) noexcept;

// How the agent can react to an error.
abi::Outcome OutcomeOf(Code code) noexcept;
// Logs the error with what failed, and returns its outcome.
abi::Outcome Fail(std::string_view what, const Error& error) noexcept;

}  // namespace ferry::nixl
