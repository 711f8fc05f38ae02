// Matrix products by one warp, on mma.sync and ldmatrix.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "ferry/cuda/prim/cp_async.cuh"

// Products of small matrices by a warp (PTX ISA, "Warp-level Matrix Instructions", sm_80). All 32
// lanes call each of these, with the same template arguments.
//
// Fragments, for lane = 4 * group + place (place 0 to 3), one 32-bit register holding two
// neighbours of a row of A, or of a column of B:
//   A [16, 16]  a[0], a[2]: row group, columns 2 * place + {0, 1} of the left and the right half;
//               a[1], a[3]: the same of row group + 8
//   B [16, 8]   b[0], b[1]: column group, rows 2 * place + {0, 1} of the upper and the lower half
//   C [16, 8]   c[0], c[1]: row group, columns 2 * place + {0, 1}; c[2], c[3]: of row group + 8
namespace ferry::cuda::prim {

template <class T>
concept MatrixElement = std::is_same_v<T, __nv_bfloat16> || std::is_same_v<T, __half>;

struct FragmentA {
  std::uint32_t word[4];
};
struct FragmentB {
  std::uint32_t word[2];
};

// ldmatrix.sync.aligned.m8n8.x4.shared.b16: four matrices of 8 rows of 16 bytes. Lane 8 * i + r
// names row r of matrix i, by its SharedAddress(), a multiple of 16; word[i] is two neighbours of
// row lane / 4 of matrix i.
__device__ __forceinline__ void LoadMatrices(std::uint32_t (&word)[4], std::uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
               : "r"(row)
               : "memory");
}

// ldmatrix...trans: each of the matrices is transposed, so that word[i] is two neighbours of column
// lane / 4.
__device__ __forceinline__ void LoadMatricesTransposed(std::uint32_t (&word)[4],
                                                       std::uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
               : "r"(row)
               : "memory");
}

// mma.sync.aligned.m16n8k16.row.col.f32: c += a * b, products exact and sums in float.
template <MatrixElement T>
__device__ __forceinline__ void MultiplyAdd(float (&c)[4], const FragmentA& a, const FragmentB& b) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), "r"(a.word[3]), "r"(b.word[0]),
          "r"(b.word[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), "r"(a.word[3]), "r"(b.word[0]),
          "r"(b.word[1]));
  }
}

}  // namespace ferry::cuda::prim
