// Arguments of the kernel that checks the rows of messages and copies their fragments.
#pragma once
#include <cstdint>

#include "ferry/copy/block_kernel.h"
#include "ferry/cuda/device_api.h"
#include "ferry/tcpx/unpack/fragments.h"
#include "ferry/tcpx/unpack/rows_check.h"

namespace ferry::tcpx {

inline constexpr std::uint32_t kRowsMessages = 64;  // of a launch: as many as its arguments hold
inline constexpr std::uint32_t kRowsThreads = 256;
// The announcement of a message is stored this many times, so that the warps that wait for it do
// not all read one address.
inline constexpr std::uint32_t kAnnouncements = 32;
inline constexpr std::uint32_t kAnnouncedWords = kAnnouncements * kRowsMessages;

// A message whose rows lie in memory that the GPU can access. Addresses are mapped ones.
struct RowsMessage {
  const Fragment* rows = nullptr;
  const RowsRun* runs = nullptr;  // cover the message's bytes
  std::uint64_t pool = 0;
  std::uint64_t pool_bytes = 0;
  std::uint64_t bytes = 0;
  std::uint16_t count = 0;  // of rows, 1 to kMaxFragments
  std::uint16_t run_count = 0;
  std::uint32_t list_begin = 0;  // its pieces begin here in RowsKernelArguments::list
};

struct RowsKernelArguments {
  RowsMessage messages[kRowsMessages];
  FragmentFault* faults = nullptr;  // in mapped memory: one for each message, which is written
  // In device memory; used by no other launch that may run at the same time.
  PackedBlock* list = nullptr;  // room for MostPieces() of each message
  // kAnnouncements times a word for each message: `launch` above the number of its pieces.
  std::uint64_t* announced = nullptr;
  std::uint32_t* ticket = nullptr;  // 0 before each launch and after it; shared by all launches
  std::uint32_t launch = 0;         // differs from that of earlier launches with these words
  std::uint32_t count = 0;          // of messages
  std::uint32_t longest = 0;        // piece; a multiple of 16
  std::uint32_t readers = 0;        // thread blocks that read rows; at most `count`
  std::uint32_t groups = 1;         // thread blocks, more than `readers`
  bool early = false;               // as LaunchConfig has it
};
static_assert(sizeof(RowsKernelArguments) <= cuda::kMaxArgumentBytes);

// For each message: checks its rows as FragmentReader does, then copies its fragments, if they are
// right, and otherwise writes nothing to its runs; says in `faults` which. Each row is read once,
// by one thread block, whose verdict and copy of the rows hold for all: what was checked is what is
// copied, even if somebody still writes the rows.
extern const cuda::Kernel kRowsKernel;

}  // namespace ferry::tcpx
