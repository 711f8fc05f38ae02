// Levels and formats of log messages.
#pragma once

namespace ferry {

enum class LogLevel : unsigned char { kTrace, kDebug, kInfo, kWarn, kError, kOff };
enum class LogFormat : unsigned char { kText, kJson };

}  // namespace ferry
