// A matrix of 16-bit numbers in shared memory, laid out for cp.async and ldmatrix.
#pragma once
#include <cstdint>

#include "ferry/cuda/prim/mma.cuh"

namespace ferry::cuda::prim {

// kRows rows of kColumns, without gaps, from a multiple of 128 on. In row r, word c (of 16 bytes)
// lies where word c ^ (r % 8) would: rows begin in the same bank, and ldmatrix reads one word of
// eight rows at once, which so come from all 32 banks.
//
// A lane's first address has its part of the XOR in it; what a constant row or column adds to that
// is a constant, or the XOR of one. So a lane needs one register for all addresses of a tile.
template <int kRows, int kColumns>
struct SharedTile {
  static_assert(kRows % 16 == 0, "fragments have 16 rows");
  static_assert(kColumns % 64 == 0, "eight words at least, or rows change places with others'");
  static constexpr int kWordElements = 8;
  static constexpr int kRowWords = kColumns / kWordElements;
  static constexpr int kRowBytes = kRowWords * kCopyBytes;
  static constexpr int kBytes = kRows * kRowBytes;

  std::uint8_t* data;

  __device__ __forceinline__ std::uint8_t* At(int row, int word) const {
    return data + row * kRowBytes + (word ^ row % 8) * kCopyBytes;
  }

  // The address of a word in row + first_row, where `first` is At() of that word in `row`. kStep is
  // a power of two, row is less than kStep, and first_row is a multiple of it.
  template <int kStep>
  static __device__ __forceinline__ std::uint32_t Below(std::uint32_t first, int first_row) {
    static_assert((kStep & (kStep - 1)) == 0, "no bit of row is one of first_row's");
    return (first ^ first_row % 8 * kCopyBytes) + first_row * kRowBytes;
  }

  // A fragment A: rows from `row`, columns from `column` on, both multiples of 16.
  __device__ __forceinline__ FragmentA LoadA(int row, int column, int lane) const {
    FragmentA a;
    LoadMatrices(a.word, Shift(At(lane % 16, lane / 16), row, column));
    return a;
  }

  // Two fragments B of the transpose: its columns are the rows from `row` and from row + 8, its
  // rows the columns from `column` on; both multiples of 16.
  __device__ __forceinline__ void LoadTransposedB(FragmentB (&b)[2], int row, int column,
                                                  int lane) const {
    std::uint32_t word[4];
    LoadMatrices(word, Shift(At(lane / 16 * 8 + lane % 8, lane / 8 % 2), row, column));
    b[0] = {word[0], word[1]};
    b[1] = {word[2], word[3]};
  }

  // Two fragments B: their rows are those from `row`, their columns those from `column` and from
  // column + 8 on; both multiples of 16.
  __device__ __forceinline__ void LoadB(FragmentB (&b)[2], int row, int column, int lane) const {
    std::uint32_t word[4];
    LoadMatricesTransposed(word, Shift(At(lane % 16, lane / 16), row, column));
    b[0] = {word[0], word[1]};
    b[1] = {word[2], word[3]};
  }

 private:
  // From a lane's word 0 or 1, whose number's bits `column` leaves alone.
  static __device__ __forceinline__ std::uint32_t Shift(const void* first, int row, int column) {
    const int word = column / kWordElements;
    return (SharedAddress(first) ^ word % 8 * kCopyBytes) + word / 8 * 8 * kCopyBytes +
           row * kRowBytes;
  }
};

}  // namespace ferry::cuda::prim
