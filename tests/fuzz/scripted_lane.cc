// Implements lanes whose peer is a script.

#include "tests/fuzz/scripted_lane.h"

#include <atomic>
#include <cstring>
#include <utility>

#include "ferry/core/check.h"
#include "ferry/core/log.h"

namespace ferry::fuzz {
namespace {

std::atomic<int> lane_count{0};

std::uint64_t BytesOf(std::span<const iovec> pieces) {
  std::uint64_t bytes = 0;
  for (const iovec& piece : pieces) {
    FERRY_CHECK(piece.iov_len > 0 || pieces.size() == 1);
    bytes += piece.iov_len;
  }
  return bytes;
}

class ScriptedListener final : public net::Listener {
 public:
  const net::Address& address() const override { return address_; }

 private:
  net::Address address_{"scripted", 1};
};

}  // namespace

// The lane may not be destroyed, nor move, inside one of its callbacks.
class ScriptedLane::Calling {
 public:
  explicit Calling(ScriptedLane* lane)
      : lane_(lane), before_(std::exchange(lane->in_callback_, true)) {}
  ~Calling() { lane_->in_callback_ = before_; }
  Calling(const Calling&) = delete;
  Calling& operator=(const Calling&) = delete;

 private:
  ScriptedLane* const lane_;
  const bool before_;
};

// ---- PeerEnd ------------------------------------------------------------------------------------

bool PeerEnd::open() const noexcept { return lane_ != nullptr; }

void PeerEnd::Say(std::vector<std::byte> meta, std::uint64_t payload_bytes) {
  FERRY_CHECK(!meta.empty() && meta.size() <= net::kMaxMetaBytes, meta.size());
  FERRY_CHECK(payload_bytes <= net::kMaxPayloadBytes, payload_bytes);
  if (open()) said_.push_back({std::move(meta), payload_bytes});
}

// False when nothing more can be heard now.
bool PeerEnd::Offer() {
  if (said_.empty() || paused_ || lane_ == nullptr || lane_->handler_ == nullptr) return false;
  ScriptedLane* const lane = lane_;
  const Said& said = said_.front();
  const ScriptedLane::Calling calling(lane);
  auto placed = lane->handler_->OnFrame(said.meta, said.payload_bytes);
  if (lane_ == nullptr) return false;
  if (!placed) {
    lane->Fail(net::LaneLoss::kBroken, placed.error());
    return false;
  }
  if (placed->action == net::Placement::Action::kPause) {
    paused_ = true;
    return false;
  }
  received_ += said.meta.size();
  left_ = said.payload_bytes;
  if (left_ == 0) {
    said_.pop_front();
    return true;
  }
  offered_ = true;
  discard_ = placed->action == net::Placement::Action::kDiscard;
  place_ = placed->memory;
  offset_ = 0;
  if (!discard_) {
    FERRY_CHECK(BytesOf(place_) == left_, BytesOf(place_), left_);
    if (on_place) on_place(place_);
  }
  return true;
}

void PeerEnd::Place(std::uint64_t bytes) {
  left_ -= bytes;
  received_ += bytes;
  while (!discard_ && bytes > 0) {
    const iovec& piece = place_.front();
    const std::size_t n = std::min<std::uint64_t>(piece.iov_len - offset_, bytes);
    std::memset(static_cast<std::byte*>(piece.iov_base) + offset_, next_byte_++, n);
    bytes -= n;
    offset_ += n;
    if (offset_ < piece.iov_len) break;
    place_ = place_.subspan(1);
    offset_ = 0;
  }
}

void PeerEnd::Deliver(std::uint64_t payload_bytes) {
  while (open()) {
    if (!offered_) {
      if (!Offer()) return;
      continue;
    }
    const std::uint64_t n = std::min(left_, payload_bytes);
    Place(n);
    payload_bytes -= n;
    if (left_ > 0) return;
    offered_ = false;
    said_.pop_front();
    ScriptedLane* const lane = lane_;
    const ScriptedLane::Calling calling(lane);
    const auto done = lane->handler_->OnPayload();
    if (!done && open()) lane->Fail(net::LaneLoss::kBroken, done.error());
  }
}

bool PeerEnd::Read(WireFrame* frame) {
  if (!open() || sent_.empty() || lane_->handler_ == nullptr) return false;
  net::OutFrame* const out = sent_.front();
  sent_.pop_front();
  FERRY_CHECK(BytesOf(out->payload) == out->payload_bytes, out->payload_bytes);
  if (on_read) on_read(out->payload);
  frame->meta = out->meta;
  frame->payload.clear();
  for (const iovec& piece : out->payload) {
    const auto* const from = static_cast<const std::byte*>(piece.iov_base);
    frame->payload.insert(frame->payload.end(), from, from + piece.iov_len);
  }
  ScriptedLane* const lane = lane_;
  const ScriptedLane::Calling calling(lane);
  lane->handler_->OnSent(out);
  return true;
}

void PeerEnd::HangUp(net::LaneLoss loss) {
  if (!open() || lane_->handler_ == nullptr) return;
  ScriptedLane* const lane = lane_;
  const ScriptedLane::Calling calling(lane);
  lane->Fail(loss, Error(Code::kPeerLost, "the script has hung up"));
}

// ---- ScriptedLane -------------------------------------------------------------------------------

ScriptedLane::ScriptedLane(std::shared_ptr<PeerEnd> peer, bool local)
    : peer_(std::move(peer)), local_(local) {
  peer_->lane_ = this;
  ++lane_count;
}

ScriptedLane::~ScriptedLane() {
  FERRY_CHECK(!in_callback_);
  Close(net::Closing::kAbort);
  --lane_count;
}

int ScriptedLane::count() noexcept { return lane_count.load(); }

void ScriptedLane::Attach(EventLoop* /*loop*/, net::LaneHandler* handler) {
  FERRY_CHECK(!in_callback_ && !peer_->offered_);
  handler_ = handler;
  peer_->paused_ = false;
}

void ScriptedLane::Send(net::OutFrame* frame) {
  FERRY_CHECK(!frame->meta.empty() && frame->meta.size() <= net::kMaxMetaBytes);
  FERRY_CHECK(frame->registered.memory == nullptr);
  if (peer_->open()) peer_->sent_.push_back(frame);
}

void ScriptedLane::Close(net::Closing /*how*/) {
  if (!peer_->open()) return;
  peer_->lane_ = nullptr;
  peer_->said_.clear();
  peer_->sent_.clear();
  peer_->offered_ = false;
}

void ScriptedLane::Fail(net::LaneLoss loss, const Error& error) {
  Close(net::Closing::kAbort);
  std::exchange(handler_, nullptr)->OnClosed(loss, error);
}

net::LaneInfo ScriptedLane::Info() const {
  net::LaneInfo info;
  info.local = "scripted:1";
  info.remote = "scripted:2";
  info.same_machine = local_;
  return info;
}

// ---- ScriptedProvider ---------------------------------------------------------------------------

Result<std::unique_ptr<net::Listener>> ScriptedProvider::Listen(const net::Address& /*address*/,
                                                                const Config& /*config*/,
                                                                EventLoop* loop,
                                                                Accepted accepted) {
  loop_ = loop;
  accepted_ = std::move(accepted);
  return std::unique_ptr<net::Listener>(std::make_unique<ScriptedListener>());
}

EventLoop::TimerId ScriptedProvider::Connect(const net::Address& /*address*/,
                                             const Config& /*config*/, EventLoop* loop,
                                             Deadline /*deadline*/, Connected connected) {
  auto lane = on_connect ? on_connect() : nullptr;
  loop->Post([connected = std::move(connected), lane = std::move(lane)]() mutable {
    if (lane) {
      connected(std::move(lane));
    } else {
      connected(Error(Code::kPeerLost, "the script refuses to be connected to"));
    }
  });
  return 0;
}

std::shared_ptr<PeerEnd> ScriptedProvider::ConnectLane(bool local) {
  auto peer = std::make_shared<PeerEnd>();  // with the lane
  accepted_(std::make_unique<ScriptedLane>(peer, local));
  return peer;
}

// ---- the loop -----------------------------------------------------------------------------------

void RunOnLoop(EventLoop& loop, const std::function<void()>& task) {
  std::atomic<bool> ran{false};
  loop.Post([&] {
    task();
    ran.store(true);
  });
  FERRY_CHECK(loop.DriveUntil([&] { return ran.load(); }, Deadline::After(std::chrono::seconds(60)),
                              microseconds(0)));
}

void Settle(EventLoop& loop, int turns) {
  // The worker may own the loop for now; it yields the loop to a caller that waits for something.
  while (turns-- > 0) {
    RunOnLoop(loop, [] {});
    loop.DriveOnce();
  }
}

}  // namespace ferry::fuzz

// Options of every fuzzer with scripted lanes.
extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  ferry::SetLogLevel(ferry::LogLevel::kOff);
  return 0;
}

// OpenSSL frees its per-thread data at the thread's end, which the workers never reach.
extern "C" const char* __lsan_default_suppressions() {  // NOLINT: its name is the sanitizer's
  return "leak:CRYPTO_zalloc\n";
}
