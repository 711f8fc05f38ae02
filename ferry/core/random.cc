// Random bytes from getrandom(2), and random 128-bit ids.
#include "ferry/core/random.h"

#include <sys/random.h>

#include <cerrno>
#include <cstring>

#include "ferry/core/check.h"

namespace ferry {

void FillRandom(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t filled = ::getrandom(bytes.data(), bytes.size(), 0);
    // A signal may interrupt requests of more than 256 bytes.
    if (filled < 0 && errno == EINTR) continue;
    FERRY_CHECK(filled > 0, filled, errno);
    bytes = bytes.subspan(static_cast<std::size_t>(filled));
  }
}

std::uint64_t RandomU64() {
  std::uint64_t value = 0;
  FillRandom(std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

Uuid Uuid::Random() {
  Uuid uuid;
  FillRandom(uuid.bytes);
  return uuid;
}

std::string Uuid::ToString() const {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const std::byte byte : bytes) {
    text += kDigits[std::to_integer<std::size_t>(byte >> 4)];
    text += kDigits[std::to_integer<std::size_t>(byte & std::byte{0xf})];
  }
  return text;
}

}  // namespace ferry

std::size_t std::hash<ferry::Uuid>::operator()(const ferry::Uuid& uuid) const noexcept {
  std::array<std::uint64_t, 2> halves;
  static_assert(sizeof halves == sizeof uuid.bytes);
  std::memcpy(halves.data(), uuid.bytes.data(), sizeof halves);
  // The multiplication keeps a value whose halves are equal from hashing to 0.
  return static_cast<std::size_t>(halves[0] ^ (halves[1] * 0x9E3779B97F4A7C15u));
}
