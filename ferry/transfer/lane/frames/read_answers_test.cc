// Tests answers to the peer's reads.
#include <gtest/gtest.h>

#include "ferry/transfer/lane/frames/frame_receiver.h"
#include "ferry/transfer/lane/lane_site.h"
#include "ferry/transfer/lane/lane_staging.h"
#include "ferry/transfer/testing/lane_bed.h"

namespace ferry::transfer {
namespace {

using Action = net::Placement::Action;

class ReadAnswersTest : public ::testing::Test {
 protected:
  ReadAnswersTest() : bytes_(4000) {
    frames_.SetLane(&lane_);
    region_ = Must(bed_.regions.Add(bytes_, Rights::kRead));
  }

  Result<net::Placement> Request(std::uint64_t offset, std::uint64_t length) {
    wire::MessageHeader header;
    header.type = wire::Type::kReadRequest;
    header.operation = 6;
    std::vector<std::byte> body;
    wire::Append(&body, wire::WriteBody{{region_->id, region_->generation, region_->token}, 0, 1});
    wire::Append(&body, wire::BlockOnWire{offset, length});
    wire::MetaReader reader(body);
    return answers_.OnRequest(header, &reader);
  }

  LaneBed bed_;
  ScriptedLane lane_;
  std::vector<std::byte> bytes_;
  std::shared_ptr<RegionState> region_;  // shared with the table
  FrameSender frames_{bed_.site};
  LaneStaging staging_{&bed_.owner, bed_.loop.get(), {[] {}, [] { return false; }}};
  SendWindow window_;
  ReadAnswers answers_{bed_.site, &frames_, &window_, &staging_.outbox()};
};

TEST_F(ReadAnswersTest, SendsTheRegionsMemoryAndPinsItUntilTheAcknowledgement) {
  ASSERT_TRUE(Request(100, 200));
  ASSERT_EQ(lane_.Types(), std::vector{wire::Type::kReadData});
  const net::OutFrame& frame = *lane_.queue[0];
  EXPECT_EQ(frame.payload_bytes, 200u);
  ASSERT_EQ(frame.payload.size(), 1u);
  EXPECT_EQ(frame.payload[0].iov_base, bytes_.data() + 100);
  EXPECT_EQ(window_.replies(), 1u);
  EXPECT_TRUE(window_.HoldsRegion(region_.get()));
  window_.ReleasePins();
  EXPECT_FALSE(window_.HoldsRegion(region_.get()));
}

TEST_F(ReadAnswersTest, RefusesBlocksOutsideTheRegion) {
  ASSERT_TRUE(Request(3999, 2));
  EXPECT_EQ(lane_.Types(), std::vector{wire::Type::kReadRefused});
  EXPECT_EQ(bed_.owner.refusals.size(), 1u);
  EXPECT_EQ(window_.size(), 0u);  // a refusal is not sequenced
  EXPECT_EQ(region_->gate.inside(), 0u);
}

TEST_F(ReadAnswersTest, LetsARequestWaitWhenTooManyAnswersAreInFlight) {
  std::size_t answers = 0;
  Result<net::Placement> placed = Request(0, 1);
  for (; placed && placed->action != Action::kPause; placed = Request(0, 1)) {
    ASSERT_LE(++answers, 4 * kMaxReplies);
  }
  ASSERT_TRUE(placed);
  EXPECT_EQ(lane_.queue.size(), answers);
}

TEST_F(ReadAnswersTest, ARequestThatDoesNotAddUpEndsTheConnection) {
  EXPECT_FALSE(Request(0, net::kMaxPayloadBytes + 1));
  wire::MetaReader empty{std::span<const std::byte>()};
  EXPECT_FALSE(answers_.OnRequest({}, &empty));
}

}  // namespace
}  // namespace ferry::transfer
