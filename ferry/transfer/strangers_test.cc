#include "ferry/transfer/strangers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ferry::transfer {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr bool kElsewhere = false;
constexpr bool kHere = true;

class StrangersTest : public ::testing::Test {
 protected:
  std::vector<std::uint64_t> Enter(const std::string& host, bool same_machine = kElsewhere) {
    return strangers_.Enter(next_++, host, same_machine);
  }
  // Ids follow from 1.
  void EnterMany(int count, const std::string& host, bool same_machine = kElsewhere) {
    for (int i = 0; i < count; ++i) EXPECT_THAT(Enter(host, same_machine), IsEmpty());
  }

  Strangers strangers_{256};
  std::uint64_t next_ = 1;
};

TEST_F(StrangersTest, WithRoomForAllNobodyGoes) {
  EnterMany(128, "a");
  EnterMany(128, "b");
  EXPECT_EQ(strangers_.size(), 256u);
}

TEST_F(StrangersTest, AnAddressThatHasItsSharePushesOutItsOwn) {
  EnterMany(1, "b");
  EnterMany(128, "a");
  EXPECT_EQ(strangers_.share(), 128u);
  EXPECT_THAT(Enter("a"), ElementsAre(2u));
  EXPECT_THAT(Enter("a"), ElementsAre(3u));
  EXPECT_THAT(Enter("b"), IsEmpty());
}

TEST_F(StrangersTest, ThisMachineIsHeldToNoShareButToTheTable) {
  EnterMany(256, "127.0.0.1", kHere);
  EXPECT_THAT(Enter("127.0.0.1", kHere), ElementsAre(1u));
  EXPECT_THAT(Enter("10.0.0.1"), ElementsAre(2u));
  EXPECT_EQ(strangers_.size(), 256u);
}

TEST_F(StrangersTest, WhenFullTheAddressThatHasMostGivesUpAPlace) {
  EnterMany(1, "peer");
  EnterMany(128, "a");
  EnterMany(100, "b");
  EnterMany(27, "c");
  EXPECT_THAT(Enter("another peer"), ElementsAre(2u));
  EXPECT_THAT(Enter("c"), ElementsAre(3u));
}

TEST_F(StrangersTest, TheOldestThatHasSaidNothingGoesFirst) {
  EnterMany(256, "127.0.0.1", kHere);
  strangers_.HasSpoken(1);
  strangers_.HasSpoken(3);
  EXPECT_THAT(Enter("127.0.0.1", kHere), ElementsAre(2u));
  EXPECT_THAT(Enter("127.0.0.1", kHere), ElementsAre(4u));
}

TEST_F(StrangersTest, OfThoseWhoHaveAllSpokenTheOldestGoes) {
  EnterMany(256, "127.0.0.1", kHere);
  for (std::uint64_t id = 1; id <= 256; ++id) strangers_.HasSpoken(id);
  EXPECT_THAT(Enter("127.0.0.1", kHere), ElementsAre(1u));
  EXPECT_THAT(Enter("127.0.0.1", kHere), ElementsAre(257u));  // which said nothing
}

TEST_F(StrangersTest, WhoHasLeftMakesRoom) {
  EnterMany(128, "a");
  strangers_.Leave(5);
  strangers_.Leave(5);
  strangers_.HasSpoken(5);
  EXPECT_THAT(Enter("a"), IsEmpty());
  EXPECT_THAT(Enter("a"), ElementsAre(1u));
}

TEST_F(StrangersTest, AllLanesOfOnePeerFindRoomInTheSmallestTable) {
  Strangers small(64);
  for (std::uint64_t id = 1; id <= 64; ++id)
    EXPECT_THAT(small.Enter(id, "a", kElsewhere), IsEmpty());
  EXPECT_THAT(small.Enter(65, "a", kElsewhere), ElementsAre(1u));
}

}  // namespace
}  // namespace ferry::transfer
