// Device stores of FP8 values to paged caches.
#pragma once
#include "ferry/kernels/device_number.cuh"
#include "ferry/kernels/paged_cache.h"

namespace ferry::kernels {

// Stores kWidth numbers, multiplied by `inverse`, from element `at` of an E4M3 cache on. The
// address is a multiple of kWidth bytes.
template <int kWidth>
__device__ __forceinline__ void StoreNarrow(void* cache, std::int64_t at,
                                            const float (&values)[kWidth], float inverse) {
  static_assert(kWidth == 1 || kWidth == 4 || kWidth == 8, "what 16 bytes have, or one");
  std::uint8_t* const place = static_cast<std::uint8_t*>(cache) + at;
  if constexpr (kWidth == 1) {
    *place = ToE4m3(values[0] * inverse);
  } else {
    std::uint32_t words[kWidth / 4];
#pragma unroll
    for (int i = 0; i < kWidth / 4; ++i) {
      words[i] = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        words[i] |= std::uint32_t{ToE4m3(values[4 * i + j] * inverse)} << (8 * j);
      }
    }
    if constexpr (kWidth == 4) {
      *static_cast<std::uint32_t*>(static_cast<void*>(place)) = words[0];
    } else {
      *static_cast<uint2*>(static_cast<void*>(place)) = {words[0], words[1]};
    }
  }
}

}  // namespace ferry::kernels
