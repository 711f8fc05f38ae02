// Implements guarded memory and byte patterns.

#include "tests/support/guarded_memory.h"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "ferry/core/check.h"
#include "ferry/core/fd.h"
#include "ferry/core/units.h"

#define FERRY_TESTS_UNORDERED __attribute__((no_sanitize("thread")))

namespace ferry::tests {
namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kGuardBytes = kPageBytes + 24;
constexpr std::size_t kWindowBytes = 8 * kMiB;
constexpr auto kGuard = std::byte{0xA5};
constexpr std::size_t kWord = sizeof(std::uint64_t);

bool IsGuard(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == kGuard; });
}

// Not memcpy, which ThreadSanitizer would look into.
FERRY_TESTS_UNORDERED std::uint64_t LoadWord(const std::byte* at) {
  return *static_cast<const volatile std::uint64_t*>(static_cast<const volatile void*>(at));
}

// Maps the file from its start, or zeroed memory; `at` replaces an existing mapping.
std::span<std::byte> MapPages(std::byte* at, std::size_t bytes, int file) {
  const int kind = (file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED) |
                   (at == nullptr ? MAP_NORESERVE : MAP_FIXED);
  void* const mapped = ::mmap(at, bytes, PROT_READ | PROT_WRITE, kind, file, 0);
  FERRY_CHECK(mapped != MAP_FAILED, errno, bytes);
  if (file < 0 && bytes >= 4 * kMiB) (void)::madvise(mapped, bytes, MADV_HUGEPAGE);
  return {static_cast<std::byte*>(mapped), bytes};
}

std::byte ByteOf(std::uint64_t word, std::size_t index) {
  return static_cast<std::byte>(word >> (8 * index));
}

}  // namespace

// ---- GuardedMemory ------------------------------------------------------------------------------

GuardedMemory::GuardedMemory(std::size_t bytes) {
  mapping_ = MapPages(nullptr, bytes + 2 * kGuardBytes, -1);
  bytes_ = mapping_.subspan(kGuardBytes, bytes);
  SetGuards();
}

GuardedMemory::GuardedMemory(GuardedMemory&& other) noexcept
    : mapping_(std::exchange(other.mapping_, {})), bytes_(std::exchange(other.bytes_, {})) {}

GuardedMemory::~GuardedMemory() {
  if (!mapping_.empty()) (void)::munmap(mapping_.data(), mapping_.size());
}

GuardedMemory GuardedMemory::Repeated(std::size_t bytes, bool windows) {
  const std::size_t end = kPageBytes + (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  GuardedMemory memory;
  memory.mapping_ = MapPages(nullptr, end + kPageBytes, -1);
  memory.bytes_ = memory.mapping_.subspan(kPageBytes, bytes);
  const UniqueFd stretch(::memfd_create("stretch", MFD_CLOEXEC));
  FERRY_CHECK(::ftruncate(stretch.get(), static_cast<off_t>(kStretchBytes)) == 0, errno);
  for (std::size_t at = 0; at < bytes; at += kStretchBytes) {
    (void)MapPages(memory.bytes_.data() + at, std::min(kStretchBytes, end - kPageBytes - at),
                   stretch.get());
  }
  for (std::size_t at = 0; windows && at < bytes; at += kGiB) {
    const std::size_t from = at - std::min(at, kWindowBytes);
    (void)MapPages(memory.bytes_.data() + from, std::min(2 * kWindowBytes, end - kPageBytes - from),
                   -1);
  }
  if (windows && end > 2 * kWindowBytes) {
    (void)MapPages(memory.mapping_.data() + end - kWindowBytes, kWindowBytes, -1);
  }
  memory.SetGuards();
  return memory;
}

void GuardedMemory::SetGuards() const {
  for (const auto guard : {FrontGuard(), BackGuard()}) {
    std::fill(guard.begin(), guard.end(), kGuard);
  }
}

std::span<std::byte> GuardedMemory::FrontGuard() const { return {mapping_.data(), bytes_.data()}; }

std::span<std::byte> GuardedMemory::BackGuard() const {
  return {bytes_.data() + bytes_.size(), mapping_.data() + mapping_.size()};
}

bool GuardedMemory::GuardsIntact() const { return IsGuard(FrontGuard()) && IsGuard(BackGuard()); }

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
