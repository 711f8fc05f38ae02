#include <benchmark/benchmark.h>
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <utility>

#include "ferry/core/deadline.h"
#include "ferry/core/units.h"
#include "ferry/cuda/open_devices.h"
#include "ferry/kernels/number.h"
#include "ferry/kernels/testing/copy_words.h"
#include "ferry/kernels/testing/variant_bench.h"

namespace ferry::kernels {
namespace {

using Holds = BenchBuffer::Holds;

constexpr auto kVariantPatience = std::chrono::seconds(20);
constexpr std::uint64_t kArena = 3 * kGiB;  // of numbers; as much for results
constexpr std::uint64_t kTables = 64 * kMiB;
constexpr std::uint64_t kBenchPattern = 4 * kMiB;
constexpr std::uint64_t kBenchFlushed = 256 * kMiB;  // more than any L2 cache has
constexpr std::uint64_t kLeastCopied = 4'000'000;    // below, launches count for more than bytes
constexpr std::size_t kSamples = 12;
constexpr std::size_t kSamplesAtOnce = 4;
constexpr std::byte kBenchPoison{0xa5};

std::uint64_t AlignTo256(std::uint64_t bytes) { return (bytes + 255) / 256 * 256; }

// Memory, and where buffers begin in it.
struct Arena {
  cuda::DeviceBuffer memory;
  std::uint64_t shared = 0;  // what all sets have
  std::uint64_t stride = 0;  // from set to set

  std::byte* At(std::size_t set, std::uint64_t offset) const {
    return static_cast<std::byte*>(memory.data()) + shared + set * stride + offset;
  }
  std::size_t Room() const {
    return stride == 0 ? std::size_t{256} : (memory.size() - shared) / stride;
  }
};

// What all benchmarks of a run share: memory, and what was measured once.
class Workshop {
 public:
  static Result<Workshop*> Get();

  // Seconds for a launch.
  Result<double> Time(const BenchOp& op, const BenchVariant& variant);
  // Bytes a second that the better of two copies reads and writes; 0 for few bytes.
  Result<double> CopyRate(std::uint64_t bytes);
  // Empty if the results are right, else what is wrong.
  Result<std::string> Check(MakeBenchOp make, std::size_t variant);

 private:
  Status Open(cuda::DeviceApi* api);
  Status FillNumbers();
  Status Upload(void* to, std::span<const std::byte> bytes);
  Status Download(std::span<std::byte> to, const void* from);
  Status Repeat(std::byte* at, std::uint64_t filled, std::uint64_t bytes);
  Result<std::vector<std::vector<void*>>> PlaceSets(const BenchOp& op);
  Result<double> Sample(const cuda::Graph& graph, bool flush);
  Result<std::string> CheckAt(MakeBenchOp make, const BenchSize& size, std::size_t variant);

  // Buffers on the host as an op for the CPU has left them, of the same numbers as the GPU gets.
  struct Reference {
    std::vector<std::vector<std::byte>> before;
    std::vector<std::vector<std::byte>> after;
  };
  Result<const Reference*> ReferenceOf(const BenchOp& op, const std::string& key);

  cuda::DeviceApi* api_ = nullptr;
  cuda::Stream stream_;
  std::vector<cuda::Event> begins_;
  std::vector<cuda::Event> ends_;
  cuda::PinnedBuffer staging_;
  cuda::DeviceBuffer flushed_;
  Arena numbers_;
  Arena results_;
  Arena tables_;
  std::map<std::uint64_t, double> copy_rates_;
  std::map<std::string, Reference> references_;
  std::map<std::pair<MakeBenchOp, std::size_t>, std::string> checked_;
};

Result<Workshop*> Workshop::Get() {
  // Never destroyed: it would have to outlive CUDA.
  static Workshop* shop = nullptr;
  if (shop != nullptr) return shop;
  FERRY_TRY_ASSIGN(cuda::DeviceApi* const api, cuda::RealDevices());
  auto made = std::make_unique<Workshop>();
  FERRY_TRY(made->Open(api));
  shop = made.release();
  return shop;
}

Status Workshop::Open(cuda::DeviceApi* api) {
  api_ = api;
  FERRY_TRY_ASSIGN(stream_, api_->CreateStream(0, cuda::StreamPriority::kNormal));
  for (std::size_t i = 0; i < kSamplesAtOnce; ++i) {
    for (auto* events : {&begins_, &ends_}) {
      FERRY_TRY_ASSIGN(cuda::Event event, api_->CreateEvent(0, cuda::EventTiming::kOn));
      events->push_back(std::move(event));
    }
  }
  FERRY_TRY_ASSIGN(staging_, api_->AllocatePinned(0, kTables));
  FERRY_TRY_ASSIGN(flushed_, api_->AllocateDevice(0, kBenchFlushed));
  FERRY_TRY_ASSIGN(numbers_.memory, api_->AllocateDevice(0, kArena));
  FERRY_TRY_ASSIGN(results_.memory, api_->AllocateDevice(0, kArena));
  FERRY_TRY_ASSIGN(tables_.memory, api_->AllocateDevice(0, kTables));
  return FillNumbers();
}

Status Workshop::FillNumbers() {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<float> number(-1, 1);
  std::vector<std::uint16_t> pattern(kBenchPattern / sizeof(std::uint16_t));
  for (std::uint16_t& bits : pattern) bits = ToBfloat16(number(random));
  auto* const at = static_cast<std::byte*>(numbers_.memory.data());
  FERRY_TRY(Upload(at, std::as_bytes(std::span(pattern))));
  return Repeat(at, kBenchPattern, kArena);
}

Status Workshop::Repeat(std::byte* at, std::uint64_t filled, std::uint64_t bytes) {
  while (filled < bytes) {
    const std::uint64_t more = std::min(filled, bytes - filled);
    const cuda::CopyItem item{at + filled, at, more};
    FERRY_TRY(api_->Copy(stream_, cuda::CopyKind::kDeviceToDevice, {&item, 1}));
    filled += more;
  }
  return api_->Wait(stream_, Deadline::After(kVariantPatience));
}

Status Workshop::Upload(void* to, std::span<const std::byte> bytes) {
  for (std::size_t at = 0; at < bytes.size(); at += staging_.size()) {
    const auto piece = bytes.subspan(at, std::min(staging_.size(), bytes.size() - at));
    std::memcpy(staging_.data(), piece.data(), piece.size());
    const cuda::CopyItem item{static_cast<std::byte*>(to) + at, staging_.data(), piece.size()};
    FERRY_TRY(api_->Copy(stream_, cuda::CopyKind::kHostToDevice, {&item, 1}));
    FERRY_TRY(api_->Wait(stream_, Deadline::After(kVariantPatience)));
  }
  return Ok();
}

Status Workshop::Download(std::span<std::byte> to, const void* from) {
  for (std::size_t at = 0; at < to.size(); at += staging_.size()) {
    const auto piece = to.subspan(at, std::min(staging_.size(), to.size() - at));
    const cuda::CopyItem item{staging_.data(), static_cast<const std::byte*>(from) + at,
                              piece.size()};
    FERRY_TRY(api_->Copy(stream_, cuda::CopyKind::kDeviceToHost, {&item, 1}));
    FERRY_TRY(api_->Wait(stream_, Deadline::After(kVariantPatience)));
    std::memcpy(piece.data(), staging_.data(), piece.size());
  }
  return Ok();
}

// As many sets as make a graph of about a millisecond, each with its own tables.
Result<std::vector<std::vector<void*>>> Workshop::PlaceSets(const BenchOp& op) {
  for (Arena* arena : {&numbers_, &results_, &tables_}) arena->shared = arena->stride = 0;
  const auto arena_of = [this](const BenchBuffer& buffer) -> Arena& {
    if (buffer.holds == Holds::kResults) return results_;
    return buffer.holds == Holds::kTable ? tables_ : numbers_;
  };
  std::vector<std::uint64_t> offsets;
  for (const BenchBuffer& buffer : op.buffers) {
    Arena& arena = arena_of(buffer);
    std::uint64_t& next = buffer.holds == Holds::kSharedNumbers ? arena.shared : arena.stride;
    offsets.push_back(next);
    next += AlignTo256(buffer.bytes());
  }
  constexpr double kGraphSeconds = 1e-3;
  const double guessed = static_cast<double>(op.bytes) / 4e12 + 2e-6;
  const std::size_t wanted =
      std::clamp<std::size_t>(static_cast<std::size_t>(kGraphSeconds / guessed), 2, 256);
  const std::size_t count = std::min({wanted, numbers_.Room(), results_.Room(), tables_.Room()});
  std::vector<std::vector<void*>> sets(count);
  for (std::size_t set = 0; set < count; ++set) {
    for (std::size_t i = 0; i < op.buffers.size(); ++i) {
      const BenchBuffer& buffer = op.buffers[i];
      if (buffer.holds == Holds::kSharedNumbers) {
        sets[set].push_back(static_cast<std::byte*>(numbers_.memory.data()) + offsets[i]);
        continue;
      }
      sets[set].push_back(arena_of(buffer).At(set, offsets[i]));
      if (!buffer.table.empty() && set == 0) FERRY_TRY(Upload(sets[set][i], buffer.table));
    }
  }
  if (tables_.stride != 0) {
    FERRY_TRY(Repeat(tables_.At(0, 0), tables_.stride, tables_.stride * count));
  }
  return sets;
}

Result<double> Workshop::Sample(const cuda::Graph& graph, bool flush) {
  const std::uint64_t half = flushed_.size() / 2;
  const cuda::CopyItem flushing{static_cast<std::byte*>(flushed_.data()) + half, flushed_.data(),
                                half};
  std::vector<double> samples;
  while (samples.size() < kSamples) {
    FERRY_TRY(api_->Replay(stream_, graph));
    for (std::size_t i = 0; i < kSamplesAtOnce; ++i) {
      if (flush) FERRY_TRY(api_->Copy(stream_, cuda::CopyKind::kDeviceToDevice, {&flushing, 1}));
      FERRY_TRY(api_->Record(begins_[i], stream_));
      FERRY_TRY(api_->Replay(stream_, graph));
      FERRY_TRY(api_->Record(ends_[i], stream_));
    }
    FERRY_TRY(api_->Wait(stream_, Deadline::After(kVariantPatience)));
    for (std::size_t i = 0; i < kSamplesAtOnce; ++i) {
      FERRY_TRY_ASSIGN(const auto between, api_->Elapsed(begins_[i], ends_[i]));
      samples.push_back(std::chrono::duration<double>(between).count());
    }
  }
  const auto middle = samples.begin() + kSamples / 2;
  std::nth_element(samples.begin(), middle, samples.end());
  return *middle;
}

Result<double> Workshop::Time(const BenchOp& op, const BenchVariant& variant) {
  FERRY_TRY_ASSIGN(const auto sets, PlaceSets(op));
  const BenchStream to{api_, stream_};
  FERRY_TRY(variant.launch(to, sets[0]));  // loads the kernel's code, before it is captured
  FERRY_TRY(api_->Wait(stream_, Deadline::After(kVariantPatience)));
  FERRY_TRY_ASSIGN(const cuda::Graph graph, api_->Capture(stream_, [&]() -> Status {
    for (const std::vector<void*>& set : sets) FERRY_TRY(variant.launch(to, set));
    return Ok();
  }));
  const std::uint64_t touched = (numbers_.stride + results_.stride) * sets.size();
  FERRY_TRY_ASSIGN(const double seconds, Sample(graph, touched < kBenchFlushed));
  return seconds / static_cast<double>(sets.size());
}

Result<double> Workshop::CopyRate(std::uint64_t bytes) {
  if (bytes < kLeastCopied) return 0.0;
  const auto found = copy_rates_.find(bytes);
  if (found != copy_rates_.end()) return found->second;
  const BenchOp copy = CopyOp({static_cast<std::int64_t>(bytes)});
  double best = 0;
  for (const BenchVariant& variant : copy.variants) {
    if (variant.name != "engine" && variant.name != "four words") continue;
    FERRY_TRY_ASSIGN(const double seconds, Time(copy, variant));
    best = std::max(best, static_cast<double>(copy.bytes) / seconds);
  }
  copy_rates_[bytes] = best;
  return best;
}

// Normally distributed, and wide enough that activations have their tails.
void FillNormally(const BenchBuffer& buffer, std::mt19937_64* random, std::span<std::byte> to) {
  std::normal_distribution<float> number(0, 3);
  for (std::int64_t i = 0; i < buffer.elements; ++i) {
    WriteFloat(to.data(), buffer.dtype, i, number(*random));
  }
}

Result<const Workshop::Reference*> Workshop::ReferenceOf(const BenchOp& op,
                                                         const std::string& key) {
  const auto found = references_.find(key);
  if (found != references_.end()) return &found->second;
  Reference reference;
  std::mt19937_64 random(7);
  for (const BenchBuffer& buffer : op.buffers) {
    std::vector<std::byte> bytes(buffer.bytes(), kBenchPoison);
    if (buffer.holds == Holds::kTable) {
      bytes = buffer.table;
    } else if (buffer.holds != Holds::kResults) {
      FillNormally(buffer, &random, bytes);
    }
    reference.before.push_back(std::move(bytes));
  }
  reference.after = reference.before;
  std::vector<void*> addresses;
  for (auto& bytes : reference.after) addresses.push_back(bytes.data());
  FERRY_TRY(op.on_cpu(addresses));
  return &(references_[key] = std::move(reference));
}

// Empty where all is as near as it must be.
std::string Compare(const BenchOp& op, std::size_t buffer, std::span<const std::byte> got,
                    std::span<const std::byte> right) {
  const DType dtype = op.buffers[buffer].dtype;
  if (std::equal(got.begin(), got.end(), right.begin())) return "";
  // Two units of the last place: a sum in another order may turn either rounding of two.
  double tolerance = 1e-4;
  double least = 1e-30;
  if (dtype == DType::kBfloat16) tolerance = 0x1p-6;
  if (dtype == DType::kFloat16) {
    tolerance = 0x1p-9;
    least = 0x1p-23;  // of the numbers that are not normal
  }
  for (std::int64_t i = 0; i < op.buffers[buffer].elements; ++i) {
    const double is = ReadFloat(got.data(), dtype, i);
    const double should = ReadFloat(right.data(), dtype, i);
    const double most = tolerance * (std::abs(should) + op.floor) + least;
    if (std::abs(is - should) <= most || (std::isnan(is) && std::isnan(should))) continue;
    return fmt::format("{}: buffer {}, element {} is {}, not {}", op.name, buffer, i, is, should);
  }
  return "";
}

Result<std::string> Workshop::CheckAt(MakeBenchOp make, const BenchSize& size,
                                      std::size_t variant) {
  const BenchOp op = make(size);
  FERRY_TRY_ASSIGN(
      const Reference* const reference,
      ReferenceOf(op, fmt::format("{} {} {}", op.name, size.count, NameOf(size.dtype))));
  std::vector<cuda::DeviceBuffer> buffers;
  std::vector<void*> addresses;
  for (const auto& bytes : reference->before) {
    FERRY_TRY_ASSIGN(cuda::DeviceBuffer buffer, api_->AllocateDevice(0, bytes.size()));
    FERRY_TRY(Upload(buffer.data(), bytes));
    addresses.push_back(buffer.data());
    buffers.push_back(std::move(buffer));
  }
  FERRY_TRY(op.variants[variant].launch({api_, stream_}, addresses));
  FERRY_TRY(api_->Wait(stream_, Deadline::After(kVariantPatience)));
  for (std::size_t i = 0; i < op.buffers.size(); ++i) {
    if (op.buffers[i].holds != Holds::kResults) continue;
    std::vector<std::byte> got(reference->after[i].size());
    FERRY_TRY(Download(got, addresses[i]));
    const std::string wrong = Compare(op, i, got, reference->after[i]);
    if (!wrong.empty()) return wrong;
  }
  return std::string();
}

Result<std::string> Workshop::Check(MakeBenchOp make, std::size_t variant) {
  const auto found = checked_.find({make, variant});
  if (found != checked_.end()) return found->second;
  std::string wrong;
  for (const BenchSize& size : {BenchSize{37, DType::kBfloat16}, BenchSize{601, DType::kBfloat16},
                                BenchSize{37, DType::kFloat16}, BenchSize{37, DType::kFloat32}}) {
    if (!wrong.empty()) break;
    FERRY_TRY_ASSIGN(wrong, CheckAt(make, size, variant));
  }
  checked_[{make, variant}] = wrong;
  return wrong;
}

Status RunVariant(benchmark::State& state, MakeBenchOp make, std::int64_t count,
                  std::size_t variant) {
  FERRY_TRY_ASSIGN(Workshop* const shop, Workshop::Get());
  const BenchOp op = make({count});
  if (op.on_cpu) {
    FERRY_TRY_ASSIGN(const std::string wrong, shop->Check(make, variant));
    state.SetLabel(wrong.empty() ? "OK" : "WRONG: " + wrong);
  }
  FERRY_TRY_ASSIGN(const double copied, shop->CopyRate(op.bytes));
  FERRY_TRY_ASSIGN(const double seconds, shop->Time(op, op.variants[variant]));
  for (auto _ : state) state.SetIterationTime(seconds);
  const double rate = static_cast<double>(op.bytes) / seconds;
  state.counters["GB/s"] = rate / 1e9;
  if (copied != 0) state.counters["of_copy"] = rate / copied;
  return Ok();
}

BenchVariant CopyVariant(const char* name, std::optional<CopyForm> form, std::uint64_t half) {
  return {name, [form, half](const BenchStream& to, BenchAddresses at) -> Status {
            if (!form) {
              const cuda::CopyItem item{at[1], at[0], half};
              return to.api->Copy(to.stream, cuda::CopyKind::kDeviceToDevice, {&item, 1});
            }
            static constexpr cuda::Kernel kCopyKernel{
                "copy_words",
                [](cuda::StreamRef stream, const void* args) {
                  return LaunchCopyWords(*static_cast<const CopyWordsArgs*>(args), stream);
                },
                nullptr};
            return cuda::LaunchKernel(*to.api, to.stream, kCopyKernel,
                                      CopyWordsArgs{at[0], at[1], half / 16, *form});
          }};
}

const bool kCopiesRegistered = RegisterVariants(CopyOp, {33'554'432, 268'435'456, 1'073'741'824});

}  // namespace

std::size_t BenchOp::Add(BenchBuffer::Holds holds, DType dtype, std::int64_t elements) {
  buffers.push_back({.holds = holds, .dtype = dtype, .elements = elements, .table = {}});
  return buffers.size() - 1;
}

BenchOp CopyOp(const BenchSize& size) {
  constexpr std::int64_t kPiece = 2 * 64 * 1024;
  const std::int64_t bytes = size.count / kPiece * kPiece;
  BenchOp op;
  op.name = "copy";
  op.bytes = static_cast<std::uint64_t>(bytes);
  op.Add(Holds::kNumbers, DType::kBfloat16, bytes / 4);
  op.Add(Holds::kResults, DType::kBfloat16, bytes / 4);
  op.variants = {CopyVariant("engine", std::nullopt, op.bytes / 2),
                 CopyVariant("two words", CopyForm::kTwoWords, op.bytes / 2),
                 CopyVariant("four words", CopyForm::kFourWords, op.bytes / 2),
                 CopyVariant("eight words", CopyForm::kEightWords, op.bytes / 2),
                 CopyVariant("four words streamed", CopyForm::kStreamed, op.bytes / 2),
                 CopyVariant("four words in turn", CopyForm::kInTurn, op.bytes / 2)};
  return op;
}

bool RegisterVariants(MakeBenchOp make, const std::vector<std::int64_t>& sizes) {
  for (const std::int64_t count : sizes) {
    const BenchOp op = make({count});
    for (std::size_t i = 0; i < op.variants.size(); ++i) {
      const std::string name = fmt::format("{}/{}/{}", op.name, count, op.variants[i].name);
      const auto run = [=](benchmark::State& state) {
        const Status ran = RunVariant(state, make, count, i);
        if (!ran) state.SkipWithError(ran.error().ToString().c_str());
      };
      benchmark::RegisterBenchmark(name.c_str(), run)
          ->Iterations(1)
          ->UseManualTime()
          ->Unit(benchmark::kMicrosecond);
    }
  }
  return true;
}

}  // namespace ferry::kernels
