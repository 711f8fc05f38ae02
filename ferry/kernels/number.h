// Element formats on the host, without CUDA's headers. Conversions to a narrower format round to
// nearest, ties to even.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "ferry/kernels/tensor.h"

namespace ferry::kernels {

// bfloat16: the upper half of a float.
inline float FromBfloat16(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}
inline std::uint16_t ToBfloat16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

namespace number_internal {

// Widens a magnitude of a format with kMantissa mantissa bits and exponent bias kBias, in which
// exponent 0 marks subnormal numbers. The callers handle sign, infinity and NaN.
template <int kMantissa, int kBias>
float Widen(std::uint32_t magnitude) noexcept {
  const std::uint32_t exponent = magnitude >> kMantissa;
  const std::uint32_t mantissa = magnitude & ((1U << kMantissa) - 1);
  if (exponent == 0) {
    return static_cast<float>(mantissa) * std::bit_cast<float>((128U - kBias - kMantissa) << 23);
  }
  return std::bit_cast<float>((exponent + 127 - kBias) << 23 | mantissa << (23 - kMantissa));
}

// Rounds a non-negative value to the format. The value must not exceed the format's largest
// exponent.
template <int kMantissa, int kBias>
std::uint32_t Narrow(float magnitude) noexcept {
  constexpr std::uint32_t kSmallestNormal = (128U - kBias) << 23;
  constexpr int kDropped = 23 - kMantissa;
  if (magnitude < std::bit_cast<float>(kSmallestNormal)) {
    // Added to a number whose last bit is worth as much as the format's, it is rounded by the FPU.
    constexpr std::uint32_t kRounder = (128U - kBias + kDropped) << 23;
    return std::bit_cast<std::uint32_t>(magnitude + std::bit_cast<float>(kRounder)) - kRounder;
  }
  const auto bits = std::bit_cast<std::uint32_t>(magnitude);
  const std::uint32_t rounded = bits + (1U << (kDropped - 1)) - 1 + (bits >> kDropped & 1);
  return (rounded >> kDropped) - ((127U - kBias) << kMantissa);
}

}  // namespace number_internal

// IEEE 754 binary16.
inline float FromFloat16(std::uint16_t bits) noexcept {
  const std::uint32_t sign = std::uint32_t{bits} >> 15 << 31;
  const std::uint32_t magnitude = bits & 0x7fffU;
  if (magnitude >= 0x7c00) return std::bit_cast<float>(sign | 0x7f800000U | magnitude << 13);
  const float value = number_internal::Widen<10, 15>(magnitude);
  return sign != 0 ? -value : value;
}
inline std::uint16_t ToFloat16(float value) noexcept {
  const std::uint32_t sign = std::bit_cast<std::uint32_t>(value) >> 31 << 15;
  const float magnitude = std::fabs(value);
  std::uint32_t bits = 0x7c00;
  if (std::isnan(value)) {
    bits = 0x7e00;
  } else if (magnitude < 65520.0F) {  // halfway beyond the greatest number
    bits = number_internal::Narrow<10, 15>(magnitude);
  }
  return static_cast<std::uint16_t>(sign | bits);
}

// E4M3 with a sign, no infinities, and one NaN (Micikevicius et al. 2022, FP8 formats for deep
// learning).
inline constexpr float kLargestE4m3 = 448.0F;
inline float FromE4m3(std::uint8_t bits) noexcept {
  const std::uint32_t magnitude = bits & 0x7fU;
  const float value = magnitude == 0x7f ? std::bit_cast<float>(0x7fc00000U)
                                        : number_internal::Widen<3, 7>(magnitude);
  return (bits & 0x80U) != 0 ? -value : value;
}
// Saturates: values above kLargestE4m3, infinity included, become kLargestE4m3.
inline std::uint8_t ToE4m3(float value) noexcept {
  const std::uint32_t sign = std::bit_cast<std::uint32_t>(value) >> 31 << 7;
  const float magnitude = std::fabs(value);
  std::uint32_t bits = 0x7e;
  if (std::isnan(value)) {
    bits = 0x7f;
  } else if (magnitude < kLargestE4m3) {
    bits = number_internal::Narrow<3, 7>(magnitude);
  }
  return static_cast<std::uint8_t>(sign | bits);
}

// Reads the element `index` elements behind `data`, which must be host memory. Floating-point types
// only.
inline float ReadFloat(const void* data, DType dtype, std::int64_t index) noexcept {
  const auto* const at = static_cast<const std::byte*>(data) + index * SizeOf(dtype);
  if (dtype == DType::kFloat32) {
    float value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  if (dtype == DType::kFloat8E4m3) return FromE4m3(std::to_integer<std::uint8_t>(*at));
  std::uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return dtype == DType::kBfloat16 ? FromBfloat16(bits) : FromFloat16(bits);
}
// Writes the element `index` elements behind `data`, rounded to its type. Host memory and
// floating-point types only.
inline void WriteFloat(void* data, DType dtype, std::int64_t index, float value) noexcept {
  auto* const at = static_cast<std::byte*>(data) + index * SizeOf(dtype);
  if (dtype == DType::kFloat32) {
    std::memcpy(at, &value, sizeof value);
  } else if (dtype == DType::kFloat8E4m3) {
    *at = std::byte{ToE4m3(value)};
  } else {
    const std::uint16_t bits = dtype == DType::kBfloat16 ? ToBfloat16(value) : ToFloat16(value);
    std::memcpy(at, &bits, sizeof bits);
  }
}
// The value after a write and a read in this format.
inline float RoundTo(DType dtype, float value) noexcept {
  switch (dtype) {
    case DType::kFloat16: return FromFloat16(ToFloat16(value));
    case DType::kBfloat16: return FromBfloat16(ToBfloat16(value));
    case DType::kFloat8E4m3: return FromE4m3(ToE4m3(value));
    default: return value;
  }
}

}  // namespace ferry::kernels
