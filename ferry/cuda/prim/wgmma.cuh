// Matrix products by a warpgroup, on wgmma.
#pragma once
#include <cstdint>
#include <type_traits>

#include "ferry/cuda/prim/cp_async.cuh"
#include "ferry/cuda/prim/mma.cuh"

// Products of matrices by a warpgroup, four warps of which the first has a number that is a
// multiple of four (PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate
// Instructions", sm_90a: in code for that only). All 128 threads call each of these, with the same
// template arguments.
//
// c [64, N] += a [64, 16] * b [16, N]. In the fragments of mma.cuh, warp w has the rows from 16 * w
// on: c[n] is its C of columns 8 * n to 8 * n + 7, and where a is in registers, it is its A.
//
// The products run asynchronously. Call WgmmaFence() before the first one and after each access
// to registers that it reads or writes, EndMatrixGroup() after the last one, and WaitForMatrices()
// followed by KeepInOrder(c) before reading c or changing a or b.
namespace ferry::cuda::prim {

// Whether code is compiled for a GPU that has these; kernels have no body where it is not.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define FERRY_HAVE_WARPGROUP_MATRICES 1
#endif

inline constexpr int kWarpgroupThreads = 128;

// wgmma.fence.sync.aligned.
__device__ __forceinline__ void WgmmaFence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// wgmma.commit_group.sync.aligned: the products since the last one are a group.
__device__ __forceinline__ void EndMatrixGroup() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// wgmma.wait_group.sync.aligned: waits until no more than the last kGroups groups are in flight.
template <int kGroups>
__device__ __forceinline__ void WaitForMatrices() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(kGroups) : "memory");
}
// A compiler barrier without an instruction. The compiler does not know that WaitForMatrices()
// completes c; this keeps later uses of c after it.
template <int kColumnTiles>
__device__ __forceinline__ void KeepInOrder(float (&c)[kColumnTiles][4]) {
#pragma unroll
  for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(c[n][i])::"memory");
  }
}

// setmaxnreg.{dec,inc}.sync.aligned.u32 (PTX ISA, "Miscellaneous Instructions: setmaxnreg"): sets
// the register count of each of the warpgroup's threads, a multiple of 8. An increase blocks until
// other warpgroups have released enough. Needs a kernel with __launch_bounds__(threads, 1).
template <int kRegisters>
__device__ __forceinline__ void DecreaseRegisters() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256,
                "as the PTX ISA says");
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void TakeRegisters() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256,
                "as the PTX ISA says");
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(kRegisters));
}

// How wgmma finds a matrix in shared memory (PTX ISA, "Matrix Descriptor Format"). Sizes are bytes,
// multiples of 16 below 2^18.
enum class MatrixSwizzle : std::uint8_t { kNone = 0, k128Bytes = 1, k64Bytes = 2, k32Bytes = 3 };
struct MatrixDescriptor {
  std::uint32_t start;  // SharedAddress()
  std::uint32_t leading_offset;
  std::uint32_t stride_offset;
  MatrixSwizzle swizzle;

  constexpr __host__ __device__ std::uint64_t Word() const {
    return std::uint64_t{Field(start)} | std::uint64_t{Field(leading_offset)} << 16 |
           std::uint64_t{Field(stride_offset)} << 32 | static_cast<std::uint64_t>(swizzle) << 62;
  }
  // The descriptor of the matrix `bytes` bytes behind.
  static constexpr __host__ __device__ std::uint64_t Behind(std::uint64_t word,
                                                            std::uint32_t bytes) {
    return word + (bytes >> 4);
  }

 private:
  static constexpr __host__ __device__ std::uint32_t Field(std::uint32_t bytes) {
    return (bytes & 0x3ffffU) >> 4;
  }
};

// How b lies: as the rows of its transpose, 16 numbers after each other ("K-major"), or as its own
// rows of N numbers ("MN-major").
enum class MatrixOrder : std::uint8_t { kTransposed = 0, kAsIs = 1 };

// Registers of c as the instructions below name them, and as the compiler is told of them.
#define FERRY_MATRIX_REGISTERS_64                                           \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define FERRY_MATRIX_REGISTERS_128                                                   \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "          \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}"
#define FERRY_MATRIX_TILE(n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define FERRY_MATRIX_FOUR_TILES(n) \
  FERRY_MATRIX_TILE(n), FERRY_MATRIX_TILE(n + 1), FERRY_MATRIX_TILE(n + 2), FERRY_MATRIX_TILE(n + 3)
#define FERRY_MATRIX_TILES_64 FERRY_MATRIX_FOUR_TILES(0), FERRY_MATRIX_FOUR_TILES(4)
#define FERRY_MATRIX_TILES_128 \
  FERRY_MATRIX_TILES_64, FERRY_MATRIX_FOUR_TILES(8), FERRY_MATRIX_FOUR_TILES(12)

// wgmma.mma_async.sync.aligned.m64n<columns>k16.f32.<types>, of operands that follow those of c:
// their numbers, and at last that of what says whether to add.
#define FERRY_MATRIX_PRODUCT(columns, types, factors, order_at, adds_at)                          \
  "{\n.reg .pred p;\nsetp.ne.b32 p, %" adds_at ", 0;\nwgmma.mma_async.sync.aligned.m64n" #columns \
  "k16.f32." types " " FERRY_MATRIX_REGISTERS_##columns ", " factors ", p, 1, 1, " order_at ";\n}"
#define FERRY_MATRIX_OPERANDS "r"(static_cast<int>(adds)), "n"(static_cast<int>(kOrder))
#define FERRY_MATRIX_BY_SHARED_64(types)                                   \
  asm volatile(FERRY_MATRIX_PRODUCT(64, types, "%32, %33", "0, %35", "34") \
               : FERRY_MATRIX_TILES_64                                     \
               : "l"(a), "l"(b), FERRY_MATRIX_OPERANDS                     \
               : "memory")
#define FERRY_MATRIX_BY_SHARED_128(types)                                   \
  asm volatile(FERRY_MATRIX_PRODUCT(128, types, "%64, %65", "0, %67", "66") \
               : FERRY_MATRIX_TILES_128                                     \
               : "l"(a), "l"(b), FERRY_MATRIX_OPERANDS                      \
               : "memory")
#define FERRY_MATRIX_WORDS "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), "r"(a.word[3])
#define FERRY_MATRIX_BY_REGISTERS_64(types)                                              \
  asm volatile(FERRY_MATRIX_PRODUCT(64, types, "{%32, %33, %34, %35}, %36", "%38", "37") \
               : FERRY_MATRIX_TILES_64                                                   \
               : FERRY_MATRIX_WORDS, "l"(b), FERRY_MATRIX_OPERANDS                       \
               : "memory")
#define FERRY_MATRIX_BY_REGISTERS_128(types)                                              \
  asm volatile(FERRY_MATRIX_PRODUCT(128, types, "{%64, %65, %66, %67}, %68", "%70", "69") \
               : FERRY_MATRIX_TILES_128                                                   \
               : FERRY_MATRIX_WORDS, "l"(b), FERRY_MATRIX_OPERANDS                        \
               : "memory")

// a and b in shared memory, by the Word() of their descriptors; a as rows of 16 numbers. Without
// adding, c becomes the product.
template <MatrixElement T, MatrixOrder kOrder>
__device__ __forceinline__ void MultiplyAddAsync(float (&c)[8][4], std::uint64_t a, std::uint64_t b,
                                                 bool adds) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    FERRY_MATRIX_BY_SHARED_64("bf16.bf16");
  } else {
    FERRY_MATRIX_BY_SHARED_64("f16.f16");
  }
}
template <MatrixElement T, MatrixOrder kOrder>
__device__ __forceinline__ void MultiplyAddAsync(float (&c)[16][4], std::uint64_t a,
                                                 std::uint64_t b, bool adds) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    FERRY_MATRIX_BY_SHARED_128("bf16.bf16");
  } else {
    FERRY_MATRIX_BY_SHARED_128("f16.f16");
  }
}

// a in registers.
template <MatrixElement T, MatrixOrder kOrder>
__device__ __forceinline__ void MultiplyAddAsync(float (&c)[8][4], const FragmentA& a,
                                                 std::uint64_t b, bool adds) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    FERRY_MATRIX_BY_REGISTERS_64("bf16.bf16");
  } else {
    FERRY_MATRIX_BY_REGISTERS_64("f16.f16");
  }
}
template <MatrixElement T, MatrixOrder kOrder>
__device__ __forceinline__ void MultiplyAddAsync(float (&c)[16][4], const FragmentA& a,
                                                 std::uint64_t b, bool adds) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    FERRY_MATRIX_BY_REGISTERS_128("bf16.bf16");
  } else {
    FERRY_MATRIX_BY_REGISTERS_128("f16.f16");
  }
}

#undef FERRY_MATRIX_BY_REGISTERS_128
#undef FERRY_MATRIX_BY_REGISTERS_64
#undef FERRY_MATRIX_WORDS
#undef FERRY_MATRIX_BY_SHARED_128
#undef FERRY_MATRIX_BY_SHARED_64
#undef FERRY_MATRIX_OPERANDS
#undef FERRY_MATRIX_PRODUCT
#undef FERRY_MATRIX_TILES_128
#undef FERRY_MATRIX_TILES_64
#undef FERRY_MATRIX_FOUR_TILES
#undef FERRY_MATRIX_TILE
#undef FERRY_MATRIX_REGISTERS_128
#undef FERRY_MATRIX_REGISTERS_64

}  // namespace ferry::cuda::prim
