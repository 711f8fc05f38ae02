// CPU form of sampling.

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "ferry/kernels/number.h"
#include "ferry/kernels/sampler/sampler.h"
#include "ferry/kernels/sampler/sampler_math.h"
#include "ferry/kernels/sampler/sampler_plan.h"

namespace ferry::kernels {
namespace {

// Below it no token is chosen: the key of the last that top_k and top_p leave.
std::uint32_t LeastKey(const SampleRow& asked, const std::vector<float>& logits) {
  std::vector<std::uint32_t> keys(logits.size());
  std::transform(logits.begin(), logits.end(), keys.begin(), KeyOf);
  std::sort(keys.begin(), keys.end(), std::greater<>());
  std::size_t kept = keys.size();
  if (asked.top_k > 0) {
    const std::uint32_t last = keys[asked.top_k - 1];
    kept = static_cast<std::size_t>(
        // Keys equal to the k-th are kept, too, as on the GPU, which selects by key and not by
        // rank.
        std::upper_bound(keys.begin(), keys.end(), last, std::greater<>()) - keys.begin());
  }
  const std::uint32_t least = keys[kept - 1];
  if (asked.top_p >= 1) return least;
  const float greatest = NumberOf(keys[0]);
  const auto weight = [&](std::uint32_t key) {
    return WeightOf(std::fmaf(NumberOf(key) - greatest, asked.inverse, 0.0F));
  };
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < kept; ++i) total += weight(keys[i]);
  const std::uint64_t share = ShareOf(asked.top_p, total);
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < kept; ++i) {
    sum += weight(keys[i]);
    if (sum >= share) return keys[i];
  }
  return least;
}

std::uint32_t SampleTokens(const SampleRow& asked, const std::vector<float>& logits) {
  std::uint64_t best = kNoCandidate;
  const auto count = static_cast<std::uint32_t>(logits.size());
  if (asked.inverse == 0) {
    for (std::uint32_t token = 0; token < count; ++token) {
      best = std::max(best, Candidate(logits[token], token));
    }
    return TokenOf(best);
  }
  const bool filtered = asked.top_k > 0 || asked.top_p < 1;
  const std::uint32_t least = filtered ? LeastKey(asked, logits) : 0;
  PhiloxWords random{};
  for (std::uint32_t token = 0; token < count; ++token) {
    if (token % 4 == 0) random = RandomOf(asked.random, token / 4);
    if (KeyOf(logits[token]) < least) continue;
    const float noise = GumbelOf(UniformOf(random.word[token % 4]));
    best = std::max(best, Candidate(ScoreOf(logits[token], asked.inverse, noise), token));
  }
  return TokenOf(best);
}

}  // namespace

Status SampleCpu(const SampleArgs& args) {
  FERRY_TRY_ASSIGN(const SamplePlan plan, PlanSample(args));
  std::vector<float> logits(plan.vocabulary);
  for (std::uint32_t row = 0; row < plan.rows; ++row) {
    for (std::uint32_t token = 0; token < plan.vocabulary; ++token) {
      const float logit = ReadFloat(plan.logits, plan.dtype, row * plan.stride + token);
      logits[token] = std::isnan(logit) ? -std::numeric_limits<float>::infinity() : logit;
    }
    plan.out[row] = SampleTokens(SampleRowOf(plan, row), logits);
  }
  return Ok();
}

}  // namespace ferry::kernels
