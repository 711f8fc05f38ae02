// A matrix of 16-bit numbers in shared memory, laid out for the copy engine and wgmma.
#pragma once
#include <cstdint>

#include "ferry/cuda/prim/wgmma.cuh"

namespace ferry::cuda::prim {

// kRows rows of kColumns, from a multiple of 1024 on: in panels of 64 columns, one behind the
// other, each of rows of 128 bytes without gaps. In row r of a panel, word c (of 16 bytes) lies
// where word c ^ (r % 8) would, which is CU_TENSOR_MAP_SWIZZLE_128B: a tensor map's box of 64
// columns and some multiple of 8 rows comes as such rows of a panel.
template <int kRows, int kColumns>
struct PanelTile {
  static_assert(kRows % 8 == 0, "the swizzle is of eight rows");
  static_assert(kColumns % 64 == 0, "whole panels");
  static constexpr int kPanelColumns = 64;
  static constexpr int kPanels = kColumns / kPanelColumns;
  static constexpr int kWordElements = 8;
  static constexpr int kRowWords = kColumns / kWordElements;
  static constexpr int kPanelRowBytes = 128;
  static constexpr int kPanelRowWords = kPanelRowBytes / kCopyBytes;
  static constexpr int kEightRowsBytes = 8 * kPanelRowBytes;
  static constexpr int kPanelBytes = kRows * kPanelRowBytes;
  static constexpr int kBytes = kPanels * kPanelBytes;
  static constexpr int kAlignment = 1024;

  std::uint8_t* data;

  // Word `word` of a row.
  static constexpr __host__ __device__ int OffsetOf(int row, int word) {
    return word / kPanelRowWords * kPanelBytes + row * kPanelRowBytes +
           (word % kPanelRowWords ^ row % 8) * kCopyBytes;
  }
  __device__ __forceinline__ std::uint8_t* At(int row, int word) const {
    return data + OffsetOf(row, word);
  }

  // For wgmma: as its a, or as its b in MatrixOrder::kTransposed, of as many rows from `first_row`
  // on, a multiple of 8, as the instruction has. Columns 0 to 15; others lie Columns(column)
  // behind. Eight rows are 1024 bytes; 16 columns lie within 128 bytes, so there is no leading
  // offset.
  __device__ __forceinline__ std::uint64_t RowsFrom(int first_row) const {
    return MatrixDescriptor{.start = SharedAddress(data) + first_row * kPanelRowBytes,
                            .leading_offset = kCopyBytes,
                            .stride_offset = kEightRowsBytes,
                            .swizzle = MatrixSwizzle::k128Bytes}
        .Word();
  }
  // A multiple of 16. The swizzle goes by address bits, which begin a row with those of its number:
  // so a matrix may begin within a row.
  static constexpr __host__ __device__ std::uint32_t Columns(int column) {
    return column / kPanelColumns * kPanelBytes + column % kPanelColumns * 2;
  }

  // For wgmma: as its b in MatrixOrder::kAsIs, of as many columns from `first_column` on, a
  // multiple of 64, as the instruction has. Rows 0 to 15; others lie Rows(row) behind. The next 64
  // columns are the next panel, the next eight rows are 1024 bytes behind.
  __device__ __forceinline__ std::uint64_t ColumnsFrom(int first_column) const {
    return MatrixDescriptor{
        .start = SharedAddress(data) + first_column / kPanelColumns * kPanelBytes,
        .leading_offset = kPanelBytes,
        .stride_offset = kEightRowsBytes,
        .swizzle = MatrixSwizzle::k128Bytes}
        .Word();
  }
  // A multiple of 16.
  static constexpr __host__ __device__ std::uint32_t Rows(int row) { return row * kPanelRowBytes; }
};

}  // namespace ferry::cuda::prim
