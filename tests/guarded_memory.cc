#include "tests/guarded_memory.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "ferry/core/check.h"
#include "ferry/core/units.h"

#define FERRY_TESTS_UNORDERED __attribute__((no_sanitize("thread")))

namespace ferry::tests {
namespace {

constexpr std::size_t kGuardBytes = 4096 + 24;
constexpr auto kGuard = std::byte{0xA5};
constexpr std::size_t kWord = sizeof(std::uint64_t);

bool IsGuard(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == kGuard; });
}

// Not memcpy, which ThreadSanitizer would look into.
FERRY_TESTS_UNORDERED std::uint64_t LoadWord(const std::byte* at) {
  return *static_cast<const volatile std::uint64_t*>(static_cast<const volatile void*>(at));
}

std::byte ByteOf(std::uint64_t word, std::size_t index) {
  return static_cast<std::byte>(word >> (8 * index));
}

}  // namespace

// ---- GuardedMemory ------------------------------------------------------------------------------

GuardedMemory::GuardedMemory(std::size_t bytes) {
  const std::size_t whole = bytes + 2 * kGuardBytes;
  void* const at =
      ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  FERRY_CHECK(at != MAP_FAILED, errno, whole);
  if (bytes >= 4 * kMiB) (void)::madvise(at, whole, MADV_HUGEPAGE);
  mapping_ = {static_cast<std::byte*>(at), whole};
  bytes_ = mapping_.subspan(kGuardBytes, bytes);
  std::memset(mapping_.data(), std::to_integer<int>(kGuard), kGuardBytes);
  std::memset(mapping_.last(kGuardBytes).data(), std::to_integer<int>(kGuard), kGuardBytes);
}

GuardedMemory::GuardedMemory(GuardedMemory&& other) noexcept
    : mapping_(std::exchange(other.mapping_, {})), bytes_(std::exchange(other.bytes_, {})) {}

GuardedMemory::~GuardedMemory() {
  if (!mapping_.empty()) (void)::munmap(mapping_.data(), mapping_.size());
}

bool GuardedMemory::GuardsIntact() const {
  return IsGuard(mapping_.first(kGuardBytes)) && IsGuard(mapping_.last(kGuardBytes));
}

// ---- patterns -----------------------------------------------------------------------------------

std::uint64_t PatternWord(std::uint64_t seed, std::uint64_t index) noexcept {
  const std::uint64_t x = (index + 1) * 0x9E3779B97F4A7C15u + seed * 0xD1B54A32D192ED03u;
  return (x ^ (x >> 31)) * 0xBF58476D1CE4E5B9u;
}

void Fill(std::span<std::byte> memory, std::uint64_t seed) {
  const std::size_t words = memory.size() / kWord;
  for (std::size_t i = 0; i < words; ++i) {
    const std::uint64_t word = PatternWord(seed, i);
    std::memcpy(memory.data() + i * kWord, &word, kWord);
  }
  const std::uint64_t last = PatternWord(seed, words);
  std::memcpy(memory.data() + words * kWord, &last, memory.size() % kWord);
}

FERRY_TESTS_UNORDERED Census TakeCensus(std::span<const std::byte> memory, std::uint64_t before,
                                        std::uint64_t after) {
  Census census;
  const std::byte* const at = memory.data();
  for (std::size_t i = 0; i < memory.size(); i += kWord) {
    const std::uint64_t was = PatternWord(before, i / kWord);
    const std::uint64_t is = PatternWord(after, i / kWord);
    const std::size_t size = std::min(kWord, memory.size() - i);
    const std::uint64_t word = size == kWord ? LoadWord(at + i) : 0;
    if (size == kWord && (word == is || word == was)) {
      (word == is ? census.after : census.before) += kWord;
      continue;
    }
    for (std::size_t b = 0; b < size; ++b) {
      const std::byte found = *static_cast<const volatile std::byte*>(at + i + b);
      if (found == ByteOf(was, b)) {
        ++census.before;
      } else {
        ++(found == ByteOf(is, b) ? census.after : census.foreign);
      }
    }
  }
  return census;
}

FERRY_TESTS_UNORDERED bool WaitForChange(std::span<const std::byte> memory, std::uint64_t word,
                                         std::uint64_t seed, Deadline deadline) {
  FERRY_CHECK((word + 1) * kWord <= memory.size(), word, memory.size());
  const std::uint64_t was = PatternWord(seed, word);
  while (LoadWord(memory.data() + word * kWord) == was) {
    if (deadline.expired()) return false;
    ::sched_yield();
  }
  return true;
}

}  // namespace ferry::tests
