#pragma once
#include <cstdint>

#include "ferry/prim/mma.cuh"

// A matrix of 16-bit numbers in shared memory, made for cp.async and ldmatrix.
namespace ferry::prim {

// kRows rows of kColumns, without gaps, from a multiple of 128 on. In row r, word c (of 16 bytes)
// lies where word c ^ (r % 8) would: rows begin in the same bank, and ldmatrix reads one word of
// eight rows at once, which so come from all 32 banks.
template <int kRows, int kColumns>
struct SharedTile {
  static_assert(kRows % 16 == 0, "fragments have 16 rows");
  static_assert(kColumns % 64 == 0, "eight words at least, or rows change places with others'");
  static constexpr int kWordElements = 8;
  static constexpr int kRowWords = kColumns / kWordElements;
  static constexpr int kWords = kRows * kRowWords;
  static constexpr int kBytes = kWords * kCopyBytes;

  std::uint8_t* data;

  __device__ __forceinline__ std::uint8_t* At(int row, int word) const {
    return data + (row * kRowWords + (word ^ (row % 8))) * kCopyBytes;
  }

  // A fragment A: rows from `row`, columns from `column` on.
  __device__ __forceinline__ FragmentA LoadA(int row, int column, int lane) const {
    FragmentA a;
    LoadMatrices(a.word, At(row + lane % 16, column / kWordElements + lane / 16));
    return a;
  }

  // Two fragments B of the transpose: its columns are the rows from `row` and from row + 8, its
  // rows the columns from `column` on.
  __device__ __forceinline__ void LoadTransposedB(FragmentB (&b)[2], int row, int column,
                                                  int lane) const {
    std::uint32_t word[4];
    LoadMatrices(word, At(row + lane / 16 * 8 + lane % 8, column / kWordElements + lane / 8 % 2));
    b[0] = {word[0], word[1]};
    b[1] = {word[2], word[3]};
  }

  // Two fragments B: their rows are those from `row`, their columns those from `column` and from
  // column + 8 on.
  __device__ __forceinline__ void LoadB(FragmentB (&b)[2], int row, int column, int lane) const {
    std::uint32_t word[4];
    LoadMatricesTransposed(word, At(row + lane % 16, column / kWordElements + lane / 16));
    b[0] = {word[0], word[1]};
    b[1] = {word[2], word[3]};
  }
};

}  // namespace ferry::prim
