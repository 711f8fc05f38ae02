// CRC-32C of bytes whose parts are summed in any order, by the CPU or a GPU.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#ifdef __CUDACC__
#define FERRY_HOST_DEVICE __host__ __device__
#else
#define FERRY_HOST_DEVICE
#endif

namespace ferry {

// CRC-32C is arithmetic on polynomials over GF(2), modulo a polynomial. Here as in the CRC itself,
// the highest bit of a word is the coefficient of x^0. Appending a byte of zeros multiplies the
// state of a CRC by x^8.
inline constexpr std::uint32_t kCrcPolynomial = 0x82F63B78;
inline constexpr std::uint32_t kCrcOne = std::uint32_t{1} << 31;

FERRY_HOST_DEVICE constexpr std::uint32_t CrcTimesX(std::uint32_t value) noexcept {
  return value >> 1 ^ (kCrcPolynomial & (0U - (value & 1)));
}
// The inverse of CrcTimesX.
FERRY_HOST_DEVICE constexpr std::uint32_t CrcOverX(std::uint32_t value) noexcept {
  const std::uint32_t carry = value >> 31;
  return (value ^ (kCrcPolynomial & (0U - carry))) << 1 | carry;
}
FERRY_HOST_DEVICE constexpr std::uint32_t CrcMultiply(std::uint32_t a, std::uint32_t b) noexcept {
  std::uint32_t product = 0;
  for (int i = 0; i < 32; ++i) {
    product ^= b & (0U - (a >> 31));
    a <<= 1;
    b = CrcTimesX(b);
  }
  return product;
}

// x^(8 * 2^i), or with `back` x^(-8 * 2^i), for each i.
constexpr std::array<std::uint32_t, 64> CrcSquares(bool back) noexcept {
  std::uint32_t value = kCrcOne;
  for (int i = 0; i < 8; ++i) value = back ? CrcOverX(value) : CrcTimesX(value);
  std::array<std::uint32_t, 64> squares{};
  for (std::uint32_t& square : squares) {
    square = value;
    value = CrcMultiply(value, value);
  }
  return squares;
}
inline constexpr std::array<std::uint32_t, 64> kCrcForward = CrcSquares(false);
inline constexpr std::array<std::uint32_t, 64> kCrcBack = CrcSquares(true);

// x^(8 * bytes), or with kCrcBack x^(-8 * bytes).
constexpr std::uint32_t CrcPower(std::uint64_t bytes,
                                 const std::array<std::uint32_t, 64>& squares) noexcept {
  std::uint32_t power = kCrcOne;
  for (std::size_t i = 0; bytes != 0; ++i, bytes >>= 1) {
    if ((bytes & 1) != 0) power = CrcMultiply(power, squares[i]);
  }
  return power;
}

// What the bytes at `offset` of a whole contribute to its checksum. The contributions of all parts
// of the whole, in any order, are combined by XOR.
std::uint32_t Crc32cPart(std::span<const std::byte> bytes, std::uint64_t offset) noexcept;
// The CRC-32C, as Crc32c() returns it, of a whole of `bytes` bytes with these combined
// contributions.
std::uint32_t Crc32cOfParts(std::uint32_t parts, std::uint64_t bytes) noexcept;

}  // namespace ferry
