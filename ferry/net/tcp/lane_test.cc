// Tests of TCP lanes against malformed frames, resets and settings.
#include "ferry/net/tcp/lane.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "ferry/core/units.h"
#include "ferry/net/machine/socket_owner.h"
#include "ferry/net/tcp/factory.h"
#include "ferry/net/testing/lane_end.h"
#include "ferry/net/testing/raw_peer.h"

namespace ferry::net::tcp {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::byte> BytesOf(const FramePrefix& prefix) {
  const auto bytes = std::as_bytes(std::span(&prefix, 1));
  return {bytes.begin(), bytes.end()};
}

// A frame in wire format.
std::vector<std::byte> WireFrame(std::string_view meta, std::span<const std::byte> payload = {}) {
  FramePrefix prefix;
  prefix.meta_bytes = static_cast<std::uint32_t>(meta.size());
  prefix.payload_bytes = payload.size();
  std::vector<std::byte> bytes = BytesOf(prefix);
  for (const auto part : {AsBytes(meta), payload}) {
    bytes.insert(bytes.end(), part.begin(), part.end());
  }
  return bytes;
}

class TcpLaneTest : public ::testing::Test {
 protected:
  // Connects a raw socket to a lane that is not attached.
  void Connect(const Config& config = {}) {
    const auto address = host_.Listen({"127.0.0.1", 0}, config);
    ASSERT_TRUE(address) << address.error().ToString();
    peer_.emplace(RawPeer::ConnectTo(*address));
    end_ = std::make_unique<LaneEnd>(host_.Accept(), host_.loop());
  }
  void ConnectAndAttach(const Config& config = {}) {
    ASSERT_NO_FATAL_FAILURE(Connect(config));
    end_->Attach();
  }
  void ExpectClosed(Code code, const ::testing::Matcher<std::string>& message) {
    const auto closed = end_->AwaitClosed();
    ASSERT_TRUE(closed);
    EXPECT_EQ(closed->code(), code);
    EXPECT_THAT(closed->message(), message);
  }
  LaneInfo Info() {
    LaneInfo info;
    end_->Do([&](Lane& lane) { info = lane.Info(); });
    return info;
  }

  TestHost host_{CreateProvider()};
  Tally tally_;
  std::optional<RawPeer> peer_;
  std::unique_ptr<LaneEnd> end_;
};

// ---- what peers may send ------------------------------------------------------------------------

TEST_F(TcpLaneTest, BytesThatAreNoFrameEndTheLaneAndAreQuoted) {
  ASSERT_NO_FATAL_FAILURE(ConnectAndAttach());
  EXPECT_TRUE(peer_->Write(AsBytes("GET / HTTP/1.1\r\n\r\n")));
  ExpectClosed(Code::kCorrupt,
               AllOf(HasSubstr("47 45 54 20 2f 20 48 54"), HasSubstr("127.0.0.1:")));
  EXPECT_EQ(end_->log(), "C");
  EXPECT_THAT(peer_->ReadToEnd(), AnyOf(0, ECONNRESET));
}

TEST_F(TcpLaneTest, AFrameWithAnImpossibleLengthEndsTheLane) {
  struct {
    std::uint32_t meta_bytes;
    std::uint64_t payload_bytes;
  } const kCases[] = {{0, 0},
                      {0, 1},
                      {kMaxMetaBytes + 1, 0},
                      {0xFFFFFFFF, 0},
                      {1, kMaxPayloadBytes + 1},
                      {1, ~std::uint64_t{0}}};
  for (const auto& wrong : kCases) {
    ASSERT_NO_FATAL_FAILURE(ConnectAndAttach());
    FramePrefix prefix;
    prefix.meta_bytes = wrong.meta_bytes;
    prefix.payload_bytes = wrong.payload_bytes;
    EXPECT_TRUE(peer_->Write(BytesOf(prefix)));
    ExpectClosed(Code::kCorrupt, AllOf(HasSubstr(std::to_string(wrong.meta_bytes)),
                                       HasSubstr(std::to_string(wrong.payload_bytes))));
    EXPECT_EQ(end_->log(), "C");
    Destroy(&end_);
  }
}

TEST_F(TcpLaneTest, TheLargestLengthsAreAccepted) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  end_->on_frame = [this](const std::string& meta, std::uint64_t bytes) -> LaneEnd::Choice {
    EXPECT_EQ(meta.size(), kMaxMetaBytes);
    EXPECT_EQ(bytes, kMaxPayloadBytes);
    tally_.Add();
    return Placement{Placement::Action::kDiscard, {}};
  };
  end_->Attach();
  FramePrefix prefix;
  prefix.meta_bytes = kMaxMetaBytes;
  prefix.payload_bytes = kMaxPayloadBytes;
  EXPECT_TRUE(peer_->Write(BytesOf(prefix)));
  EXPECT_TRUE(peer_->Write(RandomBytes(kMaxMetaBytes, 1)));
  EXPECT_TRUE(tally_.AwaitAtLeast(1));
}

TEST_F(TcpLaneTest, FramesAreReadWhenTheyComeByteByByte) {
  ASSERT_NO_FATAL_FAILURE(ConnectAndAttach());
  const auto payload = RandomBytes(20, 1);
  std::vector<std::byte> wire = WireFrame("meta", payload);
  const auto second = WireFrame("x");
  wire.insert(wire.end(), second.begin(), second.end());
  const Deadline deadline = Deadline::After(kTimeout);
  for (std::size_t i = 0; i < wire.size(); ++i) {
    EXPECT_TRUE(peer_->Write(std::span(wire).subspan(i, 1)));
    // Wait, so that the next byte arrives by itself.
    while (end_->lane().BytesReceived() <= i && !deadline.expired()) std::this_thread::yield();
  }
  const auto arrived = end_->Take(2);
  ASSERT_EQ(arrived.size(), 2U);
  EXPECT_EQ(arrived[0].meta, "meta");
  EXPECT_TRUE(arrived[0].payload == payload);
  EXPECT_EQ(arrived[1].meta, "x");
}

// ---- ends ---------------------------------------------------------------------------------------

TEST_F(TcpLaneTest, AFrameCutShortIsToldFromACloseBetweenFrames) {
  const auto wire = WireFrame("meta", RandomBytes(100, 1));
  for (const std::size_t bytes : {std::size_t{3}, sizeof(FramePrefix), sizeof(FramePrefix) + 2,
                                  sizeof(FramePrefix) + 4, wire.size() - 1, wire.size()}) {
    ASSERT_NO_FATAL_FAILURE(ConnectAndAttach());
    EXPECT_TRUE(peer_->Write(std::span(wire).first(bytes)));
    peer_->Close();
    if (bytes < wire.size()) {
      ExpectClosed(Code::kPeerLost, HasSubstr("closed the connection in the middle of a frame"));
    } else {
      ExpectClosed(Code::kPeerLost, Not(HasSubstr("in the middle of a frame")));
    }
    Destroy(&end_);
  }
}

TEST_F(TcpLaneTest, WhatWasSentBeforeACloseIsStillReceived) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  const auto payload = RandomBytes(500'000, 1);
  end_->Attach();
  std::thread sender([&] {
    for (const char* meta : {"a", "b", "c"}) EXPECT_TRUE(peer_->Write(WireFrame(meta, payload)));
    peer_->Close();
  });
  ExpectClosed(Code::kPeerLost, Not(HasSubstr("in the middle of a frame")));
  sender.join();
  EXPECT_EQ(end_->log(), "FPFPFPC");
  const auto arrived = end_->Take(3);
  for (const Arrived& frame : arrived) EXPECT_TRUE(SameBytes(frame.payload, payload));
}

TEST_F(TcpLaneTest, APausedFrameIsOfferedAgainAfterThePeerHasClosed) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  end_->on_frame = [this](const std::string&, std::uint64_t) -> LaneEnd::Choice {
    tally_.Add();
    if (tally_.count() > 1) return std::nullopt;
    return Placement{Placement::Action::kPause, {}};
  };
  end_->Attach();
  EXPECT_TRUE(peer_->Write(WireFrame("a", RandomBytes(100, 1))));
  peer_->Close();
  EXPECT_TRUE(tally_.AwaitAtLeast(1));
  end_->Do([](Lane& lane) { lane.Resume(); });
  ExpectClosed(Code::kPeerLost, Not(HasSubstr("in the middle of a frame")));
  EXPECT_EQ(end_->log(), "FFPC");
}

// A peer that resets has abandoned the operation whose bytes are still in our receive buffer; its
// memory may be in other use by now.
TEST(TcpLane, AResetGoesBeforeBytesThatAreStillUnread) {
  RawListener listener;
  RawPeer peer = RawPeer::ConnectTo(listener.address());
  UniqueFd fd = listener.Accept();
  const UniqueFd watched(::dup(fd.get()));
  EXPECT_TRUE(peer.Write(WireFrame("a", RandomBytes(100, 1))));
  peer.Reset();
  pollfd poll_fd{.fd = watched.get(), .events = 0, .revents = 0};
  ASSERT_EQ(::poll(&poll_fd, 1, 60'000), 1);
  ASSERT_NE(poll_fd.revents & POLLERR, 0);

  TestHost host(CreateProvider());
  auto stream = MakePlainStream(fd.get());
  LaneEnd end(std::make_unique<TcpLane>(std::move(fd), std::move(stream), LaneInfo{}, false),
              host.loop());
  end.Attach();
  const auto closed = end.AwaitClosed();
  ASSERT_TRUE(closed);
  EXPECT_EQ(closed->code(), Code::kPeerLost);
  EXPECT_THAT(closed->message(), HasSubstr("Connection reset by peer"));
  EXPECT_EQ(end.log(), "C");
}

TEST_F(TcpLaneTest, AnOrderlyCloseLetsThePeerReadWhatWasSent) {
  // Also with zero-copy sends enabled, as long as no pages were spliced. Regression: it reset the
  // connection, and a refused peer never read the reason.
  for (const AutoOnOff zero_copy_send : {AutoOnOff::kOff, AutoOnOff::kOn}) {
    Config config;
    config.zero_copy_send = zero_copy_send;
    ASSERT_NO_FATAL_FAILURE(Connect(config));
    end_->on_sent = [this](OutFrame*) { end_->lane().Close(Closing::kOrderly); };
    end_->Attach();
    end_->Send(end_->Make("refused"));
    const auto expected = WireFrame("refused");
    EXPECT_TRUE(peer_->Read(expected.size()) == expected);
    EXPECT_EQ(peer_->ReadToEnd(), 0);
    Destroy(&end_);
  }
}

TEST_F(TcpLaneTest, AbortingWithSplicedPagesResetsTheConnection) {
  Config config;
  config.zero_copy_send = AutoOnOff::kOn;
  ASSERT_NO_FATAL_FAILURE(Connect(config));
  const ListedSocket listed(peer_->fd());
  ASSERT_TRUE(end_->lane().ProvePeer(ThisProcess()));
  end_->on_sent = [this](OutFrame*) { end_->lane().Close(Closing::kAbort); };
  end_->Attach();
  TestFrame* const frame = end_->Make("a", CutInto(200'000, {}));
  frame->may_splice = true;
  end_->Send(frame);
  EXPECT_EQ(peer_->ReadToEnd(), ECONNRESET);
}

TEST_F(TcpLaneTest, PagesAreCopiedForAPeerWithinTheMachineThatIsNotProved) {
  Config config;
  config.zero_copy_send = AutoOnOff::kOn;
  ASSERT_NO_FATAL_FAILURE(Connect(config));
  EXPECT_FALSE(end_->lane().ProvePeer(ThisProcess()));  // the socket is not listed
  end_->Attach();
  TestFrame* const frame = end_->Make("a", CutInto(200'000, {}));
  const auto content = frame->content;
  frame->may_splice = true;
  end_->Send(frame);
  ASSERT_TRUE(end_->AwaitSent(1));
  EXPECT_EQ(frame->spliced_to, 0u);
  frame->memory.Store(std::vector<std::byte>(200'000));
  EXPECT_TRUE(peer_->Read(sizeof(FramePrefix) + 1 + 200'000) == WireFrame("a", content));
}

TEST_F(TcpLaneTest, PagesAreDeliveredWhenThePeersTcpHasThem) {
  Config config;
  config.zero_copy_send = AutoOnOff::kOn;
  config.send_buffer_bytes = kMiB;
  ASSERT_NO_FATAL_FAILURE(Connect(config));
  const int small = 4096;
  ASSERT_EQ(::setsockopt(peer_->fd(), SOL_SOCKET, SO_RCVBUF, &small, sizeof small), 0);
  const ListedSocket listed(peer_->fd());
  ASSERT_TRUE(end_->lane().ProvePeer(ThisProcess()));
  end_->Attach();
  TestFrame* const frame = end_->Make("a", CutInto(256 * kKiB, {}));
  frame->may_splice = true;
  end_->Send(frame);
  ASSERT_TRUE(end_->AwaitSent(1));
  const std::uint64_t all = sizeof(FramePrefix) + 1 + 256 * kKiB;
  EXPECT_EQ(frame->spliced_to, all);
  bool delivered = true;
  end_->Do([&](Lane& lane) { delivered = lane.HasDelivered(all); });
  EXPECT_FALSE(delivered);
  EXPECT_EQ(peer_->Read(all).size(), all);
  // The last acknowledgement may still be on its way.
  const Deadline deadline = Deadline::After(kTimeout);
  while (!delivered && !deadline.expired()) {
    end_->Do([&](Lane& lane) { delivered = lane.HasDelivered(all); });
  }
  EXPECT_TRUE(delivered);
}

TEST_F(TcpLaneTest, ClosingWithBytesUnreadLetsThePeerHearWhatWasSentAndThenTheEnd) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  end_->on_frame = [](const std::string&, std::uint64_t) -> LaneEnd::Choice {
    return Placement{Placement::Action::kPause, {}};
  };
  end_->on_sent = [this](OutFrame*) { end_->lane().Close(Closing::kOrderly); };
  const std::vector<std::byte> unread(100'000);
  EXPECT_TRUE(peer_->Write(WireFrame("unread", unread)));
  end_->Attach();
  end_->Send(end_->Make("last words", {}));
  const std::vector<std::byte> sent = WireFrame("last words");
  EXPECT_EQ(peer_->Read(sent.size()), sent);
  EXPECT_EQ(peer_->ReadToEnd(), 0);
}

// ---- settings -----------------------------------------------------------------------------------

TEST_F(TcpLaneTest, CongestionControlIsReportedWithItsReason) {
  Config config;
  config.congestion_control = CongestionControl::System();
  ASSERT_NO_FATAL_FAILURE(ConnectAndAttach(config));
  const std::string system = Info().congestion_control;
  EXPECT_THAT(system, HasSubstr("(the system's default)"));
  Destroy(&end_);

  config.congestion_control = CongestionControl();
  ASSERT_NO_FATAL_FAILURE(ConnectAndAttach(config));
  const std::string automatic = Info().congestion_control;
  if (system.starts_with("bbr")) {
    EXPECT_THAT(automatic, AnyOf(HasSubstr("in place of bbr"), HasSubstr("allowed")));
  } else {
    EXPECT_EQ(automatic, system);
  }
  Destroy(&end_);

  config.congestion_control = CongestionControl::Named("reno");
  ASSERT_NO_FATAL_FAILURE(ConnectAndAttach(config));
  EXPECT_EQ(Info().congestion_control, "reno (as set)");
}

TEST_F(TcpLaneTest, AnUnknownCongestionControlIsRefusedWithTheSettingToChange) {
  const auto address = host_.Listen({"127.0.0.1", 0}, {});
  ASSERT_TRUE(address);
  Config config;
  config.congestion_control = CongestionControl::Named("nosuch");
  const auto lane = host_.Connect(*address, config);
  ASSERT_FALSE(lane);
  EXPECT_EQ(lane.error().code(), Code::kUnsupported);
  EXPECT_THAT(lane.error().message(),
              AllOf(HasSubstr("\"nosuch\""), HasSubstr("FERRY_CONGESTION_CONTROL=auto")));
}

TEST_F(TcpLaneTest, BufferSizesAreSetAndReported) {
  ASSERT_NO_FATAL_FAILURE(ConnectAndAttach());
  const LaneInfo tuned = Info();
  Destroy(&end_);
  Config config;
  config.send_buffer_bytes = 20'000;
  config.recv_buffer_bytes = 30'000;
  ASSERT_NO_FATAL_FAILURE(ConnectAndAttach(config));
  const LaneInfo info = Info();
  // The kernel reports twice the requested size, to include its bookkeeping (socket(7)).
  EXPECT_EQ(info.send_buffer_bytes, 40'000U);
  EXPECT_EQ(info.recv_buffer_bytes, 60'000U);
  EXPECT_NE(tuned.send_buffer_bytes, info.send_buffer_bytes);
  EXPECT_EQ(info.interface, "lo");
}

TEST_F(TcpLaneTest, ALaneOfALimitedRateTakesItsTime) {
  Config config;
  config.lane_rate_bytes = 16 * kMiB;
  ASSERT_NO_FATAL_FAILURE(ConnectAndAttach(config));
  const auto began = Clock::now();
  end_->Send(end_->Make("x", CutInto(4 * kMiB, {})));
  EXPECT_EQ(peer_->Read(4 * kMiB).size(), 4 * kMiB);
  EXPECT_GE(Clock::now() - began, milliseconds(125)) << "half of what the rate asks for";
}

// ---- listening ----------------------------------------------------------------------------------

// Regression: it was reported as a port in use, and with a range as a whole range of them.
TEST_F(TcpLaneTest, ListeningOnAnotherMachinesAddressIsInvalid) {
  for (const bool in_range : {false, true}) {
    Config config;
    config.port_first = in_range ? 20'000 : 0;
    config.port_last = in_range ? 20'003 : 0;
    const auto bound = host_.Listen({"203.0.113.77", 0}, config);
    ASSERT_FALSE(bound);
    EXPECT_EQ(bound.error().code(), Code::kInvalidArgument);
    EXPECT_THAT(bound.error().message(), HasSubstr("203.0.113.77"));
  }
}

TEST_F(TcpLaneTest, ListeningOnAllAddressesServesBothFamilies) {
  const auto address = host_.Listen({"", 0}, {});
  ASSERT_TRUE(address) << address.error().ToString();
  auto lane = host_.Connect({"127.0.0.1", address->port}, {});
  ASSERT_TRUE(lane) << lane.error().ToString();
  EXPECT_NE(host_.Accept(), nullptr);
  if (InterfaceOf({"::1", 0}).empty()) GTEST_SKIP() << "this machine has no address ::1";
  lane = host_.Connect({"::1", address->port}, {});
  ASSERT_TRUE(lane) << lane.error().ToString();
  EXPECT_NE(host_.Accept(), nullptr);
}

// Keeps this process from opening descriptors.
class DescriptorLimit {
 public:
  DescriptorLimit() {
    (void)::getrlimit(RLIMIT_NOFILE, &before_);
    const UniqueFd lowest_free(::dup(0));
    rlimit limit = before_;
    limit.rlim_cur = static_cast<rlim_t>(lowest_free.get());
    (void)::setrlimit(RLIMIT_NOFILE, &limit);
  }
  ~DescriptorLimit() { (void)::setrlimit(RLIMIT_NOFILE, &before_); }
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;

 private:
  rlimit before_{};
};

class NoDescriptors : public TcpLaneTest {
 protected:
  void SetUp() override {
#ifdef __SANITIZE_ADDRESS__
    GTEST_SKIP() << "the undefined-behaviour sanitizer built with it needs descriptors to check a "
                    "virtual call; the thread sanitizer finds the same misuse of memory";
#endif
  }
  // Connects two sockets while no descriptor is free to accept them.
  void ConnectInVain() {
    const auto address = host_.Listen({"127.0.0.1", 0}, {});
    ASSERT_TRUE(address);
    const RawAddress raw = *ToRaw(*address);
    for (UniqueFd& fd : clients_) fd = UniqueFd(::socket(AF_INET, SOCK_STREAM, 0));
    limit_.emplace();
    for (const UniqueFd& fd : clients_) {
      ASSERT_EQ(::connect(fd.get(), raw.get(), raw.length), 0);
      // Let the listener see this connection before the next one.
      for (int i = 0; i < 4; ++i) RunOn(*host_.loop(), [] {});
    }
  }

  std::optional<DescriptorLimit> limit_;
  std::array<UniqueFd, 2> clients_;
};

TEST_F(NoDescriptors, WaitingConnectionsAreAcceptedWhenThereAreSomeAgain) {
  ASSERT_NO_FATAL_FAILURE(ConnectInVain());
  limit_.reset();
  EXPECT_NE(host_.Accept(), nullptr);
  EXPECT_NE(host_.Accept(), nullptr);
}

// Regression: each failed accept started a timer, and the listener cancelled only the last one.
TEST_F(NoDescriptors, AListenerThatGoesTakesItsRetryWithIt) {
  ASSERT_NO_FATAL_FAILURE(ConnectInVain());
  host_.StopListening();
  limit_.reset();
  Tally later;
  host_.loop()->Post([&] {
    host_.loop()->AddTimerOnLoop(Clock::now() + milliseconds(150), [&] { later.Add(); });
  });
  EXPECT_TRUE(later.AwaitAtLeast(1));
}

}  // namespace
}  // namespace ferry::net::tcp
