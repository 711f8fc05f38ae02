// Makes, keeps and hands out buffers of lanes.
#include "ferry/tcpx/lane/lane_buffers.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <string_view>
#include <utility>

#include "ferry/core/deadline.h"
#include "ferry/cuda/address.h"
#include "ferry/cuda/registrable_memory.h"

namespace ferry::tcpx {
namespace {

// Pieces of all chunks of the window, where each is as scattered as a row of the plugin's can be.
constexpr std::uint64_t kMaxPieces = std::uint64_t{1} << 15;

KernelExecutorOptions KernelOptions() {
  KernelExecutorOptions options;
  options.most_blocks = kMaxPieces;
  return options;
}

// Copies into GPU memory as it was asked to, and by the kernel what only kernels do in the same
// batch: copies between host memory and host memory, and from host memory beside GPU memory.
class ChosenExecutor final : public DeviceExecutor {
 public:
  ChosenExecutor(std::unique_ptr<DeviceExecutor> chosen, std::unique_ptr<DeviceExecutor> kernel,
                 std::span<const std::byte> slots)
      : chosen_(std::move(chosen)), kernel_(std::move(kernel)), slots_(slots) {}

  std::string_view name() const noexcept override { return kernel_->name(); }
  Status Enqueue(cuda::StreamRef stream, cuda::CopyKind kind,
                 std::span<const PlacedList> lists) override {
    for (const PlacedList& list : lists) {
      const bool by_kernel =
          InSlots(list.dst) || (kind == cuda::CopyKind::kDeviceToDevice && InSlots(list.src));
      FERRY_TRY((by_kernel ? *kernel_ : *chosen_).Enqueue(stream, kind, {&list, 1}));
    }
    return Ok();
  }

 private:
  bool InSlots(const Place& place) const {
    return place.address - cuda::AddressOf(slots_.data()) < slots_.size();
  }

  const std::unique_ptr<DeviceExecutor> chosen_;
  const std::unique_ptr<DeviceExecutor> kernel_;
  const std::span<const std::byte> slots_;
};

Result<std::unique_ptr<Unpacker>> MakeUnpacker(const LaneGpu& gpu, const UnpackerOptions& options,
                                               std::span<const std::byte> slots) {
  if (!gpu || options.by == UnpackBy::kKernel || options.by == UnpackBy::kAuto) {
    return Unpacker::Create(gpu.api, gpu.ordinal, options);
  }
  std::unique_ptr<DeviceExecutor> chosen = MakeDmaExecutor(gpu.api);
  if (options.by == UnpackBy::kHost) {
    FERRY_TRY_ASSIGN(chosen, MakeHostExecutor(gpu.api, gpu.ordinal));
  }
  FERRY_TRY_ASSIGN(auto kernel, MakeKernelExecutor(gpu.api, gpu.ordinal, KernelOptions()));
  return Unpacker::CreateWith(
      gpu.api, gpu.ordinal,
      std::make_unique<ChosenExecutor>(std::move(chosen), std::move(kernel), slots), options);
}

}  // namespace

Result<std::unique_ptr<LaneBuffers>> MakeBuffers(const LaneGpu& gpu, const BufferShape& shape) {
  auto buffers = std::make_unique<LaneBuffers>();
  FERRY_TRY_ASSIGN(buffers->slots, MapHugePages(shape.slots * shape.chunk_bytes));
  std::byte* const at = buffers->slots.bytes.data();
  buffers->slots_place = Place::OnDevice(at);
  UnpackerOptions options;
  options.by = UnpackBy::kHost;
  options.most_pieces = kMaxPieces;
  if (gpu) {
    FERRY_TRY_ASSIGN(buffers->pin,
                     gpu.api->RegisterHost(gpu.ordinal, at, buffers->slots.bytes.size()));
    FERRY_TRY_ASSIGN(buffers->slots_place, Place::OnHost(*gpu.api, gpu.ordinal, at));
    if (shape.gpu_slots > 0) {
      const std::size_t bytes = shape.gpu_slots * shape.chunk_bytes;
      FERRY_TRY_ASSIGN(auto on_gpu, cuda::AllocateRegistrable(gpu.api, gpu.ordinal, bytes));
      buffers->gpu_memory = std::move(on_gpu.buffer);
      buffers->gpu_slots = {on_gpu.data, bytes};
    }
    options.by = gpu.by;
    options.kind = shape.kind;
  }
  FERRY_TRY_ASSIGN(buffers->unpacker, MakeUnpacker(gpu, options, buffers->slots.bytes));
  return buffers;
}

Result<std::unique_ptr<LaneBuffers>> LaneBufferPool::Take(const LaneGpu& gpu,
                                                          const BufferShape& shape) {
  DestroyIdle();
  {
    const std::lock_guard lock(mutex_);
    if (!kept_.empty()) {
      auto buffers = std::move(kept_.back());
      kept_.pop_back();
      return buffers;
    }
  }
  return MakeBuffers(gpu, shape);
}

void LaneBufferPool::Give(std::unique_ptr<LaneBuffers> buffers) {
  DestroyIdle();
  // With an error, or a copy that has not ended, they are of no use.
  const auto completed = buffers->unpacker->Completed();
  if (!completed || buffers->unpacker->in_flight() > 0) return;
  const std::lock_guard lock(mutex_);
  kept_.push_back(std::move(buffers));
}

void LaneBufferPool::KeepStuck(std::shared_ptr<void> half, Unpacker* unpacker) {
  const std::lock_guard lock(mutex_);
  stuck_.push_back({std::move(half), unpacker});
}

void LaneBufferPool::DestroyIdle() {
  std::vector<Stuck> idle;
  {
    const std::lock_guard lock(mutex_);
    const auto first = std::partition(stuck_.begin(), stuck_.end(),
                                      [](const Stuck& stuck) { return !stuck.IsIdle(); });
    std::move(first, stuck_.end(), std::back_inserter(idle));
    stuck_.erase(first, stuck_.end());
  }
  idle.clear();  // without the mutex, since their ends call Give()
}

// The stream is asked and not Completed(), which fails after any error, also while copies run. No
// copy of a lost GPU runs.
bool LaneBufferPool::Stuck::IsIdle() const {
  const Status idle = unpacker->Drain(Deadline::After(std::chrono::seconds(0)));
  return idle || idle.error().code() != Code::kTimedOut;
}

}  // namespace ferry::tcpx
