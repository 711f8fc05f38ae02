// Memory with known contents between guards, and functions that inspect it while or after an
// engine writes there. ThreadSanitizer does not instrument them: often another process orders
// their reads after the writes of a transfer.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "ferry/core/deadline.h"

namespace ferry::tests {

// Memory between two guards.
class GuardedMemory {
 public:
  // Zeroed; starts off any alignment larger than 8.
  explicit GuardedMemory(std::size_t bytes);
  // Address space of which one stretch of kStretchBytes fills all, over and over: costs little, and
  // yet what is taken from or put into a wrong place shows, unless that is off by a multiple of the
  // stretch. With `windows` there is memory of its own at both ends and around each GiB, where even
  // that shows.
  static GuardedMemory Repeated(std::size_t bytes, bool windows);
  ~GuardedMemory();
  GuardedMemory(GuardedMemory&& other) noexcept;
  GuardedMemory& operator=(GuardedMemory&&) = delete;

  std::span<std::byte> bytes() const noexcept { return bytes_; }
  bool GuardsIntact() const;

 private:
  GuardedMemory() = default;
  void SetGuards() const;
  std::span<std::byte> FrontGuard() const;
  std::span<std::byte> BackGuard() const;

  std::span<std::byte> mapping_;
  std::span<std::byte> bytes_;
};

// A prime number of pages.
inline constexpr std::size_t kStretchBytes = std::size_t{16411} * 4096;

// Every seed gives other bytes at every place. The last word may be cut.
void Fill(std::span<std::byte> memory, std::uint64_t seed);
std::uint64_t PatternWord(std::uint64_t seed, std::uint64_t index) noexcept;

// How many bytes are those that Fill(memory, before) or Fill(memory, after) would have put there,
// and how many are neither.
struct Census {
  std::uint64_t before = 0;
  std::uint64_t after = 0;
  std::uint64_t foreign = 0;
};
Census TakeCensus(std::span<const std::byte> memory, std::uint64_t before, std::uint64_t after);

// Until the word at `word` is no longer that of `seed`, or false at the deadline. Busy.
bool WaitForChange(std::span<const std::byte> memory, std::uint64_t word, std::uint64_t seed,
                   Deadline deadline);

}  // namespace ferry::tests
