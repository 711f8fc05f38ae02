// The simulated form of the conformance suite's kernel.
#include "ferry/cuda/testing/test_kernels.h"

#include <cstring>

namespace ferry::cuda {
namespace {

Status EmulateAddWords(EmulatedMemory& memory, const void* arguments) {
  const auto& a = *static_cast<const AddArguments*>(arguments);
  constexpr std::size_t kWord = sizeof(std::uint32_t);
  FERRY_TRY_ASSIGN(const std::byte* const src, memory.At(a.src, a.count * kWord));
  FERRY_TRY_ASSIGN(std::byte* const dst, memory.At(a.dst, a.count * kWord));
  for (std::size_t i = 0; i < a.count; ++i) {
    std::uint32_t word = 0;
    std::memcpy(&word, src + i * kWord, kWord);
    word += a.add;
    std::memcpy(dst + i * kWord, &word, kWord);
  }
  return Ok();
}

#ifdef FERRY_HAVE_CUDA
constexpr auto* kLaunchAddWords = &LaunchAddWords;
#else
constexpr Status (*kLaunchAddWords)(StreamRef, const void*) = nullptr;
#endif

}  // namespace

const Kernel kAddWords = {"add_words", kLaunchAddWords, EmulateAddWords};

}  // namespace ferry::cuda
