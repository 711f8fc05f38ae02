#pragma once
#include <cstdint>

#include "ferry/core/result.h"
#include "ferry/cuda/resources.h"

// Copies by kernels, which show what a pattern of accesses can reach.
namespace ferry::kernels {

enum class CopyForm : std::uint8_t {
  kTwoWords,  // to a thread
  kFourWords,
  kEightWords,
  kStreamed,  // four, which the caches are told not to keep
  kInTurn,    // four, by blocks that stay
};

struct CopyWordsArgs {
  const void* from;
  void* to;
  std::uint64_t words;  // of 16 bytes: a multiple of 2048
  CopyForm form;
};
Status LaunchCopyWords(const CopyWordsArgs& args, cuda::StreamRef stream);

}  // namespace ferry::kernels
