// The memory layout behind GPUDirect-TCPX's handles and requests.
#pragma once
#include <cstddef>
#include <cstdint>

#include "ferry/tcpx/unpack/fragments.h"

// The data behind the handles of GPUDirect-TCPX (plugin 3.1.9): where the fragments of a received
// message lie. Only the first part is an interface, between the plugin and NCCL's kernels
// (NCCL_NET_DEVICE_UNPACK, version 7). The request is internal to the plugin, and is checked
// against the first part before it is used. Sizes and offsets hold for LP64.
namespace ferry::tcpx::layout {

inline constexpr std::size_t kRows = 16;                     // receives in flight, per comm
inline constexpr std::size_t kRowFragments = kMaxFragments;  // per receive
inline constexpr std::size_t kRegistrationAlignment = 4096;

// In pinned host memory. Fragments of a row are in order of arrival, not of `dst`; the row's count
// is written after them, with release.
struct UnpackMeta {
  Fragment rows[kRows][kRowFragments];
  std::uint64_t counts[kRows];
};
static_assert(sizeof(UnpackMeta) == 524'416 && offsetof(UnpackMeta, counts) == 524'288);

// In GPU memory, at DeviceHandle::handle.
struct UnpackHandle {
  UnpackMeta* meta = nullptr;
  std::byte* bounce_pool = nullptr;  // in GPU memory; the same for all comms of a GPU
  std::uint64_t head = 0;            // begins at 2^64 - 1; the n-th receive has row n % kRows
};
static_assert(sizeof(UnpackHandle) == 24 && offsetof(UnpackHandle, bounce_pool) == 8 &&
              offsetof(UnpackHandle, head) == 16);

// The request that the plugin's irecv() and isend() return.
struct Request {
  void* comm = nullptr;
  void* data = nullptr;
  int operation = 0;    // 0: send, 1: receive
  int memory_kind = 0;  // nccl_abi::kPointer…
  int next_socket = -1;
  int next_size = 0;
  int offset = 0;
  int size = 0;           // posted bytes; later the sender's total
  int size_pending = -1;  // 0: finished
  int memory_fd = -1;
  int memory_offset = 0;
  alignas(8) bool active = false;  // this and all further fields describe the row
  std::uint64_t row = 0;
  Fragment* fragments = nullptr;   // UnpackMeta::rows[row]
  std::uint64_t* count = nullptr;  // UnpackMeta::counts[row]; null until the row is taken
  std::uint64_t count_so_far = 0;
  void* fd_count = nullptr;
  void* token_counts = nullptr;
  void* fds = nullptr;
  void* tokens = nullptr;
};
static_assert(sizeof(Request) == 128 && offsetof(Request, data) == 8 &&
              offsetof(Request, operation) == 16 && offsetof(Request, memory_kind) == 20 &&
              offsetof(Request, size) == 36 && offsetof(Request, size_pending) == 40 &&
              offsetof(Request, active) == 56 && offsetof(Request, row) == 64 &&
              offsetof(Request, fragments) == 72 && offsetof(Request, count) == 80 &&
              offsetof(Request, count_so_far) == 88 && offsetof(Request, tokens) == 120);

}  // namespace ferry::tcpx::layout
