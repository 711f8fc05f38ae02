// Tests the memory that an endpoint holds for admitted peers that request everything and read
// nothing: it is bounded while honest peers are served, and freed by the close.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <deque>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ferry/core/units.h"
#include "ferry/transfer/region.h"
#include "ferry/transfer/testing/raw_peer.h"
#include "tests/support/engine_peer.h"

namespace ferry::tests {
namespace {

using transfer::RawLane;
using transfer::RawPeer;
using transfer::wire::Type;
namespace wire = transfer::wire;

constexpr std::uint16_t kLanes = 16;
constexpr std::size_t kHostile = 4;
constexpr std::uint64_t kRegionBytes = 4 * kMiB;
constexpr std::uint64_t kMaxHeldForOne = 32 * kMiB + 32 * kMiB / 10;
constexpr std::uint64_t kMaxForOne = 64 * kMiB;  // resident, with what allocation adds
constexpr std::uint64_t kMaxInAll = 512 * kMiB;
// A lane is closed after this time without progress; a machine may be busy.
constexpr int kFullMs = 300;

std::vector<std::byte> Body(const wire::KeyBody& key, std::uint32_t blocks, std::uint64_t bytes) {
  auto body = transfer::Pod(wire::WriteBody{key, 0, blocks});
  for (std::uint32_t i = 0; i < blocks; ++i) wire::Append(&body, wire::BlockOnWire{i * 8, bytes});
  return body;
}

class PeerMemoryTest : public testing::Test {
 protected:
  void StartServer(const Settings& more) {
    Settings settings = FastSettings(more);
    settings.emplace_back("peer_timeout=60s");
    // An honest peer connects while the floods of others are still read, on a busy machine.
    settings.emplace_back("connect_timeout=60s");
    settings.emplace_back("handshake_timeout=60s");
    settings.emplace_back("insecure=on");
    settings.emplace_back(fmt::format("lanes={}", kLanes));
    settings_ = settings;
    server_.emplace(settings);
    key_ = server_->Region("in", kRegionBytes, 1);
    const auto theirs = server_->Region("theirs", kRegionBytes, 1);
    wire_key_ = Must(transfer::RemoteRegion::Parse(theirs)).key;
  }
  std::uint16_t port() const { return server_->address().at.front().port; }
  RawPeer& Connect() {
    RawPeer& peer = peers_.emplace_back(port(), kLanes);
    server_->Use(next_++);
    server_->Accept();
    return peer;
  }
  // In turn what makes an endpoint queue, keep or remember: answers with long lists, refusals with
  // words, pongs, messages that nobody receives, offers and notifications.
  std::vector<std::byte> FloodOf(const RawLane& lane, std::size_t index) {
    wire::KeyBody forged = wire_key_;
    forged.token ^= 1;
    const auto write = lane.Encode({.type = Type::kWrite,
                                    .operation = 1,
                                    .body = Body(forged, 1, 1),
                                    .payload = {std::byte{1}}});
    const auto good = lane.Encode({.type = Type::kWrite,
                                   .operation = 1,
                                   .body = Body(wire_key_, 1, 1),
                                   .payload = {std::byte{1}}});
    switch (index % 4) {
      case 1: return lane.Encode({.type = Type::kPing});
      case 2: return transfer::Joined(write, good);
      case 3:
        return lane.Encode(
            {.type = Type::kReadRequest, .operation = 1, .body = Body(forged, 1, 8)});
      default: break;
    }
    if (index != 0) {
      return lane.Encode(
          {.type = Type::kReadRequest, .operation = 1, .body = Body(wire_key_, 4000, 8)});
    }
    const std::vector<std::byte> message(16 * kKiB);
    const auto send = lane.Encode({.type = Type::kSend,
                                   .operation = 1,
                                   .body = transfer::Pod(wire::TagBody{1, message.size()}),
                                   .payload = message});
    const auto offer = lane.Encode(
        {.type = Type::kRts, .operation = 1, .body = transfer::Pod(wire::TagBody{1, 1})});
    const auto notify = lane.Encode({.type = Type::kNotify, .operation = 1, .payload = message});
    return transfer::Joined(transfer::Joined(send, offer), notify);
  }
  void Flood(RawPeer* peer) {
    for (std::size_t i = 0; i < kLanes; ++i) {
      const std::uint64_t most = i == 0 ? messages_most_ : i % 4 == 0 ? 48 * kMiB : 8 * kMiB;
      (void)peer->lane(i).Flood(FloodOf(peer->lane(i), i), most, kFullMs);
    }
  }
  void FloodFromAll() {
    std::vector<std::jthread> threads;
    for (RawPeer& peer : peers_) threads.emplace_back([this, &peer] { Flood(&peer); });
  }
  EnginePeer::MemoryUse Show(const std::string& when) {
    const auto use = server_->Memory();
    fmt::print("{}: {} resident, {} held for {} peers\n", when, FormatSize(use.resident),
               FormatSize(use.held), use.connections);
    return use;
  }
  void ExpectHonestPeerIsServed() {
    transfer::Endpoint endpoint = Must(transfer::Endpoint::Create(ConfigOf(settings_)));
    transfer::Connection out = Must(endpoint.Connect(server_->address(), TestDeadline()));
    server_->Use(next_++);
    server_->Accept();
    const PatternRegion from(endpoint, kRegionBytes, ++seed_);
    const PatternRegion into(endpoint, kRegionBytes, ++seed_);
    auto remote = Must(out.Import(key_));
    const auto well = [](transfer::Operation operation) {
      const Status ended = operation.Wait(TestDeadline());
      EXPECT_TRUE(ended) << ended.error().ToString();
    };
    well(Must(out.Write(from.region, 0, remote, 0, kRegionBytes)));
    well(Must(out.Read(into.region, 0, remote, 0, kRegionBytes)));
    EXPECT_EQ(into.Digest(), from.Digest());
    // Nobody takes these: what is guaranteed holds them.
    const std::vector<std::byte> notification(30 * kKiB);
    for (int i = 0; i < 8; ++i) well(Must(out.Notify(notification)));
  }
  void ExpectFreedByTheClose(const EnginePeer::MemoryUse& idle) {
    peers_.clear();
    const Deadline limit = TestDeadline();
    while (server_->Memory().connections > 0) ASSERT_FALSE(limit.expired());
    server_->Leave();  // with notifications that nobody took
    auto use = server_->Memory();
    // A task of a loop may hold the connection for a moment longer.
    while (use.held > 0 && !limit.expired()) use = server_->Memory();
    EXPECT_EQ(use.held, 0u);
    const std::uint64_t most = idle.resident + idle.resident / 10;
    while (!kSanitized && use.resident > most && !limit.expired()) use = server_->Memory();
    use = Show("closed");
    if (!kSanitized) {
      EXPECT_LE(use.resident, most);
    }
  }

  std::optional<EnginePeer> server_;
  Settings settings_;
  std::vector<std::byte> key_;
  wire::KeyBody wire_key_;
  std::deque<RawPeer> peers_;
  std::uint64_t messages_most_ = 24 * kMiB;
  int next_ = 0;
  std::uint64_t seed_ = 1;
};

TEST_F(PeerMemoryTest, OfPeersThatAskForAllAndReadNothingIsBoundedAndFreedByTheClose) {
  StartServer({});
  for (std::size_t i = 0; i < kHostile; ++i) Connect();
  const auto idle = Show("idle");
  FloodFromAll();
  const auto use = Show("flooded");
  EXPECT_LE(use.held, kHostile * kMaxHeldForOne);
  if (!kSanitized) {
    EXPECT_LE(use.resident, idle.resident + kHostile * kMaxForOne);
    EXPECT_LE(use.resident, idle.resident + kMaxInAll);
  }
  ExpectHonestPeerIsServed();
  ExpectFreedByTheClose(idle);
}

TEST_F(PeerMemoryTest, OfOneHonestPeerIsFreedByTheClose) {
  StartServer({});
  const auto idle = Show("idle");
  ExpectHonestPeerIsServed();
  ExpectFreedByTheClose(idle);
}

TEST_F(PeerMemoryTest, ThatOthersHaveUsedUpLeavesAnHonestPeerItsShare) {
  StartServer({"peer_memory=8MiB", "peer_memory_total=8MiB", "unexpected_bytes=4MiB",
               "notification_bytes=4MiB"});
  messages_most_ = 4 * kMiB;  // a peer that acknowledges none of many more is closed
  for (std::size_t i = 0; i < kHostile; ++i) Connect();
  const auto idle = Show("idle");
  FloodFromAll();
  const auto use = Show("flooded");
  EXPECT_GE(use.held, 6 * kMiB);  // nearly all
  // And what each lane may always have.
  EXPECT_LE(use.held, 8 * kMiB + kHostile * kLanes * 128 * kKiB);
  ExpectHonestPeerIsServed();
  ExpectFreedByTheClose(idle);
}

}  // namespace
}  // namespace ferry::tests
