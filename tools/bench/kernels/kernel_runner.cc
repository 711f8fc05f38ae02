// Times cases in CUDA graphs over several sets of buffers and measures copy ceilings.

#include "tools/bench/kernels/kernel_runner.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <random>
#include <span>
#include <string>

#include "ferry/copy/device_executor.h"
#include "ferry/core/deadline.h"
#include "ferry/core/units.h"
#include "ferry/kernels/number.h"
#include "tools/bench/copies/prepared_copy.h"
#include "tools/bench/kernels/kernel_check.h"
#include "tools/support/report.h"

namespace ferry::tools {
namespace {

using cuda::CopyKind;
using kernels::DType;

constexpr auto kKernelTimeout = std::chrono::seconds(10);
constexpr auto kWarmUp = std::chrono::milliseconds(300);
constexpr std::size_t kMinSamples = 20;
constexpr std::size_t kBatch = 5;  // samples in flight at once
constexpr std::size_t kTinyBatch = 3;
constexpr double kMaxOverrun = 10;  // times the seconds asked for, whatever samples there are then
constexpr std::size_t kMaxSamples = 400;
constexpr std::size_t kMinSets = 2;
constexpr std::size_t kMaxSets = 256;
constexpr std::size_t kTinySets = 3;
// A graph should take about this long, so that its own launch does not count.
constexpr double kGraphSeconds = 1e-3;
// For guessing that; a GPU that is slower or faster only has longer or shorter graphs.
constexpr double kGuessedBytesPerSecond = 4e12;
constexpr double kGuessedFlopsPerSecond = 4e14;
constexpr double kGuessedLaunchSeconds = 2e-6;
constexpr std::uint64_t kMaxSlab = 8 * kGiB;
// L2 caches have up to 126 MiB.
constexpr std::uint64_t kColdBytes = 256 * kMiB;
constexpr std::uint64_t kPattern = 4 * kMiB;
constexpr std::uint64_t kTinyPattern = 64 * kKiB;
constexpr std::size_t kPatterns = 5;
constexpr int kPoisonByte = 0xa5;
constexpr std::uint64_t kChecked = 256 * kKiB;  // from both ends of results
constexpr std::size_t kPiece = 16;              // bytes of poison that cannot be a result

// As cudaMalloc() aligns.
std::uint64_t AlignUp(std::uint64_t bytes) { return (bytes + 255) / 256 * 256; }

std::uint64_t SetBytes(const KernelCase& one, bool shared) {
  std::uint64_t bytes = 0;
  for (const KernelBuffer& buffer : one.buffers) {
    if (buffer.shared == shared) bytes += AlignUp(buffer.bytes);
  }
  return bytes;
}

// Five patterns, of which buffers are filled: bf16 numbers, fp32 numbers, poison, logits, e4m3
// numbers.
void FillPatterns(std::span<std::byte> patterns) {
  const std::size_t bytes = patterns.size() / kPatterns;
  std::mt19937_64 random(std::random_device{}());
  std::uniform_real_distribution<float> number(-1, 1);
  for (std::size_t at = 0; at < bytes; at += sizeof(std::uint16_t)) {
    const std::uint16_t bits = kernels::ToBfloat16(number(random));
    std::memcpy(patterns.data() + at, &bits, sizeof bits);
  }
  for (std::size_t at = bytes; at < 2 * bytes; at += sizeof(float)) {
    const float value = number(random);
    std::memcpy(patterns.data() + at, &value, sizeof value);
  }
  std::memset(patterns.data() + 2 * bytes, kPoisonByte, bytes);
  std::normal_distribution<float> logit(0, 3);
  for (std::size_t at = 3 * bytes; at < 4 * bytes; at += sizeof(std::uint16_t)) {
    const std::uint16_t bits = kernels::ToBfloat16(logit(random));
    std::memcpy(patterns.data() + at, &bits, sizeof bits);
  }
  for (std::byte& one : patterns.subspan(4 * bytes)) {
    one = std::byte{kernels::ToE4m3(number(random))};
  }
}

double SecondsOf(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

// A graph launches the case once for each set of buffers: enough sets to fill a millisecond, and so
// many bytes that no set is still in the L2 cache when its turn comes again.
std::size_t SetsOf(const KernelCase& one, bool tiny) {
  if (tiny) return kTinySets;
  const double guessed = static_cast<double>(one.bytes) / kGuessedBytesPerSecond +
                         one.flops / kGuessedFlopsPerSecond + kGuessedLaunchSeconds;
  const std::uint64_t room = kMaxSlab / std::max<std::uint64_t>(SetBytes(one, false), 1);
  return std::clamp<std::size_t>(
      std::min<std::size_t>(static_cast<std::size_t>(kGraphSeconds / guessed), room), kMinSets,
      kMaxSets);
}

// The buffers of all sets, in one allocation: first those that they share.
struct KernelRunner::Slab {
  cuda::DeviceBuffer memory;
  std::uint64_t shared = 0;
  std::uint64_t stride = 0;  // from set to set
  std::size_t sets = 0;
  std::vector<std::uint64_t> offsets;  // of each buffer, in the slab or in its set
  std::vector<bool> is_shared;

  std::byte* data() const { return static_cast<std::byte*>(memory.data()); }
  std::vector<void*> Addresses(std::size_t set) const {
    std::vector<void*> addresses;
    for (std::size_t i = 0; i < offsets.size(); ++i) {
      addresses.push_back(data() + (is_shared[i] ? 0 : shared + set * stride) + offsets[i]);
    }
    return addresses;
  }
};

// The resources of a measurement; the kernels of a case may use them for as long as they run.
struct KernelRunner::Measured {
  std::function<Status(const KernelStream&, KernelAddresses)> launch;
  Slab slab;
  cuda::Graph graph;
};

Result<std::unique_ptr<KernelRunner>> KernelRunner::Create(cuda::DeviceApi* api,
                                                           const Options& options) {
  std::unique_ptr<KernelRunner> runner(new KernelRunner(api, options));
  const Status prepared = runner->Prepare();
  if (prepared) return runner;
  // See Measure().
  if (prepared.error().code() == Code::kTimedOut) static_cast<void>(runner.release());
  return prepared.error();
}

Status KernelRunner::Prepare() {
  const int ordinal = options_.ordinal;
  FERRY_TRY_ASSIGN(stream_, api_->CreateStream(ordinal, cuda::StreamPriority::kNormal));
  for (std::size_t i = 0; i < kBatch; ++i) {
    for (auto* events : {&begins_, &ends_}) {
      FERRY_TRY_ASSIGN(cuda::Event event, api_->CreateEvent(ordinal, cuda::EventTiming::kOn));
      events->push_back(std::move(event));
    }
  }
  FERRY_TRY_ASSIGN(flushed_,
                   api_->AllocateDevice(ordinal, options_.tiny ? kTinyPattern : kColdBytes));
  FERRY_TRY(MakePatterns());
  return WarmUp();
}

Status KernelRunner::MakePatterns() {
  const std::uint64_t bytes = kPatterns * (options_.tiny ? kTinyPattern : kPattern);
  FERRY_TRY_ASSIGN(patterns_, api_->AllocateDevice(options_.ordinal, bytes));
  FERRY_TRY_ASSIGN(staging_, api_->AllocatePinned(options_.ordinal, bytes));
  FillPatterns(staging_.bytes());
  const cuda::CopyItem item{patterns_.data(), staging_.data(), bytes};
  FERRY_TRY(api_->Copy(stream_, CopyKind::kHostToDevice, {&item, 1}));
  auto* const flushed = static_cast<std::byte*>(flushed_.data());
  const std::uint64_t filled = std::min<std::uint64_t>(bytes, flushed_.size());
  const cuda::CopyItem first{flushed, patterns_.data(), filled};
  FERRY_TRY(api_->Copy(stream_, CopyKind::kDeviceToDevice, {&first, 1}));
  FERRY_TRY(Repeat(flushed, filled, flushed_.size()));
  return api_->Wait(stream_, Deadline::After(kKernelTimeout));
}

// Doubles what is filled with each copy, so that gigabytes take a few copies within the GPU.
Status KernelRunner::Repeat(std::byte* at, std::uint64_t filled, std::uint64_t bytes) {
  while (filled < bytes) {
    const cuda::CopyItem item{at + filled, at, std::min(filled, bytes - filled)};
    FERRY_TRY(api_->Copy(stream_, CopyKind::kDeviceToDevice, {&item, 1}));
    filled += item.bytes;
  }
  return Ok();
}

Status KernelRunner::Upload(std::byte* at, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto part = bytes.first(std::min(bytes.size(), staging_.size()));
    std::memcpy(staging_.data(), part.data(), part.size());
    const cuda::CopyItem item{at, staging_.data(), part.size()};
    FERRY_TRY(api_->Copy(stream_, CopyKind::kHostToDevice, {&item, 1}));
    FERRY_TRY(api_->Wait(stream_, Deadline::After(kKernelTimeout)));
    at += part.size();
    bytes = bytes.subspan(part.size());
  }
  return Ok();
}

Status KernelRunner::Download(const std::byte* from, std::span<std::byte> to) {
  while (!to.empty()) {
    const auto part = to.first(std::min(to.size(), staging_.size()));
    const cuda::CopyItem item{staging_.data(), from, part.size()};
    FERRY_TRY(api_->Copy(stream_, CopyKind::kDeviceToHost, {&item, 1}));
    FERRY_TRY(api_->Wait(stream_, Deadline::After(kKernelTimeout)));
    std::memcpy(part.data(), staging_.data(), part.size());
    from += part.size();
    to = to.subspan(part.size());
  }
  return Ok();
}

Status KernelRunner::FillBuffer(const KernelBuffer& buffer, std::byte* at) {
  using Holds = KernelBuffer::Holds;
  if (buffer.bytes == 0) return Ok();
  // Tables of indexes have to be right, and are the only contents that come from the host.
  if (buffer.holds == Holds::kTable) return Upload(at, buffer.table);
  const std::uint64_t bytes = patterns_.size() / kPatterns;
  std::size_t pattern = kernels::SizeOf(buffer.dtype) == 4 ? 1 : 0;
  if (buffer.holds == Holds::kLogits) {
    pattern = 3;
  } else if (buffer.holds != Holds::kNumbers) {
    pattern = 2;
  } else if (kernels::SizeOf(buffer.dtype) == 1) {
    pattern = 4;
  }
  const std::uint64_t filled = std::min(bytes, buffer.bytes);
  const cuda::CopyItem item{at, static_cast<std::byte*>(patterns_.data()) + pattern * bytes,
                            filled};
  FERRY_TRY(api_->Copy(stream_, CopyKind::kDeviceToDevice, {&item, 1}));
  return Repeat(at, filled, buffer.bytes);
}

Status KernelRunner::MakeSlab(const KernelCase& one, Slab* slab) {
  slab->sets = SetsOf(one, options_.tiny);
  slab->shared = SetBytes(one, true);
  slab->stride = SetBytes(one, false);
  std::uint64_t next[2] = {0, 0};
  for (const KernelBuffer& buffer : one.buffers) {
    slab->offsets.push_back(next[buffer.shared ? 1 : 0]);
    slab->is_shared.push_back(buffer.shared);
    next[buffer.shared ? 1 : 0] += AlignUp(buffer.bytes);
  }
  FERRY_TRY_ASSIGN(slab->memory, api_->AllocateDevice(options_.ordinal,
                                                      slab->shared + slab->stride * slab->sets));
  const std::vector<void*> first = slab->Addresses(0);
  for (std::size_t i = 0; i < one.buffers.size(); ++i) {
    FERRY_TRY(FillBuffer(one.buffers[i], static_cast<std::byte*>(first[i])));
  }
  // All sets have the same contents as the first one.
  FERRY_TRY(Repeat(slab->data() + slab->shared, slab->stride, slab->stride * slab->sets));
  return api_->Wait(stream_, Deadline::After(kKernelTimeout));
}

// Finds 16 bytes in a row that are poison still: a kernel that skips a part would be fast.
Result<bool> KernelRunner::IsWritten(const std::byte* at, std::uint64_t bytes) {
  const cuda::CopyItem item{staging_.data(), at, bytes};
  FERRY_TRY(api_->Copy(stream_, CopyKind::kDeviceToHost, {&item, 1}));
  FERRY_TRY(api_->Wait(stream_, Deadline::After(kKernelTimeout)));
  const auto got = staging_.bytes().first(bytes);
  for (std::size_t from = 0; from < bytes; from += kPiece) {
    const auto piece = got.subspan(from, std::min<std::size_t>(kPiece, bytes - from));
    if (std::all_of(piece.begin(), piece.end(),
                    [](std::byte one) { return one == std::byte{kPoisonByte}; })) {
      return false;
    }
  }
  return true;
}

// Checks the first set of buffers, from both ends.
Status KernelRunner::CheckResults(const KernelCase& one, const Slab& slab) {
  const std::vector<void*> addresses = slab.Addresses(0);
  for (std::size_t i = 0; i < one.buffers.size(); ++i) {
    const KernelBuffer& buffer = one.buffers[i];
    if (buffer.holds != KernelBuffer::Holds::kResults || buffer.bytes == 0) continue;
    const auto most = std::min<std::uint64_t>({kChecked, staging_.size(), buffer.bytes});
    for (const std::uint64_t from : {std::uint64_t{0}, (buffer.bytes - most) / kPiece * kPiece}) {
      FERRY_TRY_ASSIGN(const bool written,
                       IsWritten(static_cast<const std::byte*>(addresses[i]) + from,
                                 std::min(most, buffer.bytes - from)));
      if (written) continue;
      return Error(Code::kCorrupt,
                   fmt::format("{} left parts of its result unwritten (buffer {}, {} bytes); run "
                               "ferry_kernels_test on this GPU",
                               NameOf(one), i, buffer.bytes));
    }
  }
  return Ok();
}

// Compares the first set of buffers.
Result<std::size_t> KernelRunner::CompareResults(const KernelCase& one, const Slab& slab) {
  return CompareWithCpu(
      one, slab.Addresses(0),
      [this](const std::byte* from, std::span<std::byte> to) { return Download(from, to); });
}

Status KernelRunner::Flush() {
  auto* const flushed = static_cast<std::byte*>(flushed_.data());
  // A copy of 128 MiB, more than any L2 cache has, leaves nothing of the case's buffers there.
  const std::uint64_t half = flushed_.size() / 2;
  const cuda::CopyItem item{flushed + half, flushed, half};
  return api_->Copy(stream_, CopyKind::kDeviceToDevice, {&item, 1});
}

// A GPU that has nothing to do is slow at first.
Status KernelRunner::WarmUp() {
  const Deadline warm = Deadline::After(options_.tiny ? Clock::duration::zero() : kWarmUp);
  while (!warm.expired()) {
    for (std::size_t i = 0; i < kMinSamples; ++i) FERRY_TRY(Flush());
    FERRY_TRY(api_->Wait(stream_, Deadline::After(kKernelTimeout)));
  }
  return Ok();
}

// One batch is queued as a whole, behind a replay that nobody times: the device waits for the host
// only before that.
Result<std::vector<double>> KernelRunner::Sample(const cuda::Graph& graph, bool flush) {
  const std::size_t least = options_.tiny ? kTinyBatch : kMinSamples;
  const std::size_t batch = options_.tiny ? kTinyBatch : kBatch;
  std::vector<double> samples;
  double sum = 0;
  while (samples.size() < least || (sum < options_.seconds && samples.size() < kMaxSamples)) {
    FERRY_TRY(api_->Replay(stream_, graph));
    for (std::size_t i = 0; i < batch; ++i) {
      if (flush) FERRY_TRY(Flush());
      FERRY_TRY(api_->Record(begins_[i], stream_));
      FERRY_TRY(api_->Replay(stream_, graph));
      FERRY_TRY(api_->Record(ends_[i], stream_));
    }
    FERRY_TRY(api_->Wait(ends_[batch - 1], Deadline::After(kKernelTimeout)));
    for (std::size_t i = 0; i < batch; ++i) {
      FERRY_TRY_ASSIGN(const auto between, api_->Elapsed(begins_[i], ends_[i]));
      samples.push_back(SecondsOf(between));
      sum += samples.back();
    }
    if (options_.tiny || sum > kMaxOverrun * options_.seconds) break;
  }
  return samples;
}

Result<KernelTimes> KernelRunner::Measure(const KernelCase& one) {
  auto on = std::make_unique<Measured>();
  on->launch = one.launch;
  Result<KernelTimes> times = MeasureOn(one, on.get());
  // A kernel that has not ended may still use its buffers, so they are leaked rather than freed.
  if (!times && times.error().code() == Code::kTimedOut) static_cast<void>(on.release());
  return times;
}

Result<KernelTimes> KernelRunner::MeasureOn(const KernelCase& one, Measured* on) {
  FERRY_TRY(MakeSlab(one, &on->slab));
  const Slab& slab = on->slab;
  const KernelStream to{.api = api_, .stream = stream_};
  // Loads the kernel's code, too, before it is captured.
  FERRY_TRY(on->launch(to, slab.Addresses(0)));
  FERRY_TRY(api_->Wait(stream_, Deadline::After(kKernelTimeout)));
  FERRY_TRY(CheckResults(one, slab));
  FERRY_TRY_ASSIGN(const std::size_t checked, CompareResults(one, slab));
  FERRY_TRY_ASSIGN(on->graph, api_->Capture(stream_, [&]() -> Status {
    for (std::size_t set = 0; set < slab.sets; ++set) {
      FERRY_TRY(on->launch(to, slab.Addresses(set)));
    }
    return Ok();
  }));
  for (int warm = 0; warm < 2; ++warm) FERRY_TRY(api_->Replay(stream_, on->graph));
  FERRY_TRY(api_->Wait(stream_, Deadline::After(kKernelTimeout)));
  const bool flush = slab.stride * slab.sets < kColdBytes;
  FERRY_TRY_ASSIGN(std::vector<double> samples, Sample(on->graph, flush));
  for (double& sample : samples) sample /= static_cast<double>(slab.sets);
  return KernelTimes{.median = Median(samples),
                     .p10 = Percentile(samples, 0.1),
                     .p90 = Percentile(samples, 0.9),
                     .least = *std::min_element(samples.begin(), samples.end()),
                     .most = *std::max_element(samples.begin(), samples.end()),
                     .launches = slab.sets,
                     .samples = samples.size(),
                     .checked = checked};
}

const char* KernelRunner::CopyName(CopyBy by) {
  switch (by) {
    case CopyBy::kEarlyKernel: return "kernel, early";
    case CopyBy::kKernel: return "kernel";
    case CopyBy::kEngine: return "engine";
  }
  return "";
}

Result<KernelTimes> KernelRunner::MeasureCopies(std::uint64_t half, CopyBy by) {
  KernelCase one;
  one.op = "copy";
  one.units = 0;  // nothing that the CPU would have to say
  one.bytes = 2 * half;
  const auto elements = static_cast<std::int64_t>(half / 2);
  const auto from = one.AddNumbers(DType::kBfloat16, {elements}).buffer;
  const auto into = one.AddResults(DType::kBfloat16, {elements}).buffer;
  struct Prepared {
    std::unique_ptr<PreparedCopy> copy;
    std::byte* first = nullptr;
  };
  // Shared by the copies of the function.
  const auto prepared = std::make_shared<Prepared>();
  one.launch = [=, this](const KernelStream& to, KernelAddresses at) -> Status {
    if (by == CopyBy::kEngine) {
      const cuda::CopyItem item{at[into], at[from], half};
      return to.api->Copy(to.stream, CopyKind::kDeviceToDevice, {&item, 1});
    }
    auto* const base = static_cast<std::byte*>(at[from]);
    if (prepared->copy == nullptr) {
      const Block block{0, 0, half};
      const PlacedList list{{&block, 1}, Place::OnDevice(at[into]), Place::OnDevice(at[from])};
      FERRY_TRY_ASSIGN(prepared->copy,
                       PrepareCopy(api_, options_.ordinal, CopyKind::kDeviceToDevice, {&list, 1},
                                   {.early = by == CopyBy::kEarlyKernel}));
      prepared->first = base;
    }
    const std::int64_t shift = base - prepared->first;
    return prepared->copy->Enqueue(to.stream, shift, shift);
  };
  return Measure(one);
}

Result<CopyCeiling> KernelRunner::CeilingFor(std::uint64_t bytes) {
  const std::uint64_t half = std::max<std::uint64_t>(bytes / 2 / kPiece, 1) * kPiece;
  const auto found = ceilings_.find(half);
  if (found != ceilings_.end()) return found->second;
  CopyCeiling ceiling;
  for (const CopyBy by : {CopyBy::kEarlyKernel, CopyBy::kKernel, CopyBy::kEngine}) {
    FERRY_TRY_ASSIGN(const KernelTimes times, MeasureCopies(half, by));
    const double gbps = 2 * static_cast<double>(half) / times.median / 1e9;
    if (gbps > ceiling.gbps) ceiling = {gbps, CopyName(by)};
  }
  ceilings_[half] = ceiling;
  return ceiling;
}

}  // namespace ferry::tools
