// The kernel that checks the rows of messages and copies their fragments.
#include "ferry/cuda/launch.cuh"
#include "ferry/cuda/prim/grid_order.cuh"
#include "ferry/cuda/prim/warp_copy.cuh"
#include "ferry/tcpx/unpack/rows_kernel.h"

// One thread block reads the rows of a message over the bus, checks them, and leaves pieces to copy
// in the GPU's memory; all other thread blocks copy the messages in turn, each as soon as it is
// announced. Reasons:
// - The bus is the narrow place: 8 messages of 2048 rows take it 5 us. If each of k thread blocks
//   read the rows by itself, they would take k times as long, and verdicts could differ where
//   somebody writes the rows. Here there is one reading and one verdict.
// - A kernel for the check and one for the copy would wait for the last message before the first is
//   copied; here a few readers begin with the first messages, and the bus works on the next ones
//   while these are copied.
// Thread blocks wait for others of their grid, which need not all be resident. Therefore roles are
// given by a ticket, not by the block's index: the readers are those that run first.
namespace ferry::tcpx {
namespace {

constexpr unsigned kWarps = kRowsThreads / cuda::prim::kWarpThreads;
constexpr unsigned kRowsOfThread = kMaxFragments / kRowsThreads;
constexpr unsigned short kFreeSlot = 0xffff;
static_assert(kAnnouncements == cuda::prim::kWarpThreads);  // one is stored by each lane

// What a reader holds of a message.
struct Held {
  uint4 rows[kMaxFragments];
  uint4 runs[kMaxMessageRuns];
  unsigned short slots[kRowSlots];  // row that begins at a byte (SlotOf)
  unsigned long long bytes;         // of all rows; later the first byte that is written twice
  std::uint32_t first;              // smallest index of a faulty row
  std::uint32_t second;
  std::uint32_t pieces;
};
static_assert(sizeof(Held) <= 48 * 1024 - 64);

__device__ __forceinline__ Fragment FragmentOf(const uint4& word) {
  return {word.x, word.y, std::uint64_t{word.w} << 32 | word.z};
}
__device__ __forceinline__ std::uint64_t EndOf(const uint4& word) {
  return (std::uint64_t{word.w} << 32 | word.z) + word.y;
}

// As Pack() and Unpack(), for device code.
__device__ __forceinline__ PackedBlock Packed(std::uint64_t dst, std::uint64_t src,
                                              std::uint64_t len) {
  constexpr unsigned kAbove = PackedBlock::kAddressBits;
  return {dst | len << kAbove, src | len >> PackedBlock::kHalfBits << kAbove};
}
__device__ __forceinline__ Block BlockOf(const uint4& word) {
  constexpr unsigned kAbove = PackedBlock::kAddressBits;
  const std::uint64_t dst = std::uint64_t{word.y} << 32 | word.x;
  const std::uint64_t src = std::uint64_t{word.w} << 32 | word.z;
  return {dst & (kAddressLimit - 1), src & (kAddressLimit - 1),
          src >> kAbove << PackedBlock::kHalfBits | dst >> kAbove};
}

// Calls fn(index) for the rows of this thread.
template <class Fn>
__device__ __forceinline__ void ForOwnRows(std::uint32_t count, Fn&& fn) {
  for (std::uint32_t i = threadIdx.x; i < count; i += kRowsThreads) fn(i);
}

// All rows at once, so that the bus is waited for once. Returns whether each is right by itself.
__device__ __forceinline__ bool TakeRows(const RowsMessage& message, Held& held) {
  // The layout of a row and of a run is that of 16 bytes.
  const auto* const rows = reinterpret_cast<const uint4*>(message.rows);
  const auto* const runs = reinterpret_cast<const uint4*>(message.runs);
  uint4 mine[kRowsOfThread];
#pragma unroll
  for (unsigned i = 0; i < kRowsOfThread; ++i) {
    const unsigned at = threadIdx.x + i * kRowsThreads;
    if (at < message.count) mine[i] = cuda::prim::LoadOnce(rows + at);
  }
  if (threadIdx.x < message.run_count) {
    held.runs[threadIdx.x] = cuda::prim::LoadOnce(runs + threadIdx.x);
  }
  bool right = true;
#pragma unroll
  for (unsigned i = 0; i < kRowsOfThread; ++i) {
    const unsigned at = threadIdx.x + i * kRowsThreads;
    if (at >= message.count) break;
    held.rows[at] = mine[i];
    if (ProblemOf(FragmentOf(mine[i]), message.pool_bytes, message.bytes) !=
        FragmentProblem::kNone) {
      atomicMin(&held.first, at);
      right = false;
    }
  }
  return __syncthreads_and(right);
}
static_assert(kMaxMessageRuns <= kRowsThreads);

// Whether each row begins where the previous one ends, which is the usual case.
__device__ __forceinline__ bool AreInOrder(const RowsMessage& message, const Held& held) {
  bool chained = true;
  ForOwnRows(message.count, [&](std::uint32_t i) {
    const std::uint64_t before = i == 0 ? 0 : EndOf(held.rows[i - 1]);
    chained &= FragmentOf(held.rows[i]).dst == before;
    if (i + 1 == message.count) chained &= EndOf(held.rows[i]) == message.bytes;
  });
  return __syncthreads_and(chained);
}

__device__ __forceinline__ void AddBytes(const RowsMessage& message, Held& held) {
  unsigned long long sum = 0;
  ForOwnRows(message.count, [&](std::uint32_t i) { sum += held.rows[i].y; });
  for (unsigned step = cuda::prim::kWarpThreads / 2; step > 0; step /= 2) {
    sum += __shfl_down_sync(cuda::prim::kAllLanes, sum, step);
  }
  if (threadIdx.x % cuda::prim::kWarpThreads == 0) atomicAdd(&held.bytes, sum);
  __syncthreads();
}

// The rules are those of SlotOf(). A hostile row can make each search as long as the table, which
// bounds what a message can cost.
__device__ __forceinline__ bool AreDisjoint(const RowsMessage& message, Held& held) {
  for (unsigned i = threadIdx.x; i < kRowSlots; i += kRowsThreads) held.slots[i] = kFreeSlot;
  __syncthreads();
  bool right = true;
  bool begins = false;
  ForOwnRows(message.count, [&](std::uint32_t i) {
    const std::uint64_t dst = FragmentOf(held.rows[i]).dst;
    begins |= dst == 0;
    for (std::uint32_t at = SlotOf(dst);; at = (at + 1) % kRowSlots) {
      const unsigned short found =
          atomicCAS(&held.slots[at], kFreeSlot, static_cast<unsigned short>(i));
      if (found == kFreeSlot) break;
      if (FragmentOf(held.rows[found]).dst == dst) {
        right = false;
        break;
      }
    }
  });
  if (__syncthreads_or(begins) == 0) return false;
  ForOwnRows(message.count, [&](std::uint32_t i) {
    const std::uint64_t end = EndOf(held.rows[i]);
    if (end == message.bytes) return;
    for (std::uint32_t at = SlotOf(end);; at = (at + 1) % kRowSlots) {
      const unsigned short found = held.slots[at];
      if (found == kFreeSlot) right = false;
      if (found == kFreeSlot || FragmentOf(held.rows[found]).dst == end) return;
    }
  });
  return __syncthreads_and(right);
}

// Some two rows overlap. Finds the first byte that is written twice, and the first two rows that
// write it: row by row, as only a message that is refused needs it.
__device__ __noinline__ void FindOverlap(const RowsMessage& message, Held& held) {
  if (threadIdx.x == 0) {
    held.bytes = ~0ULL;
    held.second = kMaxFragments;
  }
  __syncthreads();
  ForOwnRows(message.count, [&](std::uint32_t i) {
    const unsigned long long dst = FragmentOf(held.rows[i]).dst;
    for (std::uint32_t other = 0; other < message.count; ++other) {
      if (other != i && Covers(FragmentOf(held.rows[other]), dst)) atomicMin(&held.bytes, dst);
    }
  });
  __syncthreads();
  ForOwnRows(message.count, [&](std::uint32_t i) {
    if (Covers(FragmentOf(held.rows[i]), held.bytes)) atomicMin(&held.first, i);
  });
  __syncthreads();
  ForOwnRows(message.count, [&](std::uint32_t i) {
    if (i != held.first && Covers(FragmentOf(held.rows[i]), held.bytes)) {
      atomicMin(&held.second, i);
    }
  });
  __syncthreads();
}

// The problem of the message that is held; with it, held.first, .second and .bytes.
__device__ __forceinline__ FragmentProblem Judge(const RowsMessage& message, Held& held) {
  if (threadIdx.x == 0) {
    held.bytes = 0;
    held.first = kMaxFragments;
    held.pieces = 0;
  }
  __syncthreads();
  if (!TakeRows(message, held)) {
    return ProblemOf(FragmentOf(held.rows[held.first]), message.pool_bytes, message.bytes);
  }
  if (AreInOrder(message, held)) return FragmentProblem::kNone;
  AddBytes(message, held);
  if (held.bytes != message.bytes) return FragmentProblem::kTotal;
  if (AreDisjoint(message, held)) return FragmentProblem::kNone;
  FindOverlap(message, held);
  return FragmentProblem::kOverlap;
}

__device__ __noinline__ void TellFault(FragmentProblem problem, const Held& held,
                                       FragmentFault* fault) {
  FragmentFault told;
  told.problem = problem;
  told.bytes = held.bytes;
  if (problem != FragmentProblem::kTotal) {
    told.first = held.first;
    told.first_value = FragmentOf(held.rows[held.first]);
  }
  if (problem == FragmentProblem::kOverlap) {
    told.second = held.second;
    told.second_value = FragmentOf(held.rows[held.second]);
  }
  *fault = told;
}

// Leaves the pieces of the held message in the list, in any order.
__device__ __forceinline__ void ListPieces(const RowsMessage& message, std::uint32_t longest,
                                           PackedBlock* list, Held& held) {
  // The layout of a run is that of 16 bytes.
  const auto* const runs = reinterpret_cast<const RowsRun*>(held.runs);
  std::uint32_t mine = 0;
  ForOwnRows(message.count, [&](std::uint32_t i) {
    ForEachPiece(FragmentOf(held.rows[i]), runs, longest, message.run_count,
                 [&](std::uint64_t, std::uint64_t, std::uint32_t) { ++mine; });
  });
  std::uint32_t at = atomicAdd(&held.pieces, mine);
  ForOwnRows(message.count, [&](std::uint32_t i) {
    ForEachPiece(FragmentOf(held.rows[i]), runs, longest, message.run_count,
                 [&](std::uint64_t dst, std::uint64_t src, std::uint32_t len) {
                   list[at++] = Packed(dst, message.pool + src, len);
                 });
  });
  __syncthreads();
}

__device__ __forceinline__ void ReadMessage(const RowsKernelArguments& given, std::uint32_t index,
                                            Held& held) {
  const RowsMessage& message = given.messages[index];
  const FragmentProblem problem = Judge(message, held);
  if (problem == FragmentProblem::kNone) {
    ListPieces(message, given.longest, given.list + message.list_begin, held);
    if (threadIdx.x == 0) given.faults[index].problem = problem;
  } else if (threadIdx.x == 0) {
    TellFault(problem, held, given.faults + index);
  }
  if (threadIdx.x < kAnnouncements) {
    __threadfence();  // the list, which all threads have written before the barrier, comes first
    volatile std::uint64_t* const words = given.announced + threadIdx.x * kRowsMessages;
    words[index] = std::uint64_t{given.launch} << 32 | held.pieces;
  }
  __syncthreads();  // `held` is used again
}

// Waits for the announcement of a message and returns the number of its pieces.
__device__ __forceinline__ std::uint32_t PiecesOf(const RowsKernelArguments& given,
                                                  std::uint32_t index, std::uint32_t warp) {
  const volatile std::uint64_t* const words =
      given.announced + warp % kAnnouncements * kRowsMessages;
  std::uint64_t word = words[index];
  while (static_cast<std::uint32_t>(word >> 32) != given.launch) {
    __nanosleep(40);
    word = words[index];
  }
  __threadfence();  // the list is read after the announcement
  return __shfl_sync(cuda::prim::kAllLanes, static_cast<std::uint32_t>(word), 0);
}

// The pieces of all messages are dealt to the warps in turn, so that all share each message.
__device__ __forceinline__ void CopyMessages(const RowsKernelArguments& given, std::uint32_t warp,
                                             std::uint32_t warps) {
  const unsigned lane = threadIdx.x % cuda::prim::kWarpThreads;
  std::uint32_t next = warp;  // piece, counted from the first of the message
  for (std::uint32_t i = 0; i < given.count; ++i) {
    const std::uint32_t pieces = PiecesOf(given, i, warp);
    const PackedBlock* const list = given.list + given.messages[i].list_begin;
    for (; next < pieces; next += warps) {
      // The layout of a piece is that of 16 bytes.
      const uint4 word = cuda::prim::LoadOnce(reinterpret_cast<const uint4*>(list + next));
      const Block block = BlockOf(word);
      cuda::prim::NoSum none;
      cuda::prim::WarpCopy<true>(block.dst, block.src, block.len, lane, none);
    }
    next -= pieces;
  }
}

// Thread blocks for whose `held` a multiprocessor has shared memory, which is 164 KiB on sm_80,
// 100 KiB on sm_86, sm_89 and sm_120, 228 KiB elsewhere. Registers for four of them spill on sm_80
// and sm_120.
constexpr int RowsBlocks() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 800
  return 3;
#elif defined(__CUDA_ARCH__) && (__CUDA_ARCH__ < 900 || __CUDA_ARCH__ >= 1200)
  return 2;
#else
  return 4;
#endif
}

__global__ void __launch_bounds__(kRowsThreads, RowsBlocks())
    RowsKernel(const __grid_constant__ RowsKernelArguments given) {
  __shared__ Held held;
  __shared__ std::uint32_t taken;
  // Wraps to 0 with the last thread block, before the next grid can begin.
  if (threadIdx.x == 0) taken = atomicInc(given.ticket, gridDim.x - 1);
  __syncthreads();
  const std::uint32_t ticket = taken;
  if (ticket < given.readers) {
    cuda::prim::LetNextGridBegin();
    for (std::uint32_t i = ticket; i < given.count; i += given.readers) ReadMessage(given, i, held);
    return;
  }
  // What readers write before this belongs to this launch alone: list and announcements alternate
  // between two places, and the launch before the previous one has ended.
  cuda::prim::GridDependencySynchronize();
  cuda::prim::LetNextGridBegin();
  const std::uint32_t warp =
      (ticket - given.readers) * kWarps + threadIdx.x / cuda::prim::kWarpThreads;
  CopyMessages(given, warp, (gridDim.x - given.readers) * kWarps);
}

}  // namespace

Status LaunchRowsKernel(cuda::StreamRef stream, const void* arguments) {
  const auto& given = *static_cast<const RowsKernelArguments*>(arguments);
  const cuda::LaunchConfig config{
      .grid = given.groups, .block = kRowsThreads, .early = given.early};
  return cuda::Launch(stream, kRowsKernel.name, config, RowsKernel, given);
}

}  // namespace ferry::tcpx
