// Structures that GPUDirect-TCPX (plugin 3.1.9) keeps behind its handles, as the plugin writes
// them. Written for the stand-in from the description of the plugin and not shared with
// ferry/tcpx, which reads them, so that a wrong offset on one side shows as a mismatch.
// Offsets are for LP64.
#pragma once
#include <cstddef>
#include <cstdint>

namespace ferry::standin::tcpx {

inline constexpr std::size_t kRows = 16;                       // receives in flight, of one comm
inline constexpr std::size_t kRowFragments = 2048;             // of one receive
inline constexpr std::size_t kRegistrationAlignment = 0x1000;  // of GPU memory

// loadMeta.
struct alignas(16) Fragment {
  std::uint32_t src = 0;  // src_off: from the pool's base
  std::uint32_t len = 0;
  std::uint64_t dst = 0;  // dst_off: from the beginning of the receive
};
static_assert(sizeof(Fragment) == 16 && alignof(Fragment) == 16);
static_assert(offsetof(Fragment, src) == 0);
static_assert(offsetof(Fragment, len) == 4);
static_assert(offsetof(Fragment, dst) == 8);

// netUnpackMeta: in pinned memory of the host's.
struct UnpackMeta {
  Fragment rows[kRows][kRowFragments];
  std::uint64_t counts[kRows];
};
static_assert(sizeof(UnpackMeta) == 524416);
static_assert(sizeof(UnpackMeta::rows[0]) == 32768);
static_assert(offsetof(UnpackMeta, rows) == 0);
static_assert(offsetof(UnpackMeta, counts) == 524288);

// unpackNetDeviceHandle: in the GPU's memory.
struct UnpackHandle {
  UnpackMeta* meta;
  std::byte* bounce_pool;
  std::uint64_t head;
};
static_assert(sizeof(UnpackHandle) == 24);
static_assert(offsetof(UnpackHandle, meta) == 0);
static_assert(offsetof(UnpackHandle, bounce_pool) == 8);
static_assert(offsetof(UnpackHandle, head) == 16);

// tcpxRequest, with the unpackSlot that begins at 56.
struct Request {
  void* comm = nullptr;
  void* data = nullptr;
  std::int32_t operation = 0;    // op: 0 send, 1 receive
  std::int32_t memory_kind = 0;  // mem_type: 1 host, 2 CUDA
  std::int32_t next_sock_id = -1;
  std::int32_t next_size = 0;
  std::int32_t offset = 0;
  std::int32_t size = 0;           // what was posted, and then the sender's total
  std::int32_t size_pending = -1;  // 0: finished
  std::int32_t gpu_mem_fd = -1;
  std::int32_t gpu_mem_off = 0;
  std::int32_t padding = 0;
  bool active = false;
  std::uint64_t row = 0;           // idx
  Fragment* fragments = nullptr;   // mem
  std::uint64_t* count = nullptr;  // cnt
  std::uint64_t count_so_far = 0;  // cnt_cache
  std::uint64_t* fds_cnt = nullptr;
  std::uint64_t* pgtok_cnts = nullptr;
  std::int32_t* fds = nullptr;
  void* pgtoks = nullptr;
};
static_assert(sizeof(Request) == 128);
static_assert(offsetof(Request, comm) == 0);
static_assert(offsetof(Request, data) == 8);
static_assert(offsetof(Request, operation) == 16);
static_assert(offsetof(Request, memory_kind) == 20);
static_assert(offsetof(Request, next_sock_id) == 24);
static_assert(offsetof(Request, next_size) == 28);
static_assert(offsetof(Request, offset) == 32);
static_assert(offsetof(Request, size) == 36);
static_assert(offsetof(Request, size_pending) == 40);
static_assert(offsetof(Request, gpu_mem_fd) == 44);
static_assert(offsetof(Request, gpu_mem_off) == 48);
static_assert(offsetof(Request, active) == 56);
static_assert(offsetof(Request, row) == 64);
static_assert(offsetof(Request, fragments) == 72);
static_assert(offsetof(Request, count) == 80);
static_assert(offsetof(Request, count_so_far) == 88);
static_assert(offsetof(Request, fds_cnt) == 96);
static_assert(offsetof(Request, pgtok_cnts) == 104);
static_assert(offsetof(Request, fds) == 112);
static_assert(offsetof(Request, pgtoks) == 120);

}  // namespace ferry::standin::tcpx
