// Fuzzes a TCP lane whose peer sends anything, cut anywhere, while the lane's user places,
// discards, pauses, moves and sends. The bytes that arrive must equal those that a second parser
// finds in the bytes sent.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>

#include "ferry/core/check.h"
#include "ferry/core/loop/event_loop.h"
#include "ferry/net/tcp/byte_stream.h"
#include "ferry/net/tcp/frame_prefix.h"
#include "ferry/net/tcp/lane.h"
#include "ferry/net/tcp/tls/failure.h"
#include "tests/fuzz/script.h"

namespace ferry::fuzz {
namespace {

using net::Placement;
using net::tcp::FramePrefix;

constexpr std::size_t kGuardBytes = 64;
constexpr std::size_t kMaxSent = 256 << 10;  // by one input, each direction
constexpr int kMaxSteps = 200;
constexpr std::chrono::seconds kTimeout{5};

UniqueFd NewSocket() {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  FERRY_CHECK(static_cast<bool>(fd), errno);
  return fd;
}

sockaddr* Generic(sockaddr_in* address) { return reinterpret_cast<sockaddr*>(address); }

struct Pair {
  UniqueFd lane;
  UniqueFd peer;
};

// The fuzzer's own timer interrupts it now and then; it goes on without the call then.
bool Connect(int fd, const sockaddr_in& to) {
  sockaddr_in address = to;
  if (::connect(fd, Generic(&address), sizeof address) == 0) return true;
  if (errno != EINTR) return false;
  pollfd entry{fd, POLLOUT, 0};
  while (::poll(&entry, 1, -1) < 0 && errno == EINTR) {
  }
  int error = 0;
  socklen_t length = sizeof error;
  return ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0;
}

int Accept(int listener) {
  int fd = -1;
  do {
    fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

// Both ends close by reset, so that no port stays taken.
Pair Connected() {
  static const UniqueFd listener = NewSocket();
  static sockaddr_in address = [] {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof at;
    FERRY_CHECK(::bind(listener.get(), Generic(&at), sizeof at) == 0, errno);
    FERRY_CHECK(::listen(listener.get(), 8) == 0, errno);
    FERRY_CHECK(::getsockname(listener.get(), Generic(&at), &length) == 0, errno);
    return at;
  }();
  Pair pair;
  pair.peer = NewSocket();
  FERRY_CHECK(Connect(pair.peer.get(), address), errno);
  pair.lane = UniqueFd(Accept(listener.get()));
  FERRY_CHECK(static_cast<bool>(pair.lane), errno);
  // As the provider does: with Nagle's algorithm the end of a payload waits for an acknowledgement,
  // which a lane that waits for the end delays.
  const int on = 1;
  FERRY_CHECK(::setsockopt(pair.peer.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0, errno);
  const linger reset{1, 0};
  for (const int fd : {pair.lane.get(), pair.peer.get()}) {
    FERRY_CHECK(::setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset) == 0, errno);
  }
  return pair;
}

EventLoop& LoopAt(std::size_t index) {
  static const auto loops = [] {
    std::vector<std::unique_ptr<EventLoop>> made;
    for (int i = 0; i < 2; ++i) {
      auto loop = EventLoop::Create();
      FERRY_CHECK(loop.has_value());
      made.push_back(*std::move(loop));
    }
    return made;
  }();
  return *loops[index];
}

// The user of the lane. Knows all bytes that were sent to it, and where in them the lane is.
class User final : public net::LaneHandler {
 public:
  // 0 places, 1 discards, 2 pauses, 3 gives the lane up; others place in pieces.
  std::deque<std::uint8_t> choices;
  std::vector<std::byte> fed;

  net::tcp::TcpLane* lane = nullptr;
  bool closed = false;
  bool paused = false;
  std::size_t sent = 0;

  // Whether the bytes fed hold another whole frame, or the head of one that is wrong.
  bool Owes() const {
    if (closed || paused || in_payload_) return false;
    FramePrefix prefix;
    if (fed.size() - at_ < sizeof prefix) return false;
    std::memcpy(&prefix, fed.data() + at_, sizeof prefix);
    if (!Valid(prefix)) return true;
    return fed.size() - at_ - sizeof prefix >= prefix.meta_bytes;
  }
  bool OwesPayload() const { return !closed && in_payload_ && fed.size() - at_ >= payload_; }
  bool in_payload() const noexcept { return in_payload_; }
  // Nothing may be touched from here on.
  void Discarded() {
    discards_ = true;
    memory_ = {};
    pieces_ = {};
  }

 private:
  static bool Valid(const FramePrefix& prefix) {
    return prefix.magic == FramePrefix::kMagic && prefix.meta_bytes > 0 &&
           prefix.meta_bytes <= net::kMaxMetaBytes && prefix.payload_bytes <= net::kMaxPayloadBytes;
  }

  Result<Placement> OnFrame(std::span<const std::byte> meta, std::uint64_t payload_bytes) override {
    FERRY_CHECK(!closed && !paused && !in_payload_);
    FramePrefix prefix;
    FERRY_CHECK(fed.size() - at_ >= sizeof prefix);
    std::memcpy(&prefix, fed.data() + at_, sizeof prefix);
    FERRY_CHECK(
        Valid(prefix) && prefix.meta_bytes == meta.size() && prefix.payload_bytes == payload_bytes,
        meta.size(), payload_bytes);
    FERRY_CHECK(fed.size() - at_ - sizeof prefix >= meta.size(), meta.size());
    FERRY_CHECK(std::memcmp(fed.data() + at_ + sizeof prefix, meta.data(), meta.size()) == 0);
    const std::uint8_t choice = choices.empty() ? 0 : choices.front();
    if (!choices.empty()) choices.pop_front();
    if (choice == 2) {
      paused = true;
      return Placement{Placement::Action::kPause, {}};
    }
    if (choice == 3) return Error(Code::kCancelled, "not wanted");
    at_ += sizeof prefix + meta.size();
    payload_ = payload_bytes;
    in_payload_ = payload_bytes > 0;
    discards_ = choice == 1 || payload_bytes > kMaxSent;
    if (discards_) return Placement{Placement::Action::kDiscard, {}};
    return Placement{Placement::Action::kPlace, Pieces(choice), (choice & 128) != 0};
  }

  // In 1 to 16 pieces, with guards around each.
  std::span<const iovec> Pieces(std::uint8_t choice) {
    const std::size_t count =
        std::min<std::size_t>(1 + (choice & 127) / 8, std::max<std::size_t>(payload_, 1));
    memory_.assign(payload_ + (count + 1) * kGuardBytes, std::byte{0x5A});
    pieces_.clear();
    std::size_t from = 0;
    for (std::size_t i = 0; i < count && payload_ > 0; ++i) {
      const std::size_t to = i + 1 == count ? payload_ : payload_ * (i + 1) / count;
      pieces_.push_back({memory_.data() + from + (i + 1) * kGuardBytes, to - from});
      from = to;
    }
    return pieces_;
  }

  Status OnPayload() override {
    FERRY_CHECK(!closed && in_payload_ && fed.size() - at_ >= payload_, payload_);
    std::size_t from = at_;
    const std::byte* guard = memory_.data();
    if (!discards_) {
      for (const iovec& piece : pieces_) {
        auto* const base = static_cast<const std::byte*>(piece.iov_base);
        for (; guard < base; ++guard) FERRY_CHECK(*guard == std::byte{0x5A});
        FERRY_CHECK(std::memcmp(base, fed.data() + from, piece.iov_len) == 0, from);
        from += piece.iov_len;
        guard = base + piece.iov_len;
      }
      for (; guard < memory_.data() + memory_.size(); ++guard) {
        FERRY_CHECK(*guard == std::byte{0x5A});
      }
    }
    at_ += payload_;
    in_payload_ = false;
    return Ok();
  }

  void OnSent(net::OutFrame* /*frame*/) override { ++sent; }

  void OnClosed(net::LaneLoss /*loss*/, const Error& error) override {
    FERRY_CHECK(!closed);
    closed = true;
    memory_ = {};
    if (error.code() != Code::kCorrupt) return;
    // Told from its first two bytes, before a head is whole.
    if (net::tcp::LooksLikeTls(std::span(fed).subspan(at_))) return;
    FramePrefix prefix;
    FERRY_CHECK(!in_payload_ && fed.size() - at_ >= sizeof prefix, error.ToString());
    std::memcpy(&prefix, fed.data() + at_, sizeof prefix);
    FERRY_CHECK(!Valid(prefix), error.ToString());
  }

  std::size_t at_ = 0;  // in fed: the next frame's beginning, or its payload's
  std::uint64_t payload_ = 0;
  bool in_payload_ = false;
  bool discards_ = false;
  std::vector<std::byte> memory_;
  std::vector<iovec> pieces_;
};

class Session {
 public:
  explicit Session(Script* script) : script_(script) {
    Pair pair = Connected();
    peer_ = std::move(pair.peer);
    const std::uint8_t how = script->U8();
    if ((how & 1) != 0) {
      const int small = 4096;
      (void)::setsockopt(pair.lane.get(), SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    }
    auto stream = net::tcp::MakePlainStream(pair.lane.get());
    lane_ = std::make_unique<net::tcp::TcpLane>(std::move(pair.lane), std::move(stream),
                                                net::LaneInfo{}, (how & 2) != 0);
    user_.lane = lane_.get();
    OnLoop([this] { lane_->Attach(loop_, &user_); });
  }

  ~Session() {
    OnLoop([this] { lane_.reset(); });
  }

  void Run() {
    for (int steps = 0; steps < kMaxSteps && !script_->empty(); ++steps) Step();
    Finish();
  }

 private:
  void OnLoop(const std::function<void()>& task) {
    bool ran = false;
    loop_->PostOrRun([&] {
      task();
      ran = true;
    });
    FERRY_CHECK(loop_->DriveUntil([&] { return ran; }, Deadline::After(kTimeout), microseconds(0)));
  }
  void Turn() {
    loop_->DriveOnce();
    Drain();
  }

  void Step() {
    switch (script_->Below(12)) {
      case 0: return Feed(script_->Bytes(script_->U8()));
      case 1:
      case 2: return FeedFrame(script_->U8(), script_->U8());
      case 3: return FeedFrame(script_->U16(), script_->U16());
      case 4: return FeedFrame(1 + script_->U8(), script_->U16() * 4ULL);
      case 5: return FeedHead();
      case 6: return user_.choices.push_back(script_->U8());
      case 7: return Resume();
      case 8: return OnLoop([this] { DiscardRest(); });
      case 9: return Send();
      case 10: return Move();
      default: return Turn();
    }
  }

  void Feed(std::span<const std::byte> bytes) {
    if (user_.closed || fed_all_ || user_.fed.size() + bytes.size() > kMaxSent) return;
    user_.fed.insert(user_.fed.end(), bytes.begin(), bytes.end());
    for (int turns = 0; !bytes.empty() && !user_.closed; ++turns) {
      const ssize_t n =
          ::send(peer_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n > 0) bytes = bytes.subspan(static_cast<std::size_t>(n));
      if (n > 0) continue;
      if (turns == 100) {  // nobody reads: paused
        user_.fed.resize(user_.fed.size() - bytes.size());
        fed_all_ = true;
        return;
      }
      Turn();
    }
  }

  // Whole, or cut short by the script; bytes that tell where they belong.
  void FeedFrame(std::size_t meta_bytes, std::uint64_t payload_bytes) {
    FramePrefix prefix;
    prefix.meta_bytes = static_cast<std::uint32_t>(meta_bytes);
    prefix.payload_bytes = payload_bytes;
    const auto head = std::as_bytes(std::span(&prefix, 1));
    std::vector<std::byte> bytes(head.begin(), head.end());
    bytes.resize(bytes.size() + meta_bytes + payload_bytes);
    for (std::size_t i = sizeof prefix; i < bytes.size(); ++i) {
      bytes[i] = static_cast<std::byte>(i * 7 + (i >> 8));
    }
    const std::uint8_t cuts = script_->U8() % 8;
    std::span<const std::byte> left(bytes);
    for (std::uint8_t i = 0; i < cuts; ++i) {
      const std::size_t n = std::min<std::size_t>(script_->U16(), left.size());
      Feed(left.first(n));
      left = left.subspan(n);
      Turn();
    }
    Feed(left);
  }

  void FeedHead() {
    FramePrefix prefix;
    prefix.meta_bytes = script_->U32();
    prefix.payload_bytes = script_->U64();
    Feed(std::as_bytes(std::span(&prefix, 1)));
  }

  void Resume() {
    user_.paused = false;
    OnLoop([this] {
      if (!user_.closed) lane_->Resume();
    });
  }

  void DiscardRest() {
    if (user_.closed || !user_.in_payload()) return;
    user_.Discarded();
    lane_->DiscardRest();
  }

  void Send() {
    static const std::vector<std::byte> memory(64 << 10, std::byte{0x33});
    net::OutFrame& frame = frames_.emplace_back();
    frame.meta = script_->Bytes(1 + script_->U8() % 16);
    if (frame.meta.empty()) frame.meta.resize(1);
    frame.may_splice = true;
    for (std::size_t pieces = script_->Below(4); pieces > 0; --pieces) {
      const std::size_t bytes = 1 + script_->U16();
      frame.payload.push_back({const_cast<std::byte*>(memory.data()), bytes});
      frame.payload_bytes += bytes;
    }
    const std::uint64_t all = sizeof(FramePrefix) + frame.meta.size() + frame.payload_bytes;
    if (user_.closed || owed_ + all > kMaxSent) return frames_.pop_back();
    owed_ += all;
    OnLoop([&] { lane_->Send(&frame); });
  }

  // Reads the lane's output; only its length is checked, because the conformance suite compares
  // bytes.
  void Drain() {
    std::byte sink[16384];
    const ssize_t n = ::recv(peer_.get(), sink, sizeof sink, MSG_DONTWAIT);
    if (n > 0) heard_ += static_cast<std::uint64_t>(n);
    FERRY_CHECK(heard_ <= owed_, heard_, owed_);
  }

  // To another loop, where a move is allowed.
  void Move() {
    if (user_.closed || user_.in_payload()) return;
    EventLoop* const next = loop_ == &LoopAt(0) ? &LoopAt(1) : &LoopAt(0);
    user_.paused = false;
    // Nothing happens between this and the end of the task.
    OnLoop([&] { lane_->Attach(next, &user_); });
    loop_ = next;
    Turn();
  }

  // All that was fed is heard, all that was queued is sent, and the peer's end is heard last.
  void Finish() {
    user_.choices.clear();
    Resume();
    Await([this] { return !user_.Owes() && !user_.OwesPayload(); });
    Await([this] { return user_.closed || user_.sent == frames_.size(); });
    FERRY_CHECK(::shutdown(peer_.get(), SHUT_WR) == 0 || user_.closed, errno);
    Await([this] { return user_.closed; });
  }

  void Await(FunctionRef<bool()> done) {
    const Deadline deadline = Deadline::After(kTimeout);
    while (!done()) {
      FERRY_CHECK(!deadline.expired(), user_.fed.size(), user_.in_payload(), user_.sent);
      (void)loop_->DriveUntil(done, Deadline::After(milliseconds(1)), microseconds(0));
      Drain();
    }
  }

  Script* const script_;
  EventLoop* loop_ = &LoopAt(0);
  UniqueFd peer_;
  User user_;
  std::deque<net::OutFrame> frames_;
  std::unique_ptr<net::tcp::TcpLane> lane_;
  std::uint64_t owed_ = 0;
  std::uint64_t heard_ = 0;
  bool fed_all_ = false;  // the socket takes no more
};

}  // namespace
}  // namespace ferry::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ferry::fuzz::Script script(data, size);
  ferry::fuzz::Session(&script).Run();
  return 0;
}
