// Benchmark cases of sampling.

#include <numeric>

#include "ferry/kernels/sampler/sampler.h"
#include "tools/bench/kernels/kernel_case.h"

namespace ferry::tools {
namespace {

using kernels::DType;

enum class Draw : unsigned char { kGreedy, kTemperature, kTopKTopP };

const char* NameOfDraw(Draw draw) {
  switch (draw) {
    case Draw::kGreedy: return "greedy";
    case Draw::kTemperature: return "temperature";
    case Draw::kTopKTopP: return "top-k, top-p";
  }
  return "";
}

// The logits, once, also where the op reads them several times.
KernelCase SampleCase(std::int64_t rows, std::int64_t vocabulary, Draw draw) {
  KernelCase one;
  one.op = "sampler";
  one.variant = NameOfDraw(draw);
  one.sizes = {{"rows", rows}, {"vocabulary", vocabulary}};
  const auto count = static_cast<std::size_t>(rows);
  const auto logits = one.AddLogits({rows, vocabulary});
  const auto out = one.AddResults(DType::kInt64, {rows});
  const auto temperatures = one.AddTable(DType::kFloat32, {rows}, std::vector<float>(count, 0.6F));
  const auto top_k = one.AddTable(DType::kInt32, {rows}, std::vector<std::int32_t>(count, 50));
  const auto top_p = one.AddTable(DType::kFloat32, {rows}, std::vector<float>(count, 0.9F));
  // Each row has its own parameters, as servers have for each request, so that the CPU can compute
  // any row on its own.
  std::vector<std::int64_t> own(count);
  std::iota(own.begin(), own.end(), 1000);
  const auto seeds = one.AddTable(DType::kInt64, {rows}, own);
  one.units = rows;
  one.units_checked = 4;
  one.bytes = static_cast<std::uint64_t>(rows * vocabulary) * 2;
  one.launch = [=](const KernelStream& to, KernelAddresses at) {
    kernels::SampleArgs args;
    args.logits = to.Of(logits, at);
    args.out = to.Of(out, at);
    if (draw != Draw::kGreedy) args.temperatures = to.Of(temperatures, at);
    args.seeds = to.Of(seeds, at);
    if (draw == Draw::kTopKTopP) {
      args.top_k = to.Of(top_k, at);
      args.top_p = to.Of(top_p, at);
    }
    return to.Put(kernels::kSampleKernel, args);
  };
  return one;
}

}  // namespace

void AddSamplerCases(const KernelCaseOptions& options, std::vector<KernelCase>* cases) {
  const std::int64_t vocabulary = options.tiny ? 1000 : 151936;  // Qwen3's
  for (const std::int64_t rows : {1, 32, 256}) {
    if (options.tiny && rows > 32) continue;
    for (const Draw draw : {Draw::kGreedy, Draw::kTemperature, Draw::kTopKTopP}) {
      cases->push_back(SampleCase(rows, vocabulary, draw));
    }
  }
}

}  // namespace ferry::tools
