// The shared secret: loads it from its setting or its file, and proves the knowledge of it.
#pragma once
#include <array>
#include <cstddef>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

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

// An HMAC-SHA-256 (RFC 2104, FIPS 198-1).
using Mac = std::array<std::byte, 32>;
// `key` must not be empty.
Mac Hmac(std::span<const std::byte> key, std::span<const std::byte> message);

// The secret that both sides of a connection share. It is never sent; each side proves that it
// knows it by an HMAC over the frames that were exchanged, which include a challenge of each side.
// Any thread.
class Secret {
 public:
  // `text` must not be empty.
  explicit Secret(SecretText text) : text_(std::move(text)) {}
  // nullopt if the config names no secret; warns if others may read its file. Errors: those of
  // LoadSecret().
  static Result<std::optional<Secret>> FromConfig(const Config& config);

  // HMAC over `role` and the parts with their lengths. `role` separates the statements that the two
  // sides, and different protocols, may sign.
  Mac Sign(std::string_view role, std::initializer_list<std::span<const std::byte>> parts) const;

 private:
  SecretText text_;  // the config's, or the one copy of the file's
};

// Compares in constant time: the time depends on the sizes but not on where the bytes differ.
bool EqualInConstantTime(std::span<const std::byte> a, std::span<const std::byte> b) noexcept;

}  // namespace ferry
