// Measures the DMA and kernel executors and chooses between them.
#include "ferry/copy/copy_costs.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "ferry/core/deadline.h"

namespace ferry {
namespace {

using cuda::CopyKind;

constexpr std::uint64_t kScratch = std::uint64_t{32} << 20;  // of each scratch memory
constexpr std::size_t kMaxDmaBlocks = 64;  // the cost per block is constant beyond
constexpr std::size_t kMaxKernelBlocks = 8192;
constexpr int kRuns = 5;
constexpr auto kMeasureTimeout = std::chrono::seconds(30);
constexpr std::array kKinds{CopyKind::kHostToDevice, CopyKind::kDeviceToHost,
                            CopyKind::kDeviceToDevice};

// The position of a size in the table: the point before it, and the fraction to the next, 0 to 1.
std::pair<std::size_t, double> Locate(std::uint64_t bytes) {
  const std::uint64_t size =
      std::clamp(bytes, CopyCost::SizeAt(0), CopyCost::SizeAt(CopyCost::kSizes - 1));
  // CopyCost::SizeAt(i) is 256 * 4^i, so the position is the logarithm to base 4.
  const double at = std::log2(static_cast<double>(size) / 256) / 2;
  const auto index = std::min(static_cast<std::size_t>(at), CopyCost::kSizes - 2);
  return {index, at - static_cast<double>(index)};
}

// Interpolates the logarithms, since the costs are spread over several powers of ten.
double Between(double a, double b, double part) {
  return std::exp(std::log(a) * (1 - part) + std::log(b) * part);
}

// Spins: a sleeping wait would distort measurements of microseconds.
Status SpinUntil(cuda::DeviceApi& api, const cuda::Event& event, Deadline deadline) {
  for (;;) {
    FERRY_TRY_ASSIGN(const bool ready, api.Query(event));
    if (ready) return Ok();
    if (deadline.expired()) return Error(Code::kTimedOut, "a copy that is measured does not end");
  }
}

// Times block lists on one GPU between scratch memories of its own.
class Meter {
 public:
  static Result<Meter> Make(cuda::DeviceApi* api, int ordinal) {
    Meter meter(api);
    FERRY_TRY_ASSIGN(meter.stream_, api->CreateStream(ordinal, cuda::StreamPriority::kNormal));
    FERRY_TRY_ASSIGN(meter.end_, api->CreateEvent(ordinal, cuda::EventTiming::kOff));
    FERRY_TRY_ASSIGN(meter.from_, api->AllocateDevice(ordinal, kScratch));
    FERRY_TRY_ASSIGN(meter.to_, api->AllocateDevice(ordinal, kScratch));
    FERRY_TRY_ASSIGN(meter.host_, api->AllocatePinned(ordinal, kScratch));
    FERRY_TRY_ASSIGN(meter.host_place_, Place::OnHost(*api, ordinal, meter.host_.data()));
    return meter;
  }

  // Two measurements for each size: one block alone, and as many as fit half of the scratch memory.
  // The second one less the fixed cost of a call is what each further block costs. The fixed cost
  // is that of the smallest block; noise cannot make the rest less than a tenth of the total.
  Result<CopyCost> Measure(DeviceExecutor* executor, CopyKind kind, std::size_t most_blocks) const {
    std::array<CopyCost::Point, CopyCost::kSizes> points;
    double fixed = 0;
    for (std::size_t i = 0; i < points.size(); ++i) {
      const std::uint64_t bytes = CopyCost::SizeAt(i);
      const std::size_t many = std::clamp<std::size_t>(kScratch / 2 / bytes, 2, most_blocks);
      FERRY_TRY_ASSIGN(points[i].alone, Best(executor, kind, bytes, 1));
      if (i == 0) fixed = points[i].alone;
      FERRY_TRY_ASSIGN(const double all, Best(executor, kind, bytes, many));
      const double rest = std::max(all - fixed, all * 0.1);
      points[i].each = rest / static_cast<double>(many);
    }
    return CopyCost(fixed, points);
  }

 private:
  explicit Meter(cuda::DeviceApi* api) : api_(api) {}

  // Leaves a gap after each block, so that no two can be joined.
  Result<double> Best(DeviceExecutor* executor, CopyKind kind, std::uint64_t bytes,
                      std::size_t count) const {
    const std::uint64_t step = std::min(2 * bytes, kScratch / count);
    BlockList list;
    for (std::size_t i = 0; i < count; ++i) list.Add({i * step, i * step, std::min(bytes, step)});
    PlacedList placed;
    placed.blocks = list.blocks();
    placed.src = kind == CopyKind::kHostToDevice ? host_place_ : Place::OnDevice(from_.data());
    placed.dst = kind == CopyKind::kDeviceToHost ? host_place_ : Place::OnDevice(to_.data());
    // The best run, as others may have been disturbed; seconds.
    double best = 1e9;
    for (int run = 0; run < kRuns; ++run) {
      const auto begin = Clock::now();
      FERRY_TRY(executor->Enqueue(stream_, kind, {&placed, 1}));
      FERRY_TRY(api_->Record(end_, stream_));
      FERRY_TRY(SpinUntil(*api_, end_, Deadline::After(kMeasureTimeout)));
      best = std::min(best, std::chrono::duration<double>(Clock::now() - begin).count());
    }
    return best;
  }

  cuda::DeviceApi* api_;
  cuda::Stream stream_;
  cuda::Event end_;
  cuda::DeviceBuffer from_;
  cuda::DeviceBuffer to_;
  cuda::PinnedBuffer host_;
  Place host_place_;
};

Result<CopyCosts> Measure(cuda::DeviceApi* api, int ordinal) {
  const auto begin = Clock::now();
  CopyCosts costs;
  FERRY_TRY_ASSIGN(const Meter meter, Meter::Make(api, ordinal));
  const auto dma = MakeDmaExecutor(api);
  FERRY_TRY_ASSIGN(const auto kernel, MakeKernelExecutor(api, ordinal));
  for (const CopyKind kind : kKinds) {
    auto& direction = costs.directions[static_cast<std::size_t>(kind)];
    FERRY_TRY_ASSIGN(direction.dma, meter.Measure(dma.get(), kind, kMaxDmaBlocks));
    FERRY_TRY_ASSIGN(direction.kernel, meter.Measure(kernel.get(), kind, kMaxKernelBlocks));
  }
  costs.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return costs;
}

class AutoExecutor final : public DeviceExecutor {
 public:
  AutoExecutor(const CopyCosts* costs, std::unique_ptr<DeviceExecutor> dma,
               std::unique_ptr<DeviceExecutor> kernel)
      : costs_(costs), dma_(std::move(dma)), kernel_(std::move(kernel)) {}

  std::string_view name() const noexcept override { return "auto"; }

  Status Enqueue(cuda::StreamRef stream, CopyKind kind,
                 std::span<const PlacedList> lists) override {
    const auto& costs = costs_->of(kind);
    CopyCost::Sum by_dma(&costs.dma);
    CopyCost::Sum by_kernel(&costs.kernel);
    for (const PlacedList& list : lists) AddSample(list.blocks, &by_dma, &by_kernel);
    DeviceExecutor& cheaper = by_dma.seconds() <= by_kernel.seconds() ? *dma_ : *kernel_;
    return cheaper.Enqueue(stream, kind, lists);
  }

 private:
  // Samples a few blocks, each of which stands for its neighbours: reading all of a long list would
  // take longer than a wrong choice costs.
  static void AddSample(std::span<const Block> blocks, CopyCost::Sum* by_dma,
                        CopyCost::Sum* by_kernel) {
    constexpr std::size_t kSamples = 64;
    const std::size_t step = blocks.size() / kSamples + 1;
    for (std::size_t i = 0; i < blocks.size(); i += step) {
      const auto weight = static_cast<double>(std::min(step, blocks.size() - i));
      by_kernel->Add(blocks[i].len, weight);
      // The copy engine takes a run of adjacent blocks as one.
      std::size_t last = i;
      std::uint64_t run = blocks[i].len;
      while (last + 1 < blocks.size() && last < i + kSamples &&
             blocks[last].dst + blocks[last].len == blocks[last + 1].dst &&
             blocks[last].src + blocks[last].len == blocks[last + 1].src) {
        run += blocks[++last].len;
      }
      by_dma->Add(run, weight / static_cast<double>(last - i + 1));
    }
  }

  const CopyCosts* const costs_;
  const std::unique_ptr<DeviceExecutor> dma_;
  const std::unique_ptr<DeviceExecutor> kernel_;
};

}  // namespace

CopyCost::Point CopyCost::At(std::uint64_t block_bytes) const {
  const auto [index, part] = Locate(block_bytes);
  Point point;
  point.alone = Between(points_[index].alone, points_[index + 1].alone, part);
  point.each = Between(points_[index].each, points_[index + 1].each, part);
  // Larger blocks take longer in proportion to their size.
  if (const std::uint64_t last = SizeAt(kSizes - 1); block_bytes > last) {
    const double more = static_cast<double>(block_bytes - last) / static_cast<double>(last);
    point.alone += point.each * more;
    point.each += point.each * more;
  }
  return point;
}

void CopyCost::Sum::Add(std::uint64_t block_bytes, double count) {
  if (block_bytes != last_bytes_) {
    last_ = cost_->At(block_bytes);
    last_bytes_ = block_bytes;
  }
  alone_ = std::max(alone_, last_.alone);
  each_ += last_.each * count;
}

// A list takes at least as long as its slowest block alone.
double CopyCost::Sum::seconds() const noexcept { return std::max(alone_, cost_->fixed_ + each_); }

std::string CopyCost::Describe() const {
  std::string text = fmt::format("{:.1f} us", fixed_ * 1e6);
  for (std::size_t i = 0; i < kSizes; ++i) {
    text += fmt::format("  {} KiB: {:.1f} GB/s", static_cast<double>(SizeAt(i)) / 1024,
                        static_cast<double>(SizeAt(i)) / points_[i].each / 1e9);
  }
  return text;
}

std::string CopyCosts::Describe() const {
  std::string text;
  for (const CopyKind kind : kKinds) {
    text += fmt::format("{} dma     {}\n{} kernel  {}\n", CopyKindName(kind),
                        of(kind).dma.Describe(), CopyKindName(kind), of(kind).kernel.Describe());
  }
  return text;
}

Result<const CopyCosts*> MeasuredCopyCosts(cuda::DeviceApi* api, int ordinal) {
  // Held while a GPU is measured, so that two threads do not disturb each other's measurement. The
  // map is never destroyed: executors keep pointers to its values, which std::map does not move.
  static std::mutex mutex;
  static auto& measured = *new std::map<std::pair<cuda::DeviceApi*, int>, CopyCosts>;
  const std::lock_guard lock(mutex);
  const auto it = measured.find({api, ordinal});
  if (it != measured.end()) return &it->second;
  FERRY_TRY_ASSIGN(CopyCosts costs, Measure(api, ordinal));
  return &measured.emplace(std::pair(api, ordinal), std::move(costs)).first->second;
}

Result<std::unique_ptr<DeviceExecutor>> MakeAutoExecutor(cuda::DeviceApi* api, int ordinal,
                                                         const KernelExecutorOptions& options) {
  FERRY_TRY_ASSIGN(const CopyCosts* costs, MeasuredCopyCosts(api, ordinal));
  FERRY_TRY_ASSIGN(auto kernel, MakeKernelExecutor(api, ordinal, options));
  return std::unique_ptr<DeviceExecutor>(
      std::make_unique<AutoExecutor>(costs, MakeDmaExecutor(api), std::move(kernel)));
}

}  // namespace ferry
