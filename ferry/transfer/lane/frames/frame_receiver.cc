// Places payloads, checks them, and counts the peer's frames as processed.
#include "ferry/transfer/lane/frames/frame_receiver.h"

#include <fmt/core.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "ferry/core/check.h"
#include "ferry/core/trace.h"
#include "ferry/cuda/address.h"
#include "ferry/transfer/gpu/gpu_sharing.h"
#include "ferry/transfer/lane/frames/frame_sender.h"
#include "ferry/transfer/lane/lane_site.h"
#include "ferry/transfer/lane/lane_staging.h"
#include "ferry/transfer/lane/message_queue.h"

namespace ferry::transfer {

// ---- ReadAnswers --------------------------------------------------------------------------------

namespace {

using net::Placement;

// The sum of the blocks' lengths; nullopt if that is more than a frame may carry.
std::optional<std::uint64_t> BytesIn(wire::MetaReader blocks) {
  std::uint64_t bytes = 0;
  for (wire::BlockOnWire block; blocks.Read(&block);) {
    if (block.length > net::kMaxPayloadBytes - bytes) return std::nullopt;
    bytes += block.length;
  }
  return bytes;
}

}  // namespace

Result<Placement> ReadAnswers::OnRequest(const wire::MessageHeader& header,
                                         wire::MetaReader* reader) {
  wire::WriteBody body;
  const bool whole =
      reader->Read(&body) && reader->rest().size() == body.blocks * sizeof(wire::BlockOnWire);
  const auto bytes = whole ? BytesIn(*reader) : std::nullopt;
  if (!bytes) return MalformedFrame(site_, "read request");
  // Reserved before the region is opened.
  const std::uint64_t cost = AnswerCost(body.blocks);
  const AnswerMemory memory =
      frames_->memory().ReserveAnswer(cost, window_->replies() + outbox_->size());
  if (memory == AnswerMemory::kNone) return Placement{Placement::Action::kPause, {}};
  LaneFrame* const frame = frames_->New(wire::Type::kReadData, header.operation);
  auto region = site_.context.regions->Open(body.key, Rights::kRead, site_.accessor());
  Status placed = region ? PlaceBlocks(*region->get(), reader->rest(), *bytes, &frame->payload)
                         : Status(region.error());
  Stager* const stager = placed ? region->get()->stager : nullptr;
  if (stager != nullptr && *bytes > stager->slot_bytes()) placed = TooLargeToStage(*bytes, *stager);
  if (!placed) {
    frames_->pool().Recycle(frame);
    frames_->memory().CancelAnswer(cost, memory);
    if (placed.error().code() == Code::kCorrupt) return placed.error();
    Refuse(header.operation, body.slice, placed.error());
    return Placement{};
  }
  wire::Append(&frame->meta, wire::SliceBody{body.slice, 0});
  frame->payload_bytes = *bytes;
  frame->over_network = true;
  frame->sequenced = true;
  frame->checked |= (header.flags & wire::kChecked) != 0;
  frames_->pool().HoldAnswer(frame, cost, memory);
  Answer(frame, *std::move(region), body.slice);
  return Placement{};
}

// Answers from host memory keep their place behind those that wait for copies.
void ReadAnswers::Answer(LaneFrame* frame, RegionPin region, std::uint32_t slice) {
  SentFrame record;
  record.reply = true;
  Stager* const stager = region.get()->stager;
  if (stager == nullptr && outbox_->empty()) {
    frame->may_splice = true;
    record.pin = std::move(region);
    frames_->memory().HoldRecord();
    window_->Add(std::move(record));
    FrameSender::Seal(frame);
    return frames_->Send(frame);
  }
  StagedFrame staged;
  staged.frame = frame;
  staged.stager = stager;
  staged.record = std::move(record);
  staged.record.slice = slice;
  (stager != nullptr ? staged.pin : staged.record.pin) = std::move(region);
  outbox_->Add(std::move(staged));
}

void ReadAnswers::Refuse(std::uint64_t operation_id, std::uint32_t slice, const Error& error) {
  LaneFrame* const refusal = frames_->NewReadRefusal(operation_id, slice, error);
  if (outbox_->empty()) return frames_->Send(refusal);
  outbox_->Add({.frame = refusal});
}

void ReadAnswers::RefuseWaiting(const RegionState* region) {
  for (StagedFrame* const staged : outbox_->WaitingFor(region)) {
    const std::uint64_t operation = OperationIn(*staged->frame);
    frames_->pool().Recycle(staged->frame);
    const Error error(Code::kRefused,
                      fmt::format("region {} was deregistered before it was read", region->id));
    LaneFrame* const refusal = frames_->NewReadRefusal(operation, staged->record.slice, error);
    *staged = StagedFrame{.frame = refusal};
  }
}

// ---- FrameReceiver ------------------------------------------------------------------------------

using net::Placement;

namespace {

// Destinations, for messages.
std::string WritePlace(const RegionState& region, std::uint64_t first) {
  return fmt::format("offset {} of region {}", first - cuda::AddressOf(region.memory.data()),
                     region.id);
}
std::string ReadPlace(std::uint32_t slice, std::uint64_t operation) {
  return fmt::format("slice {} of read {}", slice, operation);
}

// Whether a payload for this stager's GPU goes to its place directly. A checked one does not: what
// places payloads in GPU memory does not sum them.
bool NeedsNoSlot(const Stager& stager, bool checked) {
  return stager.receives_into_gpu() && !checked;
}

}  // namespace

FrameReceiver::FrameReceiver(const LaneSite& site, FrameSender* frames, ReadRequests* reads,
                             LaneStaging* staging)
    : site_(site),
      frames_(frames),
      reads_(reads),
      inbox_(&staging->inbox()),
      events_(&staging->events()) {}

// A payload begins only between two frames, and ends by arriving or by being dropped.
void FrameReceiver::MoveTo(State to) {
  const bool begins = to != State::kIdle && to != State::kDiscarding;
  const bool is_between = state_ == State::kIdle || state_ == State::kPaused;
  FERRY_CHECK(is_between || !begins, static_cast<int>(state_), static_cast<int>(to));
  state_ = to;
}

void FrameReceiver::SetLane(net::Lane* lane) {
  if (lane_ != nullptr) {
    lane_->DiscardRest();
    // A refused frame counts, though no more of its payload follows. Another is as if it had never
    // come: the peer sends it again.
    if (state_ == State::kDiscarding) frames_->acks().CountSkipped();
    if (arrival_.receive)
      site_.context.messages->PutBackReceive(std::exchange(arrival_.receive, nullptr));
    Close();
  }
  lane_ = lane;
}

void FrameReceiver::Close() {
  lane_ = nullptr;
  inbox_->Drop();
  inbox_->ReleaseSpareSlot();
  MoveTo(State::kIdle);
  arrival_.region.Release();
  arrival_.receive.reset();
}

// ---- waiting ------------------------------------------------------------------------------------

// Refusals need no pause while fewer processed frames wait for an unsent refusal than the peer can
// have in flight.
bool FrameReceiver::MustPause() {
  if (state_ == State::kPaused) MoveTo(State::kIdle);  // it is offered again
  const bool copies = inbox_->size() >= kMaxLandingFrames;
  const AckSchedule& acks = frames_->acks();
  const std::size_t waiting = acks.refusals().UnsaidSpan(acks.finished());
  if (!copies && waiting < 2 * site_.max_sequenced()) return false;
  (void)Pause(copies ? Wait::kCopies : Wait::kPeer);
  return true;
}

Placement FrameReceiver::Pause(Wait wait) {
  MoveTo(State::kPaused);
  wait_ = wait;
  return {Placement::Action::kPause, {}};
}

bool FrameReceiver::Resume(Wait wait) {
  if (state_ != State::kPaused || wait_ != wait) return false;
  MoveTo(State::kIdle);
  lane_->Resume();
  return true;
}

// ---- a frame ------------------------------------------------------------------------------------

Result<Placement> FrameReceiver::OnFrame(const wire::MessageHeader& header,
                                         wire::MetaReader* reader, std::uint64_t payload_bytes) {
  arrival_.checked = (header.flags & wire::kChecked) != 0;
  arrival_.on_gpu = false;
  arrival_.crc = header.crc;
  arrival_.bytes = payload_bytes;
  arrival_.operation = header.operation;
  arrival_.since = {};
  switch (header.type) {
    case wire::Type::kWrite: return OnWrite(reader);
    case wire::Type::kReadData: return OnReadData(reader);
    case wire::Type::kSend: return OnSend(reader);
    case wire::Type::kNotify: return OnNotify();
    case wire::Type::kCopy: return OnCopy(reader);
    default: return MalformedFrame(site_, wire::TypeName(header.type));
  }
}

void FrameReceiver::OnTaken(std::size_t meta_bytes, std::uint64_t payload_bytes) {
  inbox_->ReleaseSpareSlot();
  if (payload_bytes > 0 && ActiveTrace() != nullptr) arrival_.since = Clock::now();
  site_.counts->frames_received.Add();
  site_.counts->bytes_received.Add(meta_bytes);
}

Placement FrameReceiver::PlacePieces(What what, bool revocable) {
  arrival_.what = what;
  MoveTo(inbox_->placed() ? State::kStaging : State::kPlacing);
  return {Placement::Action::kPlace, pieces_, revocable, {}, arrival_.on_gpu};
}

// Empty payloads are complete at once.
Placement FrameReceiver::Place(What what, std::span<std::byte> memory) {
  pieces_.assign(1, {memory.data(), memory.size()});
  const Placement placement = PlacePieces(what, /*revocable=*/false);
  if (memory.empty()) (void)OnPayload();
  return placement;
}

// The payload goes directly into the region's memory, or into a slot if that is GPU memory that the
// lane does not reach. The placement is revocable: deregistering stops it in the middle.
Result<Placement> FrameReceiver::OnWrite(wire::MetaReader* reader) {
  wire::WriteBody body;
  if (!reader->Read(&body) || reader->rest().size() != body.blocks * sizeof(wire::BlockOnWire) ||
      arrival_.bytes == 0) {
    return MalformedFrame(site_, "write");
  }
  auto region = site_.context.regions->Open(body.key, Rights::kWrite, site_.accessor());
  if (!region) return Refuse(region.error());
  const Status placed = PlaceBlocks(*region->get(), reader->rest(), arrival_.bytes, &pieces_);
  if (!placed) return Refuse(placed.error());
  if (Stager* const stager = region->get()->stager; stager != nullptr) {
    if (arrival_.bytes > stager->slot_bytes()) {
      return Refuse(TooLargeToStage(arrival_.bytes, *stager));
    }
    arrival_.on_gpu = NeedsNoSlot(*stager, arrival_.checked);
    if (!arrival_.on_gpu && !inbox_->PlaceInSlot(stager, arrival_.bytes, &pieces_)) {
      return Pause(Wait::kSlot);
    }
  }
  arrival_.region = *std::move(region);
  return PlacePieces(What::kWrite, /*revocable=*/true);
}

// Answers arrive in request order, so only the oldest request may match.
Result<Placement> FrameReceiver::OnReadData(wire::MetaReader* reader) {
  wire::SliceBody body;
  const ReadSlice* const slice =
      reader->Read(&body) ? reads_->Find(arrival_.operation, body.slice) : nullptr;
  if (slice == nullptr || arrival_.bytes == 0 || slice->bytes != arrival_.bytes) {
    return MalformedFrame(site_, "read data that was not requested");
  }
  if (!slice->operation) {  // abandoned
    (void)reads_->TakeOldest();
    return Discard();
  }
  const Plan& plan = *slice->operation->plan;
  LocalPieces(plan, slice->slice, &pieces_);
  Stager* const stager = PartOf(plan, slice->slice).stager;
  arrival_.on_gpu = stager != nullptr && NeedsNoSlot(*stager, arrival_.checked);
  if (stager != nullptr && !arrival_.on_gpu &&
      !inbox_->PlaceInSlot(stager, arrival_.bytes, &pieces_)) {
    return Pause(Wait::kSlot);
  }
  return PlacePieces(What::kRead, /*revocable=*/false);
}

Result<Placement> FrameReceiver::OnSend(wire::MetaReader* reader) {
  wire::TagBody body;
  if (site_.index != 0 || !reader->Read(&body) || body.bytes != arrival_.bytes ||
      arrival_.bytes > kMaxEagerBytes) {
    return MalformedFrame(site_, "send");
  }
  arrival_.tag = body.tag;
  auto receive = site_.context.messages->TakeReceive(body.tag, arrival_.bytes);
  if (!receive) return Refuse(receive.error());
  arrival_.receive = *std::move(receive);
  const bool staged = arrival_.receive && arrival_.receive->stager && arrival_.bytes > 0;
  if (staged) site_.context.messages->PutBackReceive(std::exchange(arrival_.receive, nullptr));
  if (staged || (!arrival_.receive && !site_.context.messages->MayKeep(arrival_.bytes))) {
    // This is not a refusal: the sender keeps the message until our CTS requests it.
    frames_->SendNack(Sequence(), arrival_.operation,
                      Error(Code::kUnavailable, "kept at the sender until it is requested"));
    const Placement dropped = Discard();
    site_.context.messages->TakeRts(arrival_.operation, body);
    return dropped;
  }
  data_.resize(arrival_.receive ? 0 : arrival_.bytes);
  return Place(What::kMessage, arrival_.receive ? arrival_.receive->buffer.first(arrival_.bytes)
                                                : std::span(data_));
}

Result<Placement> FrameReceiver::OnNotify() {
  if (site_.index != 0 || arrival_.bytes > kMaxNotificationBytes) {
    return MalformedFrame(site_, "notification");
  }
  if (!site_.context.messages->notifications().HasRoom(arrival_.bytes)) {
    return Refuse(
        Error(Code::kUnavailable,
              "its notification queue is full; it must take notifications before more can arrive"));
  }
  data_.resize(arrival_.bytes);
  return Place(What::kNotification, data_);
}

// ---- the payload --------------------------------------------------------------------------------

std::optional<ReadEnd> FrameReceiver::OnPayload() {
  if (state_ == State::kIdle) return std::nullopt;
  site_.counts->bytes_received.Add(arrival_.bytes);
  frames_->TracePayload("receives", arrival_.bytes, arrival_.since);
  std::optional<ReadEnd> end;
  if (state_ == State::kDiscarding) {
    MoveTo(State::kIdle);
    Finish(arrival_.bytes);
  } else {
    site_.counts->payload_bytes_received.Add(arrival_.bytes);
    end = FinishPlaced();
  }
  CountScratch();
  return end;
}

std::optional<ReadEnd> FrameReceiver::FinishPlaced() {
  const Status intact = CheckPayload();
  MoveTo(State::kIdle);
  std::optional<ReadEnd> end;
  std::uint32_t slice = 0;
  if (arrival_.what == What::kRead) {
    ReadSlice read = reads_->TakeOldest();
    slice = read.slice;
    end = ReadEnd{std::move(read.operation), read.bytes, std::nullopt};
    if (!intact) end->error = intact.error();
  } else if (!intact) {
    // The sender gets the error before the frame counts as processed. A read is our own operation.
    frames_->Refuse(Sequence(), arrival_.operation, intact.error());
  }
  if (intact && inbox_->placed()) {
    Landing landing{.bytes = arrival_.bytes,
                    .operation = arrival_.operation,
                    .checked = arrival_.checked,
                    .crc = arrival_.crc,
                    .address = inbox_->address()};
    if (end) {
      landing.read = std::move(end->operation);
      landing.slice = slice;
    }
    inbox_->Land(std::move(landing), std::move(arrival_.region));
  } else {
    inbox_->Drop();
    arrival_.region.Release();
    Finish(arrival_.bytes);
  }
  Deliver(intact);
  return end;
}

void FrameReceiver::Deliver(const Status& intact) {
  if (arrival_.what == What::kMessage) {
    site_.context.messages->OnWholeMessage(std::exchange(arrival_.receive, nullptr),
                                           {arrival_.tag, arrival_.bytes, arrival_.operation,
                                            /*announced=*/false, std::move(data_)},
                                           intact);
  } else if (arrival_.what == What::kNotification && intact) {
    site_.context.messages->OnNotification(std::move(data_));
  }
}

void FrameReceiver::Finish(std::uint64_t payload_bytes) {
  inbox_->empty() ? frames_->CountFinished(payload_bytes) : inbox_->AddPlain(payload_bytes);
}

// Sequence number of the frame being received.
std::uint32_t FrameReceiver::Sequence() const {
  return frames_->acks().finished() + static_cast<std::uint32_t>(inbox_->size());
}

// ---- refusing and dropping ----------------------------------------------------------------------

// Refuses a sequenced frame and drops its payload; the connection stays up.
Result<Placement> FrameReceiver::Refuse(const Error& error) {
  if (error.code() == Code::kCorrupt) return MalformedFrame(site_, error.message().c_str());
  frames_->Refuse(Sequence(), arrival_.operation, error);
  return Discard();
}

Placement FrameReceiver::Discard() {
  MoveTo(arrival_.bytes > 0 ? State::kDiscarding : State::kIdle);
  if (arrival_.bytes == 0) Finish(0);
  return {Placement::Action::kDiscard, {}};
}

// Reads the rest of the payload and discards it. The frame counts as processed only afterwards: the
// peer may have sent its pages zero-copy, and they must not change while they are still queued.
void FrameReceiver::DropRest() {
  lane_->DiscardRest();
  inbox_->Drop();
  MoveTo(State::kDiscarding);
}

bool FrameReceiver::IsArriving(What what) const {
  return (state_ == State::kPlacing || state_ == State::kStaging) && arrival_.what == what;
}

void FrameReceiver::Revoke(const RegionState* region) {
  if (!IsArriving(What::kWrite) || arrival_.region.get() != region) return;
  DropRest();
  arrival_.region.Release();
  (void)Refuse(Error(Code::kRefused,
                     fmt::format("region {} was deregistered during the write", region->id)));
}

void FrameReceiver::DropMessage(const OperationState* receive) {
  if (!IsArriving(What::kMessage) || arrival_.receive.get() != receive) return;
  DropRest();
  arrival_.receive.reset();
  (void)Refuse(Error(Code::kCancelled, "the receive was cancelled"));
}

bool FrameReceiver::DropRead(const OperationState* operation) {
  if (!IsArriving(What::kRead) || reads_->oldest()->operation.get() != operation) return false;
  DropRest();
  return true;
}

// ---- buffers ------------------------------------------------------------------------------------

void FrameReceiver::CountScratch() {
  if (state_ != State::kPlacing && state_ != State::kStaging) {
    FreeIfOver(kSmallList, &pieces_);
    inbox_->FreeScratch(kSmallList);
  }
  frames_->memory().SetScratch(pieces_.capacity() * sizeof(iovec) + inbox_->scratch_bytes() +
                               data_.capacity() + frames_->acks().refusals().bytes());
  frames_->memory().SetBuffers((lane_ != nullptr ? lane_->BufferBytes() : 0) +
                               frames_->pool().spare_bytes());
}

void FrameReceiver::Free() {
  FreeIfOver(0, &pieces_);
  FreeIfOver(0, &data_);
  inbox_->FreeScratch(0);
}

// ---- checksums ----------------------------------------------------------------------------------

Status CheckMetadata(const LaneSite& site, std::span<const std::byte> meta,
                     const wire::MessageHeader& header) {
  if ((header.flags & wire::kChecked) == 0) {
    return site.context.checksums
               ? Status(MalformedFrame(site, "no checksum, although checksums were agreed"))
               : Ok();
  }
  const std::uint32_t found = MetadataCrc(meta, header);
  if (found == header.meta_crc) return Ok();
  site.context.owner->CountMismatch();
  return Error(
      Code::kCorrupt,
      fmt::format("the metadata of a frame of {} bytes from {} has CRC32C {:08x}, but "
                  "{:08x} was sent with it over lane {}; the network corrupts data, so "
                  "the connection was closed: check cables and network cards",
                  meta.size(), site.context.peer_name, found, header.meta_crc, site.index));
}

// Checks the CRC of the payload that was just put in place. One in a slot is checked when the GPU
// has summed it (CheckLanding).
Status FrameReceiver::CheckPayload() const {
  if (!arrival_.checked || arrival_.bytes == 0 || inbox_->sums()) return Ok();
  const std::uint32_t found = Crc32cOf(pieces_);
  if (found == arrival_.crc) return Ok();
  return Corrupt({.bytes = arrival_.bytes,
                  .found = found,
                  .sent = arrival_.crc,
                  .read = arrival_.what == What::kRead},
                 PlaceName());
}

Status FrameReceiver::CheckLanding(const Landing& landing) const {
  if (!landing.copy || !landing.copy->summed || landing.copy->crc == landing.crc) return Ok();
  const bool read = landing.read != nullptr;
  return Corrupt(
      {.bytes = landing.bytes, .found = landing.copy->crc, .sent = landing.crc, .read = read},
      read ? ReadPlace(landing.slice, landing.operation)
           : WritePlace(*landing.copy->pin.get(), landing.address));
}

// The sender computes the checksum before the bytes leave the source, and this side cannot know who
// writes to the source in between.
Error FrameReceiver::Corrupt(const Mismatch& mismatch, const std::string& place) const {
  site_.context.owner->CountMismatch();
  const char* const cause = mismatch.read
                                ? "the owner of the memory may have written to it while it was read"
                                : "the sender may have written to its memory while it was sent";
  return Error(
      Code::kCorrupt,
      fmt::format(
          "{} bytes at {} have CRC32C {:08x}, but {:08x} was sent with them over lane {}; {}, or "
          "the network corrupted them: do not use the destination, try again while nobody writes "
          "to the source, and if it fails again, check cables, network cards and memory",
          mismatch.bytes, place, mismatch.found, mismatch.sent, site_.index, cause));
}

// The destination of the payload being received, for messages.
std::string FrameReceiver::PlaceName() const {
  switch (arrival_.what) {
    case What::kWrite:
      return WritePlace(*arrival_.region.get(), inbox_->placed()
                                                    ? inbox_->address()
                                                    : cuda::AddressOf(pieces_.front().iov_base));
    case What::kRead: return ReadPlace(reads_->oldest()->slice, reads_->oldest()->operation_id);
    case What::kMessage: return fmt::format("the message with tag {}", arrival_.tag);
    case What::kNotification: break;
  }
  return "a notification";
}

// ---- copies between GPUs ------------------------------------------------------------------------
//
// The frame describes the copy, and the owner of the region performs it. The frame counts as
// processed once the bytes are in place, in either direction, so acknowledgements, refusals,
// cancelling and lost lanes work as for writes.

namespace {

// Checks the blocks (CopyOnWire[]) against both memories, and adds up their lengths. Errors:
// kRefused for a block outside, kCorrupt for more bytes than one frame may request.
Result<std::vector<Block>> PlaceCopies(const RegionState& region, const PeerMemory& peer, bool into,
                                       std::span<const std::byte> blocks, std::uint64_t* bytes) {
  std::vector<Block> placed;
  placed.reserve(blocks.size() / sizeof(wire::CopyOnWire));
  wire::MetaReader reader(blocks);
  std::uint64_t left = wire::kMaxCopyBytes;
  const std::uint64_t size = region.memory.size();
  const std::uint64_t base = cuda::AddressOf(region.memory.data());
  for (wire::CopyOnWire block; reader.Read(&block);) {
    if (block.length > size || block.offset > size - block.length) {
      return BlockOutside(region, placed.size(), block.offset, block.length);
    }
    if (block.length > peer.bytes() || block.shared > peer.bytes() - block.length) {
      return Error(Code::kRefused,
                   fmt::format("block {} covers {} bytes from offset {} of the memory that was "
                               "shared for it, which has {} bytes",
                               placed.size(), block.length, block.shared, peer.bytes()));
    }
    if (block.length == 0 || block.length > left) {
      return Error(Code::kCorrupt, "a copy of no bytes, or of more than one frame may request");
    }
    left -= block.length;
    const std::uint64_t here = base + block.offset;
    const std::uint64_t there = peer.address() + block.shared;
    placed.push_back({into ? here : there, into ? there : here, block.length});
  }
  *bytes = wire::kMaxCopyBytes - left;
  return placed;
}

}  // namespace

Result<net::Placement> FrameReceiver::OnCopy(wire::MetaReader* reader) {
  wire::CopyBody body;
  if (!reader->Read(&body) || body.into > 1 || body.blocks == 0 ||
      reader->rest().size() != body.blocks * sizeof(wire::CopyOnWire)) {
    return MalformedFrame(site_, "copy");
  }
  if (!inbox_->MayCopy()) return Pause(Wait::kCopies);
  const bool into = body.into == 1;
  auto region = site_.context.regions->Open(body.key, into ? Rights::kWrite : Rights::kRead,
                                            site_.accessor());
  if (!region) return Refuse(region.error());
  Stager* const stager = region->get()->stager;
  auto peer = site_.context.sharing->Find(body.share);
  if (peer == nullptr || stager == nullptr || stager->ordinal() != peer->gpu()) {
    return Refuse(Error(Code::kRefused,
                        fmt::format("share {} is not mapped for the GPU of region {}; prepare "
                                    "the transfer anew",
                                    body.share, region->get()->id)));
  }
  const auto copy = std::make_shared<StagedCopy>();  // shared with the stager
  std::uint64_t bytes = 0;
  auto blocks = PlaceCopies(*region->get(), *peer, into, reader->rest(), &bytes);
  if (blocks && !peer->Keep(&copy->region_owner)) {
    blocks = Error(Code::kRefused, "the memory that was shared is deregistered");
  }
  if (!blocks) return Refuse(blocks.error());
  copy->pin = *std::move(region);
  copy->peer = std::move(peer);
  inbox_->AddCopy({.bytes = 0,
                   .operation = arrival_.operation,
                   .read = nullptr,
                   .copy = copy,
                   .copied = bytes,
                   .blocks = body.blocks});
  // If this process was stopped and resumes, it must not write into memory that the peer has given
  // up in the meantime.
  const auto begin_by = Clock::now() + site_.context.config->drain_grace;
  BeginMove(stager, copy, *std::move(blocks), begin_by, events_->WhenCopied());
  return net::Placement{};
}

}  // namespace ferry::transfer
