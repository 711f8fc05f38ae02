// Lanes, heartbeats and closing, common to both ends of a comm.
#include "plugins/nccl/comm.h"

#include <fmt/core.h>

#include <algorithm>
#include <latch>
#include <utility>

#include "plugins/nccl/engine.h"
#include "plugins/nccl/report.h"

namespace ferry::nccl_net {

struct Comm::Closing {
  explicit Closing(std::size_t lanes) : left(static_cast<std::ptrdiff_t>(lanes)) {}
  std::latch left;
  std::atomic<bool> swift_done{false};
};

Comm::Comm(Engine* engine, EventLoop* swift, std::size_t lanes)
    : engine_(engine), number_(engine->NextComm()), heartbeat_(&engine->settings().config, 1) {
  for (std::size_t i = 0; i < lanes; ++i) {
    EventLoop* const loop = i == 0 ? swift : engine->Bulk(number_ + i - 1);
    lanes_.push_back(std::make_unique<CommLane>(this, i, loop));
  }
  StoreWire(ByeWire{}, &bye_.meta);
  StoreWire(BeatWire{}, &beat_.meta);
  beat_.sent = &beat_.is_sent;
}

Comm::~Comm() = default;

EventLoop* Comm::LoopOf(std::size_t lane) const noexcept { return lanes_[lane]->loop; }

std::string Comm::Peer() {
  const std::lock_guard lock(mutex_);
  return peer_;
}

// ---- life ---------------------------------------------------------------------------------------

bool Comm::Adopt(std::size_t index, std::unique_ptr<net::Lane> lane) {
  // Under the mutex: whoever closes the comm then posts after what Attach() posts.
  const std::lock_guard lock(mutex_);
  CommLane& place = *lanes_[index];
  if (closing_ || error_ || place.lane != nullptr) return false;
  if (index == 0 || peer_.empty()) peer_ = lane->Info().remote;
  if (index == 0) {
    const net::LaneInfo info = lane->Info();
    InformNet(fmt::format(
        "{} comm with {} through {}: {} lanes, congestion control {}, security {}", kind(), peer_,
        info.interface, lanes_.size(), info.congestion_control, info.security));
  }
  place.lane = std::move(lane);
  place.open = true;
  open_.fetch_add(1);
  if (index == 0) swift_open_.store(true);
  place.lane->Attach(place.loop, &place);
  if (index == 0) {
    place.loop->Post([this] {
      heartbeat_.Start(Clock::now());
      BeatOnLoop();
    });
  }
  const bool last = adopted_.fetch_add(1) + 1 == lanes_.size();
  if (last) LoopOf(0)->Post([this] { OnComplete(); });
  return true;
}

void Comm::Fail(const Error& error) {
  const std::lock_guard lock(mutex_);
  FailLocked(error);
}

void Comm::FailLocked(const Error& error) {
  if (closing_ || error_) return;
  error_ = error;
  InformNet(fmt::format("{} comm with {} ended: {}", kind(), peer_, error.message()));
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    lanes_[i]->loop->Post([this, i] { CloseLaneOnLoop(i); });
  }
  failed_.store(true);
}

Error Comm::failure() {
  const std::lock_guard lock(mutex_);
  return error_.value_or(Error(Code::kInternal, "the comm has no error"));
}

void Comm::Close() {
  EventLoop* const loop = swift();
  // Read the peer's data where nobody else drives the loop: closing a socket with unread input
  // discards what the peer has not received yet.
  loop->DriveOnce();
  AwaitArrival();
  std::shared_ptr<Closing> closing;  // shared as in_flight_
  bool is_first = false;
  std::string report;
  {
    const std::lock_guard lock(mutex_);
    is_first = !std::exchange(closing_, true);
    if (is_first) {
      in_flight_ = std::make_shared<Closing>(lanes_.size());
      report = fmt::format("{} comm with {} closed after {} messages, {} bytes", kind(), peer_,
                           traffic_.messages(), traffic_.bytes());
    }
    closing = in_flight_;
    for (std::size_t i = 1; is_first && i < lanes_.size(); ++i) {
      lanes_[i]->loop->Post([this, i, closing] {
        CloseLaneOnLoop(i);
        closing->left.count_down();
      });
    }
  }
  if (is_first) {
    InformNet(report);
    loop->Post([this, loop, closing] {
      CloseLaneOnLoop(0);
      closing->left.count_down();
      closing->swift_done.store(true);
      loop->NotifyWaiters();
    });
  }
  // The loop's worker may be parked for a while. Loops run until the last comm is closed.
  loop->DriveUntil([&] { return closing->swift_done.load(); }, Deadline::Never(), microseconds(0));
  closing->left.wait();
}

void Comm::CloseLaneOnLoop(std::size_t index) {
  CommLane& place = *lanes_[index];
  OnLaneClosing(index);
  // Lane 0 may have a credit queued that the peer's isend waits for; closing with unsent data would
  // be a reset.
  if (place.open && index == 0) place.lane->Flush();
  if (place.open) place.lane->Close(net::Closing::kOrderly);
  place.lane.reset();
  // Only now: flushing may have found the lane lost, which sets this timer.
  if (place.grace != 0) place.loop->CancelTimerOnLoop(std::exchange(place.grace, 0));
  EndedOnLoop(&place);
}

void Comm::EndedOnLoop(CommLane* place) {
  if (!std::exchange(place->open, false)) return;
  open_.fetch_sub(1);
  if (place->index != 0) return;
  if (beat_timer_ != 0) place->loop->CancelTimerOnLoop(std::exchange(beat_timer_, 0));
  swift_open_.store(false);
  place->loop->NotifyWaiters();
}

void Comm::Forget(std::span<const std::byte> memory) {
  {
    const std::lock_guard lock(mutex_);
    if (!Uses(memory)) return;
    FailLocked(
        Error(Code::kCancelled, fmt::format("memory was deregistered while a {} used it", kind())));
  }
  Close();
}

// ---- lanes --------------------------------------------------------------------------------------

void Comm::SendOnLoop(std::size_t lane, Frame* frame) {
  CommLane& place = *lanes_[lane];
  if (place.open) place.lane->Send(frame);
}

void Comm::SayCountsOnLoop(FrameType type, std::span<const CountWire> counts) {
  auto it = std::find_if(counts_.begin(), counts_.end(), [](const auto& frame) {
    return frame->is_sent.load(std::memory_order_acquire);
  });
  if (it == counts_.end()) {
    it = counts_.insert(it, std::make_unique<CountsFrame>());
    (*it)->sent = &(*it)->is_sent;
  }
  StoreCounts(type, counts, &(*it)->meta);
  (*it)->is_sent.store(false, std::memory_order_relaxed);
  SendOnLoop(0, it->get());
}

void Comm::SayByeOnLoop() {
  if (!std::exchange(bye_said_, true)) SendOnLoop(0, &bye_);
}

void Comm::PostBulk(Frame* frame, std::size_t first) {
  if (closing_ || error_) return;
  const std::size_t bulk = lanes_.size() - 1;
  CommLane* chosen = nullptr;
  std::uint64_t least = 0;
  for (std::size_t i = 0; i < bulk; ++i) {
    CommLane* const lane = lanes_[1 + (first + i) % bulk].get();
    const std::uint64_t queued = lane->queued.load(std::memory_order_relaxed);
    if (chosen == nullptr || queued < least) {
      chosen = lane;
      least = queued;
    }
  }
  chosen->queued.fetch_add(frame->payload_bytes, std::memory_order_relaxed);
  chosen->loop->Post([chosen, frame] {
    if (chosen->open) chosen->lane->Send(frame);
  });
}

Result<net::Placement> Comm::CommLane::OnFrame(std::span<const std::byte> meta,
                                               std::uint64_t payload_bytes) {
  const net::Placement nowhere{.action = net::Placement::Action::kDiscard, .memory = {}};
  if (const auto beat = LoadWire<BeatWire>(meta); beat && beat->type == FrameType::kBeat) {
    return nowhere;
  }
  if (const auto bye = LoadWire<ByeWire>(meta); bye && bye->type == FrameType::kBye && index == 0) {
    comm->OnBye();
    return nowhere;
  }
  return comm->HandleFrame(index, meta, payload_bytes);
}

void Comm::CommLane::OnSent(net::OutFrame* sent) {
  auto* const frame = static_cast<Frame*>(sent);
  queued.fetch_sub(index == 0 ? 0 : frame->payload_bytes, std::memory_order_relaxed);
  std::atomic<std::uint32_t>* const left = frame->left;
  std::atomic<bool>* const flag = frame->sent;
  // Last: the frame may be reused from here on.
  if (flag != nullptr) flag->store(true, std::memory_order_release);
  if (left != nullptr) left->fetch_sub(1, std::memory_order_release);
}

void Comm::CommLane::OnClosed(net::LaneLoss loss, const Error& error) {
  comm->EndedOnLoop(this);
  const std::size_t lost = comm->lost_.fetch_add(1) + 1;
  comm->OnLaneLost({index, loss, lost == comm->lanes_.size()}, error);
}

void Comm::FailLaterOnLoop(std::size_t index, const Error& error) {
  CommLane& place = *lanes_[index];
  place.grace = place.loop->AddTimerOnLoop(Clock::now() + engine_->settings().config.peer_timeout,
                                           [this, &place, error] {
                                             place.grace = 0;
                                             if (lost_.load() < lanes_.size()) Fail(error);
                                           });
}

// ---- signs of life ------------------------------------------------------------------------------

void Comm::BeatOnLoop() {
  beat_timer_ = 0;
  CommLane& place = *lanes_[0];
  if (!place.open) return;
  const auto now = Clock::now();
  (void)heartbeat_.Beat(0, place.lane->BytesReceived(), now, heartbeat_.Lateness(now));
  if (heartbeat_.IsPeerLost(now)) {
    return Fail(Error(Code::kPeerLost,
                      fmt::format("{} was silent for {:.1f} s and may be stopped or unreachable; "
                                  "raise FERRY_PEER_TIMEOUT if it was only slow",
                                  Peer(), Seconds(now - heartbeat_.heard_at()))));
  }
  if (beat_.is_sent.exchange(false, std::memory_order_acquire)) place.lane->Send(&beat_);
  beat_timer_ = place.loop->AddTimerOnLoop(heartbeat_.Plan(now), [this] { BeatOnLoop(); });
}

}  // namespace ferry::nccl_net
