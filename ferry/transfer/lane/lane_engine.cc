// Dispatches a lane's callbacks, and moves the lane from one state to the next.
#include "ferry/transfer/lane/lane_engine.h"

#include <fmt/core.h>

#include <utility>

#include "ferry/core/check.h"
#include "ferry/core/log.h"
#include "ferry/core/loop/edges.h"
#include "ferry/core/units.h"
#include "ferry/transfer/gpu/gpu_sharing.h"
#include "ferry/transfer/handshake/parked_lane.h"
#include "ferry/transfer/lane/message_queue.h"

namespace ferry::transfer {

// ---- CurrentLane --------------------------------------------------------------------------------

// The mutex is held only to swap the pointer: BytesReceived() may read it on another thread.
void CurrentLane::Replace(std::unique_ptr<net::Lane> lane) {
  if (lane_) lane_->Close(net::Closing::kAbort);
  const std::lock_guard lock(mutex_);
  if (lane_) bytes_before_ += lane_->BytesReceived();
  lane_ = std::move(lane);
  retransmits_ = 0;
}

void CurrentLane::Free() {
  const std::lock_guard lock(mutex_);
  if (!lane_) return;
  bytes_before_ += lane_->BytesReceived();
  lane_.reset();
}

std::uint64_t CurrentLane::BytesReceived() const {
  const std::lock_guard lock(mutex_);
  return bytes_before_ + (lane_ ? lane_->BytesReceived() : 0);
}

void CurrentLane::SamplePath(const LaneSite& site) {
  const net::PathStats path = lane_->Path();
  if (path.retransmitted_segments > retransmits_) {
    site.counts->retransmits.Add(path.retransmitted_segments - retransmits_);
    retransmits_ = path.retransmitted_segments;
  }
  site.context.owner->SetLanePath(site.index, path);
}

// ---- FrameDispatcher ----------------------------------------------------------------------------

using net::Placement;

FrameDispatcher::FrameDispatcher(const LaneSite& site, FrameSender* frames, LaneStaging* staging,
                                 SliceSender* sender)
    : site_(site),
      frames_(frames),
      staging_(staging),
      sender_(sender),
      answers_(site, frames, &sender->window(), &staging->outbox()),
      receiver_(site, frames, &sender->reads(), staging) {}

Result<Placement> FrameDispatcher::OnFrame(std::span<const std::byte> meta,
                                           std::uint64_t payload_bytes) {
  if (!frames_->up() || receiver_.MustPause()) return Placement{Placement::Action::kPause, {}};
  heard_ = true;
  wire::MetaReader reader(meta);
  wire::MessageHeader header;
  if (!reader.Read(&header)) return MalformedFrame(site_, "no header");
  FERRY_TRY(CheckMetadata(site_, meta, header));
  FERRY_TRY(sender_->OnAck(header.ack));
  if (MayHoldTooMuch()) {
    FERRY_TRY(CheckHeld());
  }
  auto placed = Dispatch(header, &reader, payload_bytes);
  receiver_.CountScratch();
  // A paused frame is offered again.
  if (placed && placed->action != Placement::Action::kPause) {
    receiver_.OnTaken(meta.size(), payload_bytes);
  }
  return placed;
}

// A cheap test before CheckHeld(), for each frame: false only where CheckHeld() returns Ok, which
// reads counts that all connections share.
bool FrameDispatcher::MayHoldTooMuch() const {
  const HeldMemory& memory = *site_.context.memory;
  const std::uint64_t late = memory.late_answers();
  return frames_->pool().kept() + late >= site_.max_sequenced() ||
         memory.MayExceed(frames_->memory().kept_bytes() + late * HeldMemory::kLateAnswerBytes);
}

// The frames kept until the peer acknowledges them, and the answers that wait for that, must be
// bounded. The lane cannot pause for them, because the acknowledgement may be in a later frame. An
// honest peer's burst of messages, all declined, stays below these limits.
Status FrameDispatcher::CheckHeld() const {
  const HeldMemory& memory = *site_.context.memory;
  const std::uint64_t late = memory.late_answers();
  if (frames_->pool().kept() + (site_.index == 0 ? late : 0) >= 4 * site_.max_sequenced()) {
    return MalformedFrame(site_, "no acknowledgements");
  }
  const auto excess =
      memory.FindExcess(frames_->memory().kept_bytes() + late * HeldMemory::kLateAnswerBytes);
  if (!excess) return Ok();
  return Error(
      Code::kCorrupt,
      fmt::format("{} does not acknowledge answers, and {} are held, where {} ({}) and a tenth are "
                  "allowed; the connection was closed: reconnect with a peer that reads, or raise "
                  "the setting",
                  site_.context.peer_name, FormatSize(excess->held), FormatSize(excess->limit),
                  excess->setting));
}

Result<Placement> FrameDispatcher::Dispatch(const wire::MessageHeader& header,
                                            wire::MetaReader* reader, std::uint64_t payload_bytes) {
  switch (header.type) {
    case wire::Type::kWrite:
    case wire::Type::kSend:
    case wire::Type::kNotify: return receiver_.OnFrame(header, reader, payload_bytes);
    case wire::Type::kReadData: {
      auto placed = receiver_.OnFrame(header, reader, payload_bytes);
      // An abandoned read is answered: another may be requested.
      if (placed && placed->action == Placement::Action::kDiscard) sender_->Pump();
      return placed;
    }
    default: break;
  }
  if (payload_bytes != 0) return MalformedFrame(site_, "payload where none belongs");
  return OnPlainFrame(header, reader);
}

Result<Placement> FrameDispatcher::OnPlainFrame(const wire::MessageHeader& header,
                                                wire::MetaReader* reader) {
  switch (header.type) {
    case wire::Type::kAck:
    case wire::Type::kPong: break;
    case wire::Type::kPing: frames_->SendPlain(wire::Type::kPong, header.operation, {}); break;
    case wire::Type::kNack: FERRY_TRY(sender_->OnNack(reader)); break;
    case wire::Type::kReadRefused: FERRY_TRY(sender_->OnReadRefused(header, reader)); break;
    case wire::Type::kCopy: return receiver_.OnFrame(header, reader, 0);
    case wire::Type::kReadRequest: {
      auto placed = answers_.OnRequest(header, reader);
      const bool waits = placed && placed->action == Placement::Action::kPause;
      return waits ? receiver_.Pause(FrameReceiver::Wait::kPeer) : std::move(placed);
    }
    case wire::Type::kLaneLost: FERRY_TRY(OnLaneLost(reader)); break;
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

Status FrameDispatcher::OnLaneLost(wire::MetaReader* reader) {
  wire::JoinBody body;
  if (!reader->Read(&body)) return MalformedFrame(site_, "lane lost");
  site_.context.owner->PeerGaveUpLane(body.lane);
  return Ok();
}

Status FrameDispatcher::OnMessage(const wire::MessageHeader& header, wire::MetaReader* reader) {
  if (site_.index != 0) return MalformedFrame(site_, "a message on a lane other than the first");
  FERRY_TRY(site_.context.messages->OnMessage(header, reader));
  receiver_.Finish(0);
  return Ok();
}

Status FrameDispatcher::OnSharing(const wire::MessageHeader& header, wire::MetaReader* reader) {
  if (site_.index != 0) return MalformedFrame(site_, "a share on a lane other than the first");
  const Status taken = site_.context.sharing->OnSharingFrame(header, reader);
  if (!taken) return MalformedFrame(site_, taken.error().message().c_str());
  receiver_.Finish(0);
  return Ok();
}

void FrameDispatcher::OnPayload() {
  if (const auto end = receiver_.OnPayload()) sender_->OnReadEnd(*end);
}

// ---- copies into GPU memory ---------------------------------------------------------------------

void FrameDispatcher::AwaitCopies() {
  staging_->AwaitCopies();
  SettleLandings();
  while (const auto stuck = staging_->inbox().TakeOldest()) {
    EndLanding(*stuck, stuck->copy ? Status(CopyStuck()) : Ok());
  }
}

void FrameDispatcher::SettleLandings() {
  while (const auto landing = staging_->inbox().TakeLanded()) {
    Status landed = landing->copy ? landing->copy->outcome : Ok();
    if (landed) landed = receiver_.CheckLanding(*landing);
    if (landing->copy) landing->copy->Release();
    EndLanding(*landing, landed);
  }
}

void FrameDispatcher::EndLanding(const Landing& landing, const Status& landed) {
  if (!landed && !landing.read) {
    frames_->Refuse(frames_->acks().finished(), landing.operation, landed.error());
  }
  frames_->CountFinished(landing.bytes);
  if (!landing.read) return;
  sender_->Resolve(landing.read, landed ? std::nullopt : std::optional(landed.error()));
}

// ---- LaneEngine ---------------------------------------------------------------------------------

namespace {

// Added to drain_grace, after which a peer begins no further copy (FrameReceiver::OnCopy): copies
// that it has begun have ended by then.
constexpr auto kLateCopies = milliseconds(100);

const char* NameOf(LaneEngine::State state) {
  switch (state) {
    case LaneEngine::State::kConnecting: return "connecting";
    case LaneEngine::State::kUp: return "up";
    case LaneEngine::State::kFrozen: return "frozen";
    case LaneEngine::State::kClosing: return "closing";
    case LaneEngine::State::kClosed: return "closed";
  }
  return "unknown";
}

// Each edge with its reason.
bool MayMove(LaneEngine::State from, LaneEngine::State to) {
  using State = LaneEngine::State;
  static constexpr Edge<State> kEdges[] = {
      // The handshake is complete.
      {State::kConnecting, State::kUp},
      // The network has dropped the lane, or a replacement is offered.
      {State::kUp, State::kFrozen},
      // The replacement takes over.
      {State::kFrozen, State::kUp},
      // The connection ends, before the handshake, in use, or while a replacement is awaited.
      {State::kConnecting, State::kClosing},
      {State::kUp, State::kClosing},
      {State::kFrozen, State::kClosing},
      // The lane fails while its last acknowledgement is sent, which closes it again.
      {State::kClosing, State::kClosing},
      // Nothing is in flight any more.
      {State::kClosing, State::kClosed},
  };
  return HasEdge(kEdges, from, to);
}

}  // namespace

LaneEngine::LaneEngine(const LaneContext& context, EventLoop* loop, std::uint32_t index)
    : site_{context, loop, index, &counts_, &opened_},
      frames_(site_),
      staging_(context.owner, loop,
               {.copies_ended = [this] { OnCopiesEnded(); },
                .resume_for_slot =
                    [this] { return dispatcher_.receiver().Resume(FrameReceiver::Wait::kSlot); }}),
      sender_(site_, &frames_, &staging_),
      dispatcher_(site_, &frames_, &staging_, &sender_) {}

void LaneEngine::MoveTo(State to, const char* why) {
  FERRY_CHECK(MayMove(state_, to), NameOf(state_), NameOf(to), why);
  Log(LogLevel::kDebug, "transfer", "lane {} to {} goes from {} to {}: {}", site_.index,
      site_.context.peer_name, NameOf(state_), NameOf(to), why);
  state_ = to;
}

void LaneEngine::Adopt(std::unique_ptr<net::Lane> lane) {
  lane_.Replace(std::move(lane));
  UseLane("the handshake is complete");
}

// Last, because callbacks may begin at once, on the lane's loop.
void LaneEngine::UseLane(const char* why) {
  MoveTo(State::kUp, why);
  lane_->ProvePeerLater(site_.context.process);
  if (site_.index == 0) proved_ = lane_->ProvePeer(site_.context.process);
  frames_.SetLane(lane_.get());
  dispatcher_.receiver().SetLane(lane_.get());
  lane_->Attach(site_.loop, this);
}

// ---- what the connection asks for ---------------------------------------------------------------

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

void LaneEngine::Beat(bool heard) {
  if (state_ != State::kUp) return;
  lane_.SamplePath(site_);
  // Bytes that wait in the socket for the rest of a payload count as heard, too.
  lane_->Poke();
  if (!heard) Probe();
  frames_.pool().Trim();
  dispatcher_.receiver().CountScratch();
  // Another connection may have released the memory that this lane waits for.
  dispatcher_.receiver().Resume(FrameReceiver::Wait::kPeer);
}

void LaneEngine::Look() {
  if (state_ == State::kUp) lane_->Poke();
}

std::string LaneEngine::Waits(const OperationState* operation) const {
  if (state_ != State::kUp) return {};
  std::string waits = lane_->Waits();
  if (!HoldsOperation(operation)) return waits;
  if (!waits.empty()) waits += ", and ";
  return waits + Unacknowledged();
}

// The peer processes frames in order, so it has to finish the oldest one first, whichever operation
// sent it.
std::string LaneEngine::Unacknowledged() const {
  const SendWindow& window = sender_.window();
  const SentFrame* const oldest = window.OldestNamed();
  if (oldest == nullptr) {
    return fmt::format("waiting for the peer to acknowledge {} bytes, in {} frames", window.bytes(),
                       window.size());
  }
  return fmt::format("waiting for the peer to acknowledge {}: all of it left {:.1f} s ago",
                     lane_->NameOfSent(oldest->payload, oldest->bytes),
                     Seconds(Clock::now() - oldest->sent_at));
}

std::uint64_t LaneEngine::Acknowledged() const {
  const std::uint64_t frames = sender_.window().acknowledged();
  return state_ == State::kUp ? frames + lane_->Path().acknowledged_bytes : frames;
}

void LaneEngine::SendSequenced(wire::Type type, std::uint64_t operation_id,
                               std::span<const std::byte> body, std::span<const std::byte> payload,
                               OperationRef operation) {
  if (state_ != State::kClosed) {
    sender_.SendSequenced(type, operation_id, body, payload, std::move(operation));
  } else if (operation) {
    sender_.Resolve(operation, closed_by_);
  }
}

void LaneEngine::AbandonReads(const OperationRef& operation) {
  if (dispatcher_.receiver().DropRead(operation.get())) {
    (void)sender_.reads().TakeOldest();
    sender_.Resolve(operation);
  }
  sender_.AbandonReads(operation);
}

// Afterwards no frame of this lane writes to the region; answers in flight keep their pins.
void LaneEngine::Revoke(const RegionState* region) {
  if (staging_.inbox().AwaitCopiesInto(region)) dispatcher_.SettleLandings();
  dispatcher_.answers().RefuseWaiting(region);
  sender_.SendStaged();
  dispatcher_.receiver().Revoke(region);
}

bool LaneEngine::Holds(const RegionState* region) {
  if (state_ == State::kFrozen) DropAnswers();
  return sender_.window().HoldsRegion(region) || staging_.outbox().HoldsRegion(region);
}

// ---- callbacks of the lane ----------------------------------------------------------------------

Result<net::Placement> LaneEngine::OnFrame(std::span<const std::byte> meta,
                                           std::uint64_t payload_bytes) {
  return dispatcher_.OnFrame(meta, payload_bytes);
}

Status LaneEngine::OnPayload() {
  dispatcher_.OnPayload();
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
  dispatcher_.receiver().Resume(FrameReceiver::Wait::kPeer);
  if (!kept) frames_.pool().Recycle(frame);
  sender_.Pump();
}

void LaneEngine::OnCopiesEnded() {
  if (state_ == State::kClosed) return;
  dispatcher_.SettleLandings();
  dispatcher_.receiver().Resume(FrameReceiver::Wait::kCopies);
  sender_.SendStaged();
  sender_.Pump();
}

// ---- replacing the lane -------------------------------------------------------------------------

std::optional<LaneProgress> LaneEngine::Freeze(std::uint32_t attempt) {
  if (state_ == State::kClosed || attempt <= attempt_) return std::nullopt;
  attempt_ = attempt;
  if (state_ == State::kUp) {
    site_.context.owner->LaneFrozen(site_.index, dispatcher_.heard());
    GoDown("another lane takes its place");
  }
  return frames_.acks().progress();
}

// Also called in State::kClosing, if the lane is lost inside Close.
void LaneEngine::GoDown(const char* why) {
  dispatcher_.AwaitCopies();
  if (state_ == State::kUp) MoveTo(State::kFrozen, why);
  frames_.SetLane(nullptr);
  dispatcher_.receiver().SetLane(nullptr);
  sender_.OnLaneDown();
}

// Drops answers to reads: read data is never resent, so only the old lane still needs its memory.
// Not done for a lane that is only frozen here, because the peer may still be receiving over it.
void LaneEngine::DropAnswers() {
  lane_->Close(net::Closing::kAbort);
  sender_.window().ReleasePins();
}

// The new lane may have failed while it moved here; it is installed all the same, so that its loss
// is handled like any other.
void LaneEngine::Revive(std::uint32_t attempt, std::unique_ptr<ParkedLane> lane,
                        const LaneProgress& peer) {
  if (state_ == State::kClosed || attempt != attempt_) return;  // a later attempt has started
  FERRY_CHECK(state_ == State::kFrozen, site_.index);
  // First, so that the kernel no longer reads memory of frames that the peer says it has processed.
  lane_->Close(net::Closing::kAbort);
  if (auto settled = sender_.Settle(peer); !settled) {
    site_.context.owner->LaneFailed(settled.error());
    return Close(settled.error());
  }
  const std::optional<Error> failure = lane->failure();
  lane_.Replace(lane->Take());
  dispatcher_.Restart();
  if (!failure) UseLane("its replacement is here");
  sender_.SendAgain();
  if (failure) return site_.context.owner->LaneLost(site_.index, *failure, std::nullopt);
  site_.context.owner->OnLaneUp(site_.index, lane_->Info());
  // Tells the peer that this side now relies on the lane.
  Probe();
  lane_.SamplePath(site_);
  sender_.Pump();
}

// ---- the end ------------------------------------------------------------------------------------

void LaneEngine::OnClosed(net::LaneLoss loss, const Error& error) {
  if (!frames_.up()) return;  // already frozen
  // The peer has cancelled the attempt that made this lane; the connection is not affected.
  const bool was_cancelled =
      !dispatcher_.heard() && (loss == net::LaneLoss::kPeerClosed || loss == net::LaneLoss::kReset);
  if (was_cancelled || loss == net::LaneLoss::kReset || loss == net::LaneLoss::kUnreachable) {
    GoDown("the network has dropped it");
    DropAnswers();
    return site_.context.owner->LaneLost(site_.index, error,
                                         was_cancelled ? std::nullopt : std::optional(loss));
  }
  // First, so that no operation fails with the loss of a connection that is still up.
  if (loss == net::LaneLoss::kPeerClosed) {
    site_.context.owner->PeerClosedLane(site_.index, error);
  } else {
    site_.context.owner->LaneFailed(error);
  }
  Close(error);
}

void LaneEngine::Close(const Error& error) {
  if (state_ == State::kClosed) return;
  MoveTo(State::kClosing, error.message().c_str());
  sender_.Stop();
  dispatcher_.AwaitCopies();
  // This side closes: the peer's last frames were processed and their operations succeeded, which
  // the peer must learn before the close. The lane may fail meanwhile, and close this.
  if (error.code() == Code::kCancelled) frames_.FlushAck();
  if (state_ == State::kClosed) return;
  MoveTo(State::kClosed, "nothing is in flight any more");
  closed_by_ = error;
  // Unacknowledged data belongs to operations that end now: reset the lane so that the peer does
  // not accept it.
  lane_->Close(sender_.window().OwesData() ? net::Closing::kAbort : net::Closing::kOrderly);
  frames_.SetLane(nullptr);
  std::vector<OperationRef> late = sender_.Close(error);
  dispatcher_.receiver().Close();
  frames_.Close();
  if (!late.empty()) return EndLate(std::move(late), error);
  // Posted, because this may be a callback of the lane, which must return before the connection,
  // and the lane with it, can be destroyed.
  site_.context.owner->PostLaneClosed(site_.index);
}

// Ends reads that the peer may be copying into our memory right now: without the lane it cannot
// report when the copy is done.
void LaneEngine::EndLate(std::vector<OperationRef> late, const Error& error) {
  site_.loop->AddTimerOnLoop(
      Clock::now() + site_.context.config->drain_grace + kLateCopies,
      [self = site_.context.owner->KeepAlive(), this, late = std::move(late), error] {
        for (const auto& operation : late) sender_.Resolve(operation, error);
        site_.context.owner->PostLaneClosed(site_.index);
      });
}

void LaneEngine::Free() {
  dispatcher_.receiver().Free();
  lane_.Free();
}

}  // namespace ferry::transfer
