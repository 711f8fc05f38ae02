// Tests of the hash table against std::map.
#include "ferry/core/number_map.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <unordered_map>

namespace ferry {
namespace {

TEST(NumberMap, FindsWhatWasPutThereUntilItIsErased) {
  NumberMap<std::unique_ptr<int>> map;
  EXPECT_EQ(map.Find(7), nullptr);
  EXPECT_FALSE(map.Erase(7));
  map[7] = std::make_unique<int>(1);
  map[0] = std::make_unique<int>(2);
  EXPECT_EQ(**map.Find(7), 1);
  EXPECT_EQ(**map.Find(0), 2);
  EXPECT_EQ(map.Find(1), nullptr);
  EXPECT_EQ(map.size(), 2u);
  EXPECT_TRUE(map.Erase(7));
  EXPECT_FALSE(map.Erase(7));
  EXPECT_EQ(map.Find(7), nullptr);
  EXPECT_TRUE(map.Erase(0));
  EXPECT_TRUE(map.empty());
}

TEST(NumberMap, AnErasedValueIsGoneAtOnce) {
  NumberMap<std::shared_ptr<int>> map;
  const auto value = std::make_shared<int>(1);
  map[3] = value;
  map.Erase(3);
  EXPECT_EQ(value.use_count(), 1);
  EXPECT_EQ(map[3], nullptr);
}

TEST(NumberMap, HasWhatAnotherMapHasForRandomStepsWhileItGrowsAndShrinks) {
  std::mt19937_64 random(1);
  NumberMap<std::uint64_t> map;
  std::unordered_map<std::uint64_t, std::uint64_t> plain;
  for (int step = 0; step < 200'000; ++step) {
    // Alternates between phases in which the table fills and phases in which it empties.
    const bool fills = step / 20'000 % 2 == 0;
    const std::uint64_t key = random() % 5'000;
    if (random() % 10 < (fills ? 8U : 1U)) {
      map[key] = static_cast<std::uint64_t>(step);
      plain[key] = static_cast<std::uint64_t>(step);
    } else {
      ASSERT_EQ(map.Erase(key), plain.erase(key) != 0) << step;
    }
    const std::uint64_t other = random() % 5'000;
    const auto expected = plain.find(other);
    const std::uint64_t* const found = map.Find(other);
    ASSERT_EQ(found != nullptr, expected != plain.end()) << step;
    if (found != nullptr) {
      ASSERT_EQ(*found, expected->second) << step;
    }
    ASSERT_EQ(map.size(), plain.size());
  }
}

}  // namespace
}  // namespace ferry
