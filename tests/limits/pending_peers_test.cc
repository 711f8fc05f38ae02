// Tests an endpoint against thousands of hostile pending peers: it holds little memory for them,
// its log stays readable, and its other peers are served meanwhile.

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ferry/core/units.h"
#include "ferry/net/tcp/frame_prefix.h"
#include "ferry/transfer/region.h"
#include "ferry/transfer/testing/raw_peer.h"
#include "tests/support/engine_peer.h"

namespace ferry::tests {
namespace {

using transfer::RawLane;
using transfer::wire::Type;
namespace wire = transfer::wire;

constexpr int kCrowd = 1000;
constexpr std::uint64_t kServedBytes = 4 * kMiB;
constexpr milliseconds kFloodTime{2000};
// Bytes by which the process may grow in a flood; a sanitizer keeps freed memory.
constexpr std::int64_t kMaxGrowthKib = kSanitized ? 512 * 1024 : 16 * 1024;
constexpr const char* kSecret = "secret=correct-horse-battery-staple";

// The figure after `name` in a file of /proc; 0 where it is not there.
std::int64_t Figure(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    std::int64_t figure = 0;
    if (word == name && file >> figure) return figure;
  }
  return 0;
}

class PendingPeersTest : public testing::Test {
 protected:
  PendingPeersTest() {
    rlimit files{};
    (void)::getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = std::max<rlim_t>(files.rlim_cur, std::min<rlim_t>(files.rlim_max, 4096));
    (void)::setrlimit(RLIMIT_NOFILE, &files);
    testing::internal::CaptureStderr();  // the server's, too
  }
  ~PendingPeersTest() override { EXPECT_TRUE(log_read_) << "the log was not looked at"; }

  // With a peer that is connected to it.
  void StartServer(const Settings& more) {
    Settings settings = FastSettings(more);
    settings.emplace_back("peer_timeout=10s");
    server_.emplace(settings);
    settings_ = settings;
    endpoint_.emplace(Must(transfer::Endpoint::Create(ConfigOf(settings))));
    connection_.emplace(Must(endpoint_->Connect(server_->address(), TestDeadline())));
    server_->Accept();
    local_.emplace(*endpoint_, kServedBytes, 1);
    key_ = server_->Region("in", kServedBytes, 0);
    remote_.emplace(Must(connection_->Import(key_)));
    ExpectTransfers();
    rss_before_ = Figure(Status(), "VmRSS:");
    socket_pages_before_ = Figure("/proc/net/sockstat", "mem");
  }
  std::uint16_t port() const { return server_->address().at.front().port; }
  std::string Status() { return fmt::format("/proc/{}/status", server_->process().pid()); }

  void ExpectTransfers() {
    Fill(local_->bytes(), ++seed_);
    auto write = Must(connection_->Write(local_->region, 0, *remote_, 0, kServedBytes));
    const ferry::Status ended = write.Wait(TestDeadline());
    ASSERT_TRUE(ended) << ended.error().ToString();
    EXPECT_EQ(server_->Digest("in"), local_->Digest());
    ++transfers_;
  }
  void ExpectTransfersFor(milliseconds time) {
    const Stopwatch since;
    do {
      ASSERT_NO_FATAL_FAILURE(ExpectTransfers());
    } while (since.elapsed() < time);
  }
  // Somebody new, who is known.
  void ExpectAnotherPeerIsLetIn() {
    transfer::Endpoint other = Must(transfer::Endpoint::Create(ConfigOf(settings_)));
    transfer::Connection out = Must(other.Connect(server_->address(), TestDeadline()));
    const PatternRegion from(other, kServedBytes, ++seed_);
    auto to = Must(out.Import(key_));
    auto write = Must(out.Write(from.region, 0, to, 0, kServedBytes));
    ASSERT_TRUE(write.Wait(TestDeadline()));
    EXPECT_EQ(server_->Digest("in"), from.Digest());
  }
  void ExpectLittleHeld(const std::string& by) {
    const std::int64_t grown = Figure(Status(), "VmRSS:") - rss_before_;
    const std::int64_t pages = Figure("/proc/net/sockstat", "mem") - socket_pages_before_;
    const std::int64_t kernel_kib = pages * ::sysconf(_SC_PAGESIZE) / 1024;
    fmt::print("{}: VmRSS grew by {} KiB, all sockets' memory by {} KiB\n", by, grown, kernel_kib);
    EXPECT_LT(grown, kMaxGrowthKib);
  }
  // Nobody is named twice in a second: all come from one address.
  void ExpectLogQuiet(const std::string& words) {
    EXPECT_EQ(server_->Quit(), 0);
    connection_.reset();
    const std::string log = testing::internal::GetCapturedStderr();
    log_read_ = true;
    const auto lines = std::count(log.begin(), log.end(), '\n');
    const auto seconds = since_.elapsed().count() / 1000;
    fmt::print("{} lines of log in {} s, {} transfers\n", lines, seconds, transfers_);
    EXPECT_NE(log.find(words), std::string::npos) << log;
    EXPECT_LE(lines, seconds + 3) << log.substr(0, 4000);
  }

  std::optional<EnginePeer> server_;
  Settings settings_;
  std::optional<transfer::Endpoint> endpoint_;
  std::optional<PatternRegion> local_;
  std::optional<transfer::Connection> connection_;
  std::vector<std::byte> key_;
  std::optional<transfer::RemoteRegion> remote_;
  const Stopwatch since_;
  std::uint64_t seed_ = 1;
  int transfers_ = 0;
  std::int64_t rss_before_ = 0;
  std::int64_t socket_pages_before_ = 0;
  bool log_read_ = false;
};

std::vector<std::byte> HelloFrame(const RawLane& lane, std::uint32_t flags = 0) {
  wire::HelloBody hello = transfer::Hello(Uuid::Random(), 2);
  hello.flags = flags;
  return lane.Encode({.type = Type::kHello, .body = transfer::Pod(hello)});
}

TEST_F(PendingPeersTest, AThousandThatSayNothingDoNotKeepAPeerOut) {
  StartServer({kSecret});
  std::deque<RawLane> silent;
  for (int i = 0; i < kCrowd; ++i) {
    silent.emplace_back(port());
    if (i % 250 == 0) ExpectTransfers();
  }
  ExpectAnotherPeerIsLetIn();
  ExpectTransfers();
  ExpectLittleHeld("1000 that say nothing");
  silent.front().WaitClosed();
  ExpectLogQuiet("before it was authenticated");
}

// Half of them as much as they may without being turned away, half as much as the socket takes.
TEST_F(PendingPeersTest, AThousandThatSayAllTheyCanMakeItHoldLittle) {
  StartServer({kSecret});
  const std::vector<std::byte> zeros(1023);
  std::deque<RawLane> pushing;
  for (int i = 0; i < kCrowd; ++i) {
    RawLane& lane = pushing.emplace_back(port());
    (void)lane.SendBytes(HelloFrame(lane, wire::kHasSecret));
    (void)lane.SendBytes(transfer::Pod(net::tcp::FramePrefix{.meta_bytes = 1024}));
    (void)lane.SendBytes(zeros);
    if (i % 2 == 0) (void)lane.Flood(zeros, 4 * kMiB, 0);
  }
  ExpectTransfers();
  ExpectLittleHeld("1000 that say all they can");
  ExpectAnotherPeerIsLetIn();
  ExpectLogQuiet("[warn] transfer: refused 127.0.0.1:");
}

TEST_F(PendingPeersTest, HellosByteByByteAreGivenUpInTime) {
  constexpr milliseconds kHandshake{1000};
  StartServer({kSecret, fmt::format("handshake_timeout={}ms", kHandshake.count())});
  std::deque<RawLane> slow;
  for (int i = 0; i < 200; ++i) slow.emplace_back(port());
  const Stopwatch since;
  const auto hello = HelloFrame(slow.front(), wire::kHasSecret);
  for (std::size_t at = 0; at + 1 < hello.size() && since.elapsed() < 2 * kHandshake; ++at) {
    for (RawLane& lane : slow) (void)lane.SendBytes(std::span(hello).subspan(at, 1));
    ExpectTransfers();
    (void)slow.back().WaitClosedFor(milliseconds(10));
  }
  for (RawLane& lane : slow) EXPECT_TRUE(lane.WaitClosedFor(kTimeout));
  ExpectWithin(since.elapsed(), 2 * kHandshake, "the end of those who dribble");
  ExpectLittleHeld("200 that dribble");
  ExpectLogQuiet("did not finish the handshake in time");
}

TEST_F(PendingPeersTest, AFloodOfBrokenHandshakesIsTurnedAwayAndLoggedOnceASecond) {
  StartServer({kSecret});
  std::atomic<int> said{0};
  {
    const std::jthread flood([&](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        for (const std::uint32_t meta : {0U, 1025U, ~0U}) {
          RawLane lane(port());
          (void)lane.SendBytes(transfer::Pod(net::tcp::FramePrefix{.meta_bytes = meta}));
        }
        RawLane garbage(port());
        (void)garbage.SendBytes(std::as_bytes(std::span("GET / HTTP/1.1\r\n\r\n")));
        RawLane version(port());
        (void)version.Say({.type = Type::kHello, .body = transfer::Pod(std::uint16_t{9})});
        said += 5;
        std::this_thread::sleep_for(milliseconds(1));
      }
    });
    ExpectTransfersFor(kFloodTime);
  }
  fmt::print("{} broken handshakes\n", said.load());
  ExpectAnotherPeerIsLetIn();
  ExpectLittleHeld("broken handshakes");
  ExpectLogQuiet("more before)");
}

// Writes a byte by a key in turn forged and stale, up to 100 000 times a second.
class KeyFlood {
 public:
  KeyFlood(std::uint16_t port, std::vector<wire::KeyBody> keys) : peer_(port) {
    for (int i = 0; i < kBatch; ++i) {
      auto body =
          transfer::Pod(wire::WriteBody{keys[static_cast<std::size_t>(i) % keys.size()], 0, 1});
      wire::Append(&body, wire::BlockOnWire{0, 1});
      batch_ = transfer::Joined(
          std::move(batch_),
          peer_.lane().Encode(
              {.type = Type::kWrite, .operation = 1, .body = body, .payload = {std::byte{1}}}));
    }
    sender_ = std::jthread([this](const std::stop_token& stop) {
      for (auto next = Clock::now(); !stop.stop_requested(); next += milliseconds(10)) {
        if (!peer_.lane().SendBytes(batch_)) return;
        sent_ += kBatch;
        std::this_thread::sleep_until(next);
      }
      done_.store(true);
    });
    reader_ = std::jthread([this] {
      while (!done_.load() && !peer_.lane().WaitClosedFor(milliseconds(50))) {
      }
    });
  }
  std::uint64_t sent() const { return sent_.load(); }

 private:
  static constexpr int kBatch = 1000;

  transfer::RawPeer peer_;
  std::vector<std::byte> batch_;
  std::atomic<std::uint64_t> sent_{0};
  std::atomic<bool> done_{false};
  std::jthread reader_;
  std::jthread sender_;
};

TEST_F(PendingPeersTest, AFloodOfForgedAndStaleKeysIsRefusedAndLoggedOnceASecond) {
  StartServer({"insecure=on"});
  const auto stale = Must(transfer::RemoteRegion::Parse(server_->Region("old", 4096, 0))).key;
  server_->Deregister("old");
  wire::KeyBody forged = Must(transfer::RemoteRegion::Parse(key_)).key;
  forged.token ^= 1;
  const Stopwatch since;
  std::uint64_t sent = 0;
  {
    const KeyFlood flood(port(), {forged, stale});
    ExpectTransfersFor(kFloodTime);
    sent = flood.sent();
  }
  fmt::print("{} refused writes a second\n",
             sent * 1000 / static_cast<std::uint64_t>(since.elapsed().count()));
  EXPECT_GT(sent, 0u);
  ExpectTransfers();
  ExpectLittleHeld("forged and stale keys");
  ExpectLogQuiet("more before)");
}

}  // namespace
}  // namespace ferry::tests
