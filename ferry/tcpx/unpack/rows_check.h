// Rules for the rows of a message, for the CPU and for device code.
#pragma once
#include <cstdint>

#include "ferry/tcpx/unpack/fragments.h"

#ifdef __CUDACC__
#define FERRY_ROWS_BOTH __device__ constexpr  // .cu files use it in kernels only
#else
#define FERRY_ROWS_BOTH constexpr
#endif

namespace ferry::tcpx {

// What is wrong with a row, whatever the others are.
FERRY_ROWS_BOTH FragmentProblem ProblemOf(const Fragment& row, std::uint64_t pool_bytes,
                                          std::uint64_t message_bytes) noexcept {
  if (row.len == 0) return FragmentProblem::kEmpty;
  if (std::uint64_t{row.src} + row.len > pool_bytes) return FragmentProblem::kOutOfPool;
  if (row.dst > message_bytes || row.len > message_bytes - row.dst) {
    return FragmentProblem::kOutOfMessage;
  }
  return FragmentProblem::kNone;
}

FERRY_ROWS_BOTH bool Covers(const Fragment& row, std::uint64_t byte) noexcept {
  return row.dst <= byte && byte < row.dst + row.len;
}

// Rows that come in any order cover their message, each byte once, if and only if
// - each is right by itself and together they have the message's length,
// - one begins at 0 and no two begin at the same byte,
// - each ends where another one begins, or with the message.
// Proof: sorted by their beginnings b1 = 0 < b2 < ..., row i is at least b(i+1) - b(i) long by the
// third rule, and the last one ends with the message. These minimums have the message's length
// together, so none is longer.
// Hence a table of the beginnings decides, and nothing is sorted. It has twice as many slots as
// there may be rows, probed from here on.
inline constexpr std::uint32_t kRowSlots = 4096;
static_assert(kRowSlots == 2 * kMaxFragments);
FERRY_ROWS_BOTH std::uint32_t SlotOf(std::uint64_t dst) noexcept {
  return static_cast<std::uint32_t>(dst * 0x9E3779B97F4A7C15U >> 52);
}

// A part of a posted receive: the message's bytes from the end of the previous run up to `end` go
// to their offset plus `shift`, modulo 2^64. No run is empty.
struct alignas(16) RowsRun {
  std::uint64_t end = 0;
  std::uint64_t shift = 0;
};

// Calls fn(dst, src, len) for the pieces of a row of at most `longest` bytes, cut where runs end.
// The row must lie within the runs; src is relative to the pool.
template <class Fn>
FERRY_ROWS_BOTH void ForEachPiece(const Fragment& row, const RowsRun* runs, std::uint32_t longest,
                                  std::uint32_t run_count, Fn&& fn) {
  // The first run that ends behind the row's first byte.
  std::uint32_t run = 0;
  for (std::uint32_t above = run_count - 1; run < above;) {
    const std::uint32_t middle = (run + above) / 2;
    if (runs[middle].end > row.dst) {
      above = middle;
    } else {
      run = middle + 1;
    }
  }
  for (std::uint32_t done = 0; done < row.len;) {
    const std::uint64_t at = row.dst + done;
    const std::uint64_t in_run = runs[run].end - at;
    std::uint32_t take = row.len - done < longest ? row.len - done : longest;
    if (in_run <= take) take = static_cast<std::uint32_t>(in_run);
    fn(at + runs[run].shift, std::uint64_t{row.src} + done, take);
    done += take;
    if (in_run == take) ++run;
  }
}
// The most pieces that the rows of a message become.
constexpr std::uint64_t MostPieces(std::uint64_t rows, std::uint64_t runs, std::uint64_t bytes,
                                   std::uint32_t longest) noexcept {
  return rows + runs + bytes / longest;
}

}  // namespace ferry::tcpx

#undef FERRY_ROWS_BOTH
