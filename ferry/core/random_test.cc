// Tests of random bytes and ids.
#include "ferry/core/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <unordered_set>
#include <vector>

namespace ferry {
namespace {

TEST(FillRandom, ReachesBothEndsOfTheSpanAndNothingBeyond) {
  bool first = false;
  bool last = false;
  for (int round = 0; round < 100; ++round) {
    std::vector<std::byte> bytes(1002, std::byte{0});
    FillRandom(std::span(bytes).subspan(1, 1000));
    EXPECT_EQ(bytes.front(), std::byte{0});
    EXPECT_EQ(bytes.back(), std::byte{0});
    first = first || bytes[1] != std::byte{0};
    last = last || bytes[1000] != std::byte{0};
  }
  EXPECT_TRUE(first);
  EXPECT_TRUE(last);
}

TEST(FillRandom, AcceptsAnEmptySpan) { FillRandom({}); }

TEST(RandomU64, DoesNotRepeat) {
  std::unordered_set<std::uint64_t> seen;
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(seen.insert(RandomU64()).second);
}

TEST(Uuid, IsWrittenAs32HexDigitsInByteOrder) {
  Uuid uuid;
  EXPECT_EQ(uuid.ToString(), "00000000000000000000000000000000");
  for (std::size_t i = 0; i < 16; ++i) uuid.bytes[i] = static_cast<std::byte>(i * 17);
  EXPECT_EQ(uuid.ToString(), "00112233445566778899aabbccddeeff");
}

TEST(Uuid, TwoRandomOnesDifferInTextValueAndHash) {
  std::unordered_set<Uuid> seen;
  for (int i = 0; i < 1000; ++i) {
    const Uuid uuid = Uuid::Random();
    EXPECT_FALSE(uuid.none());
    EXPECT_TRUE(seen.insert(uuid).second);
  }
  EXPECT_TRUE(Uuid{}.none());
  EXPECT_EQ(Uuid{}, Uuid{});
}

}  // namespace
}  // namespace ferry
