// Tests of how a TCP lane cuts its stream into frames, without a socket.
#include "ferry/net/tcp/frame_input.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ferry/net/tcp/frame_prefix.h"
#include "ferry/net/testing/lane_end.h"

namespace ferry::net::tcp {
namespace {

// Gives at most `step` bytes of `left` in a call, and EAGAIN at the end.
class FedStream final : public ByteStream {
 public:
  ssize_t Readv(std::span<const iovec> pieces, std::size_t bytes) override {
    std::size_t asked = 0;
    for (const iovec& piece : pieces) asked += piece.iov_len;
    EXPECT_EQ(asked, bytes);
    const std::string given = Next(bytes);
    std::size_t at = 0;
    for (const iovec& piece : pieces) {
      const std::size_t n = std::min(given.size() - at, piece.iov_len);
      std::memcpy(piece.iov_base, given.data() + at, n);
      at += n;
    }
    return Answer(given.size());
  }
  ssize_t Discard(std::size_t bytes) override { return Answer(Next(bytes).size()); }
  ssize_t Writev(std::span<const iovec> /*pieces*/) override { return -1; }
  bool is_plain() const noexcept override { return true; }
  void Describe(LaneInfo* /*info*/) const override {}

  std::string left;
  std::size_t step = 1 << 20;

 private:
  std::string Next(std::size_t bytes) {
    std::string next = left.substr(0, std::min(bytes, step));
    left.erase(0, next.size());
    return next;
  }
  static ssize_t Answer(std::size_t bytes) {
    if (bytes > 0) return static_cast<ssize_t>(bytes);
    errno = EAGAIN;
    return -1;
  }
};

std::string WireOf(std::string_view meta, std::string_view payload) {
  FramePrefix prefix;
  prefix.meta_bytes = static_cast<std::uint32_t>(meta.size());
  prefix.payload_bytes = payload.size();
  std::string wire(sizeof prefix, '\0');
  std::memcpy(wire.data(), &prefix, sizeof prefix);
  return wire.append(meta).append(payload);
}

std::string Pattern(std::size_t bytes, std::uint64_t seed) {
  return AsText(RandomBytes(bytes, seed));
}

class FrameInputTest : public ::testing::Test {
 protected:
  // Reads until the next head is whole; nothing where the stream ends first.
  std::optional<FrameInput::Head> ReadHead() {
    while (true) {
      auto head = input_.NextHead("the peer");
      EXPECT_TRUE(head) << head.error().ToString();
      if (!head) return std::nullopt;
      if (*head) return *head;
      if (input_.Read(&stream_) <= 0) return std::nullopt;
    }
  }
  void ReadPayload() {
    while (!input_.TakeBuffered()) ASSERT_GT(input_.Read(&stream_), 0);
  }
  // Receives a frame whole and returns its payload.
  std::string Receive(std::string_view meta, std::span<const std::size_t> pieces = {}) {
    const auto head = ReadHead();
    EXPECT_TRUE(head);
    if (!head) return {};
    EXPECT_EQ(AsText(head->meta), meta);
    const Scatter memory(CutInto(head->payload_bytes, pieces));
    input_.Begin(*head, {Placement::Action::kPlace, memory.pieces()});
    if (head->payload_bytes > 0) ReadPayload();
    EXPECT_TRUE(memory.GuardsAreIntact());
    EXPECT_EQ(input_.state(), FrameInput::State::kFrame);
    return AsText(memory.Load());
  }
  Error RefusedAfter(std::string wire) {
    stream_.left = std::move(wire);
    EXPECT_GT(input_.Read(&stream_), 0);
    auto head = input_.NextHead("the peer");
    return head ? Error(Code::kInternal, "accepted") : head.error();
  }

  FrameInput input_;
  FedStream stream_;
};

TEST_F(FrameInputTest, FindsFramesHoweverTheStreamIsCut) {
  const std::string payload = Pattern(100, 1);
  for (std::size_t step = 1; step < 200; ++step) {
    stream_.step = step;
    stream_.left = WireOf("one", payload) + WireOf("two", "") + WireOf("three", "x");
    EXPECT_EQ(Receive("one", std::vector<std::size_t>{7, 40}), payload) << step;
    EXPECT_EQ(Receive("two"), "");
    EXPECT_EQ(Receive("three"), "x");
    EXPECT_EQ(input_.buffered(), 0U);
    EXPECT_FALSE(ReadHead());
  }
}

TEST_F(FrameInputTest, ReadsALargePayloadIntoItsPlaceAndKeepsWhatFollows) {
  const std::string payload = Pattern(3 << 20, 2);
  stream_.left = WireOf("large", payload) + WireOf("next", "abc") + WireOf("last", payload);
  stream_.step = 300'000;
  EXPECT_TRUE(Receive("large", std::vector<std::size_t>{100'000, 1}) == payload);
  EXPECT_EQ(Receive("next"), "abc");
  EXPECT_TRUE(Receive("last") == payload);
}

TEST_F(FrameInputTest, DropsAPayloadAlsoFromItsMiddleOn) {
  const std::string payload = Pattern(200'000, 3);
  stream_.left = WireOf("drop", payload) + WireOf("half", payload) + WireOf("next", "abc");
  stream_.step = 50'000;
  auto head = ReadHead();
  ASSERT_TRUE(head);
  input_.Begin(*head, {Placement::Action::kDiscard, {}});
  EXPECT_EQ(input_.state(), FrameInput::State::kDiscard);
  ReadPayload();

  head = ReadHead();
  ASSERT_TRUE(head);
  const Scatter memory(CutInto(payload.size(), {}));
  input_.Begin(*head, {Placement::Action::kPlace, memory.pieces()});
  EXPECT_FALSE(input_.TakeBuffered());
  EXPECT_GT(input_.Read(&stream_), 0);
  const auto placed = memory.Load();
  input_.DiscardRest();
  ReadPayload();
  EXPECT_TRUE(SameBytes(memory.Load(), placed));
  EXPECT_EQ(Receive("next"), "abc");
}

TEST_F(FrameInputTest, OffersThePausedFrameAgain) {
  stream_.left = WireOf("wait", "abc");
  EXPECT_FALSE(input_.Resume());
  ASSERT_TRUE(ReadHead());
  input_.Pause();
  EXPECT_EQ(input_.state(), FrameInput::State::kPaused);
  EXPECT_TRUE(input_.Resume());
  EXPECT_EQ(Receive("wait"), "abc");
}

TEST_F(FrameInputTest, RefusesWhatIsNoFrame) {
  EXPECT_NE(RefusedAfter("GET / HTTP/1.1\r\n").message().find("no ferry frame"), std::string::npos);
}

TEST_F(FrameInputTest, RefusesMetadataOverTheLimitBeforeItHasArrived) {
  input_.SetMaxMeta(kMaxPendingPeerMeta);
  const std::string wire = WireOf(std::string(kMaxPendingPeerMeta + 1, 'm'), "");
  const Error error = RefusedAfter(wire.substr(0, sizeof(FramePrefix)));
  EXPECT_EQ(error.code(), Code::kCorrupt);
  EXPECT_NE(error.message().find("at most 1024"), std::string::npos) << error.message();
}

TEST_F(FrameInputTest, BuffersLittleOfAPendingPeer) {
  input_.SetMaxMeta(kMaxPendingPeerMeta);
  stream_.left = WireOf("first", "") + std::string(1 << 20, 'x');
  while (input_.buffered() < kPendingPeerLaneBytes) ASSERT_GT(input_.Read(&stream_), 0);
  EXPECT_EQ(input_.buffered(), kPendingPeerLaneBytes);
}

}  // namespace
}  // namespace ferry::net::tcp
