// A sender that knows the key and keeps to nothing else.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ferry/net/tcp/frame_prefix.h"
#include "plugins/nccl/tests/testing/nccl_host.h"
#include "plugins/nccl/tests/testing/raw_sender.h"
#include "plugins/nccl/wire.h"

namespace ferry::nccl_net {
namespace {

using testing::Logged;
using testing::LoggedText;
using testing::NcclConnect;
using testing::NcclHost;
using testing::NcclListen;
using testing::RawSender;
using testing::Require;
using testing::WaitFor;

Deadline InTime() { return Deadline::After(std::chrono::seconds(60)); }

struct Lie {
  const char* name;
  std::vector<DataWire> frames;
  std::vector<std::size_t> payloads;
  const char* said;
};

class Lies : public ::testing::TestWithParam<Lie> {};

TEST_P(Lies, EndTheCommAndTouchNothingBesideItsReceive) {
  const std::size_t logged_before = LoggedText().size();
  NcclHost host(FERRY_NCCL_PLUGIN, 12);
  NcclListen listen(&host);
  RawSender sender(listen.handle());
  (void)sender.Enter(sender.Hello());
  void* const recv = listen.Accept(InTime());
  // A receive of 100 bytes in the middle.
  std::vector<std::byte> memory(300, std::byte{0xE5});
  void* request = nullptr;
  Require(host->Receive(recv, {memory.data() + 100, 100, 1, nullptr}, &request), "irecv");
  for (std::size_t i = 0; i < GetParam().frames.size(); ++i) {
    sender.Say(GetParam().frames[i], GetParam().payloads[i]);
  }
  EXPECT_NE(WaitFor(host, request, nullptr, InTime()), net::nccl_abi::kSuccess);
  EXPECT_EQ(sender.End(), "closed");
  EXPECT_TRUE(Logged(GetParam().said, logged_before)) << LoggedText();
  Require(host->CloseReceive(recv), "closeRecv");
  const auto outside = std::count(memory.begin(), memory.begin() + 100, std::byte{0xE5}) +
                       std::count(memory.begin() + 200, memory.end(), std::byte{0xE5});
  EXPECT_EQ(outside, 200);
}

DataWire Piece(std::uint64_t total, std::uint64_t offset, int tag = 1, std::uint64_t sequence = 0) {
  DataWire data;
  data.tag = tag;
  data.sequence = sequence;
  data.total = total;
  data.offset = offset;
  return data;
}

DataWire OfType(FrameType type) {
  DataWire data;
  data.type = type;
  return data;
}

std::vector<DataWire> ManyEarly(std::uint64_t count, std::uint64_t bytes) {
  std::vector<DataWire> pieces;
  for (std::uint64_t i = 0; i < count; ++i) pieces.push_back(Piece(bytes, 0, 7, i));
  return pieces;
}

INSTANTIATE_TEST_SUITE_P(
    Nccl, Lies,
    ::testing::Values(
        Lie{"LongerThanItsReceive", {Piece(101, 0)}, {101}, "is larger than the 100 bytes"},
        Lie{"PastItsEnd", {Piece(100, 90)}, {20}, "20 bytes at offset 90 are not a valid piece"},
        Lie{"FarPastItsEnd", {Piece(100, ~std::uint64_t{0})}, {20}, "are not a valid piece"},
        Lie{"MoreThanItsTotal", {Piece(10, 0)}, {20}, "are not a valid piece of a message of 10"},
        Lie{"TheSameTwice", {Piece(100, 0), Piece(100, 0)}, {60, 60}, "are not a valid piece"},
        Lie{"OneByteTwice",
            {Piece(100, 0), Piece(100, 49)},
            {50, 50},
            "50 bytes at offset 49 are not a valid piece"},
        Lie{"AroundAPiece",
            {Piece(100, 40), Piece(100, 0)},
            {10, 60},
            "60 bytes at offset 0 are not a valid piece"},
        Lie{"AnotherTotal", {Piece(100, 0), Piece(90, 50)}, {50, 40}, "are not a valid piece"},
        Lie{"LargeAndNotAskedFor", {Piece(65537, 0, 2)}, {65537}, "before a receive was posted"},
        Lie{"APieceAndNotAskedFor", {Piece(100, 0, 1, 1)}, {50}, "before a receive was posted"},
        Lie{"ALaterPieceAndNotAskedFor",
            {Piece(100, 50, 1, 1)},
            {50},
            "before a receive was posted"},
        Lie{"TheSameEarlyTwice",
            {Piece(9, 0, 1, 1), Piece(9, 0, 1, 1)},
            {9, 9},
            "before a receive was posted"},
        Lie{"OneEarlyOneTooMany", ManyEarly(33, 1), std::vector<std::size_t>(33, 1),
            "one of the 32 (524288 bytes) that may"},
        Lie{"OneLargeEarlyOneTooMany", ManyEarly(9, 65536), std::vector<std::size_t>(9, 65536),
            "one of the 32 (524288 bytes) that may"},
        Lie{"NoData", {OfType(FrameType::kCredit)}, {0}, "unexpected frame instead of data"},
        Lie{"NoTypeThatIs", {OfType(FrameType{77})}, {0}, "unexpected frame instead of data"}),
    [](const auto& parameter) { return parameter.param.name; });

// A sender of small messages is told of receives only where it may come to wait for that.
class Told : public ::testing::Test {
 protected:
  ~Told() override { Require(host_->CloseReceive(recv_), "closeRecv"); }
  void Begin(std::uint64_t early_bytes) {
    HelloWire hello = sender_.Hello();
    hello.early_bytes = early_bytes;
    (void)sender_.Enter(hello);
    recv_ = listen_.Accept(InTime());
  }
  void Post(int tag = 1) {
    Require(host_->Receive(recv_, {memory_.data(), memory_.size(), tag, nullptr}, &request_),
            "irecv");
  }
  // A message that is received.
  void Bring(std::size_t bytes, int tag, std::uint64_t sequence) {
    memory_.resize(bytes);
    Post(tag);
    sender_.Say(Piece(bytes, 0, tag, sequence), bytes);
    Require(WaitFor(host_, request_, nullptr, InTime()), "test");
  }
  void Ask(int tag, std::uint64_t receives) {
    const CountWire count{.tag = tag, .receives = receives};
    std::vector<std::byte> meta;
    StoreCounts(FrameType::kAsk, {&count, 1}, &meta);
    net::tcp::FramePrefix prefix;
    prefix.meta_bytes = static_cast<std::uint32_t>(meta.size());
    std::vector<std::byte> bytes(sizeof prefix);
    std::memcpy(bytes.data(), &prefix, sizeof prefix);
    bytes.insert(bytes.end(), meta.begin(), meta.end());
    sender_.SayBytes(bytes);
  }
  // The metadata of the next frame; the plugin is polled meanwhile.
  std::vector<std::byte> HearOne() {
    const Deadline deadline = InTime();
    for (;;) {
      auto meta = sender_.TryHear();
      if (!meta.empty()) return meta;
      int done = 0;
      Require(host_->Test(request_, &done, nullptr), "test");
      if (deadline.expired()) throw std::runtime_error("nothing came");
    }
  }
  // The next that comes.
  std::vector<CountWire> Credit() {
    for (;;) {
      if (auto counts = LoadCounts(FrameType::kCredit, HearOne())) return *std::move(counts);
    }
  }

  NcclHost host_{FERRY_NCCL_PLUGIN, 12};
  NcclListen listen_{&host_};
  RawSender sender_{listen_.handle()};
  void* recv_ = nullptr;
  void* request_ = nullptr;
  std::vector<std::byte> memory_ = std::vector<std::byte>(100);
};

TEST_F(Told, OfEachReceiveWhereItSendsNothingUnasked) {
  Begin(0);
  Post();
  const auto credit = Credit();
  ASSERT_EQ(credit.size(), 1U);
  EXPECT_EQ(credit[0].receives, 1U);
}

TEST_F(Told, OfHalfAsManyAsItMaySendUnasked) {
  Begin(100);
  for (std::size_t i = 0; i < kMaxEarly / 2; ++i) Bring(i, i % 2 == 0 ? 1 : 2, i / 2);
  Post(1);
  const auto credit = Credit();
  ASSERT_EQ(credit.size(), 2U);
  // Perhaps with that which was posted last.
  EXPECT_GE(credit[0].receives + credit[1].receives, kMaxEarly / 2);
}

TEST_F(Told, OfHalfAsManyBytesAsItMaySendUnasked) {
  Begin(kMaxEarlyBytes);
  constexpr std::uint64_t kMessages = kMaxEarlyTotal / 2 / kMaxEarlyBytes;
  for (std::uint64_t i = 0; i < kMessages; ++i) Bring(kMaxEarlyBytes, 1, i);
  Post(1);
  EXPECT_GE(Credit().at(0).receives, kMessages);
}

TEST_F(Told, ThatAllHasComeOnce) {
  Begin(100);
  Post();
  sender_.Say(ByeWire{});
  sender_.Say(ByeWire{});
  Ask(1, 1);
  std::size_t byes = 0;
  for (bool told = false; !told;) {
    const auto meta = HearOne();
    byes += LoadWire<ByeWire>(meta).has_value() && meta[0] == std::byte{6} ? 1U : 0U;
    told = LoadCounts(FrameType::kCredit, meta).has_value();
  }
  EXPECT_EQ(byes, 1U);
}

TEST_F(Told, WhatItAsksForAtOnceOrWhenItIsPosted) {
  Begin(100);
  Post();
  Ask(1, 1);
  EXPECT_EQ(Credit().at(0).receives, 1U);
  Ask(2, 1);
  Post(1);
  Post(2);
  const auto credit = Credit();
  ASSERT_EQ(credit.size(), 2U);
  EXPECT_EQ(credit[0].receives, 2U);
  EXPECT_EQ(credit[1].receives, 1U);
}

// 50 of 100 bytes arrive before the receive of tag 7, on the first of two lanes.
class HalfEarly : public ::testing::Test {
 protected:
  HalfEarly() {
    HelloWire hello = first_.Hello();
    hello.lanes = 2;
    (void)first_.Enter(hello);
    hello.lane = 1;
    (void)second_.Enter(hello);
    recv_ = listen_.Accept(InTime());
    // Together with a message that is waited for: what has come with it is read with it.
    void* before = Post(1);
    auto bytes = RawSender::BytesOf(Piece(9, 0), 9);
    const auto half = RawSender::BytesOf(Piece(100, 0, 7), 100);
    bytes.insert(bytes.end(), half.begin(), half.end() - 50);
    rest_.assign(half.end() - 50, half.end());
    first_.SayBytes(bytes);
    Require(WaitFor(host_, before, nullptr, InTime()), "test");
    memory_.assign(100, std::byte{0xE5});
  }
  ~HalfEarly() override { Require(host_->CloseReceive(recv_), "closeRecv"); }
  void* Post(int tag, std::size_t bytes = 100) {
    void* request = nullptr;
    Require(host_->Receive(recv_, {memory_.data(), bytes, tag, nullptr}, &request), "irecv");
    return request;
  }
  bool LoggedSince(std::string_view text) const { return Logged(text, logged_before_); }

  const std::size_t logged_before_ = LoggedText().size();
  NcclHost host_{FERRY_NCCL_PLUGIN, 12};
  NcclListen listen_{&host_};
  RawSender first_{listen_.handle()};
  RawSender second_{listen_.handle()};
  void* recv_ = nullptr;
  std::vector<std::byte> memory_ = std::vector<std::byte>(100);
  std::vector<std::byte> rest_;
};

TEST_F(HalfEarly, IsWholeWhenTheRestHasCome) {
  void* const request = Post(7);
  first_.SayBytes(rest_);
  EXPECT_EQ(WaitFor(host_, request, nullptr, InTime()), abi::kSuccess);
  EXPECT_EQ(memory_, std::vector<std::byte>(100, std::byte{0x66}));
}

TEST_F(HalfEarly, IsNotCompletedByAPieceOfAnotherLane) {
  void* const request = Post(7);
  second_.Say(Piece(100, 50, 7), 50);
  EXPECT_NE(WaitFor(host_, request, nullptr, InTime()), abi::kSuccess);
  EXPECT_TRUE(LoggedSince("50 bytes at offset 50 are not a valid piece"));
}

TEST_F(HalfEarly, IsRefusedByAReceiveThatIsTooSmall) {
  void* const request = Post(7, 99);
  first_.SayBytes(rest_);
  EXPECT_NE(WaitFor(host_, request, nullptr, InTime()), abi::kSuccess);
  EXPECT_TRUE(LoggedSince("a message of 100 bytes with tag 7 is larger than the 99"));
}

TEST_F(HalfEarly, FailsWithTheCommWhenItsSenderGoes) {
  void* const request = Post(7);
  first_.Go();
  second_.Go();
  EXPECT_NE(WaitFor(host_, request, nullptr, InTime()), abi::kSuccess);
}

TEST(PendingPeers, MayBeManyWhoHaveYetToSayHello) {
  // More than an endpoint lets wait, and all of them honest.
  constexpr std::size_t kSenders = 270;
  rlimit descriptors{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &descriptors), 0);
  descriptors.rlim_cur = std::min<rlim_t>(descriptors.rlim_max, 8192);
  (void)::setrlimit(RLIMIT_NOFILE, &descriptors);
  if (descriptors.rlim_cur < 4 * kSenders) GTEST_SKIP() << "too few descriptors are allowed";
  NcclHost host(FERRY_NCCL_PLUGIN, 12);
  NcclListen listen(&host);
  std::vector<std::unique_ptr<RawSender>> senders;
  for (std::size_t i = 0; i < kSenders; ++i) {
    senders.push_back(std::make_unique<RawSender>(listen.handle()));
  }
  // Those before it have come in when this one has.
  void* const send = NcclConnect(&host, listen.handle()).Connect(InTime());
  Require(host->CloseReceive(listen.Accept(InTime())), "closeRecv");
  Require(host->CloseSend(send), "closeSend");
  for (const auto& sender : senders) (void)sender->Enter(sender->Hello());
  for (std::size_t i = 0; i < kSenders; ++i) {
    Require(host->CloseReceive(listen.Accept(InTime())), "closeRecv");
  }
}

TEST(PendingPeers, AreClosedUnlessTheirHelloIsThatOfARank) {
  NcclHost host(FERRY_NCCL_PLUGIN, 12);
  NcclListen listen(&host);
  const Key right = ReadHandle(listen.handle().data())->key;
  for (int way = 0; way < 4; ++way) {
    RawSender sender(listen.handle());
    HelloWire hello = sender.Hello();
    Key key = right;
    if (way == 0) key[7] ^= std::byte{1};
    if (way == 1) hello.lane = 1;
    if (way == 2) hello.lanes = 1000;
    if (way == 3) hello.listen += 1;
    EXPECT_NE(sender.Enter(hello, key), session::wire::Type::kWelcome) << way;
    EXPECT_EQ(sender.End(), "closed") << way;
  }
  void* recv = nullptr;
  Require(listen.TryAccept(&recv), "accept");
  EXPECT_EQ(recv, nullptr);
}

}  // namespace
}  // namespace ferry::nccl_net
