// Tests of correct and corrupt fragment lists.
#include "ferry/tcpx/unpack/fragments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "ferry/tcpx/unpack/testing/spoiled_message.h"

namespace ferry::tcpx {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::uint32_t kMax32 = std::numeric_limits<std::uint32_t>::max();
constexpr std::uint64_t kMax64 = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint64_t kPoolBytes = 100'000;

class FragmentsTest : public ::testing::Test {
 protected:
  // Into one run of `posted` bytes that begins at 1000.
  Status Read(const std::vector<Fragment>& fragments, std::uint64_t message, std::uint64_t posted) {
    const PostedRun run{1000, posted};
    return reader_.Read(fragments, {kPoolBytes, message, {&run, 1}}, &blocks_);
  }
  // Why a message is refused, of which nothing is copied.
  std::string Refusal(const std::vector<Fragment>& fragments, std::uint64_t message,
                      std::uint64_t posted = 10'000) {
    blocks_ = {{7, 8, 9}};
    const Status status = Read(fragments, message, posted);
    EXPECT_THAT(blocks_, ElementsAre(Block{7, 8, 9}));
    if (status) return "none";
    EXPECT_EQ(status.error().code(), Code::kCorrupt);
    EXPECT_THAT(status.error().message(),
                ::testing::EndsWith(": the metadata is not to be trusted; end the connection"));
    return status.error().message();
  }

  FragmentReader reader_;
  std::vector<Block> blocks_;
};

// ---- blocks -------------------------------------------------------------------------------------

TEST_F(FragmentsTest, InAnyOrderBecomeBlocksInTheMessagesOrder) {
  ASSERT_TRUE(Read({{500, 10, 20}, {100, 20, 0}, {700, 5, 30}}, 35, 100));
  EXPECT_THAT(blocks_,
              ElementsAre(Block{1000, 100, 20}, Block{1020, 500, 10}, Block{1030, 700, 5}));
}

TEST_F(FragmentsTest, ThatContinueEachOtherInThePoolBecomeOneBlock) {
  ASSERT_TRUE(Read({{120, 10, 20}, {100, 20, 0}, {131, 5, 30}}, 35, 35));
  EXPECT_THAT(blocks_, ElementsAre(Block{1000, 100, 30}, Block{1030, 131, 5}));
}

TEST_F(FragmentsTest, AreCutWhereRunsEnd) {
  const std::vector<PostedRun> runs{{50, 7}, {0, 0}, {10, 3}, {80, 100}};
  ASSERT_TRUE(reader_.Read(std::vector<Fragment>{{200, 20, 5}, {300, 5, 0}}, {kPoolBytes, 25, runs},
                           &blocks_));
  EXPECT_THAT(blocks_, ElementsAre(Block{50, 300, 5}, Block{55, 200, 2}, Block{10, 202, 3},
                                   Block{80, 205, 15}));
}

TEST_F(FragmentsTest, RunsThatContinueEachOtherAreOneBlock) {
  const std::vector<PostedRun> runs{{50, 7}, {57, 3}};
  ASSERT_TRUE(reader_.Read(std::vector<Fragment>{{200, 10, 0}}, {kPoolBytes, 10, runs}, &blocks_));
  EXPECT_THAT(blocks_, ElementsAre(Block{50, 200, 10}));
}

TEST_F(FragmentsTest, BlocksAreAppendedToThoseOfOtherMessages) {
  blocks_ = {{990, 90, 10}};  // which the first of these continues
  ASSERT_TRUE(Read({{100, 20, 0}}, 20, 20));
  EXPECT_THAT(blocks_, ElementsAre(Block{990, 90, 10}, Block{1000, 100, 20}));
}

TEST_F(FragmentsTest, AMessageOfNoBytesHasNoBlocks) {
  EXPECT_TRUE(Read({}, 0, 100));
  EXPECT_TRUE(Read({}, 0, 0));
  EXPECT_TRUE(reader_.Read({}, {0, 0, {}}, &blocks_));
  EXPECT_THAT(blocks_, ElementsAre());
}

TEST_F(FragmentsTest, MayEndWhereThePoolAndTheReceiveEnd) {
  ASSERT_TRUE(Read({{kPoolBytes - 4, 4, 6}, {0, 6, 0}}, 10, 10));
  EXPECT_THAT(blocks_, ElementsAre(Block{1000, 0, 6}, Block{1006, kPoolBytes - 4, 4}));
}

TEST_F(FragmentsTest, OfAPoolOf4GiBReachItsLastByte) {
  const PostedRun run{0, 10};
  const std::vector<Fragment> last{{kMax32, 1, 0}, {kMax32 - 8, 9, 1}};
  EXPECT_TRUE(reader_.Read(last, {std::uint64_t{1} << 32, 10, {&run, 1}}, &blocks_));
}

TEST_F(FragmentsTest, AsManyAsTheRowHasAreAccepted) {
  for (const std::size_t count : {kMaxFragments - 1, kMaxFragments}) {
    const Scattered made = Scatter(std::vector<std::uint32_t>(count, 7), {.most_gap = 3});
    blocks_.clear();
    EXPECT_TRUE(Read(made.fragments, made.bytes, made.bytes));
  }
}

TEST_F(FragmentsTest, NothingIsAllocatedForMessagesOnceThereWasALongOne) {
  const std::vector<std::uint32_t> run_lengths(500, 100);
  const ScatteredRuns runs = ScatterRuns(run_lengths, 4);
  const Scattered longest = Scatter(LengthsOf(50'000, 20, 30), {.begin = 5});
  const PostedReceive receive{longest.pool_end, longest.bytes, runs.runs};
  ASSERT_TRUE(reader_.Read(longest.fragments, receive, &blocks_));
  const Block* const memory = blocks_.data();
  for (int i = 0; i < 100; ++i) {
    blocks_.clear();
    ASSERT_TRUE(reader_.Read(longest.fragments, receive, &blocks_));
    EXPECT_EQ(blocks_.data(), memory);
  }
}

// ---- what is refused ----------------------------------------------------------------------------

TEST_F(FragmentsTest, NoneForAMessageAreRefused) {
  EXPECT_THAT(Refusal({}, 5), HasSubstr("a message of 5 bytes has no fragments"));
}

TEST_F(FragmentsTest, MoreThanARowHasAreRefused) {
  const Scattered made = Scatter(std::vector<std::uint32_t>(2049, 1), {.most_gap = 3});
  EXPECT_THAT(Refusal(made.fragments, made.bytes),
              HasSubstr("a message of 2049 bytes has 2049 fragments, and 2048 are the most"));
}

TEST_F(FragmentsTest, AMessageThatIsLongerThanItsReceiveIsRefused) {
  EXPECT_THAT(Refusal({{0, 101, 0}}, 101, 100),
              HasSubstr("a message of 101 bytes has come for a receive of 100 bytes"));
}

TEST_F(FragmentsTest, OfNoBytesAreRefused) {
  EXPECT_THAT(Refusal({{0, 10, 0}, {5, 0, 10}}, 10),
              HasSubstr("fragment 1 (src 5, len 0, dst 10) is empty"));
  EXPECT_THAT(Refusal({{0, 0, 0}}, 0), HasSubstr("is empty"));
}

TEST_F(FragmentsTest, OutsideThePoolAreRefused) {
  EXPECT_THAT(Refusal({{0, 5, 0}, {99'996, 5, 5}}, 10),
              HasSubstr("fragment 1 (src 99996, len 5, dst 5) does not lie within the pool of "
                        "100000 bytes"));
  EXPECT_THAT(Refusal({{100'000, 5, 0}}, 5), HasSubstr("within the pool"));
  EXPECT_THAT(Refusal({{kMax32, 5, 0}}, 5), HasSubstr("within the pool"));
}

// 4294967290 + 10 is 4 in 32 bits.
TEST_F(FragmentsTest, ThatWrapIn32BitsAreRefused) {
  EXPECT_THAT(Refusal({{4'294'967'290U, 10, 0}}, 10),
              HasSubstr("fragment 0 (src 4294967290, len 10, dst 0) does not lie within the pool"));
  EXPECT_THAT(Refusal({{10, 4'294'967'290U, 0}}, 4), HasSubstr("within the pool"));
}

TEST_F(FragmentsTest, OutsideTheReceiveAreRefused) {
  EXPECT_THAT(Refusal({{0, 5, 0}, {50, 5, 96}}, 100, 100),
              HasSubstr("fragment 1 (src 50, len 5, dst 96) does not lie within the message of "
                        "100 bytes (100 are posted)"));
  EXPECT_THAT(Refusal({{0, 5, 100}}, 5, 100), HasSubstr("(100 are posted)"));
  EXPECT_THAT(Refusal({{0, 5, 101}}, 100, 100), HasSubstr("within the message"));
  EXPECT_THAT(Refusal({{0, 5, kMax64}}, 5, 100), HasSubstr("dst 18446744073709551615)"));
  EXPECT_THAT(Refusal({{0, 10, kMax64 - 4}}, 10, 100), HasSubstr("within the message"));
}

// The receive has room for it, but then bytes of the message are missing.
TEST_F(FragmentsTest, BeyondTheMessageAreRefused) {
  EXPECT_THAT(Refusal({{0, 5, 0}, {50, 5, 6}}, 10, 100),
              HasSubstr("fragment 1 (src 50, len 5, dst 6) does not lie within the message of 10 "
                        "bytes (100 are posted)"));
}

TEST_F(FragmentsTest, ThatAreTooShortTogetherAreRefused) {
  EXPECT_THAT(Refusal({{0, 5, 0}, {50, 4, 6}}, 10),
              HasSubstr("2 fragments have 9 bytes together, and the message has 10"));
}

TEST_F(FragmentsTest, ThatAreTooLongTogetherAreRefused) {
  EXPECT_THAT(Refusal({{0, 5, 0}, {50, 6, 4}}, 10),
              HasSubstr("2 fragments have 11 bytes together, and the message has 10"));
}

TEST_F(FragmentsTest, ThatOverlapAreRefused) {
  EXPECT_THAT(Refusal({{90, 2, 9}, {0, 5, 0}, {50, 4, 4}}, 11),
              HasSubstr("fragment 1 (src 0, len 5, dst 0) and fragment 2 (src 50, len 4, dst 4) "
                        "both write byte 4 of the message"));
  // The same twice, one within another, and the later one first.
  EXPECT_THAT(Refusal({{0, 5, 0}, {9, 5, 3}, {0, 5, 0}}, 15),
              HasSubstr("fragment 0 (src 0, len 5, dst 0) and fragment 2 (src 0, len 5, dst 0) "
                        "both write byte 0 of"));
  EXPECT_THAT(Refusal({{0, 9, 0}, {20, 1, 4}}, 10), HasSubstr("both write byte 4 of"));
  EXPECT_THAT(Refusal({{20, 1, 4}, {0, 9, 0}}, 10),
              HasSubstr("fragment 0 (src 20, len 1, dst 4) and fragment 1 (src 0, len 9, dst 0)"));
}

// ---- fragments that are partly wrong ------------------------------------------------------------

std::optional<Origins> OriginsOf(const std::vector<Block>& blocks, std::uint64_t place_bytes) {
  Origins place(place_bytes);
  for (const Block& block : blocks) {
    for (std::uint64_t i = 0; i < block.len; ++i) {
      if (block.dst + i >= place_bytes || place[block.dst + i]) return std::nullopt;
      place[block.dst + i] = block.src + i;
    }
  }
  return place;
}

TEST_F(FragmentsTest, AreAcceptedOrRefusedAsAByteByByteCheckSays) {
  std::uint64_t accepted = 0;
  for (std::uint64_t round = 0; round < kSpoiledMessages; ++round) {
    SCOPED_TRACE(testing::Message() << "round " << round);
    const SpoiledMessage spoiled(round);
    const auto expected = ReferenceOrigins(spoiled);
    blocks_.clear();
    const Status status = reader_.Read(spoiled.fragments, spoiled.receive, &blocks_);
    ASSERT_EQ(status.has_value(), expected.has_value()) << (status ? "" : status.error().message());
    if (!status) {
      ASSERT_EQ(status.error().code(), Code::kCorrupt);
      ASSERT_TRUE(blocks_.empty());
      continue;
    }
    ++accepted;
    ASSERT_LE(blocks_.size(), spoiled.fragments.size() + spoiled.runs.size());
    ASSERT_EQ(OriginsOf(blocks_, spoiled.place_end), expected);
  }
  // Both happen often, so the test is one of both.
  EXPECT_GT(accepted, kSpoiledMessages / 8);
  EXPECT_LT(accepted, kSpoiledMessages - kSpoiledMessages / 8);
}

}  // namespace
}  // namespace ferry::tcpx
