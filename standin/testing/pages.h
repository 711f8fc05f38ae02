// Page-aligned memory for tests.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

namespace ferry::standin::testing {

// Memory at a boundary of 4 KiB, and of whole pages.
struct PagesDelete {
  void operator()(std::byte* memory) const;
};
using Pages = std::unique_ptr<std::byte[], PagesDelete>;
// Zeroed.
Pages MakePages(std::size_t bytes);
// The same bytes for the same seed.
Pages MakePattern(std::size_t bytes, std::uint64_t seed);

}  // namespace ferry::standin::testing
