// The first actions of a forked child, and the error for its parent's objects.
#include "ferry/core/fork.h"

#include <fmt/core.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cstddef>

namespace ferry {
namespace {

// Higher descriptors stay open in children. A page of this table takes memory only once it is used.
constexpr std::size_t kMaxDescriptors = std::size_t{1} << 20;
constexpr std::size_t kWordBits = 64;
// A fixed array of atomics and not a set: the child may not allocate, and a lock could be held by a
// thread that it does not have.
std::array<std::atomic<std::uint64_t>, kMaxDescriptors / kWordBits> to_close;  // one bit for each
std::atomic<std::size_t> words_used{0};

// Runs in the child before fork() returns; makes only system calls.
void BecomeChild() {
  // Relaxed throughout: the child has one thread, which is the one that called fork().
  internal::process_generation.fetch_add(1, std::memory_order_relaxed);
  const std::size_t words = words_used.load(std::memory_order_relaxed);
  for (std::size_t i = 0; i < words; ++i) {
    std::uint64_t bits = to_close[i].exchange(0, std::memory_order_relaxed);
    for (; bits != 0; bits &= bits - 1) {
      (void)::close(static_cast<int>(i * kWordBits) + std::countr_zero(bits));
    }
  }
}

// Before main(), so that no fork() is missed.
[[maybe_unused]] const bool kRegistered = ::pthread_atfork(nullptr, nullptr, BecomeChild) == 0;

struct Abandoned {
  std::shared_ptr<const void> object;  // never destroyed
  Abandoned* next;
};
// A list, so that leak checkers can reach the objects.
std::atomic<Abandoned*> all_abandoned{nullptr};

}  // namespace

ProcessMark::ProcessMark() noexcept
    : generation_(internal::process_generation.load(std::memory_order_relaxed)) {}

void internal::Abandon(std::shared_ptr<const void> object) {
  auto* const one = new Abandoned{std::move(object), all_abandoned.load()};
  while (!all_abandoned.compare_exchange_weak(one->next, one)) {
  }
}

Error MadeBeforeFork(std::string_view object) {
  return Error(Code::kInvalidArgument,
               fmt::format("this {} was made before fork() and works only in the process that made "
                           "it, whose threads a child does not have; create an endpoint in the "
                           "child, after fork()",
                           object));
}

void CloseInChildren(int fd) noexcept {
  const auto number = static_cast<std::size_t>(fd);
  if (fd < 0 || number >= kMaxDescriptors) return;
  const std::size_t word = number / kWordBits;
  to_close[word].fetch_or(std::uint64_t{1} << (number % kWordBits), std::memory_order_relaxed);
  std::size_t used = words_used.load(std::memory_order_relaxed);
  while (used <= word &&
         !words_used.compare_exchange_weak(used, word + 1, std::memory_order_relaxed)) {
  }
}

void StopClosingInChildren(int fd) noexcept {
  const auto number = static_cast<std::size_t>(fd);
  if (fd < 0 || number >= kMaxDescriptors) return;
  const std::uint64_t bit = std::uint64_t{1} << (number % kWordBits);
  auto& word = to_close[number / kWordBits];
  if ((word.load(std::memory_order_relaxed) & bit) == 0) return;
  word.fetch_and(~bit, std::memory_order_relaxed);
}

}  // namespace ferry
