// Cryptographic random bytes and random 128-bit ids.
#pragma once
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace ferry {

// Bytes from the kernel's cryptographic generator (getrandom(2)), suitable for keys and challenges.
// Any thread. Blocks only in the first seconds after boot. Aborts where the kernel has no
// getrandom.
void FillRandom(std::span<std::byte> bytes);
std::uint64_t RandomU64();

// A globally unique 128-bit id of an endpoint or connection. All zero is "none". Not an RFC 4122
// UUID: every bit is random.
struct Uuid {
  std::array<std::byte, 16> bytes{};

  static Uuid Random();
  bool none() const noexcept { return *this == Uuid{}; }
  // 32 lowercase hex digits, in byte order.
  std::string ToString() const;
  friend auto operator<=>(const Uuid&, const Uuid&) = default;
};

}  // namespace ferry

template <>
struct std::hash<ferry::Uuid> {
  std::size_t operator()(const ferry::Uuid& uuid) const noexcept;
};
