// Tests of owned mappings and of the probe for readable memory.
#include "ferry/core/mapping.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>

namespace ferry {
namespace {

constexpr std::size_t kPage = 4096;

UniqueMapping Map(int protection) {
  void* const at =
      ::mmap(nullptr, 2 * kPage, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return at == MAP_FAILED ? UniqueMapping() : UniqueMapping(Mapping{at, 2 * kPage});
}

TEST(UniqueMapping, UnmapsWhatItOwns) {
  UniqueMapping mapping = Map(PROT_READ | PROT_WRITE);
  ASSERT_TRUE(mapping);
  void* const at = mapping.get().at;
  EXPECT_TRUE(IsReadable(at));
  mapping.reset();
  EXPECT_FALSE(IsReadable(at));
}

TEST(IsReadable, IsSoForMemoryOfThisProcessOnly) {
  const int local = 0;
  static const char kText[] = "x";
  EXPECT_TRUE(IsReadable(&local));
  EXPECT_TRUE(IsReadable(kText));
  EXPECT_FALSE(IsReadable(nullptr));
  for (const std::uintptr_t nothing : {std::uintptr_t{17}, std::uintptr_t{1} << 62}) {
    EXPECT_FALSE(IsReadable(reinterpret_cast<const void*>(nothing)));
  }
}

TEST(IsReadable, IsNotSoForPagesWithoutTheRight) {
  const UniqueMapping mapping = Map(PROT_READ | PROT_WRITE);
  ASSERT_TRUE(mapping);
  auto* const second = static_cast<std::byte*>(mapping.get().at) + kPage;
  ASSERT_EQ(::mprotect(second, kPage, PROT_NONE), 0);
  EXPECT_TRUE(IsReadable(second - 1));
  EXPECT_FALSE(IsReadable(second));
}

}  // namespace
}  // namespace ferry
