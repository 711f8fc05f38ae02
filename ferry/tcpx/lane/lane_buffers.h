// What the receiving half of a lane needs of GPU and host memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "ferry/copy/device_executor.h"
#include "ferry/core/mapping.h"
#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"
#include "ferry/tcpx/lane/lane_gpu.h"
#include "ferry/tcpx/unpack/unpacker.h"

namespace ferry::tcpx {

// Buffers that plugins receive into, and the unpacker that copies from there.
struct LaneBuffers {
  HugeMemory slots;            // a chunk each
  cuda::HostRegistration pin;  // of those, with a GPU
  Place slots_place;           // of those
  cuda::DeviceBuffer gpu_memory;
  std::span<std::byte> gpu_slots;  // of it; empty: none were asked for
  std::unique_ptr<Unpacker> unpacker;
};

struct BufferShape {
  std::uint64_t chunk_bytes = 0;
  std::size_t slots = 0;
  std::size_t gpu_slots = 0;  // with a GPU
  // From where the plugin leaves messages to GPU memory.
  cuda::CopyKind kind = cuda::CopyKind::kDeviceToDevice;
};

// Errors: those of mmap(2) and of DeviceApi.
Result<std::unique_ptr<LaneBuffers>> MakeBuffers(const LaneGpu& gpu, const BufferShape& shape);

// Keeps the buffers of lanes that have ended for later ones, because freeing GPU or pinned memory
// blocks until the device is idle, and a stream of it may wait for the very operation that a new
// lane is to end. All of one shape. It holds the buffers of as many lanes as there were at once,
// and gives none back while it lives. Any thread.
class LaneBufferPool {
 public:
  // Kept ones, or new ones; errors are those of MakeBuffers().
  Result<std::unique_ptr<LaneBuffers>> Take(const LaneGpu& gpu, const BufferShape& shape);
  // Nothing may use them any more.
  void Give(std::unique_ptr<LaneBuffers> buffers);
  // The receiving half of a lane whose GPU is stuck, with all that its copies read: kept until the
  // GPU has ended them or is lost, and destroyed by the next call of another function after that.
  // Where the half has a share of the pool, neither ends before.
  void KeepStuck(std::shared_ptr<void> half, Unpacker* unpacker);
  // Destroys such halves whose copies have ended. All functions but KeepStuck() begin with it, and
  // are called with the GPU current, because the ends of halves call the plugin.
  void DestroyIdle();

 private:
  struct Stuck {
    std::shared_ptr<void> half;    // owned here alone
    Unpacker* unpacker = nullptr;  // of the half
    bool IsIdle() const;
  };

  std::mutex mutex_;
  // Under mutex_.
  std::vector<std::unique_ptr<LaneBuffers>> kept_;
  std::vector<Stuck> stuck_;
};

}  // namespace ferry::tcpx
