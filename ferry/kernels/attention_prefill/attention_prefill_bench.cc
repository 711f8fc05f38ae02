// Times each form of prefill attention on the first GPU with the workload of FlashAttention's
// figures: 16 Ki tokens of one or more sequences of equal length, 2048 columns of heads of q, k
// and v, bf16. Measures cold first, then back to back, on random numbers: a GPU computes faster on
// zeros.

#include <benchmark/benchmark.h>

#include <chrono>
#include <cmath>
#include <random>
#include <stdexcept>
#include <vector>

#include "ferry/cuda/open_devices.h"
#include "ferry/kernels/attention_prefill/attention_prefill.h"
#include "ferry/kernels/number.h"

namespace ferry::kernels {
namespace {

constexpr std::int64_t kBenchTokens = 16384;
constexpr std::int64_t kBenchColumns = 2048;
constexpr auto kBenchTimeout = std::chrono::seconds(20);

template <class T>
T MustMake(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().ToString());
  return *std::move(result);
}
void MustDo(const Status& status) {
  if (!status) throw std::runtime_error(status.error().ToString());
}

// Arguments in device memory.
class BenchPrefill {
 public:
  BenchPrefill(cuda::DeviceApi* api, std::int64_t head_size, std::int64_t sequence)
      : api_(*api), head_size_(head_size), sequence_(sequence) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    // Again and again, but at no place where a row begins.
    std::vector<std::uint16_t> some(1'000'003);
    for (std::uint16_t& number : some) number = ToBfloat16(normal(random));
    constexpr std::size_t kNumbers = kBenchTokens * kBenchColumns;
    auto* const numbers = static_cast<std::uint16_t*>(pinned_.data());
    for (std::size_t i = 0; i < kNumbers; ++i) numbers[i] = some[i % some.size()];
    for (const auto* const buffer : {&q_, &k_, &v_}) Upload(*buffer, kNumbers * 2);
    auto* const ends = static_cast<std::int32_t*>(pinned_.data());
    for (std::int64_t b = 0; b <= Batch(); ++b) ends[b] = static_cast<std::int32_t>(b * sequence);
    Upload(ends_, (Batch() + 1) * 4);
  }

  AttentionPrefillArgs Args(PrefillForm form, bool causal) const {
    const auto tensor = [&](const cuda::DeviceBuffer& buffer) {
      return Tensor::Contiguous(buffer.data(), DType::kBfloat16,
                                {kBenchTokens, kBenchColumns / head_size_, head_size_});
    };
    const Tensor ends = Tensor::Contiguous(ends_.data(), DType::kInt32, {Batch() + 1});
    return {.q = tensor(q_),
            .k = tensor(k_),
            .v = tensor(v_),
            .cu_seqlens_q = ends,
            .cu_seqlens_k = ends,
            .block_tables = {},
            .out = tensor(out_),
            .max_seqlen_q = sequence_,
            .scale = 1 / std::sqrt(static_cast<float>(head_size_)),
            .causal = causal,
            .form = form};
  }
  std::chrono::duration<double> Time(const AttentionPrefillArgs& args, int runs) {
    MustDo(api_.Record(begin_, stream_));
    for (int i = 0; i < runs; ++i) {
      MustDo(cuda::LaunchKernel(api_, stream_, kAttentionPrefillKernel, args));
    }
    MustDo(api_.Record(end_, stream_));
    MustDo(api_.Wait(end_, Deadline::After(kBenchTimeout)));
    return MustMake(api_.Elapsed(begin_, end_));
  }

 private:
  std::int64_t Batch() const { return kBenchTokens / sequence_; }
  cuda::DeviceBuffer Make() {
    return MustMake(api_.AllocateDevice(0, kBenchTokens * kBenchColumns * 2));
  }
  void Upload(const cuda::DeviceBuffer& to, std::int64_t bytes) {
    const cuda::CopyItem item{to.data(), pinned_.data(), static_cast<std::size_t>(bytes)};
    MustDo(api_.Copy(stream_, cuda::CopyKind::kHostToDevice, {&item, 1}));
    MustDo(api_.Wait(stream_, Deadline::After(kBenchTimeout)));
  }

  cuda::DeviceApi& api_;
  const std::int64_t head_size_;
  const std::int64_t sequence_;
  cuda::Stream stream_ = MustMake(api_.CreateStream(0, cuda::StreamPriority::kNormal));
  cuda::Event begin_ = MustMake(api_.CreateEvent(0, cuda::EventTiming::kOn));
  cuda::Event end_ = MustMake(api_.CreateEvent(0, cuda::EventTiming::kOn));
  cuda::PinnedBuffer pinned_ = MustMake(api_.AllocatePinned(0, kBenchTokens* kBenchColumns * 2));
  cuda::DeviceBuffer q_ = Make();
  cuda::DeviceBuffer k_ = Make();
  cuda::DeviceBuffer v_ = Make();
  cuda::DeviceBuffer out_ = Make();
  cuda::DeviceBuffer ends_ = Make();
};

void BmPrefill(benchmark::State& state) {
  const Result<cuda::DeviceApi*> api = cuda::RealDevices();
  if (!api) {
    state.SkipWithError(api.error().message().c_str());
    return;
  }
  const std::int64_t head_size = state.range(1);
  const std::int64_t sequence = state.range(2);
  const bool causal = state.range(3) != 0;
  constexpr int kRuns = 5;
  try {
    BenchPrefill problem(*api, head_size, sequence);
    const AttentionPrefillArgs args =
        problem.Args(static_cast<PrefillForm>(state.range(0)), causal);
    problem.Time(args, 1);
    for (auto _ : state) state.SetIterationTime(problem.Time(args, kRuns).count() / kRuns);
  } catch (const std::exception& wrong) {
    state.SkipWithError(wrong.what());
  }
  // Two products of sequence by sequence by columns, of which a causal one needs half.
  const double flops = 4.0 * static_cast<double>(kBenchTokens) * static_cast<double>(sequence) *
                       static_cast<double>(kBenchColumns) / (causal ? 2 : 1);
  state.counters["TFLOP/s"] =
      benchmark::Counter(flops / 1e12, benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BmPrefill)
    ->ArgNames({"form", "head", "sequence", "causal"})
    ->ArgsProduct({{static_cast<std::int64_t>(PrefillForm::kCpAsync),
                    static_cast<std::int64_t>(PrefillForm::kWgmmaSm90)},
                   {64, 128, 256},
                   {512, 2048, 16384},
                   {0, 1}})
    ->Iterations(5)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace ferry::kernels
