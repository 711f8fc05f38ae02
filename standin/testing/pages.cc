// Implements page-aligned memory for tests.

#include "standin/testing/pages.h"

#include <cstdlib>
#include <cstring>

#include "ferry/core/testing/random_bytes.h"

namespace ferry::standin::testing {
namespace {

constexpr std::size_t kPageBytes = 4096;

}  // namespace

void PagesDelete::operator()(std::byte* memory) const { std::free(memory); }

Pages MakePages(std::size_t bytes) {
  const std::size_t whole = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  Pages pages(static_cast<std::byte*>(std::aligned_alloc(kPageBytes, whole)));
  std::memset(pages.get(), 0, whole);
  return pages;
}

Pages MakePattern(std::size_t bytes, std::uint64_t seed) {
  Pages pages = MakePages(bytes);
  FillRandomly({pages.get(), bytes}, seed);
  return pages;
}

}  // namespace ferry::standin::testing
