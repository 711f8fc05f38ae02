// Sampling: one token from each row of logits, with temperature, top_k and top_p.
#pragma once
#include <cstdint>

#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"
#include "ferry/kernels/tensor.h"

namespace ferry::kernels {

// The implementation on the GPU. All choose the same tokens.
enum class SampleForm : std::uint8_t {
  kAuto,   // kCluster for few rows of large vocabularies, if device and build support it
  kBlock,  // a thread block to a row
  // A thread block cluster to a row: 2, 4 or 8 blocks, each with a part of the row in shared
  // memory. Compute capability 9.0 and later. Rows of up to about 900,000 tokens of 16 bits, or
  // half as many of 32, on an H100.
  kCluster,
};

// Selects one token per row of logits. If the row's temperature is below kGreedyTemperature, or
// temperatures are omitted, it is the token with the greatest logit, and the first of several.
// Otherwise it is a random token: among those that top_k and then top_p leave, a token of logit l
// has a probability proportional to exp(l / temperature). It is the token for which
//   l / temperature + g(seed, step, row, token)
// is greatest, where the g are independent numbers of the Gumbel distribution (Gumbel 1954;
// Maddison et al. 2014, A* Sampling), so that no probabilities are needed and logits are read once.
//   logits        [rows, vocabulary] fp32, fp16 or bf16, the rows' stride is free; NaN is never
//                 chosen, nor is minus infinity, unless there is nothing else: then token 0 is
//   out           int64 [rows], contiguous
//   temperatures  fp32 [rows]; may be left out, as may all that follow. NaN is greedy; with
//                 infinity all tokens are alike (logits count as if by a temperature of 2^126)
//   top_k         int32 [rows]: the k greatest logits, and those that equal the last of them; below
//                 1: all
//   top_p         fp32 [rows]: of those the greatest logits whose probabilities together are at
//                 least p, and those that equal the last of them; 1 or more: all
//   seeds         int64 [rows], each row's own, or [1], one for all rows
//   steps         int64 [rows] or [1]
//                 where they are left out, `seed` and `step` count: numbers, which a graph that
//                 captures the call keeps, and with them the tokens. In graphs give tensors, and
//                 other numbers in them for each replay
// Random numbers are Philox4x32-10's (Salmon et al. 2011, Parallel random numbers: as easy as 1, 2,
// 3) with the seed as key and (token / 4, row, step) as counter, and are the same on GPUs and on
// the CPU. Rows that share a seed are told apart by the counter's word for the row, never by the
// seed: row 1 of seed 0 has nothing in common with row 0 of seed 1. Where each row has a seed of
// its own that word is 0, so that its token depends on its own seed, step and logits alone,
// whatever batch it is in. Give each draw another step, or another seed. Scores are in fp32: where
// l / temperature is about 2^k they have steps of 2^(k - 23), 2^-7 for a logit of 6.5 at a
// temperature of 1e-4, 0.5 for one of 42 at 1e-5. By about so large a part tokens of nearly equal
// logits come more or less often than they should; of equal scores the first wins. A finite logit's
// score is never less than fp32's lowest number, so that minus infinity loses. Logits are read once
// in the form kCluster, and in the form kBlock with neither top_k nor top_p; there top_k reads them
// up to four times more (twice for bf16), top_p up to five times (three times): from the L2 cache
// if that has room for all rows in flight, which it does not for large batches of large
// vocabularies. Errors: kInvalidArgument for other shapes, types or strides, for a vocabulary of
// none or of more than 2^30; kUnsupported where the build has no CUDA, and for kCluster where
// device or build have no clusters or the row does not fit; those of a launch.
struct SampleArgs {
  Tensor logits;
  Tensor out;
  Tensor temperatures;
  Tensor top_k;
  Tensor top_p;
  Tensor seeds;
  Tensor steps;
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  SampleForm form = SampleForm::kAuto;
};
Status Sample(const SampleArgs& args, cuda::StreamRef stream);
Status SampleCpu(const SampleArgs& args);
extern const cuda::Kernel kSampleKernel;

inline constexpr float kGreedyTemperature = 1e-5F;

}  // namespace ferry::kernels
