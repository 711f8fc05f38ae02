#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "ferry/core/deadline.h"

// Memory whose every byte is known, and functions that look at it while or after an engine has
// written there. They are not instrumented by ThreadSanitizer: what orders their reads after the
// writes of a transfer is often another process.
namespace ferry::tests {

// Zeroed memory between two guards, starting off any alignment larger than 8.
class GuardedMemory {
 public:
  explicit GuardedMemory(std::size_t bytes);
  ~GuardedMemory();
  GuardedMemory(GuardedMemory&& other) noexcept;
  GuardedMemory& operator=(GuardedMemory&&) = delete;

  std::span<std::byte> bytes() const noexcept { return bytes_; }
  bool GuardsIntact() const;

 private:
  std::span<std::byte> mapping_;
  std::span<std::byte> bytes_;
};

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
