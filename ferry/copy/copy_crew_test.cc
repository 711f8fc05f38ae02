#include "ferry/copy/copy_crew.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "ferry/core/testing/random_bytes.h"

namespace ferry {
namespace {

TEST(CopyCrew, EveryByteIsCopiedAndNoneBeside) {
  const std::vector<std::byte> source = RandomBytes((3 << 20) + 50, 1);
  for (const int threads : {1, 2, 3, 7}) {
    const auto crew = *CopyCrew::Create(threads);
    for (const std::size_t bytes :
         {std::size_t{0}, std::size_t{1}, std::size_t{4095}, std::size_t{262'144},
          std::size_t{1'000'003}, std::size_t{3 << 20}, source.size() - 5}) {
      std::vector<std::byte> got(bytes + 2, std::byte{0x5a});
      crew->Copy(got.data() + 1, source.data() + 3, bytes);
      EXPECT_TRUE(std::equal(got.begin() + 1, got.end() - 1, source.begin() + 3))
          << threads << " threads, " << bytes << " bytes";
      EXPECT_EQ(got.front(), std::byte{0x5a});
      EXPECT_EQ(got.back(), std::byte{0x5a});
    }
  }
}

TEST(CopyCrew, EachCopyIsWholeBeforeTheNextBegins) {
  const auto crew = *CopyCrew::Create(3);
  std::vector<std::byte> source(600'000);
  std::vector<std::byte> got(source.size());
  for (int round = 0; round < 200; ++round) {
    std::fill(source.begin(), source.end(), static_cast<std::byte>(round));
    crew->Copy(got.data(), source.data(), got.size());
    ASSERT_TRUE(got == source) << "round " << round;
  }
}

TEST(CopyCrew, EndsWithoutHavingCopied) {
  for (const int threads : {1, 2, 8}) EXPECT_TRUE(CopyCrew::Create(threads));
}

}  // namespace
}  // namespace ferry
