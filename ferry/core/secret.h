// The shared secret, from its setting or its file.
#pragma once
#include <string>
#include <string_view>

#include "ferry/core/config.h"
#include "ferry/core/result.h"

namespace ferry {

// The text of the secret that the config names, from the setting or its file; empty: none. Errors:
// kInvalidArgument for a file that cannot be read or holds no secret of a length that is allowed,
// and for a config that names both.
Result<std::string> LoadSecret(const Config& config);

// Logs a warning when the file of this setting may be read by others than its owner; an empty path
// is no file.
void WarnIfOthersMayRead(std::string_view setting, const std::string& path);

}  // namespace ferry
