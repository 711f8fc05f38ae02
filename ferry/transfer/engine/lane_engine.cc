// Dispatches a lane's callbacks, and moves the lane from one state to the next.
#include "ferry/transfer/engine/lane_engine.h"

#include <fmt/core.h>

#include <utility>

#include "ferry/core/check.h"
#include "ferry/core/log.h"
#include "ferry/transfer/engine/lane_limits.h"
#include "ferry/transfer/gpu/gpu_sharing.h"
#include "ferry/transfer/handshake/parked_lane.h"

namespace ferry::transfer {
namespace {

using net::Placement;

// Added to drain_grace, after which a peer begins no further copy (frame_receiver_copy.cc): copies
// that it has begun have ended by then.
constexpr auto kLateCopies = milliseconds(100);

const char* NameOf(LaneEngine::State state) {
  switch (state) {
    case LaneEngine::State::connecting: return "connecting";
    case LaneEngine::State::up: return "up";
    case LaneEngine::State::frozen: return "frozen";
    case LaneEngine::State::closing: return "closing";
    case LaneEngine::State::closed: return "closed";
  }
  return "unknown";
}

bool MayMove(LaneEngine::State from, LaneEngine::State to) {
  using State = LaneEngine::State;
  switch (to) {
    case State::connecting: return false;
    case State::up: return from == State::connecting || from == State::frozen;
    case State::frozen: return from == State::up;
    case State::closing: return from != State::closed;
    case State::closed: return from == State::closing;
  }
  return false;
}

}  // namespace

LaneEngine::LaneEngine(const LaneContext& context, LaneOwner* owner, MessageSink* messages,
                       EventLoop* loop, std::uint32_t index)
    : site_{context, owner, messages, loop, index, &counts_, &opened_},
      frames_(site_),
      staging_(owner, loop, this),
      sender_(site_, &frames_, &staging_),
      answers_(site_, &frames_, &sender_.window(), &staging_.outbox()),
      receiver_(site_, &frames_, &sender_.reads(), &staging_) {}

LaneEngine::~LaneEngine() = default;

void LaneEngine::MoveTo(State to, const char* why) {
  FERRY_CHECK(MayMove(state_, to), NameOf(state_), NameOf(to), why);
  Log(LogLevel::kDebug, "transfer", "lane {} to {} goes from {} to {}: {}", site_.index,
      site_.context.peer_name, NameOf(state_), NameOf(to), why);
  state_ = to;
}

void LaneEngine::Adopt(std::unique_ptr<net::Lane> lane) {
  lane_ = std::move(lane);
  MoveTo(State::up, "the handshake is complete");
  frames_.SetLane(lane_.get());
  receiver_.SetLane(lane_.get());
  lane_->Attach(site_.loop, this);
}

// ---- what the connection asks for ---------------------------------------------------------------

std::uint64_t LaneEngine::BytesReceived() const {
  const std::lock_guard lock(lane_mutex_);
  return bytes_before_ + (lane_ ? lane_->BytesReceived() : 0);
}

LaneTraffic LaneEngine::Traffic() const {
  return {.bytes_sent = counts_.bytes_sent.get(),
          .bytes_received = counts_.bytes_received.get(),
          .frames_sent = counts_.frames_sent.get(),
          .frames_received = counts_.frames_received.get(),
          .payload_bytes_sent = counts_.payload_bytes_sent.get(),
          .payload_bytes_received = counts_.payload_bytes_received.get(),
          .retries = counts_.retries.get(),
          .retransmitted_segments = counts_.retransmits.get()};
}

void LaneEngine::SamplePath() {
  const net::PathStats path = lane_->Path();
  if (path.retransmitted_segments > lane_retransmits_) {
    counts_.retransmits.Add(path.retransmitted_segments - lane_retransmits_);
    lane_retransmits_ = path.retransmitted_segments;
  }
  site_.owner->SetLanePath(site_.index, path);
}

void LaneEngine::Beat(bool heard) {
  if (state_ != State::up) return;
  SamplePath();
  // Bytes that wait in the socket for the rest of a payload count as heard, too.
  lane_->Poke();
  if (!heard) Probe();
  frames_.pool().Trim();
  // Another connection may have released the memory that this lane waits for.
  receiver_.Resume(FrameReceiver::Wait::kPeer);
}

void LaneEngine::Look() {
  if (state_ == State::up) lane_->Poke();
}

std::uint64_t LaneEngine::Acknowledged() const {
  const std::uint64_t frames = sender_.window().acknowledged();
  return state_ == State::up ? frames + lane_->Path().acknowledged_bytes : frames;
}

void LaneEngine::SendSequenced(wire::Type type, std::uint64_t operation_id,
                               std::span<const std::byte> body, std::span<const std::byte> payload,
                               OperationRef operation) {
  if (state_ != State::closed) {
    sender_.SendSequenced(type, operation_id, body, payload, std::move(operation));
  } else if (operation) {
    sender_.Resolve(operation, closed_by_);
  }
}

void LaneEngine::AbandonReads(const OperationRef& operation) {
  if (receiver_.DropRead(operation.get())) {
    (void)sender_.reads().TakeOldest();
    sender_.Resolve(operation);
  }
  sender_.AbandonReads(operation);
}

// Afterwards no frame of this lane writes to the region; answers in flight keep their pins.
void LaneEngine::Revoke(const RegionState* region) {
  if (staging_.inbox().AwaitCopiesInto(region)) SettleLandings();
  answers_.RefuseWaiting(region);
  sender_.SendStaged();
  receiver_.Revoke(region);
}

bool LaneEngine::Holds(const RegionState* region) {
  if (state_ == State::frozen) DropAnswers();
  return sender_.window().HoldsRegion(region) || staging_.outbox().HoldsRegion(region);
}

// ---- the peer's frames --------------------------------------------------------------------------

Result<Placement> LaneEngine::OnFrame(std::span<const std::byte> meta,
                                      std::uint64_t payload_bytes) {
  if (!frames_.up() || receiver_.MustPause()) return Placement{Placement::Action::kPause, {}};
  heard_ = true;
  wire::MetaReader reader(meta);
  wire::MessageHeader header;
  if (!reader.Read(&header)) return MalformedFrame(site_, "no header");
  FERRY_TRY(CheckMetadata(site_, meta, header));
  FERRY_TRY(sender_.OnAck(header.ack));
  // The frames kept until the peer acknowledges them must be bounded. An honest peer's burst of
  // messages, all declined, stays below this limit: its later frames acknowledge the earlier
  // answers.
  if (frames_.pool().kept() >= 4 * site_.max_sequenced() || frames_.memory().kept_too_much()) {
    return MalformedFrame(site_, "no acknowledgements");
  }
  auto placed = Dispatch(header, &reader, payload_bytes);
  receiver_.CountScratch();
  // A paused frame is offered again.
  if (placed && placed->action != Placement::Action::kPause) {
    receiver_.OnTaken(meta.size(), payload_bytes);
  }
  return placed;
}

Result<Placement> LaneEngine::Dispatch(const wire::MessageHeader& header, wire::MetaReader* reader,
                                       std::uint64_t payload_bytes) {
  switch (header.type) {
    case wire::Type::kWrite:
    case wire::Type::kSend:
    case wire::Type::kNotify: return receiver_.OnFrame(header, reader, payload_bytes);
    case wire::Type::kReadData: {
      auto placed = receiver_.OnFrame(header, reader, payload_bytes);
      // An abandoned read is answered: another may be requested.
      if (placed && placed->action == Placement::Action::kDiscard) sender_.Pump();
      return placed;
    }
    default: break;
  }
  if (payload_bytes != 0) return MalformedFrame(site_, "payload where none belongs");
  return OnPlainFrame(header, reader);
}

Result<Placement> LaneEngine::OnPlainFrame(const wire::MessageHeader& header,
                                           wire::MetaReader* reader) {
  switch (header.type) {
    case wire::Type::kAck:
    case wire::Type::kPong: break;
    case wire::Type::kPing: SendPlain(wire::Type::kPong, header.operation, {}); break;
    case wire::Type::kNack: FERRY_TRY(sender_.OnNack(reader)); break;
    case wire::Type::kReadRefused: FERRY_TRY(sender_.OnReadRefused(header, reader)); break;
    case wire::Type::kCopy: return receiver_.OnFrame(header, reader, 0);
    case wire::Type::kReadRequest: {
      auto placed = answers_.OnRequest(header, reader);
      const bool waits = placed && placed->action == Placement::Action::kPause;
      return waits ? receiver_.Pause(FrameReceiver::Wait::kPeer) : std::move(placed);
    }
    case wire::Type::kLaneLost: {
      wire::JoinBody body;
      if (!reader->Read(&body)) return MalformedFrame(site_, "lane lost");
      site_.owner->PeerGaveUpLane(body.lane);
      break;
    }
    case wire::Type::kRts:
    case wire::Type::kCts:
    case wire::Type::kFin:
    case wire::Type::kDeclined: FERRY_TRY(OnMessage(header, reader)); break;
    case wire::Type::kShare:
    case wire::Type::kShared:
    case wire::Type::kUnshare:
    case wire::Type::kUnshared: FERRY_TRY(OnSharing(header, reader)); break;
    default: return MalformedFrame(site_, wire::TypeName(header.type));
  }
  return Placement{};
}

Status LaneEngine::OnMessage(const wire::MessageHeader& header, wire::MetaReader* reader) {
  if (site_.index != 0) return MalformedFrame(site_, "a message on a lane other than the first");
  FERRY_TRY(site_.messages->OnMessage(header, reader));
  receiver_.Finish(0);
  return Ok();
}

Status LaneEngine::OnSharing(const wire::MessageHeader& header, wire::MetaReader* reader) {
  if (site_.index != 0) return MalformedFrame(site_, "a share on a lane other than the first");
  const Status taken = site_.context.sharing->OnSharingFrame(header, reader);
  if (!taken) return MalformedFrame(site_, taken.error().message().c_str());
  receiver_.Finish(0);
  return Ok();
}

Status LaneEngine::OnPayload() {
  if (const auto end = receiver_.OnPayload()) sender_.OnReadEnd(*end);
  return Ok();
}

void LaneEngine::OnSent(net::OutFrame* out) {
  auto* const frame = static_cast<LaneFrame*>(out);
  counts_.frames_sent.Add();
  counts_.bytes_sent.Add(frame->meta.size() + frame->payload_bytes);
  counts_.payload_bytes_sent.Add(frame->payload_bytes);
  frames_.TracePayload("sends", frame->payload_bytes, frame->handed_over);
  const bool kept = frame->kept;  // until settled, possibly below
  if (frame->plain) frames_.OnPlainSent(frame->type);
  sender_.OnSent(frame);
  receiver_.Resume(FrameReceiver::Wait::kPeer);
  if (!kept) frames_.pool().Recycle(frame);
  sender_.Pump();
}

// ---- copies into and out of GPU memory ----------------------------------------------------------

void LaneEngine::OnCopiesEnded() {
  if (state_ == State::closed) return;
  SettleLandings();
  receiver_.Resume(FrameReceiver::Wait::kCopies);
  sender_.SendStaged();
  sender_.Pump();
}

// Slots and memory are given up afterwards. Takes as long as the copies queued on the GPU, well
// under a millisecond.
void LaneEngine::AwaitCopies() {
  staging_.AwaitCopies();
  SettleLandings();
  while (const auto stuck = staging_.inbox().TakeOldest()) {
    EndLanding(*stuck, stuck->copy ? Status(CopyStuck()) : Ok());
  }
}

void LaneEngine::SettleLandings() {
  while (const auto landing = staging_.inbox().TakeLanded()) {
    const Status landed = landing->copy ? landing->copy->outcome : Ok();
    if (landing->copy) landing->copy->Release();
    EndLanding(*landing, landed);
  }
}

void LaneEngine::EndLanding(const Landing& landing, const Status& landed) {
  if (!landed && !landing.read) {
    frames_.Refuse(frames_.acks().finished(), landing.operation, landed.error());
  }
  frames_.CountFinished(landing.bytes);
  if (!landing.read) return;
  sender_.Resolve(landing.read, landed ? std::nullopt : std::optional(landed.error()));
}

// ---- replacing the lane -------------------------------------------------------------------------

std::optional<LaneProgress> LaneEngine::Freeze(std::uint32_t attempt) {
  if (state_ == State::closed || attempt <= attempt_) return std::nullopt;
  attempt_ = attempt;
  if (state_ == State::up) {
    site_.owner->LaneFrozen(site_.index, heard_);
    GoDown("another lane takes its place");
  }
  return frames_.acks().progress();
}

// Also called in State::closing, if the lane is lost inside Close.
void LaneEngine::GoDown(const char* why) {
  AwaitCopies();
  if (state_ == State::up) MoveTo(State::frozen, why);
  frames_.SetLane(nullptr);
  receiver_.SetLane(nullptr);
  sender_.OnLaneDown();
}

// Drops answers to reads: read data is never resent, so only the old lane still needs its memory.
// Not done for a lane that is only frozen here, because the peer may still be receiving over it.
void LaneEngine::DropAnswers() {
  lane_->Abort();
  sender_.window().ReleasePins();
}

// The new lane may have failed while it moved here; it is installed all the same, so that its loss
// is handled like any other.
void LaneEngine::Revive(std::uint32_t attempt, std::unique_ptr<ParkedLane> lane,
                        const LaneProgress& peer) {
  if (state_ == State::closed || attempt != attempt_) return;  // a later attempt has started
  FERRY_CHECK(state_ == State::frozen, site_.index);
  if (auto settled = sender_.Settle(peer); !settled) {
    site_.owner->LaneFailed(settled.error());
    return Close(settled.error());
  }
  const std::optional<Error> failure = lane->failure();
  UseLane(lane->Take(), /*works=*/!failure);
  sender_.SendAgain();
  if (failure) return site_.owner->LaneLost(site_.index, *failure, std::nullopt);
  site_.owner->OnLaneUp(site_.index, lane_->Info());
  // Tells the peer that this side now relies on the lane.
  Probe();
  SamplePath();
  sender_.Pump();
}

// The lane's mutex is held only to swap the pointer: BytesReceived() may read it on another thread.
void LaneEngine::UseLane(std::unique_ptr<net::Lane> lane, bool works) {
  lane_->Abort();
  {
    const std::lock_guard lock(lane_mutex_);
    bytes_before_ += lane_->BytesReceived();
    lane_ = std::move(lane);
  }
  lane_retransmits_ = 0;
  heard_ = false;
  if (!works) return;
  MoveTo(State::up, "its replacement is here");
  frames_.SetLane(lane_.get());
  receiver_.SetLane(lane_.get());
  lane_->Attach(site_.loop, this);
}

// ---- the end ------------------------------------------------------------------------------------

void LaneEngine::OnClosed(const Error& error) {
  if (!frames_.up()) return;  // already frozen
  const net::LaneLoss loss = lane_->loss();
  // The peer has cancelled the attempt that made this lane; the connection is not affected.
  const bool was_cancelled =
      !heard_ && (loss == net::LaneLoss::kPeerClosed || loss == net::LaneLoss::kReset);
  if (was_cancelled || loss == net::LaneLoss::kReset || loss == net::LaneLoss::kUnreachable) {
    GoDown("the network has dropped it");
    DropAnswers();
    return site_.owner->LaneLost(site_.index, error,
                                 was_cancelled ? std::nullopt : std::optional(loss));
  }
  // First, so that no operation fails with the loss of a connection that is still up.
  if (loss == net::LaneLoss::kPeerClosed) {
    site_.owner->PeerClosedLane(site_.index, error);
  } else {
    site_.owner->LaneFailed(error);
  }
  Close(error);
}

void LaneEngine::Close(const Error& error) {
  if (state_ == State::closed) return;
  MoveTo(State::closing, error.message().c_str());
  sender_.Stop();
  AwaitCopies();
  // This side closes: the peer's last frames were processed and their operations succeeded, which
  // the peer must learn before the close. The lane may fail meanwhile, and close this.
  if (error.code() == Code::kCancelled) frames_.FlushAck();
  if (state_ == State::closed) return;
  MoveTo(State::closed, "nothing is in flight any more");
  closed_by_ = error;
  // Unacknowledged data belongs to operations that end now: reset the lane so that the peer does
  // not accept it.
  sender_.window().OwesData() ? lane_->Abort() : lane_->Close();
  frames_.SetLane(nullptr);
  std::vector<OperationRef> late = sender_.Close(error);
  receiver_.Close();
  frames_.Close();
  if (!late.empty()) return EndLate(std::move(late), error);
  // Posted, because this may be a callback of the lane, which must return before the connection,
  // and the lane with it, can be destroyed.
  site_.owner->PostLaneClosed(site_.index);
}

// Ends reads that the peer may be copying into our memory right now: without the lane it cannot
// report when the copy is done.
void LaneEngine::EndLate(std::vector<OperationRef> late, const Error& error) {
  site_.loop->AddTimerOnLoop(
      Clock::now() + site_.context.config->drain_grace + kLateCopies,
      [self = site_.owner->KeepAlive(), this, late = std::move(late), error] {
        for (const auto& operation : late) sender_.Resolve(operation, error);
        site_.owner->PostLaneClosed(site_.index);
      });
}

void LaneEngine::Free() {
  receiver_.Free();
  const std::lock_guard lock(lane_mutex_);
  if (!lane_) return;
  bytes_before_ += lane_->BytesReceived();
  lane_.reset();
}

}  // namespace ferry::transfer
