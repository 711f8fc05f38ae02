#include <cstdint>

#include "ferry/cuda/launch.cuh"
#include "ferry/kernels/testing/copy_words.h"

namespace ferry::kernels {
namespace {

constexpr int kCopyThreads = 256;

template <int kWords, bool kStreamed>
__global__ void __launch_bounds__(kCopyThreads)
    CopyWords(const __grid_constant__ CopyWordsArgs args) {
  const auto* const from = static_cast<const uint4*>(args.from);
  auto* const to = static_cast<uint4*>(args.to);
  const std::uint64_t first = std::uint64_t{blockIdx.x} * kCopyThreads * kWords + threadIdx.x;
  uint4 words[kWords];
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const uint4* const word = from + first + i * kCopyThreads;
    words[i] = kStreamed ? __ldcs(word) : *word;
  }
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    uint4* const word = to + first + i * kCopyThreads;
    if (kStreamed) {
      __stcs(word, words[i]);
    } else {
      *word = words[i];
    }
  }
}

// Blocks that stay.
template <int kWords>
__global__ void __launch_bounds__(kCopyThreads)
    CopyWordsInTurn(const __grid_constant__ CopyWordsArgs args) {
  constexpr std::uint64_t kPiece = std::uint64_t{kCopyThreads} * kWords;
  const auto* const from = static_cast<const uint4*>(args.from);
  auto* const to = static_cast<uint4*>(args.to);
  for (std::uint64_t piece = blockIdx.x; piece < args.words / kPiece; piece += gridDim.x) {
    uint4 words[kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      words[i] = from[piece * kPiece + i * kCopyThreads + threadIdx.x];
    }
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      to[piece * kPiece + i * kCopyThreads + threadIdx.x] = words[i];
    }
  }
}

}  // namespace

Status LaunchCopyWords(const CopyWordsArgs& args, cuda::StreamRef stream) {
  const auto launch = [&](int words, auto kernel) {
    const auto grid = static_cast<unsigned>(args.words / (kCopyThreads * words));
    return cuda::Launch(stream, "copy_words", {.grid = grid, .block = kCopyThreads}, kernel, args);
  };
  switch (args.form) {
    case CopyForm::kTwoWords: return launch(2, CopyWords<2, false>);
    case CopyForm::kFourWords: return launch(4, CopyWords<4, false>);
    case CopyForm::kEightWords: return launch(8, CopyWords<8, false>);
    case CopyForm::kStreamed: return launch(4, CopyWords<4, true>);
    case CopyForm::kInTurn: break;
  }
  return cuda::Launch(stream, "copy_words", {.grid = 132 * 4, .block = kCopyThreads},
                      CopyWordsInTurn<4>, args);
}

}  // namespace ferry::kernels
