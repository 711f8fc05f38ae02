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
  // Allocates zeroed memory whose address is aligned to 8 but to nothing larger.
  explicit GuardedMemory(std::size_t bytes);
  // Address space that maps one stretch of kStretchBytes repeatedly: it costs little memory, and
  // yet bytes at a wrong place are detected unless they are off by a multiple of the stretch. With
  // `windows`, both ends and the surroundings of each GiB have separate memory, where even that is
  // detected.
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

// Fills with bytes that differ for every seed at every place. The last word may be truncated.
void Fill(std::span<std::byte> memory, std::uint64_t seed);
std::uint64_t PatternWord(std::uint64_t seed, std::uint64_t index) noexcept;

// Numbers of bytes that equal those of Fill(memory, before), those of Fill(memory, after), and
// neither.
struct Census {
  std::uint64_t before = 0;
  std::uint64_t after = 0;
  std::uint64_t foreign = 0;
};
Census TakeCensus(std::span<const std::byte> memory, std::uint64_t before, std::uint64_t after);

// Polls until the word at `word` is no longer that of `seed`; false at the deadline.
bool WaitForChange(std::span<const std::byte> memory, std::uint64_t word, std::uint64_t seed,
                   Deadline deadline);

}  // namespace ferry::tests
