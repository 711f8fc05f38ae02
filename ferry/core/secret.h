// Loads the shared secret from its setting or its file.
#pragma once
#include <string>
#include <string_view>

#include "ferry/core/config.h"
#include "ferry/core/result.h"

namespace ferry {

// The secret that the config names, from the setting or its file; empty if none. Errors:
// kInvalidArgument for a file that cannot be read or has an invalid length, and for a config that
// names both.
Result<SecretText> LoadSecret(const Config& config);

// Logs a warning if users other than the owner may read the file of this setting; does nothing for
// an empty path.
void WarnIfOthersMayRead(std::string_view setting, const std::string& path);

}  // namespace ferry
