// Tests of lanes whose peer is still pending.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>
#include <utility>

#include "ferry/net/machine/socket_owner.h"
#include "ferry/net/tcp/factory.h"
#include "ferry/net/tcp/frame_prefix.h"
#include "ferry/net/testing/lane_end.h"
#include "ferry/net/testing/raw_peer.h"

// How a lane treats a pending peer, and how it becomes an ordinary lane.
namespace ferry::net::tcp {
namespace {

using ::testing::HasSubstr;

std::vector<std::byte> Frame(std::size_t meta_bytes, std::size_t payload_bytes = 0) {
  FramePrefix prefix;
  prefix.meta_bytes = static_cast<std::uint32_t>(meta_bytes);
  prefix.payload_bytes = payload_bytes;
  const auto head = std::as_bytes(std::span(&prefix, 1));
  std::vector<std::byte> bytes(head.begin(), head.end());
  const auto rest = RandomBytes(meta_bytes + payload_bytes, meta_bytes);
  bytes.insert(bytes.end(), rest.begin(), rest.end());
  return bytes;
}

class PendingPeerLaneTest : public ::testing::Test {
 protected:
  void Connect(const Config& config = {}) {
    const auto address = host_.Listen({"127.0.0.1", 0}, config);
    ASSERT_TRUE(address) << address.error().ToString();
    peer_.emplace(RawPeer::ConnectTo(*address));
    end_ = std::make_unique<LaneEnd>(host_.Accept(), host_.loop());
  }
  void ConnectPendingPeer() {
    ASSERT_NO_FATAL_FAILURE(Connect());
    end_->lane().SetMaxMeta(kMaxPendingPeerMeta);
    end_->Attach();
  }
  void ExpectTooLong() {
    const auto closed = end_->AwaitClosed();
    ASSERT_TRUE(closed);
    EXPECT_EQ(closed->code(), Code::kCorrupt);
    EXPECT_THAT(closed->message(), HasSubstr("at most 1024"));
  }

  TestHost host_{CreateProvider()};
  std::optional<RawPeer> peer_;
  std::unique_ptr<LaneEnd> end_;
};

TEST_F(PendingPeerLaneTest, TakesFramesUpToItsLimit) {
  ASSERT_NO_FATAL_FAILURE(ConnectPendingPeer());
  std::vector<std::byte> many;
  for (int i = 0; i < 50; ++i) {
    const auto frame = Frame(kMaxPendingPeerMeta - static_cast<std::size_t>(i));
    many.insert(many.end(), frame.begin(), frame.end());
  }
  EXPECT_TRUE(peer_->Write(many));
  const auto arrived = end_->Take(50);
  ASSERT_EQ(arrived.size(), 50u);
  for (std::size_t i = 0; i < 50; ++i) {
    const auto expected = RandomBytes(kMaxPendingPeerMeta - i, kMaxPendingPeerMeta - i);
    EXPECT_EQ(arrived[i].meta, AsText(expected));
  }
}

// Only the length has arrived: the lane ends without waiting for the rest.
TEST_F(PendingPeerLaneTest, EndsAtTheLengthOfAFrameBeyondItsLimit) {
  ASSERT_NO_FATAL_FAILURE(ConnectPendingPeer());
  auto frame = Frame(kMaxPendingPeerMeta + 1);
  frame.resize(sizeof(FramePrefix));
  EXPECT_TRUE(peer_->Write(frame));
  ExpectTooLong();
}

TEST_F(PendingPeerLaneTest, TakesAnyFrameOnceItsPeerIsKnown) {
  ASSERT_NO_FATAL_FAILURE(ConnectPendingPeer());
  EXPECT_TRUE(peer_->Write(Frame(100)));
  (void)end_->Take(1);
  end_->Do([](Lane& lane) { lane.SetMaxMeta(kMaxMetaBytes); });
  EXPECT_TRUE(peer_->Write(Frame(kMaxMetaBytes)));
  EXPECT_TRUE(peer_->Write(Frame(10, 200'000)));
  const auto arrived = end_->Take(2);
  ASSERT_EQ(arrived.size(), 2u);
  EXPECT_EQ(arrived[0].meta, AsText(RandomBytes(kMaxMetaBytes, kMaxMetaBytes)));
  EXPECT_EQ(arrived[1].payload.size(), 200'000u);
}

// As when a server handshake has read its hello frame: the small buffer is full by then.
TEST_F(PendingPeerLaneTest, WhatCameBeforeItsPeerWasKnownIsReadAfterwards) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  end_->lane().SetMaxMeta(kMaxPendingPeerMeta);
  Tally heard;
  bool known = false;  // on the loop
  end_->on_frame = [&](const std::string&, std::uint64_t) -> LaneEnd::Choice {
    heard.Add();
    if (known) return std::nullopt;
    return Placement{Placement::Action::kPause, {}};
  };
  end_->Attach();
  auto bytes = Frame(100);
  const auto early = Frame(60'000, 5'000);
  bytes.insert(bytes.end(), early.begin(), early.end());
  EXPECT_TRUE(peer_->Write(bytes));
  EXPECT_TRUE(heard.AwaitAtLeast(1));
  end_->Do([&](Lane& lane) {
    known = true;
    lane.SetMaxMeta(kMaxMetaBytes);
    lane.Resume();
  });
  const auto arrived = end_->Take(2);
  ASSERT_EQ(arrived.size(), 2u);
  EXPECT_EQ(arrived[0].meta.size(), 100u);
  EXPECT_EQ(arrived[1].meta.size(), 60'000u);
  EXPECT_EQ(arrived[1].payload.size(), 5'000u);
}

std::ptrdiff_t OpenDescriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return std::distance(begin(all), end(all));
}

TEST_F(PendingPeerLaneTest, HasNoPipeBeforeItGivesPages) {
  Config config;
  config.zero_copy_send = AutoOnOff::kOn;
  ASSERT_NO_FATAL_FAILURE(Connect(config));
  const ListedSocket listed(peer_->fd());
  ASSERT_TRUE(end_->lane().ProvePeer(ThisProcess()));
  end_->Attach();
  // All threads and sockets exist by now. A pipe created too early would show as a missing
  // descriptor at the end.
  end_->Send(end_->Make("handshake"));
  ASSERT_TRUE(end_->AwaitSent(1));
  const auto before = OpenDescriptors();
  TestFrame* const frame = end_->Make("pages", CutInto(200'000, {}));
  frame->may_splice = true;
  end_->Send(frame);
  const std::size_t all = 2 * sizeof(FramePrefix) + 8 + 5 + 200'000;
  EXPECT_EQ(peer_->Read(all).size(), all);
  ASSERT_TRUE(end_->AwaitSent(2));
  EXPECT_EQ(OpenDescriptors(), before + 2);
}

}  // namespace
}  // namespace ferry::net::tcp
