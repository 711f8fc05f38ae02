// Types that all versions of NCCL's network plugin interface share.
#pragma once
#include <cstddef>
#include <cstdint>

// The parts of NCCL's network plugin interface that all its versions share; abi_v5.h to abi_v12.h
// have the rest. A plugin exports a table as the data symbol "ncclNetPlugin_v<N>". Source: the
// plugin documentation and headers of NVIDIA/nccl 2.12 to 2.30; sizes and offsets hold for LP64.
//
// All functions return an Outcome and let no exception out.
namespace ferry::net::nccl_abi {

// ncclResult_t.
enum Outcome : int {
  kSuccess = 0,
  kCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};
const char* OutcomeName(int outcome) noexcept;  // "ncclSystemError"; "unknown" for others

inline constexpr std::size_t kHandleBytes = 128;  // handle of listen() and connect()
inline constexpr int kPointerHost = 1;            // kinds of memory, and bits of ptr_support
inline constexpr int kPointerCuda = 2;
inline constexpr int kPointerDmaBuf = 4;
inline constexpr int kFirstWithFinalize = 11;  // first version with finalize()
inline constexpr int kDeviceTypeHost = 0;
inline constexpr int kDeviceTypeUnpack = 1;
inline constexpr int kDeviceVersionUnpack = 7;
inline constexpr std::size_t kMaxRequests = 32;                         // in flight, per comm
inline constexpr std::size_t kMaxRequestsV6 = 8;                        // the same up to v6
inline constexpr std::uint64_t kMaxRegisteredV7 = 0x7fffffff;           // bytes: an int
inline constexpr std::uint64_t kMaxMessageV8 = std::uint64_t{1} << 30;  // bytes, up to v8

// May be called by any thread of the plugin, for as long as the process lives. `flags` are bits
// that name a part of NCCL.
enum LogLevel : int {
  kLogNone = 0,
  kLogVersion = 1,
  kLogWarn = 2,
  kLogInfo = 3,
  kLogAbort = 4,
  kLogTrace = 5,
};
using Logger = void (*)(int level, unsigned long flags, const char* file, int line,
                        const char* format, ...);

// From v7 on: how kernels access received data. The caller owns this memory; the plugin fills it
// in.
struct DeviceHandle {
  int type = 0;
  int version = 0;
  void* handle = nullptr;  // a device pointer
  std::size_t size = 0;    // of the memory at `handle`
  int needs_proxy_progress = 0;
};
static_assert(sizeof(DeviceHandle) == 32 && offsetof(DeviceHandle, handle) == 8 &&
              offsetof(DeviceHandle, size) == 16 &&
              offsetof(DeviceHandle, needs_proxy_progress) == 24);

// From v10 on: called by a plugin for each piece of its work.
using ProfilerCallback = int (*)(void** event, int type, void* parent, std::int64_t plugin,
                                 void* data);

// From v10 on.
struct CommConfig {
  int traffic_class = -1;
};
static_assert(sizeof(CommConfig) == 4);

// From v9 on: the devices that form a virtual one.
template <int kMax>
struct VirtualDevice {
  int count = 0;
  int devices[kMax] = {};
};
static_assert(sizeof(VirtualDevice<4>) == 20 && sizeof(VirtualDevice<8>) == 36);

}  // namespace ferry::net::nccl_abi
