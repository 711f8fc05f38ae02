// Tests of the region table: keys, rights, grants, and the bounds of remote blocks.
#include "ferry/transfer/memory/region_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <thread>
#include <utility>

#include "ferry/transfer/testing/cost.h"
#include "ferry/transfer/testing/linked_endpoints.h"

namespace ferry::transfer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::uint64_t kMaxOffset = std::numeric_limits<std::uint64_t>::max();

wire::KeyBody KeyOf(const RegionState& region) {
  return {region.id, region.generation, region.token};
}

class RegionTableTest : public ::testing::Test {
 protected:
  std::shared_ptr<RegionState> Add(Rights rights = Rights::kReadWrite) {
    auto region = table_.Add(memory_, rights);
    EXPECT_TRUE(region);
    return *region;
  }
  std::string Refusal(const wire::KeyBody& key, Rights wanted = Rights::kWrite) {
    const auto pin = table_.Open(key, wanted);
    if (pin) return "";
    EXPECT_EQ(pin.error().code(), Code::kRefused);
    return pin.error().message();
  }

  std::array<std::byte, 64> memory_{};
  RegionTable table_;
};

TEST_F(RegionTableTest, OpensALiveRegionForARightThatItHas) {
  const auto region = Add();
  for (const Rights wanted : {Rights::kRead, Rights::kWrite, Rights::kReadWrite}) {
    const auto pin = table_.Open(KeyOf(*region), wanted);
    ASSERT_TRUE(pin) << pin.error().ToString();
    EXPECT_EQ(pin->get(), region.get());
    EXPECT_EQ(pin->memory().data(), memory_.data());
  }
  EXPECT_EQ(table_.size(), 1u);
}

TEST_F(RegionTableTest, AKeyOfATokenAloneReachesTheLatestRegionOfThatToken) {
  const auto named = [this](std::uint64_t token) {
    auto region = table_.Add(memory_, Rights::kReadWrite, nullptr, nullptr, token);
    EXPECT_TRUE(region);
    return *region;
  };
  const wire::KeyBody key{kNamedByToken, kNamedByToken, 77};
  const auto first = named(77);
  const auto other = named(78);
  EXPECT_EQ(table_.Open(key, Rights::kWrite)->get(), first.get());
  table_.Remove(first);
  EXPECT_THAT(Refusal(key), HasSubstr("not registered"));
  const auto second = named(77);
  EXPECT_EQ(table_.Open(key, Rights::kWrite)->get(), second.get());
  const auto third = named(77);
  table_.Remove(second);
  EXPECT_EQ(table_.Open(key, Rights::kWrite)->get(), third.get());
  const wire::KeyBody ordinary{kNamedByToken, kNamedByToken, Add()->token};
  EXPECT_NE(Refusal(ordinary), "");
}

TEST_F(RegionTableTest, RefusesToRegisterNoBytes) {
  const auto region = table_.Add({}, Rights::kRead);
  ASSERT_FALSE(region);
  EXPECT_EQ(region.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(region.error().message(), HasSubstr("at least one byte"));
  EXPECT_EQ(table_.size(), 0u);
}

TEST_F(RegionTableTest, SaysThatARegionIsUnknown) {
  EXPECT_THAT(Refusal({0, 1, 0}), HasSubstr("there is no region 0"));
  const auto region = Add();
  wire::KeyBody key = KeyOf(*region);
  key.region = 1;
  EXPECT_THAT(Refusal(key), AllOf(HasSubstr("there is no region 1"), HasSubstr("use a key")));
  key.region = std::numeric_limits<std::uint32_t>::max();
  EXPECT_THAT(Refusal(key), HasSubstr("there is no region"));
  key = KeyOf(*region);
  key.generation = 0;
  EXPECT_THAT(Refusal(key), HasSubstr("generation 0"));
  key.generation = region->generation + 1;
  EXPECT_THAT(Refusal(key), HasSubstr("there is no region 0 of generation 2"));
}

TEST_F(RegionTableTest, SaysThatAKeyIsStaleAfterRemovalAndAfterReuseOfItsSlot) {
  const auto region = Add();
  const wire::KeyBody key = KeyOf(*region);
  table_.Remove(region);
  EXPECT_THAT(Refusal(key), AllOf(HasSubstr("stale"), HasSubstr("generation 1 was deregistered"),
                                  HasSubstr("fresh key")));
  const auto next = Add();
  EXPECT_EQ(next->id, region->id);
  EXPECT_EQ(next->generation, region->generation + 1);
  EXPECT_NE(next->token, region->token);
  EXPECT_THAT(Refusal(key), HasSubstr("stale"));
  EXPECT_TRUE(table_.Open(KeyOf(*next), Rights::kWrite));
}

// Regression: the generation wrapped to 0, with which every key was refused, and then repeated.
TEST_F(RegionTableTest, ASlotIsRetiredAfterItsLastGeneration) {
  RegionTable table(RegionTable::kLastGeneration - 1);
  const auto last = Must(table.Add(memory_, Rights::kReadWrite));
  EXPECT_EQ(last->generation, RegionTable::kLastGeneration);
  EXPECT_TRUE(table.Open(KeyOf(*last), Rights::kWrite));
  table.Remove(last);
  EXPECT_EQ(table.size(), 0u);
  const auto next = Must(table.Add(memory_, Rights::kReadWrite));
  EXPECT_NE(next->id, last->id);
  EXPECT_NE(next->generation, 0u);
  EXPECT_TRUE(table.Open(KeyOf(*next), Rights::kWrite));
  const auto stale = table.Open(KeyOf(*last), Rights::kWrite);
  ASSERT_FALSE(stale);
  EXPECT_THAT(stale.error().message(), HasSubstr("stale"));
  EXPECT_EQ(table.size(), 1u);
  EXPECT_EQ(table.Registered().regions, 1u);
}

TEST_F(RegionTableTest, SaysThatATokenIsWrongForEveryFlippedBit) {
  const auto region = Add();
  for (int bit = 0; bit < 64; ++bit) {
    wire::KeyBody key = KeyOf(*region);
    key.token ^= std::uint64_t{1} << bit;
    EXPECT_THAT(Refusal(key), AllOf(HasSubstr("wrong token"), HasSubstr("unchanged")));
  }
}

TEST_F(RegionTableTest, SaysWhichRightIsMissingForEveryPairOfRights) {
  const std::array all{Rights::kNone, Rights::kRead, Rights::kWrite, Rights::kReadWrite};
  for (const Rights have : all) {
    const auto region = Add(have);
    for (const Rights want : {Rights::kRead, Rights::kWrite, Rights::kReadWrite}) {
      const bool allowed = (static_cast<unsigned>(want) & ~static_cast<unsigned>(have)) == 0;
      const std::string refusal = Refusal(KeyOf(*region), want);
      EXPECT_EQ(refusal.empty(), allowed);
      if (allowed) continue;
      EXPECT_THAT(refusal, AllOf(HasSubstr(std::string("allows peers ") + RightsName(have)),
                                 HasSubstr(std::string("not ") + RightsName(want))));
    }
    table_.Remove(region);
  }
}

TEST_F(RegionTableTest, APinnedRegionIsDrainedOnlyWhenThePinIsReleased) {
  const auto region = Add();
  auto pin = table_.Open(KeyOf(*region), Rights::kRead);
  ASSERT_TRUE(pin);
  table_.Remove(region);
  table_.Remove(region);
  EXPECT_FALSE(region->gate.WaitDrained(Deadline::At({})));
  EXPECT_FALSE(RegionPin(region));
  pin->Release();
  EXPECT_TRUE(region->gate.WaitDrained(Deadline::At({})));
}

TEST_F(RegionTableTest, TwoRegionsOfTheSameMemoryAreIndependent) {
  const auto first = Add();
  const auto second = Add();
  EXPECT_NE(first->id, second->id);
  table_.Remove(first);
  EXPECT_FALSE(table_.Open(KeyOf(*first), Rights::kRead));
  EXPECT_TRUE(table_.Open(KeyOf(*second), Rights::kRead));
  EXPECT_EQ(table_.size(), 1u);
}

TEST_F(RegionTableTest, NobodyGetsIntoARegionThatAnotherThreadHasRemoved) {
  for (int round = 0; round < 200; ++round) {
    const auto region = Add();
    std::atomic<bool> drained{false};
    std::jthread remover([&] {
      table_.Remove(region);
      EXPECT_TRUE(region->gate.WaitDrained(Deadline::After(std::chrono::seconds(30))));
      drained.store(true);
    });
    for (;;) {
      const bool before = drained.load();
      const auto pin = table_.Open(KeyOf(*region), Rights::kWrite);
      ASSERT_FALSE(before && pin);
      if (!pin) break;
    }
  }
  EXPECT_EQ(table_.size(), 0u);
}

// ---- PlaceBlocks --------------------------------------------------------------------------------

class PlaceBlocksTest : public RegionTableTest {
 protected:
  Status Place(const std::vector<wire::BlockOnWire>& blocks, std::uint64_t bytes) {
    std::vector<std::byte> wire;
    for (const auto& block : blocks) wire::Append(&wire, block);
    pieces_.assign(1, {nullptr, 99});
    return PlaceBlocks(*region_, wire, bytes, &pieces_);
  }
  void ExpectError(const Status& status, Code code, const char* words) {
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code(), code);
    EXPECT_THAT(status.error().message(), HasSubstr(words));
  }

  std::shared_ptr<RegionState> region_ = Add();
  std::vector<iovec> pieces_;
};

TEST_F(PlaceBlocksTest, PutsEveryBlockWhereItBelongs) {
  ASSERT_TRUE(Place({{0, 1}, {60, 4}, {0, 64}, {63, 1}}, 70));
  ASSERT_EQ(pieces_.size(), 4u);
  EXPECT_EQ(pieces_[0].iov_base, memory_.data());
  EXPECT_EQ(pieces_[1].iov_base, memory_.data() + 60);
  EXPECT_EQ(pieces_[1].iov_len, 4u);
  EXPECT_EQ(pieces_[2].iov_len, 64u);
  EXPECT_EQ(pieces_[3].iov_base, memory_.data() + 63);
}

TEST_F(PlaceBlocksTest, NoBlocksFitNoBytesOnly) {
  EXPECT_TRUE(Place({}, 0));
  EXPECT_TRUE(pieces_.empty());
  ExpectError(Place({}, 1), Code::kCorrupt, "1 bytes shorter");
}

TEST_F(PlaceBlocksTest, RefusesABlockOutsideTheRegion) {
  ExpectError(Place({{64, 1}}, 1), Code::kRefused, "covers 1 bytes from offset 64");
  ExpectError(Place({{63, 2}}, 2), Code::kRefused, "which has 64 bytes");
  ExpectError(Place({{0, 65}}, 65), Code::kRefused, "check offset and length");
  ExpectError(Place({{0, 4}, {61, 4}}, 8), Code::kRefused, "block 1");
}

TEST_F(PlaceBlocksTest, RefusesOffsetsAndLengthsThatOverflow) {
  ExpectError(Place({{kMaxOffset, 1}}, 1), Code::kRefused, "offset");
  ExpectError(Place({{kMaxOffset - 3, 8}}, 8), Code::kRefused, "offset");
  ExpectError(Place({{1, kMaxOffset}}, kMaxOffset), Code::kRefused, "offset");
  ExpectError(Place({{kMaxOffset, kMaxOffset}}, kMaxOffset), Code::kRefused, "offset");
  // Lengths whose sum is 8 modulo 2^64.
  ExpectError(Place({{0, 16}, {0, kMaxOffset - 7}}, 8), Code::kCorrupt, "block 0");
  ExpectError(Place({{0, 4}, {0, kMaxOffset - 3}}, 8), Code::kCorrupt, "block 1");
}

TEST_F(PlaceBlocksTest, ABlockOfNoBytesIsCorrupt) {
  ExpectError(Place({{0, 0}}, 0), Code::kCorrupt, "block 0 has 0 bytes");
  ExpectError(Place({{0, 4}, {4, 0}}, 4), Code::kCorrupt, "block 1 has 0 bytes");
}

TEST_F(PlaceBlocksTest, AListThatIsLongerOrShorterThanItsPayloadIsCorrupt) {
  ExpectError(Place({{0, 5}}, 4), Code::kCorrupt, "where the frame has 4 left");
  ExpectError(Place({{0, 4}, {8, 1}}, 4), Code::kCorrupt, "where the frame has 0 left");
  ExpectError(Place({{0, 4}}, 5), Code::kCorrupt, "1 bytes shorter than its payload");
}

TEST_F(RegionTableTest, AGrantedKeyIsForOnePeerAndItsRightsOnly) {
  const auto region = Add(Rights::kNone);
  const Accessor friendly{nullptr, Uuid::Random()};
  const Accessor other{nullptr, Uuid::Random()};
  const auto key = table_.Grant(region, friendly.peer, Rights::kWrite);
  ASSERT_TRUE(key);
  EXPECT_TRUE(table_.Open(*key, Rights::kWrite, friendly));
  const auto read = table_.Open(*key, Rights::kRead, friendly);
  ASSERT_FALSE(read);
  EXPECT_THAT(read.error().message(), HasSubstr("writing only, not reading only"));
  const auto stolen = table_.Open(*key, Rights::kWrite, other);
  ASSERT_FALSE(stolen);
  EXPECT_THAT(stolen.error().message(),
              AllOf(HasSubstr(friendly.peer.ToString()), HasSubstr(other.peer.ToString())));
  EXPECT_THAT(Refusal(KeyOf(*region)), HasSubstr("allows peers neither"));
}

TEST_F(RegionTableTest, AGrantEndsWhenItIsWithdrawnOrItsRegionRemoved) {
  const auto region = Add(Rights::kNone);
  const Accessor peer{nullptr, Uuid::Random()};
  const auto first = table_.Grant(region, peer.peer, Rights::kRead);
  const auto second = table_.Grant(region, peer.peer, Rights::kWrite);
  ASSERT_TRUE(first && second);
  EXPECT_NE(first->token, second->token);
  table_.Withdraw(region, peer.peer);
  for (const auto& key : {*first, *second}) {
    const auto refused = table_.Open(key, Rights::kRead, peer);
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().message(), HasSubstr("wrong token"));
  }
  table_.Remove(region);
  EXPECT_FALSE(table_.Grant(region, peer.peer, Rights::kRead));
}

TEST_F(RegionTableTest, WithdrawingFromOnePeerLeavesTheKeysOfTheOthers) {
  const auto region = Add(Rights::kNone);
  const Accessor one{nullptr, Uuid::Random()};
  const Accessor other{nullptr, Uuid::Random()};
  const auto taken = table_.Grant(region, one.peer, Rights::kRead);
  const auto kept = table_.Grant(region, other.peer, Rights::kRead);
  ASSERT_TRUE(taken && kept);
  table_.Withdraw(region, one.peer);
  EXPECT_FALSE(table_.Open(*taken, Rights::kRead, one));
  EXPECT_TRUE(table_.Open(*kept, Rights::kRead, other));
  const auto again = table_.Grant(region, one.peer, Rights::kRead);
  ASSERT_TRUE(again);
  EXPECT_TRUE(table_.Open(*again, Rights::kRead, one));
}

TEST_F(RegionTableTest, CountsTheBytesOfTheRegionsThatAreThere) {
  const auto first = Add();
  const auto second = Add();
  EXPECT_EQ(table_.Registered().regions, 2u);
  EXPECT_EQ(table_.Registered().bytes, 2 * memory_.size());
  table_.Remove(first);
  table_.Remove(first);
  EXPECT_EQ(table_.Registered().regions, 1u);
  EXPECT_EQ(table_.Registered().bytes, memory_.size());
  table_.Remove(second);
  EXPECT_EQ(table_.Registered().bytes, 0u);
}

TEST_F(RegionTableTest, OpensAndWithdrawsAGrantedKeyWithoutASearchThroughAllGrants) {
  const auto growth = CostGrowth([this](std::size_t count) {
    const auto region = Add(Rights::kNone);
    for (std::size_t i = 0; i < count; ++i) {
      EXPECT_TRUE(table_.Grant(region, Uuid::Random(), Rights::kRead));
    }
    const Accessor last{nullptr, Uuid::Random()};
    const auto key = Must(table_.Grant(region, last.peer, Rights::kRead));
    return [this, region, last, key, nobody = Uuid::Random()] {
      EXPECT_TRUE(table_.Open(key, Rights::kRead, last));
      table_.Withdraw(region, nobody);
    };
  });
  EXPECT_LT(growth, kMaxGrowth);
}

}  // namespace
}  // namespace ferry::transfer
