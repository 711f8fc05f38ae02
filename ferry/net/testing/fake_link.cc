// A connection of the in-memory network, with faults.
#include "ferry/net/testing/fake_link.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "ferry/core/check.h"

namespace ferry::net {

// ---- the test's side ----------------------------------------------------------------------------

void FakeLink::SetFaults(const FakeFaults& faults) {
  const std::lock_guard lock(mutex_);
  faults_ = faults;
  pipes_[kConnector].cut = faults.cut_to_listener;
  pipes_[kListener].cut = faults.cut_to_connector;
  for (const Side side : {kConnector, kListener}) {
    pipes_[side].random.seed(faults.seed * 0x9E3779B97F4A7C15U + 2 * index_ + side);
    // There may be room now, or a smaller receive limit.
    WakeLocked(side);
  }
}

void FakeLink::Cut() {
  const std::lock_guard lock(mutex_);
  for (const Side side : {kConnector, kListener}) {
    pipes_[side].ended = true;
    WakeLocked(side);
  }
}

void FakeLink::Reset() {
  const std::lock_guard lock(mutex_);
  FailLocked(LaneLoss::kReset);
}

void FakeLink::Unreach() {
  const std::lock_guard lock(mutex_);
  FailLocked(LaneLoss::kUnreachable);
}

void FakeLink::SetDown(bool down) {
  const std::lock_guard lock(mutex_);
  down_ = down;
}

std::uint64_t FakeLink::BytesSent(FakeDirection direction) const {
  const std::lock_guard lock(mutex_);
  return pipes_[direction == FakeDirection::kToListener ? kConnector : kListener].written;
}

void FakeLink::FailLocked(LaneLoss loss) {
  for (const Side side : {kConnector, kListener}) {
    ends_[side].failed = loss;
    pipes_[side].chunks.clear();
    WakeLocked(side);
  }
}

void FakeLink::CutLocked(Side writer) {
  pipes_[writer].ended = true;
  ends_[writer].failed = LaneLoss::kReset;
  WakeLocked(writer);
}

// ---- wake-ups -----------------------------------------------------------------------------------

void FakeLink::WakeLocked(Side side) {
  End& end = ends_[side];
  if (end.loop == nullptr || end.woken) return;
  end.woken = true;
  // Under the mutex: the loop may be destroyed only after its lane has closed, which takes the
  // mutex too.
  end.loop->Post([self = shared_from_this(), side, loop = end.loop] { self->RunWake(side, loop); });
}

void FakeLink::RunWake(Side side, const EventLoop* loop) {
  Waker* waker = nullptr;
  {
    const std::lock_guard lock(mutex_);
    End& end = ends_[side];
    // A lane that has moved has received a wake-up on its new loop.
    if (end.loop != loop) return;
    end.woken = false;
    waker = end.waker;
  }
  // The lane cannot be destroyed meanwhile: that happens on this loop.
  waker->OnWake();
}

void FakeLink::Bind(Side side, EventLoop* loop, Waker* waker) {
  const std::lock_guard lock(mutex_);
  End& end = ends_[side];
  end.loop = loop;
  end.waker = waker;
  end.woken = false;
  WakeLocked(side);
}

void FakeLink::Close(Side side, bool drop) {
  const std::lock_guard lock(mutex_);
  End& end = ends_[side];
  if (std::exchange(end.closed, true)) return;
  end.loop = nullptr;
  end.waker = nullptr;
  // These bytes have no reader any more; the peer may keep writing until it sees the end.
  pipes_[Other(side)].chunks.clear();
  pipes_[Other(side)].held = 0;
  // After a cut nothing more from this side arrives, not even a reset.
  if (down_) {
    // The peer is not notified.
  } else if (drop && !end.failed) {
    FailLocked(LaneLoss::kReset);
  } else {
    pipes_[side].ended = true;
  }
  WakeLocked(Other(side));
}

std::optional<LaneLoss> FakeLink::Failed(Side side) const {
  const std::lock_guard lock(mutex_);
  return ends_[side].failed;
}

// ---- bytes --------------------------------------------------------------------------------------

std::size_t FakeLink::Room(Side side, std::size_t most) {
  const std::lock_guard lock(mutex_);
  if (ends_[side].failed) return 0;
  Pipe& pipe = pipes_[side];
  if (down_ || faults_.black_hole || ends_[Other(side)].closed || pipe.ended) return most;
  const std::size_t room = std::max(faults_.pipe_bytes, pipe.held) - pipe.held;
  pipe.wants_room = room == 0;
  return std::min(room, most);
}

void FakeLink::Write(Side side, std::vector<std::byte> bytes) {
  const std::lock_guard lock(mutex_);
  Pipe& pipe = pipes_[side];
  pipe.written += bytes.size();
  if (ends_[side].failed) return;
  const bool cut = pipe.cut && pipe.written >= *pipe.cut;
  if (cut) {
    const auto beyond = static_cast<std::size_t>(pipe.written - *pipe.cut);
    bytes.resize(bytes.size() - std::min(beyond, bytes.size()));
  }
  const bool lost = down_ || faults_.black_hole || ends_[Other(side)].closed || pipe.ended;
  if (!lost && !bytes.empty()) {
    auto arrives = Clock::now();
    if (faults_.delay.count() > 0) {
      const auto most = static_cast<std::uint64_t>(faults_.delay.count());
      arrives += microseconds(pipe.random() % (most + 1));
    }
    pipe.last_arrival = std::max(pipe.last_arrival, arrives);
    pipe.held += bytes.size();
    pipe.chunks.push_back({std::move(bytes), 0, pipe.last_arrival});
  }
  if (cut) CutLocked(side);
  WakeLocked(Other(side));
}

FakeLink::Taken FakeLink::Take(Side side, std::span<std::byte> into) {
  const std::lock_guard lock(mutex_);
  Pipe& pipe = pipes_[Other(side)];
  if (ends_[side].failed) return {};
  if (pipe.chunks.empty()) {
    return {pipe.ended ? Taken::State::kEnd : Taken::State::kNothing, 0, {}};
  }
  Chunk& chunk = pipe.chunks.front();
  if (faults_.delay.count() > 0 && chunk.arrives > Clock::now()) {
    return {Taken::State::kLater, 0, chunk.arrives};
  }
  const std::size_t bytes = std::min(into.size(), chunk.bytes.size() - chunk.taken);
  std::memcpy(into.data(), chunk.bytes.data() + chunk.taken, bytes);
  chunk.taken += bytes;
  pipe.held -= bytes;
  if (chunk.taken == chunk.bytes.size()) pipe.chunks.pop_front();
  if (pipe.wants_room && pipe.held <= faults_.pipe_bytes / 2) {
    pipe.wants_room = false;
    WakeLocked(Other(side));
  }
  return {Taken::State::kBytes, bytes, {}};
}

std::size_t FakeLink::TurnBytes(Side side) {
  const std::lock_guard lock(mutex_);
  if (faults_.piece_bytes == 0) return kTurnBytes;
  return 1 + static_cast<std::size_t>(pipes_[Other(side)].random() % faults_.piece_bytes);
}

std::uint64_t FakeLink::pipe_bytes() const {
  const std::lock_guard lock(mutex_);
  return faults_.pipe_bytes;
}

bool FakeLink::another_machine() const {
  const std::lock_guard lock(mutex_);
  return faults_.another_machine;
}

bool FakeLink::forwarded() const {
  const std::lock_guard lock(mutex_);
  return faults_.forwarded;
}

std::string FakeLink::interface() const {
  const std::lock_guard lock(mutex_);
  return faults_.interface != nullptr ? faults_.interface : host_;
}

bool FakeLink::authenticated() const {
  const std::lock_guard lock(mutex_);
  return faults_.authenticated;
}

}  // namespace ferry::net
