// Tests peers that acknowledge payloads whose pages the kernel has not sent.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "ferry/core/units.h"
#include "ferry/transfer/testing/linked_endpoints.h"
#include "ferry/transfer/testing/raw_peer.h"

namespace ferry::transfer {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kPages = 256 * kKiB;

// The peer is proved to be ours, so that pages are spliced on this machine as to another machine.
class EarlyAckTest : public ::testing::Test {
 protected:
  static Config Spliced() {
    Config config = SmallSlices(1, 1);
    config.zero_copy_send = AutoOnOff::kOn;
    config.slice_bytes = kPages;
    config.window_bytes = kMiB;
    config.send_buffer_bytes = kMiB;
    return config;
  }
  // Once the first payload begins to arrive, of which TCP takes only a part.
  void AcknowledgeEarly() {
    peer_.lane().AwaitInput(1000);
    ASSERT_TRUE(peer_.lane().Say({.type = wire::Type::kAck, .ack = 1}));
  }
  void ReceiveLittle() {
    const int small = 4096;
    ASSERT_EQ(::setsockopt(peer_.lane().fd(), SOL_SOCKET, SO_RCVBUF, &small, sizeof small), 0);
  }
  void RequestRead() {
    auto body = Pod(wire::WriteBody{.key = region_.remote().key, .blocks = 1});
    wire::Append(&body, wire::BlockOnWire{0, kPages});
    ASSERT_TRUE(peer_.lane().Say({.type = wire::Type::kReadRequest, .operation = 1, .body = body}));
  }
  RemoteRegion Theirs() const {
    RemoteRegion theirs;
    theirs.endpoint = peer_.id();
    theirs.key = {1, 1, 1};
    theirs.rights = Rights::kReadWrite;
    theirs.length = kPages;
    return theirs;
  }
  void ExpectRefused() {
    const auto end = theirs_.TakeNotification(Soon());
    ASSERT_FALSE(end);
    EXPECT_EQ(end.error().code(), Code::kCorrupt) << end.error().ToString();
    EXPECT_THAT(end.error().message(), HasSubstr("before TCP has"));
  }

  GuardedMemory memory_{kPages};
  Endpoint endpoint_ = Must(Endpoint::Create(Spliced()));
  Region region_ = Must(endpoint_.Register(memory_.span(), Rights::kRead));
  RawPeer peer_{endpoint_.port(), 1, kMiB, /*proved=*/true};
  Connection theirs_ = Must(endpoint_.Accept(Soon()));
};

TEST_F(EarlyAckTest, OfAReadEndsTheConnectionBeforeTheRegionIsGivenBack) {
  ReceiveLittle();
  RequestRead();
  AcknowledgeEarly();
  EXPECT_TRUE(region_.Deregister(Soon()));
  ExpectRefused();
}

TEST_F(EarlyAckTest, OfAWriteFailsIt) {
  ReceiveLittle();
  Operation write = Must(theirs_.Write(region_, 0, Theirs(), 0, kPages));
  AcknowledgeEarly();
  EXPECT_TRUE(EndsWith(Code::kCorrupt, write));
  ExpectRefused();
}

TEST_F(EarlyAckTest, AfterTheWholePayloadIsAnHonestOne) {
  Operation write = Must(theirs_.Write(region_, 0, Theirs(), 0, kPages));
  EXPECT_EQ(peer_.lane().Expect(wire::Type::kWrite).payload.size(), kPages);
  ASSERT_TRUE(peer_.lane().AckAll());
  EXPECT_TRUE(EndsOk(write));
}

}  // namespace
}  // namespace ferry::transfer
