// Dispatches frames by their type, and ends those that were copied into GPU memory.
#include "ferry/transfer/lane/frame_dispatcher.h"

#include <fmt/core.h>

#include <utility>

#include "ferry/core/units.h"
#include "ferry/transfer/gpu/gpu_sharing.h"

namespace ferry::transfer {

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
  site_.owner->PeerGaveUpLane(body.lane);
  return Ok();
}

Status FrameDispatcher::OnMessage(const wire::MessageHeader& header, wire::MetaReader* reader) {
  if (site_.index != 0) return MalformedFrame(site_, "a message on a lane other than the first");
  FERRY_TRY(site_.messages->OnMessage(header, reader));
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

}  // namespace ferry::transfer
