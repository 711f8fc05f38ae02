// Tests of a TCP lane's queue of frames, without a socket.
#include "ferry/net/tcp/send_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace ferry::net::tcp {
namespace {

constexpr int kNoSocket = -1;

// Takes at most `room` bytes in a call.
class TakingStream final : public ByteStream {
 public:
  ssize_t Readv(std::span<const iovec> /*pieces*/, std::size_t /*bytes*/) override { return 0; }
  ssize_t Discard(std::size_t /*bytes*/) override { return 0; }
  ssize_t Writev(std::span<const iovec> pieces) override {
    ++calls;
    if (room == 0) {
      errno = EAGAIN;
      return -1;
    }
    std::size_t left = room;
    for (const iovec& piece : pieces) {
      const std::size_t n = std::min(left, piece.iov_len);
      taken.append(static_cast<const char*>(piece.iov_base), n);
      left -= n;
    }
    return static_cast<ssize_t>(room - left);
  }
  bool is_plain() const noexcept override { return true; }
  void Describe(LaneInfo* /*info*/) const override {}

  std::string taken;
  std::size_t room = 1 << 20;
  int calls = 0;
};

struct QueuedFrame : OutFrame {
  QueuedFrame(std::string_view the_meta, std::vector<std::string> the_pieces)
      : pieces(std::move(the_pieces)) {
    const auto bytes = std::as_bytes(std::span(the_meta));
    meta.assign(bytes.begin(), bytes.end());
    for (std::string& piece : pieces) {
      payload.push_back({piece.data(), piece.size()});
      payload_bytes += piece.size();
    }
  }
  // As it should look on the wire.
  std::string Wire() const {
    FramePrefix prefix;
    prefix.meta_bytes = static_cast<std::uint32_t>(meta.size());
    prefix.payload_bytes = payload_bytes;
    std::string wire(sizeof prefix, '\0');
    std::memcpy(wire.data(), &prefix, sizeof prefix);
    for (const std::byte b : meta) wire += static_cast<char>(b);
    for (const std::string& piece : pieces) wire += piece;
    return wire;
  }
  std::vector<std::string> pieces;
};

class SendQueueTest : public ::testing::Test {
 protected:
  SendQueue queue_;
  TakingStream stream_;
  QueuedFrame first_{"first", {"abc", "defgh"}};
  QueuedFrame second_{"second", {}};
  QueuedFrame third_{"third", {"ijklmnop"}};
};

TEST_F(SendQueueTest, SendsSeveralFramesInOneCall) {
  for (QueuedFrame* frame : {&first_, &second_, &third_}) queue_.Push(frame);
  const std::string wire = first_.Wire() + second_.Wire() + third_.Wire();
  EXPECT_EQ(queue_.SendSome(&stream_, kNoSocket), static_cast<ssize_t>(wire.size()));
  EXPECT_EQ(stream_.taken, wire);
  EXPECT_EQ(stream_.calls, 1);
  EXPECT_FALSE(queue_.has_unsent());
  EXPECT_FALSE(queue_.empty());
  EXPECT_EQ(queue_.TakeSent(), &first_);
  EXPECT_EQ(queue_.TakeSent(), &second_);
  EXPECT_EQ(queue_.TakeSent(), &third_);
  EXPECT_EQ(queue_.TakeSent(), nullptr);
  EXPECT_TRUE(queue_.empty());
  EXPECT_FALSE(queue_.has_spliced());
}

TEST_F(SendQueueTest, GoesOnWhereverASendStopped) {
  const std::string wire = first_.Wire() + second_.Wire() + third_.Wire();
  for (std::size_t room = 1; room <= wire.size(); ++room) {
    for (QueuedFrame* frame : {&first_, &second_, &third_}) queue_.Push(frame);
    stream_.taken.clear();
    stream_.room = room;
    while (queue_.has_unsent()) {
      ASSERT_GT(queue_.SendSome(&stream_, kNoSocket), 0);
      // Frames are reported as soon as they are sent whole, and not before.
      while (OutFrame* const sent = queue_.TakeSent()) {
        const std::string upto = first_.Wire() + (sent == &first_ ? "" : second_.Wire()) +
                                 (sent == &third_ ? third_.Wire() : "");
        EXPECT_GE(stream_.taken.size(), upto.size());
      }
    }
    EXPECT_EQ(stream_.taken, wire) << room;
    EXPECT_TRUE(queue_.empty());
  }
}

TEST_F(SendQueueTest, KeepsItsPlaceWhenTheStreamTakesNothing) {
  queue_.Push(&first_);
  stream_.room = 7;
  EXPECT_EQ(queue_.SendSome(&stream_, kNoSocket), 7);
  stream_.room = 0;
  EXPECT_EQ(queue_.SendSome(&stream_, kNoSocket), -1);
  EXPECT_EQ(queue_.TakeSent(), nullptr);
  stream_.room = 1 << 20;
  queue_.Push(&third_);
  EXPECT_GT(queue_.SendSome(&stream_, kNoSocket), 0);
  EXPECT_EQ(stream_.taken, first_.Wire() + third_.Wire());
}

TEST_F(SendQueueTest, StartsAnewAfterItWasCleared) {
  queue_.Push(&first_);
  queue_.Push(&third_);
  stream_.room = first_.Wire().size() + 3;
  EXPECT_GT(queue_.SendSome(&stream_, kNoSocket), 0);
  queue_.Clear();
  EXPECT_TRUE(queue_.empty());
  EXPECT_EQ(queue_.TakeSent(), nullptr);
  stream_.taken.clear();
  queue_.Push(&second_);
  EXPECT_GT(queue_.SendSome(&stream_, kNoSocket), 0);
  EXPECT_EQ(stream_.taken, second_.Wire());
}

}  // namespace
}  // namespace ferry::net::tcp
