// One step of attention over a tile of keys, by a warp, as in FlashAttention-2 (Dao 2023,
// algorithm 1): scores and output stay in registers, and a running maximum and sum per row make
// the softmax. Uses the fragments of cuda/prim/mma.cuh.
#pragma once
#include "ferry/cuda/prim/float_math.cuh"
#include "ferry/cuda/prim/mma.cuh"
#include "ferry/cuda/prim/shared_tile.cuh"
#include "ferry/cuda/prim/warp_copy.cuh"
#include "ferry/kernels/device_number.cuh"
#include "ferry/kernels/soft_cap.h"

namespace ferry::kernels {

// Rows of a matrix in global memory, aligned to 16 bytes. Rows before `begin` and from `end` on,
// which may be less, become zeros in a tile, and their addresses are never read.
template <class T>
struct SourceRows {
  const T* first;
  std::int64_t stride;  // elements
  int end;
  int begin = 0;

  __device__ __forceinline__ bool Has(int row) const {
    return static_cast<unsigned>(row - begin) < static_cast<unsigned>(max(0, end - begin));
  }
};

// Begins copies of 16 rows of a tile, from 16 * sixteen on, by kThreads threads.
template <int kThreads, int kRows, int kColumns, class T>
__device__ __forceinline__ void CopySixteen(const prim::SharedTile<kRows, kColumns>& tile,
                                            int sixteen, int thread, const SourceRows<T>& rows) {
  using Tile = prim::SharedTile<kRows, kColumns>;
  constexpr int kRowsAtOnce = kThreads / Tile::kRowWords;
  static_assert(kThreads % Tile::kRowWords == 0, "the threads take whole rows at once");
  static_assert(16 % kRowsAtOnce == 0, "and there are as many for all of them each time");
  // Neighbouring threads copy neighbouring words of a row, so that a warp reads whole lines.
  const int row = thread / Tile::kRowWords;
  const int word = thread % Tile::kRowWords;
  const std::uint32_t to = prim::SharedAddress(tile.At(row, word));
  const T* const from = rows.first + row * rows.stride + word * Tile::kWordElements;
#pragma unroll
  for (int more = 0; more < 16; more += kRowsAtOnce) {
    prim::CopyAsync(Tile::template Below<kRowsAtOnce>(to, 16 * sixteen + more),
                    from + more * rows.stride, rows.Has(row + more));
  }
}

// The same of rows that lie anywhere: `row_at` has the address of row `more`, of these 16, or null
// for one that becomes zeros. All lanes of a warp call it together.
template <int kThreads, class T, int kRows, int kColumns, class RowAt>
__device__ __forceinline__ void CopyScattered(const prim::SharedTile<kRows, kColumns>& tile,
                                              int sixteen, int thread, const T* some,
                                              const RowAt& row_at) {
  using Tile = prim::SharedTile<kRows, kColumns>;
  constexpr int kRowsAtOnce = kThreads / Tile::kRowWords;
  static_assert(16 % kRowsAtOnce == 0, "there are as many for all of them each time");
  const int row = thread / Tile::kRowWords;
  const int word = thread % Tile::kRowWords;
#pragma unroll
  for (int more = 0; more < 16; more += kRowsAtOnce) {
    const T* const from = row_at(row + more);
    prim::CopyAsync(prim::SharedAddress(tile.At(16 * sixteen + row + more, word)),
                    (from != nullptr ? from : some) + word * Tile::kWordElements, from != nullptr);
  }
}

// The weights of a row whose largest score is `largest` are 2^(score * scale - base). If no key is
// visible yet, `largest` is -inf and the base is 0, so that weights become zero and not NaN.
// Powers of two, not of e: the GPU has an instruction for 2^x. log2(e) is part of the scale.
__device__ __forceinline__ float BaseOf(float largest, float scale) {
  return largest == -INFINITY ? 0.0F : largest * scale;
}

// All lanes of the warp call these. Lanes 4 * g to 4 * g + 3 have row g, so exchanges with the
// lanes whose numbers differ in bits 0 and 1 reach all four.
// Maximum, or sum, over the four lanes that share a row of C.
__device__ __forceinline__ float MaxOfRow(float value) {
  value = fmaxf(value, __shfl_xor_sync(prim::kAllLanes, value, 1));
  return fmaxf(value, __shfl_xor_sync(prim::kAllLanes, value, 2));
}
__device__ __forceinline__ float SumOfRow(float value) {
  value += __shfl_xor_sync(prim::kAllLanes, value, 1);
  return value + __shfl_xor_sync(prim::kAllLanes, value, 2);
}

// The running state of a warp's 16 * kRowTiles queries. Row `half` of row tile t is query 16 * t +
// 8 * half + lane / 4.
template <prim::MatrixElement T, int kHead, int kRowTiles>
struct WarpAttention {
  static constexpr int kColumnTiles = kHead / 8;

  float out[kRowTiles][kColumnTiles][4];  // not yet divided by the sum
  float largest[kRowTiles][2];            // score, before the scale
  float sum[kRowTiles][2];                // of this lane's columns

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      largest[t][0] = largest[t][1] = -INFINITY;
      sum[t][0] = sum[t][1] = 0;
#pragma unroll
      for (int c = 0; c < kColumnTiles; ++c) {
#pragma unroll
        for (int i = 0; i < 4; ++i) out[t][c][i] = 0;
      }
    }
  }

  template <int kKeys>
  using Scores = float[kRowTiles][kKeys / 8][4];

  // scores = queries * keys^T; the queries are the rows from first_row on.
  template <int kRows, int kKeys>
  static __device__ __forceinline__ void Score(Scores<kKeys>& scores,
                                               const prim::SharedTile<kRows, kHead>& queries,
                                               const prim::SharedTile<kKeys, kHead>& keys,
                                               int first_row, int lane) {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[t][n][i] = 0;
      }
    }
#pragma unroll
    for (int column = 0; column < kHead; column += 16) {
      prim::FragmentA a[kRowTiles];
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) a[t] = queries.LoadA(first_row + 16 * t, column, lane);
#pragma unroll
      for (int key = 0; key < kKeys; key += 16) {
        // The keys' rows are the columns of keys^T, as a fragment B has them: nothing is
        // transposed.
        prim::FragmentB b[2];
        keys.LoadTransposedB(b, key, column, lane);
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) {
          prim::MultiplyAdd<T>(scores[t][key / 8], a[t], b[0]);
          prim::MultiplyAdd<T>(scores[t][key / 8 + 1], a[t], b[1]);
        }
      }
    }
  }

  // Masks the keys that a query must not see: key `k` of the tile if k >= seen_of(row of this
  // warp).
  template <int kKeys, class SeenOf>
  static __device__ __forceinline__ void Mask(Scores<kKeys>& scores, int lane,
                                              const SeenOf& seen_of) {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int seen = seen_of(16 * t + 8 * (i / 2) + lane / 4);
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
          // C's layout (cuda/prim/mma.cuh): i / 2 is the half of the rows, i % 2 the column of the
          // pair.
          if (8 * n + lane % 4 * 2 + i % 2 >= seen) scores[t][n][i] = -INFINITY;
        }
      }
    }
  }

  // Masks the keys before those that a query sees: key `k` of the tile if k < first_of(row of this
  // warp).
  template <int kKeys, class FirstOf>
  static __device__ __forceinline__ void MaskBefore(Scores<kKeys>& scores, int lane,
                                                    const FirstOf& first_of) {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int first = first_of(16 * t + 8 * (i / 2) + lane / 4);
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
          if (8 * n + lane % 4 * 2 + i % 2 < first) scores[t][n][i] = -INFINITY;
        }
      }
    }
  }

  // Scores become tanh(score * inner); the error is that of SoftCapTanh(). The scale of Weigh() is
  // then that of the tanh. Masks come after it.
  template <int kKeys>
  static __device__ __forceinline__ void SoftCap(Scores<kKeys>& scores, float inner) {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float x = scores[t][n][i] * inner;
          scores[t][n][i] = SoftCapTanh(x, prim::Reciprocal(1.0F + prim::Exp2(x * kTwiceLog2E)));
        }
      }
    }
  }

  // Turns scores into weights relative to the largest score so far, and rescales sum and output to
  // it. `scale` includes log2(e) and is positive.
  template <int kKeys>
  __device__ __forceinline__ void Weigh(Scores<kKeys>& scores, float scale) {
    float keep[kRowTiles][2];
    // After the first few tiles few rows find a larger score.
    if (__any_sync(prim::kAllLanes, WeighScores<kKeys>(scores, scale, keep))) Shrink(keep);
  }

  // Like Weigh(), but does not rescale `out`: call Shrink(keep) for that. Shrink(keep) has an
  // effect only if the result is true in any lane.
  template <int kKeys>
  __device__ __forceinline__ bool WeighScores(Scores<kKeys>& scores, float scale,
                                              float (&keep)[kRowTiles][2]) {
    bool changed = false;
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float now = largest[t][half];
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
          now = fmaxf(now, fmaxf(scores[t][n][2 * half], scores[t][n][2 * half + 1]));
        }
        now = MaxOfRow(now);
        // Exactly 1 if the maximum did not change, also while it is -inf, where the difference
        // would be NaN.
        keep[t][half] =
            now == largest[t][half] ? 1.0F : prim::Exp2((largest[t][half] - now) * scale);
        changed = changed || keep[t][half] != 1.0F;
        largest[t][half] = now;
        const float base = BaseOf(now, scale);
        float added = 0;
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; ++i) {
            scores[t][n][i] = prim::Exp2(fmaf(scores[t][n][i], scale, -base));
            added += scores[t][n][i];
          }
        }
        sum[t][half] = sum[t][half] * keep[t][half] + added;
      }
    }
    return changed;
  }

  __device__ __forceinline__ void Shrink(const float (&keep)[kRowTiles][2]) {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int c = 0; c < kColumnTiles; ++c) {
#pragma unroll
        for (int i = 0; i < 4; ++i) out[t][c][i] *= keep[t][i / 2];
      }
    }
  }

  // Weights of 16 keys, from a multiple of 16 on, as the fragment A that they are lane by lane: C
  // of 16 x 8 and C of the next 8 columns are A of 16 x 16.
  template <int kKeys>
  static __device__ __forceinline__ prim::FragmentA Rounded(const Scores<kKeys>& weights, int tile,
                                                            int key) {
    const auto& left = weights[tile][key / 8];
    const auto& right = weights[tile][key / 8 + 1];
    return {{WordOf(left[0], left[1], T{}), WordOf(left[2], left[3], T{}),
             WordOf(right[0], right[1], T{}), WordOf(right[2], right[3], T{})}};
  }

  // out += weights * values; the weights are rounded to T here, while their sum uses unrounded
  // weights.
  template <int kKeys>
  __device__ __forceinline__ void Add(const Scores<kKeys>& weights,
                                      const prim::SharedTile<kKeys, kHead>& values, int lane) {
#pragma unroll
    for (int key = 0; key < kKeys; key += 16) {
      prim::FragmentA a[kRowTiles];
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) a[t] = Rounded<kKeys>(weights, t, key);
#pragma unroll
      for (int column = 0; column < kHead; column += 16) {
        // Values lie by rows, so ldmatrix transposes them while it loads.
        prim::FragmentB b[2];
        values.LoadB(b, key, column, lane);
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) {
          prim::MultiplyAdd<T>(out[t][column / 8], a[t], b[0]);
          prim::MultiplyAdd<T>(out[t][column / 8 + 1], a[t], b[1]);
        }
      }
    }
  }
};

}  // namespace ferry::kernels
