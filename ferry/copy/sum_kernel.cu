// The kernel that computes CRC-32C while it copies.
#include "ferry/copy/block_rounds.cuh"
#include "ferry/copy/sum_kernel.h"
#include "ferry/core/crc32c_parts.h"
#include "ferry/cuda/launch.cuh"
#include "ferry/cuda/prim/warp_copy.cuh"

namespace ferry {
namespace {

constexpr unsigned kWordBytes = 16;
constexpr unsigned kRowBytes = cuda::prim::kWarpThreads * kWordBytes;
// A lane's state is multiplied by x^(8 * kRowBytes) from one of its words to the next. The tables
// do all of that at once with each word, so that after the last one it is ahead by this many bytes.
constexpr unsigned kAhead = kRowBytes - kWordBytes;
// Offsets in lists are split: bytes from a multiple of the first, multiples of it, and of the
// second.
constexpr unsigned kNear = 4096;
constexpr unsigned kFar = 64;
static_assert(std::uint64_t{kNear} * kFar * kFar >= kMaxSummedBytes);

struct alignas(16) Tables {
  // What a byte that k bytes of its word follow adds to the state.
  std::uint32_t bytes[kWordBytes][256];
  // x^(-8 * i): from the end of a word or byte that lies i - kAhead bytes behind a multiple of
  // kNear.
  std::uint32_t near[kNear + kSumPiece + kAhead + 1];
  std::uint32_t far[kFar];   // x^(-8 * kNear * i)
  std::uint32_t most[kFar];  // x^(-8 * kNear * kFar * i)
};

constexpr Tables MakeTables() {
  Tables tables{};
  for (unsigned k = 0; k < kWordBytes; ++k) {
    const std::uint32_t power = CrcPower(k + 1 + kAhead, kCrcForward);
    for (unsigned bit = 1; bit < 256; bit *= 2) {
      tables.bytes[k][bit] = CrcMultiply(bit, power);
      for (unsigned low = 1; low < bit; ++low) {
        tables.bytes[k][bit + low] = tables.bytes[k][bit] ^ tables.bytes[k][low];
      }
    }
  }
  std::uint32_t value = kCrcOne;
  for (std::uint32_t& each : tables.near) {
    each = value;
    for (int i = 0; i < 8; ++i) value = CrcOverX(value);
  }
  for (unsigned i = 0; i < kFar; ++i) {
    tables.far[i] = CrcPower(std::uint64_t{kNear} * i, kCrcBack);
    tables.most[i] = CrcPower(std::uint64_t{kNear} * kFar * i, kCrcBack);
  }
  return tables;
}

__device__ constexpr Tables kTables = MakeTables();

using ByteTables = std::uint32_t[kWordBytes][256];

// The state that four bytes of a word leave, of which the last has `after` bytes of it behind it.
template <unsigned kAfter>
__device__ __forceinline__ std::uint32_t Quarter(const ByteTables& tables, std::uint32_t bytes) {
  return tables[kAfter + 3][bytes & 255] ^ tables[kAfter + 2][bytes >> 8 & 255] ^
         tables[kAfter + 1][bytes >> 16 & 255] ^ tables[kAfter][bytes >> 24];
}

// Sums the blocks of a warp. A lane has the CRC of its own words, as if those of other lanes were
// zeros, and moves it to the start of the list at the end of each block.
class WarpSum {
 public:
  explicit __device__ WarpSum(const ByteTables& tables) : tables_(tables) {}

  // A block that begins this many bytes into its list comes next.
  __device__ __forceinline__ void Begin(std::uint32_t offset) {
    multiple_ = offset / kNear;
    near_ = kTables.near + offset % kNear + kAhead;
  }
  __device__ __forceinline__ void AddByte(std::uint32_t byte, std::uint64_t at) {
    AddBefore(tables_[0][byte], at + 1);
  }
  __device__ __forceinline__ void AddWord(const uint4& word) {
    state_ = Quarter<12>(tables_, word.x ^ state_) ^ Quarter<8>(tables_, word.y) ^
             Quarter<4>(tables_, word.z) ^ Quarter<0>(tables_, word.w);
  }
  __device__ __forceinline__ void EndWords(std::uint64_t at, std::uint64_t words, unsigned lane) {
    if (lane >= words) return;
    const auto rows = static_cast<std::uint32_t>(words - lane - 1) / cuda::prim::kWarpThreads;
    AddBefore(state_, at + (lane + 1) * kWordBytes + rows * kRowBytes);
    state_ = 0;
  }
  // The block is complete; the same for all lanes.
  __device__ __forceinline__ void End() {
    std::uint32_t part = __reduce_xor_sync(cuda::prim::kAllLanes, part_);
    if (multiple_ % kFar != 0) part = CrcMultiply(part, kTables.far[multiple_ % kFar]);
    if (multiple_ >= kFar) part = CrcMultiply(part, kTables.most[multiple_ / kFar]);
    sum_ ^= part;
    part_ = 0;
  }
  // The blocks' contributions since the last call.
  __device__ __forceinline__ std::uint32_t Take() {
    const std::uint32_t sum = sum_;
    sum_ = 0;
    return sum;
  }

 private:
  __device__ __forceinline__ void AddBefore(std::uint32_t state, std::uint64_t end) {
    part_ ^= CrcMultiply(state, near_[end]);
  }

  const ByteTables& tables_;
  const std::uint32_t* near_ = kTables.near;
  std::uint32_t multiple_ = 0;
  std::uint32_t state_ = 0;  // of this lane's words
  std::uint32_t part_ = 0;   // this lane's contributions of the block
  std::uint32_t sum_ = 0;
};

// The list in which a warp's blocks lie.
struct ListOfWarp {
  std::uint64_t start = 0;
  std::uint32_t length = 0;
  std::uint32_t row = 0;
};

__device__ __forceinline__ ListOfWarp FindList(const SumKernelArguments& given, std::uint64_t at,
                                               unsigned lane) {
  const unsigned mine = lane % kMaxSummed;
  const bool here = at - given.starts[mine] < given.lengths[mine];
  const unsigned row = __ffs(static_cast<int>(__ballot_sync(cuda::prim::kAllLanes, here))) - 1;
  return {given.starts[row], given.lengths[row], row};
}

// Few thread blocks run, one on a multiprocessor: all registers are theirs.
__global__ void __launch_bounds__(kBlockKernelThreads, 1)
    SumKernel(const __grid_constant__ SumKernelArguments given) {
  __shared__ uint4 held[kBlockKernelThreads];
  __shared__ alignas(16) ByteTables tables;
  constexpr unsigned kTableWords = sizeof tables / sizeof(uint4);
  // The tables are arrays of words, and aligned to 16.
  for (unsigned i = threadIdx.x; i < kTableWords; i += kBlockKernelThreads) {
    reinterpret_cast<uint4*>(&tables)[i] = reinterpret_cast<const uint4*>(&kTables.bytes)[i];
  }
  const unsigned lane = threadIdx.x % cuda::prim::kWarpThreads;
  const unsigned cell = blockIdx.x * kBlockKernelWarps + threadIdx.x / cuda::prim::kWarpThreads;
  WarpSum sum(tables);
  ListOfWarp list;
  const auto write = [&] {
    const std::uint32_t value = sum.Take();
    if (lane != 0 || list.length == 0) return;
    std::uint32_t* const to = given.cells + list.row * kSumCells + cell;
    *to = given.again ? *to ^ value : value;
  };
  // ForEachBlock() waits for all threads before the first block: the tables are complete then.
  ForEachBlock(given.blocks, given.count, held,
               [&](std::uint64_t dst, std::uint64_t src, std::uint64_t len) {
                 if (len == 0) return;  // in no list
                 const std::uint64_t at = given.by_source ? src : dst;
                 if (at - list.start >= list.length) {
                   write();
                   list = FindList(given, at, lane);
                 }
                 sum.Begin(static_cast<std::uint32_t>(at - list.start));
                 cuda::prim::WarpCopy(dst, src, len, lane, sum);
                 sum.End();
               });
  write();
}

}  // namespace

Status LaunchSumKernel(cuda::StreamRef stream, const void* arguments) {
  const auto& given = *static_cast<const SumKernelArguments*>(arguments);
  const cuda::LaunchConfig config{.grid = given.groups, .block = kBlockKernelThreads};
  return cuda::Launch(stream, kSumKernel.name, config, SumKernel, given);
}

}  // namespace ferry
