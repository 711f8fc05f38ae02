// Random numbers, keys and scores of sampling, identical on host and device.
#pragma once
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>

// The sampler's arithmetic, the same to the last bit on GPUs and on the CPU: integers, and single
// steps in fp32 that IEEE 754 defines. Products are written as fmaf(), because compilers may make
// one step of a product and a sum that are written as two.
#ifdef __CUDACC__
#define FERRY_SAMPLER_BOTH __host__ __device__ inline
#else
#define FERRY_SAMPLER_BOTH inline
#endif

namespace ferry::kernels {

struct PhiloxWords {
  std::uint32_t word[4];
};

// Philox4x32-10 (Salmon et al. 2011, section 3.3).
FERRY_SAMPLER_BOTH PhiloxWords Philox(PhiloxWords counter, std::uint64_t key) {
  auto low_key = static_cast<std::uint32_t>(key);
  auto high_key = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xd2511f53U} * counter.word[0];
    const std::uint64_t b = std::uint64_t{0xcd9e8d57U} * counter.word[2];
    counter = {{static_cast<std::uint32_t>(b >> 32) ^ counter.word[1] ^ low_key,
                static_cast<std::uint32_t>(b),
                static_cast<std::uint32_t>(a >> 32) ^ counter.word[3] ^ high_key,
                static_cast<std::uint32_t>(a)}};
    low_key += 0x9e3779b9U;
    high_key += 0xbb67ae85U;
  }
  return counter;
}

// The inputs of a row's random numbers besides the token.
struct RandomSource {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  std::uint32_t row = 0;
};

// Random words of the tokens 4 * group to 4 * group + 3.
FERRY_SAMPLER_BOTH PhiloxWords RandomOf(const RandomSource& source, std::uint32_t group) {
  return Philox({{group, source.row, static_cast<std::uint32_t>(source.step),
                  static_cast<std::uint32_t>(source.step >> 32)}},
                source.seed);
}

FERRY_SAMPLER_BOTH std::uint32_t BitsOf(float value) {
  std::uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}
FERRY_SAMPLER_BOTH float FloatOf(std::uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// A key whose integer order is the order of the numbers. Both zeros have the same key.
FERRY_SAMPLER_BOTH std::uint32_t KeyOf(float value) {
  const std::uint32_t bits = value == 0 ? 0 : BitsOf(value);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000U;
}
FERRY_SAMPLER_BOTH float NumberOf(std::uint32_t key) {
  return FloatOf(key >> 31 != 0 ? key & 0x7fffffffU : ~key);
}
inline constexpr std::uint32_t kKeyOfNothing = 0x007fffffU;  // of minus infinity

// The natural logarithm of a normal number above 0, to 1e-7 of it or so: the polynomial of Cephes'
// logf (Moshier), of what is left of the number between sqrt(1/2) and sqrt(2).
FERRY_SAMPLER_BOTH float LogOf(float value) {
  const std::uint32_t bits = BitsOf(value);
  constexpr std::uint32_t kRootOfHalf = 0x3f3504f3U;
  const std::int32_t exponent = static_cast<std::int32_t>(bits - kRootOfHalf) >> 23;
  const float x = FloatOf(bits - (static_cast<std::uint32_t>(exponent) << 23)) - 1.0F;
  float p = 7.0376836292e-2F;
  p = fmaf(p, x, -1.1514610310e-1F);
  p = fmaf(p, x, 1.1676998740e-1F);
  p = fmaf(p, x, -1.2420140846e-1F);
  p = fmaf(p, x, 1.4249322787e-1F);
  p = fmaf(p, x, -1.6668057665e-1F);
  p = fmaf(p, x, 2.0000714765e-1F);
  p = fmaf(p, x, -2.4999993993e-1F);
  p = fmaf(p, x, 3.3333331174e-1F);
  p = fmaf(p, x, -0.5F);
  const float square = fmaf(x, x, 0.0F);
  const float mantissa = fmaf(p, square, x);
  return fmaf(static_cast<float>(exponent), 0.69314718056F, mantissa);
}

// e^x as a fraction of 2^32, for x <= 0; 0 below 2^-32, and for NaN.
FERRY_SAMPLER_BOTH std::uint64_t WeightOf(float x) {
  if (!(x >= -24.0F)) return 0;  // e^-24 is less than 2^-32
  const float whole = rintf(fmaf(x, 1.44269504F, 0.0F));
  const float part = fmaf(x, 1.44269504F, -whole);
  float p = 1.3333558e-3F;  // of 2^part: the coefficients of Taylor's series
  p = fmaf(p, part, 9.6181291e-3F);
  p = fmaf(p, part, 5.5504109e-2F);
  p = fmaf(p, part, 2.4022651e-1F);
  p = fmaf(p, part, 6.9314718e-1F);
  p = fmaf(p, part, 1.0F);
  // 2^32 and the whole part are exponents.
  const auto exponent = static_cast<std::int32_t>(whole) + 127 + 32;
  return static_cast<std::uint64_t>(
      fmaf(p, FloatOf(static_cast<std::uint32_t>(exponent) << 23), 0.0F));
}

// A random word as a number in the open interval (0, 1), with finer steps for smaller numbers.
FERRY_SAMPLER_BOTH float UniformOf(std::uint32_t word) {
  constexpr float kBelowOne = 0.99999994F;
  const float uniform = fmaf(static_cast<float>(word), 0x1p-32F, 0x1p-33F);
  return uniform < kBelowOne ? uniform : kBelowOne;
}
// -log(-log(1 - uniform)): large where `uniform` is small, where its steps are finest.
FERRY_SAMPLER_BOTH float GumbelOf(float uniform) {
  const float exponential = uniform < 0x1p-12F ? fmaf(fmaf(uniform, 0.5F, 0.0F), uniform, uniform)
                                               : -LogOf(1.0F - uniform);
  return -LogOf(exponential);
}

// The score of a token. A finite logit never becomes minus infinity, however low the temperature,
// so that it still beats a masked token.
FERRY_SAMPLER_BOTH float ScoreOf(float logit, float inverse, float noise) {
  const float score = fmaf(logit, inverse, noise);
  return logit >= -FLT_MAX && score < -FLT_MAX ? -FLT_MAX : score;
}

// A candidate whose maximum selects the token: by score, and the first token among equal scores.
FERRY_SAMPLER_BOTH std::uint64_t Candidate(float score, std::uint32_t token) {
  return std::uint64_t{KeyOf(score)} << 32 | static_cast<std::uint32_t>(~token);
}
FERRY_SAMPLER_BOTH std::uint32_t TokenOf(std::uint64_t candidate) {
  return ~static_cast<std::uint32_t>(candidate);
}
inline constexpr std::uint64_t kNoCandidate = std::uint64_t{kKeyOfNothing} << 32 | 0xffffffffU;

// The sum of weights that top_p asks for; at least 1.
FERRY_SAMPLER_BOTH std::uint64_t ShareOf(float p, std::uint64_t total) {
  const double share = p > 0 ? ceil(static_cast<double>(p) * static_cast<double>(total)) : 0;
  return share < 1 ? 1 : static_cast<std::uint64_t>(share);
}

}  // namespace ferry::kernels
