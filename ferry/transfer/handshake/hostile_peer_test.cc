// Tests that no frame of a hostile peer harms memory or other connections.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <limits>
#include <thread>
#include <utility>

#include "ferry/net/tcp/frame_prefix.h"
#include "ferry/transfer/testing/linked_endpoints.h"
#include "ferry/transfer/testing/raw_peer.h"

// Frames that a peer can send after a correct handshake to do harm. Whatever it sends, the memory
// around its region and the connection of another peer of the same endpoint are unchanged.
namespace ferry::transfer {
namespace {

using ::testing::HasSubstr;
using wire::Type;

constexpr std::uint64_t kHugeOffset = std::numeric_limits<std::uint64_t>::max();
constexpr std::size_t kRegionBytes = 10'000;
constexpr std::uint64_t kTheirOperation = 77;

std::vector<std::byte> AccessBody(const wire::KeyBody& key,
                                  const std::vector<wire::BlockOnWire>& blocks,
                                  std::uint32_t slice = 0) {
  auto body = Pod(wire::WriteBody{key, slice, static_cast<std::uint32_t>(blocks.size())});
  for (const auto& block : blocks) wire::Append(&body, block);
  return body;
}

std::uint64_t ResidentBytes() {
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> pages;
  return pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

class HostilePeerTest : public ::testing::Test {
 protected:
  explicit HostilePeerTest(const Config& config = SmallSlices(2, 2)) : link_(MakeLink(config)) {}

  ~HostilePeerTest() override {
    EXPECT_TRUE(memory_.GuardsIntact());
    EXPECT_TRUE(Works(&link_));
  }

  // A frame that writes `payload` zeros to these blocks.
  Saying Write(const wire::KeyBody& key, const std::vector<wire::BlockOnWire>& blocks,
               std::size_t payload) {
    return {.type = Type::kWrite,
            .operation = kTheirOperation,
            .body = AccessBody(key, blocks),
            .payload = std::vector<std::byte>(payload)};
  }
  Saying Read(const wire::KeyBody& key, const std::vector<wire::BlockOnWire>& blocks) {
    return {.type = Type::kReadRequest,
            .operation = kTheirOperation,
            .body = AccessBody(key, blocks, 5)};
  }
  wire::KeyBody Key() { return region_.remote().key; }

  void ExpectRefused(const RawFrame& frame, Type type, Code code, const std::string& words) {
    EXPECT_EQ(frame.header.type, type);
    EXPECT_EQ(frame.header.operation, kTheirOperation);
    EXPECT_EQ(frame.Body<wire::RefuseBody>().code, static_cast<std::uint8_t>(code));
    EXPECT_THAT(frame.Text<wire::RefuseBody>(), HasSubstr(words));
  }
  // The write is refused with this text, nothing is written, and the connection stays up.
  void ExpectWriteRefused(const Saying& write, const std::string& words) {
    const auto before = memory_.Copy();
    ASSERT_TRUE(peer_.lane().Say(write));
    const RawFrame nack = peer_.lane().Expect(Type::kNack);
    ExpectRefused(nack, Type::kNack, Code::kRefused, words);
    EXPECT_EQ(nack.Body<wire::RefuseBody>().sequence, said_++);
    ASSERT_TRUE(peer_.lane().WaitAcked(said_));
    EXPECT_EQ(memory_.Copy(), before);
  }
  void ExpectReadRefused(const Saying& read, const std::string& words) {
    ASSERT_TRUE(peer_.lane().Say(read));
    const RawFrame refused = peer_.lane().Expect(Type::kReadRefused);
    ExpectRefused(refused, Type::kReadRefused, Code::kRefused, words);
    EXPECT_EQ(refused.Body<wire::RefuseBody>().slice, 5u);
  }
  // A correct write and read of the same peer succeed.
  void ExpectStillServed() {
    memory_.Fill(std::byte{0xFF});
    ASSERT_TRUE(peer_.lane().Say(Write(Key(), {{0, 10}}, 10)));
    ASSERT_TRUE(peer_.lane().WaitAcked(++said_));
    EXPECT_EQ(memory_.Copy()[9], std::byte{0});
    EXPECT_EQ(memory_.Copy()[10], std::byte{0xFF});
    ASSERT_TRUE(peer_.lane().Say(Read(Key(), {{8, 4}})));
    const RawFrame data = peer_.lane().Expect(Type::kReadData);
    EXPECT_EQ(TextOf(data.payload), std::string("\0\0\xFF\xFF", 4));
  }
  // The connection is closed, and its handle reports why.
  void ExpectClosed(const Saying& saying, const std::string& words) {
    ASSERT_TRUE(peer_.lane().Say(saying));
    ExpectClosedFor(words);
  }
  void ExpectClosedFor(const std::string& words) {
    peer_.lane().WaitClosed();
    const auto end = theirs_.TakeNotification(Soon());
    ASSERT_FALSE(end);
    EXPECT_EQ(end.error().code(), Code::kCorrupt) << end.error().ToString();
    EXPECT_THAT(end.error().message(), HasSubstr(words));
  }

  GuardedMemory memory_{kRegionBytes};
  Link link_;
  Region region_ = Must(link_.far.endpoint->Register(memory_.span(), Rights::kReadWrite));
  RawPeer peer_{link_.far.endpoint->port()};
  Connection theirs_ = Must(link_.far.endpoint->Accept(Soon()));
  std::uint32_t said_ = 0;  // sequenced frames sent
};

// ---- refused accesses ---------------------------------------------------------------------------

TEST_F(HostilePeerTest, AWriteBeyondTheRegionIsRefused) {
  ExpectWriteRefused(Write(Key(), {{kRegionBytes, 1}}, 1), "covers 1 bytes from offset 10000");
  ExpectWriteRefused(Write(Key(), {{kRegionBytes - 3, 4}}, 4), "which has 10000 bytes");
  ExpectWriteRefused(Write(Key(), {{0, 8}, {9'999, 2}}, 10), "block 1");
  ExpectWriteRefused(Write(Key(), {{0, kRegionBytes + 1}}, kRegionBytes + 1), "check offset");
  ExpectStillServed();
}

TEST_F(HostilePeerTest, AnOffsetThatOverflowsIsRefused) {
  ExpectWriteRefused(Write(Key(), {{kHugeOffset, 1}}, 1), "offset 18446744073709551615");
  ExpectWriteRefused(Write(Key(), {{kHugeOffset - 7, 8}}, 8), "check offset");
  ExpectWriteRefused(Write(Key(), {{kHugeOffset - 7, 16}}, 16), "check offset");
  ExpectReadRefused(Read(Key(), {{kHugeOffset - 7, 16}}), "check offset");
  ExpectStillServed();
}

TEST_F(HostilePeerTest, AWrongTokenOrRegionOrGenerationIsRefusedWithTheCheckThatFailed) {
  wire::KeyBody key = Key();
  key.token ^= 1;
  ExpectWriteRefused(Write(key, {{0, 4}}, 4), "wrong token");
  ExpectReadRefused(Read(key, {{0, 4}}), "wrong token");
  key = Key();
  key.region = 1000;
  ExpectWriteRefused(Write(key, {{0, 4}}, 4), "there is no region 1000");
  ExpectReadRefused(Read(key, {{0, 4}}), "use a key that this endpoint gave out");
  key = Key();
  ++key.generation;
  ExpectWriteRefused(Write(key, {{0, 4}}, 4), "generation 2");
  EXPECT_EQ(theirs_.Info().refused_accesses, 5u);
  ExpectStillServed();
}

TEST_F(HostilePeerTest, AStaleKeyIsRefusedEvenWhenItsSlotIsUsedAgain) {
  const wire::KeyBody old = Key();
  region_ = Must(link_.far.endpoint->Register(memory_.span(), Rights::kReadWrite));
  const Region reused = Must(link_.far.endpoint->Register(memory_.span(), Rights::kReadWrite));
  ASSERT_EQ(reused.remote().key.region, old.region);
  ExpectWriteRefused(Write(old, {{0, 4}}, 4), "stale");
  ExpectReadRefused(Read(old, {{0, 4}}), "ask the peer for a fresh key");
  ExpectStillServed();
}

TEST_F(HostilePeerTest, AMissingRightIsRefused) {
  const Region read_only = Must(link_.far.endpoint->Register(memory_.span(), Rights::kRead));
  const Region write_only = Must(link_.far.endpoint->Register(memory_.span(), Rights::kWrite));
  ExpectWriteRefused(Write(read_only.remote().key, {{0, 4}}, 4), "reading only, not writing only");
  ExpectReadRefused(Read(write_only.remote().key, {{0, 4}}), "writing only, not reading only");
  ExpectStillServed();
}

// ---- frames that break the rules ----------------------------------------------------------------

TEST_F(HostilePeerTest, ABlockListShorterThanItsPayloadEndsTheConnection) {
  ExpectClosed(Write(Key(), {{0, 4}}, 5), "1 bytes shorter");
}

TEST_F(HostilePeerTest, ABlockListLongerThanItsPayloadEndsTheConnection) {
  ExpectClosed(Write(Key(), {{0, 4}, {4, 4}}, 7), "block 1 has 4 bytes where the frame has 3");
}

TEST_F(HostilePeerTest, AnEmptyBlockEndsTheConnection) {
  ExpectClosed(Write(Key(), {{0, 4}, {4, 0}}, 4), "block 1 has 0 bytes");
}

TEST_F(HostilePeerTest, ABlockCountThatDoesNotFitTheListEndsTheConnection) {
  Saying write = Write(Key(), {{0, 4}}, 4);
  write.body.resize(write.body.size() - 1);
  ExpectClosed(write, "malformed frame (write)");
}

TEST_F(HostilePeerTest, ABlockCountBeyondAnyListEndsTheConnection) {
  Saying read = Read(Key(), {});
  read.body = Pod(wire::WriteBody{Key(), 0, ~0U});
  ExpectClosed(read, "malformed frame (read request)");
}

TEST_F(HostilePeerTest, AReadRequestWhoseLengthsOverflowEndsTheConnection) {
  ExpectClosed(Read(Key(), {{0, kHugeOffset}, {0, 2}}), "malformed frame (read request)");
}

// With that many unread answers, the cost of a further one is taken from the shared memory.
TEST_F(HostilePeerTest, AReadRequestThatBreaksTheRulesLeavesNothingReserved) {
  constexpr std::uint64_t kBlock = 4096;
  Config config = SmallSlices(2, 2);
  config.send_buffer_bytes = 64 * 1024;
  Endpoint endpoint = Must(Endpoint::Create(config));
  RawPeer peer(endpoint.port());
  Connection theirs = Must(endpoint.Accept(Soon()));
  std::vector<std::byte> memory(wire::kMaxBlocksPerRead * kBlock);
  const Region region = Must(endpoint.Register(memory, Rights::kRead));
  std::vector<wire::BlockOnWire> blocks;
  for (std::uint64_t i = 0; i < wire::kMaxBlocksPerRead; ++i)
    blocks.push_back({i * kBlock, kBlock});
  const Saying read = Read(region.remote().key, blocks);
  for (int i = 0; i < 80; ++i) ASSERT_TRUE(peer.lane().Say(read));
  ASSERT_TRUE(peer.lane().Say(Read(region.remote().key, {{0, kHugeOffset}, {0, 2}})));
  EXPECT_FALSE(theirs.TakeNotification(Soon()));
  // The handle keeps the connection's counters.
  const Deadline deadline = Soon();
  while (endpoint.Counters().held_bytes > 0 && !deadline.expired()) std::this_thread::yield();
  EXPECT_EQ(endpoint.Counters().held_bytes, 0u);
}

TEST_F(HostilePeerTest, AWriteOfNothingEndsTheConnection) {
  ExpectClosed(Write(Key(), {}, 0), "malformed frame (write)");
}

TEST_F(HostilePeerTest, AnUnknownFrameTypeEndsTheConnection) {
  ExpectClosed({.type = static_cast<Type>(99)}, "malformed frame (unknown)");
}

TEST_F(HostilePeerTest, AHelloAfterTheHandshakeEndsTheConnection) {
  ExpectClosed({.type = Type::kHello, .body = Pod(Hello(peer_.id(), 1))},
               "malformed frame (hello)");
}

TEST_F(HostilePeerTest, AFrameWithoutAWholeHeaderEndsTheConnection) {
  ASSERT_TRUE(peer_.lane().SendBytes(
      Joined(Pod(net::tcp::FramePrefix{.meta_bytes = 5}), std::vector<std::byte>(5))));
  ExpectClosedFor("no header");
}

TEST_F(HostilePeerTest, BytesThatAreNoFrameEndTheConnection) {
  ASSERT_TRUE(peer_.lane().SendBytes(BytesOf("GET / HTTP/1.1\r\nHost: ferry\r\n\r\n")));
  ExpectClosedFor("no ferry frame (they begin 47 45 54 20");
}

TEST_F(HostilePeerTest, AFrameThatAnnouncesMoreThanIsAllowedEndsTheConnection) {
  ASSERT_TRUE(peer_.lane().SendBytes(Pod(net::tcp::FramePrefix{.meta_bytes = 1U << 20})));
  ExpectClosedFor("announced a frame of 1048576 bytes");
}

TEST_F(HostilePeerTest, PayloadWhereNoneBelongsEndsTheConnection) {
  ExpectClosed({.type = Type::kPing, .payload = BytesOf("x")}, "payload where none belongs");
}

TEST_F(HostilePeerTest, AFrameCutShortLeavesTheRestOfItsBlockAlone) {
  // Unread bytes, for example of the first ping, would make the close a reset.
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(peer_.lane().IsQuiet());
  auto bytes = peer_.lane().Encode(Write(Key(), {{0, 100}}, 100));
  bytes.resize(bytes.size() - 60);
  memory_.Fill(std::byte{0xFF});
  ASSERT_TRUE(peer_.lane().SendBytes(bytes));
  peer_.lane().Close();
  const auto end = theirs_.TakeNotification(Soon());
  ASSERT_FALSE(end);
  EXPECT_EQ(end.error().code(), Code::kPeerLost);
  EXPECT_THAT(end.error().message(), HasSubstr("in the middle of a frame"));
  ASSERT_TRUE(region_.Deregister(Soon()));
  EXPECT_EQ(memory_.Copy()[40], std::byte{0xFF});
}

// ---- answers to what was never said -------------------------------------------------------------

TEST_F(HostilePeerTest, AnAcknowledgementOfFramesNeverSentEndsTheConnection) {
  ExpectClosed({.type = Type::kAck, .ack = 1}, "never sent");
}

TEST_F(HostilePeerTest, AnAcknowledgementThatGoesBackwardsEndsTheConnection) {
  ExpectClosed({.type = Type::kAck, .ack = ~0U}, "never sent");
}

TEST_F(HostilePeerTest, ANackOfAFrameNeverSentEndsTheConnection) {
  ExpectClosed({.type = Type::kNack, .body = Pod(wire::RefuseBody{.sequence = 0})}, "never sent");
}

TEST_F(HostilePeerTest, ANackWithoutABodyEndsTheConnection) {
  ExpectClosed({.type = Type::kNack, .body = BytesOf("short")}, "nack");
}

TEST_F(HostilePeerTest, ReadDataThatNobodyAskedForEndsTheConnection) {
  ExpectClosed({.type = Type::kReadData,
                .operation = 1,
                .body = Pod(wire::SliceBody{}),
                .payload = BytesOf("here you are")},
               "read data that was not requested");
}

TEST_F(HostilePeerTest, ARefusalOfAReadThatNobodyAskedForEndsTheConnection) {
  ExpectClosed({.type = Type::kReadRefused, .operation = 1, .body = Pod(wire::RefuseBody{})},
               "refuses a read that was not requested");
}

TEST_F(HostilePeerTest, AnswersToMessagesThatDoNotExistAreIgnored) {
  for (const Type type : {Type::kFin, Type::kDeclined}) {
    ASSERT_TRUE(peer_.lane().Say({.type = type, .operation = 1, .body = Pod(wire::RefuseBody{})}));
  }
  ASSERT_TRUE(peer_.lane().Say({.type = Type::kCts, .operation = 1, .body = Pod(wire::CtsBody{})}));
  EXPECT_TRUE(peer_.lane().IsQuiet());
  said_ += 3;
  ExpectStillServed();
}

TEST_F(HostilePeerTest, ShortAnswersEndTheConnection) {
  ExpectClosed({.type = Type::kCts, .operation = 1, .body = BytesOf("short")}, "malformed CTS");
}

// Each slice of a plan costs memory on our side.
TEST_F(HostilePeerTest, AWishForTinySlicesEndsTheConnection) {
  const std::vector<std::byte> message(200'000);
  const Operation send = Must(theirs_.Send(1, message));
  const RawFrame rts = peer_.lane().Expect(Type::kRts);
  ExpectClosed({.type = Type::kCts,
                .operation = rts.header.operation,
                .body = Pod(wire::CtsBody{Key(), wire::kMinSlice - 1})},
               "malformed CTS");
}

// Regression: 232 MiB for a message of 10 GiB.
TEST_F(HostilePeerTest, AWishForShortSlicesCostsNoMemoryForEach) {
  constexpr std::size_t kBytes = std::size_t{64} << 30;
  void* const memory =
      ::mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  {
    const Operation send = Must(theirs_.Send(1, {static_cast<const std::byte*>(memory), kBytes}));
    const RawFrame rts = peer_.lane().Expect(Type::kRts);
    const std::uint64_t before = ResidentBytes();
    ASSERT_TRUE(peer_.lane().Say({.type = Type::kCts,
                                  .operation = rts.header.operation,
                                  .body = Pod(wire::CtsBody{Key(), wire::kMinSlice})}));
    EXPECT_FALSE(peer_.lane().Expect(Type::kWrite).payload.empty());
    EXPECT_LT(ResidentBytes(), before + (32 << 20));
    (void)theirs_.Close();
  }
  (void)::munmap(memory, kBytes);
}

// The id of the read, the slice or the length differs from the request.
TEST_F(HostilePeerTest, ReadDataOfAnotherReadSliceOrLengthEndsTheConnection) {
  GuardedMemory into(8192);
  const auto before = into.Copy();
  const Region local = Must(link_.far.endpoint->Register(into.span(), Rights::kNone));
  const RemoteRegion remote{peer_.id(), {1, 1, 1}, Rights::kRead, 8192};
  for (int wrong = 0; wrong < 3; ++wrong) {
    RawPeer peer(link_.far.endpoint->port());
    Connection theirs = Must(link_.far.endpoint->Accept(Soon()));
    RemoteRegion at_peer = remote;
    at_peer.endpoint = peer.id();
    const auto read = theirs.Read(local, 0, at_peer, 0, 8192);
    const RawFrame request = peer.lane().Expect(Type::kReadRequest);
    const auto asked = request.Body<wire::WriteBody>();
    ASSERT_TRUE(
        peer.lane().Say({.type = Type::kReadData,
                         .operation = request.header.operation + (wrong == 0 ? 1 : 0),
                         .body = Pod(wire::SliceBody{asked.slice + (wrong == 1 ? 1 : 0), 0}),
                         .payload = std::vector<std::byte>(wrong == 2 ? 4095 : 4096)}));
    ASSERT_TRUE(EndsWith(Code::kCorrupt, read));
    EXPECT_THAT(EndMessage(*read), HasSubstr("not requested"));
    EXPECT_EQ(into.Copy(), before);
  }
}

// Nothing completes because a peer acknowledges it before it can have received it: the caller would
// own the memory again while the lane still holds a pointer to it.
TEST_F(HostilePeerTest, AnAcknowledgementOfWhatIsStillQueuedEndsNothingBeforeItHasLeft) {
  // One loop, so that an answer to the clock peer proves that everything posted before is queued.
  Endpoint endpoint = Must(Endpoint::Create(SmallSlices(2, 1)));
  RawPeer peer(endpoint.port(), 2);
  Connection theirs = Must(endpoint.Accept(Soon()));
  RawPeer clock(endpoint.port());
  const std::vector<std::byte> message(64 * 1024);
  // More than the socket accepts while nobody reads.
  std::vector<Operation> sends;
  for (int i = 0; i < 1000; ++i) sends.push_back(Must(theirs.Notify(message)));
  ASSERT_TRUE(clock.lane().IsQuiet());
  ASSERT_TRUE(peer.lane().Say({.type = Type::kAck, .ack = 1000}));
  ASSERT_TRUE(EndsOk(sends.front()));
  EXPECT_FALSE(sends.back().Poll());
  for (int i = 0; i < 1000; ++i) (void)peer.lane().Expect(Type::kNotify);
  EXPECT_TRUE(EndsOk(sends.back()));
}

// ---- messages -----------------------------------------------------------------------------------

TEST_F(HostilePeerTest, AMessageThatAnnouncesAnotherLengthThanItHasEndsTheConnection) {
  ExpectClosed({.type = Type::kSend, .body = Pod(wire::TagBody{1, 5}), .payload = BytesOf("four")},
               "malformed frame (send)");
}

TEST_F(HostilePeerTest, ASmallMessageLargerThanAnyIsAllowedToBeEndsTheConnection) {
  ExpectClosed({.type = Type::kSend,
                .body = Pod(wire::TagBody{1, 65537}),
                .payload = std::vector<std::byte>(65537)},
               "malformed frame (send)");
}

TEST_F(HostilePeerTest, ANotificationLargerThanAnyIsAllowedToBeEndsTheConnection) {
  ExpectClosed({.type = Type::kNotify, .payload = std::vector<std::byte>(65537)},
               "malformed frame (notification)");
}

TEST_F(HostilePeerTest, AnRtsOfNothingEndsTheConnection) {
  ExpectClosed({.type = Type::kRts, .operation = 1, .body = Pod(wire::TagBody{1, 0})},
               "malformed RTS");
}

TEST_F(HostilePeerTest, TwoRtsFramesOfOneNumberEndTheConnectionAndBothReceives) {
  std::vector<std::byte> first(10);
  std::vector<std::byte> second(10);
  const auto receive = theirs_.Recv(1, kWholeTag, first);
  const auto again = theirs_.Recv(1, kWholeTag, second);
  const Saying rts{.type = Type::kRts, .operation = 9, .body = Pod(wire::TagBody{1, 10})};
  ASSERT_TRUE(peer_.lane().Say(rts));
  const auto key = peer_.lane().Expect(Type::kCts).Body<wire::CtsBody>().key;
  ASSERT_TRUE(peer_.lane().Say(rts));
  EXPECT_TRUE(EndsWith(Code::kCorrupt, receive));
  EXPECT_TRUE(EndsWith(Code::kCorrupt, again));
  peer_.lane().WaitClosed();
  // The key of the first one is not valid any more.
  RawPeer other(link_.far.endpoint->port());
  ASSERT_TRUE(other.lane().Say(Write(key, {{0, 10}}, 10)));
  EXPECT_THAT(other.lane().Expect(Type::kNack).Text<wire::RefuseBody>(), HasSubstr("stale"));
}

TEST_F(HostilePeerTest, TheKeyOfAReceiveIsRefusedToEveryOtherPeer) {
  GuardedMemory buffer(100);
  const auto before = buffer.Copy();
  auto receive = theirs_.Recv(1, kWholeTag, buffer.span());
  ASSERT_TRUE(
      peer_.lane().Say({.type = Type::kRts, .operation = 9, .body = Pod(wire::TagBody{1, 100})}));
  const auto key = peer_.lane().Expect(Type::kCts).Body<wire::CtsBody>().key;
  RawPeer other(link_.far.endpoint->port());
  ASSERT_TRUE(other.lane().Say(Write(key, {{0, 100}}, 100)));
  const RawFrame nack = other.lane().Expect(Type::kNack);
  ExpectRefused(nack, Type::kNack, Code::kRefused, "another connection");
  EXPECT_EQ(buffer.Copy(), before);
  receive->Cancel();
  EXPECT_TRUE(EndsWith(Code::kCancelled, *receive));
  EXPECT_TRUE(buffer.GuardsIntact());
}

// A FIN arrives on one lane while a write into the buffer is incomplete on another.
TEST_F(HostilePeerTest, AReceiveDeclaredDeliveredEndsOnlyWhenNothingWritesIntoItsBuffer) {
  // One loop, so that a pong on one lane proves that the other lane has been read.
  Endpoint endpoint = Must(Endpoint::Create(SmallSlices(2, 1)));
  RawPeer peer(endpoint.port(), 2);
  Connection theirs = Must(endpoint.Accept(Soon()));
  std::vector<std::byte> buffer(1000);
  const auto receive = theirs.Recv(1, kWholeTag, buffer);
  ASSERT_TRUE(
      peer.lane().Say({.type = Type::kRts, .operation = 9, .body = Pod(wire::TagBody{1, 1000})}));
  const auto key = peer.lane().Expect(Type::kCts).Body<wire::CtsBody>().key;
  Saying write = Write(key, {{0, 1000}}, 1000);
  write.payload.assign(1000, std::byte{1});
  const auto bytes = peer.lane(1).Encode(write);
  const std::size_t half = bytes.size() - 500;
  ASSERT_TRUE(peer.lane(1).SendBytes(std::span(bytes).first(half)));
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(peer.lane().IsQuiet());
  ASSERT_TRUE(
      peer.lane().Say({.type = Type::kFin, .operation = 9, .body = Pod(wire::RefuseBody{})}));
  EXPECT_TRUE(EndsWith(Code::kCorrupt, receive));
  std::fill(buffer.begin(), buffer.end(), std::byte{0xEE});
  ASSERT_TRUE(peer.lane(1).SendBytes(std::span(bytes).subspan(half)));
  (void)peer.lane(1).Expect(Type::kNack);
  EXPECT_EQ(std::count(buffer.begin(), buffer.end(), std::byte{0xEE}), 1000);
}

TEST_F(HostilePeerTest, AMessageOnAnotherLaneThanTheFirstEndsTheConnection) {
  for (const Type type : {Type::kSend, Type::kNotify, Type::kRts, Type::kCts, Type::kDeclined}) {
    RawPeer peer(link_.far.endpoint->port(), 2);
    Connection theirs = Must(link_.far.endpoint->Accept(Soon()));
    ASSERT_TRUE(peer.lane(1).Say({.type = type, .body = Pod(wire::TagBody{1, 0})}));
    const auto end = theirs.TakeNotification(Soon());
    ASSERT_FALSE(end);
    EXPECT_EQ(end.error().code(), Code::kCorrupt);
    peer.lane(0).WaitClosed();
    peer.lane(1).WaitClosed();
  }
}

}  // namespace
}  // namespace ferry::transfer
