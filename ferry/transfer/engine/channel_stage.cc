// Staging: copies a lane's payloads between GPU memory and pinned slots.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "ferry/core/check.h"
#include "ferry/core/log.h"
#include "ferry/cuda/address.h"
#include "ferry/transfer/engine/lane_engine.h"
#include "ferry/transfer/engine/lane_limits.h"

// How a lane sends and receives GPU memory. Data to send is gathered into slots of pinned memory a
// few slices ahead of the socket; received data goes into a slot first, and counts as processed
// once it is in place. A lane holds a slot only while it can use the slot at once or has it in a
// socket, because all connections share the slots.
//
// A lane that freezes or closes waits for its copies in flight, which takes as long as the copies
// queued on the GPU, well under a millisecond.
namespace ferry::transfer {
namespace {

// Slots for sending that a lane may always hold, and those that it may hold while more than half of
// all slots are free. Measured between two H200 over 16 lanes of loopback: 8 per lane carried 41
// GB/s, 12 carried 43 and 16 carried 45 (docs/results.md).
constexpr std::size_t kOwnSlots = 4;
constexpr std::size_t kMaxSlots = 16;
// Slots that a lane may hold at first; the limit grows by one with each slice handed to the socket.
// GPUs copy in the order in which lanes ask, and without this the last lane would wait until all
// others have their maximum. It makes reads of 64 MiB 4 % faster and of 256 MiB 2 %; writes are not
// slower.
constexpr std::size_t kFirstSlots = 2;
// After staging nothing for this long a lane starts with kFirstSlots again.
constexpr auto kStandstill = microseconds(50);

// The operation id in a frame's header.
std::uint64_t OperationIn(const net::OutFrame& frame) {
  wire::MessageHeader header;
  FERRY_CHECK(wire::MetaReader(frame.meta).Read(&header), frame.meta.size());
  return header.operation;
}

bool IsOver(const StagedCopy& copy) { return copy.over.load(std::memory_order_acquire); }

Error CopyStuck() {
  return Error(Code::kDeviceLost, fmt::format("a GPU did not finish a copy within {} s; check for "
                                              "driver errors (dmesg, Xid), and restart the process",
                                              kCopyTimeout.count()));
}

}  // namespace

UniqueFunction<void()> LaneEngine::TellOfCopies() {
  return [self = owner_->KeepAlive(), this] {
    if (copies_posted_.exchange(true)) return;
    loop_->Post([self, this] { OnCopiesOver(); });
  };
}

void LaneEngine::OnCopiesOver() {
  (void)copies_posted_.exchange(false);  // before the check
  if (closed_) return;
  SettleLandings();
  if (up_ && std::exchange(waits_for_copies_, false)) lane_->Resume();
  SendStaged();
  PumpOnLoop();
}

void LaneEngine::AwaitCopies() {
  const Deadline deadline = Deadline::After(kCopyTimeout);
  bool all = true;
  for (const Staged& staged : outbox_)
    all &= !staged.copy || AwaitStagedCopy(*staged.copy, deadline);
  for (const Landing& landing : landings_) {
    all &= !landing.copy || AwaitStagedCopy(*landing.copy, deadline);
  }
  if (!all) Log(LogLevel::kError, "transfer", "{}", CopyStuck().message());
  SettleLandings();
  while (!landings_.empty()) {  // the GPU is stuck
    const Landing landing = std::move(landings_.front());
    landings_.pop_front();
    copied_here_bytes_ -= landing.copied;
    copied_here_blocks_ -= landing.blocks;
    if (landing.read) Resolve(landing.read, CopyStuck());
    if (!landing.read && landing.copy) SendNackOf(finished_, landing.operation, CopyStuck());
    CountFinished(landing.bytes);
  }
}

// ---- from GPU memory ----------------------------------------------------------------------------

// Whether a slice that is pulled now would be sent soon.
bool LaneEngine::MayStage() const {
  const bool waits = !outbox_.empty() && outbox_.back().stager && !outbox_.back().copy;
  return slots_out_ < slots_allowed_ && !waits;
}

// The frame's payload lists GPU addresses until Stage() turns them into blocks.
void LaneEngine::StageWrite(const OperationRef& operation, std::uint32_t slice) {
  const Plan& plan = *operation->plan;
  Frame* const frame = NewFrame(wire::Type::kWrite, operation->id);
  AppendSlice(plan, slice, &frame->meta, &frame->payload);
  frame->payload_bytes = plan.slices[slice].range.bytes;
  frame->sequenced = true;
  frame->checked |= operation->checksum;
  Staged staged;
  staged.frame = frame;
  staged.record.operation = operation;
  staged.record.bytes = frame->payload_bytes;
  staged.record.slice = slice;
  staged.stager = PartOf(plan, slice).stager;
  Stage(std::move(staged));
}

// Stages the answer to a read of the memory in pieces_.
void LaneEngine::StageAnswer(Frame* frame, RegionPin pin, std::uint32_t slice) {
  Staged staged;
  staged.frame = frame;
  staged.record.reply = true;
  staged.record.slice = slice;
  staged.stager = pin.get()->stager;
  frame->payload = pieces_;
  if (staged.stager != nullptr) {
    staged.pin = std::move(pin);
  } else {
    staged.record.pin = std::move(pin);
  }
  Stage(std::move(staged));
}

// A plain frame: not acknowledged, because the peer requests a read again if its lane is lost.
LaneEngine::Frame* LaneEngine::NewRefusal(std::uint64_t operation_id, std::uint32_t slice,
                                          const Error& error) {
  wire::RefuseBody refusal;
  refusal.slice = slice;
  refusal.code = static_cast<std::uint8_t>(error.code());
  Frame* const frame = NewFrame(wire::Type::kReadRefused, operation_id);
  wire::Append(&frame->meta, refusal);
  wire::AppendText(&frame->meta, std::string_view(error.message()).substr(0, kMaxRefusalText));
  frame->plain = true;
  ++plain_;
  HoldAnswer(frame, AnswerCost(0), /*tried=*/false);
  return frame;
}

// Queued behind the outbox, because the peer expects answers to its reads in order.
void LaneEngine::RefuseRead(std::uint64_t operation_id, std::uint32_t slice, const Error& error) {
  owner_->CountRefusal(error);
  Frame* const refusal = NewRefusal(operation_id, slice, error);
  if (outbox_.empty()) return SendFrame(refusal);
  Staged staged;
  staged.frame = refusal;
  Stage(std::move(staged));
}

// The pin moves from the entry to its copy when the copy begins; answers from host memory keep it
// in the record.
const RegionPin& LaneEngine::PinOf(const Staged& staged) {
  if (staged.copy) return staged.copy->pin;
  return staged.stager != nullptr ? staged.pin : staged.record.pin;
}

// Refuses answers from the region that wait for slots: that can take as long as other peers hold
// the slots.
void LaneEngine::RefuseWaiting(const RegionState* region) {
  for (Staged& staged : outbox_) {
    if (staged.copy || PinOf(staged).get() != region) continue;
    const std::uint64_t operation = OperationIn(*staged.frame);
    Recycle(staged.frame);
    const Error error(Code::kRefused,
                      fmt::format("region {} was deregistered before it was read", region->id));
    Staged refusal;
    owner_->CountRefusal(error);
    refusal.frame = NewRefusal(operation, staged.record.slice, error);
    staged = std::move(refusal);
  }
  SendStaged();
}

void LaneEngine::DropStopped() {
  std::vector<OperationRef> stopped;  // one entry per slice
  const auto goes = [&](Staged& staged) {
    const auto& operation = staged.record.operation;
    if (staged.copy || !operation || !operation->ledger.error()) return false;
    outbox_bytes_ -= staged.record.bytes;
    Recycle(staged.frame);
    stopped.push_back(std::move(staged.record.operation));
    return true;
  };
  outbox_.erase(std::remove_if(outbox_.begin(), outbox_.end(), goes), outbox_.end());
  for (const auto& operation : stopped) Resolve(operation);
  SendStaged();
  PumpOnLoop();
}

// On entry the frame's payload is the GPU memory to copy from.
void LaneEngine::Stage(Staged staged) {
  if (staged.stager != nullptr) {
    staged.blocks.reserve(staged.frame->payload.size());
    for (const iovec& piece : staged.frame->payload) {
      staged.blocks.push_back(
          {.dst = 0, .src = cuda::AddressOf(piece.iov_base), .len = piece.iov_len});
    }
    staged.frame->payload = {};
    const auto now = Clock::now();
    if (slots_out_ == 0 && now - last_staged_ >= kStandstill) slots_allowed_ = kFirstSlots;
    last_staged_ = now;
  }
  outbox_bytes_ += staged.record.bytes;
  outbox_.push_back(std::move(staged));
  FillOutbox();
}

// Begins copies in order while there are slots.
void LaneEngine::FillOutbox() {
  if (!up_ || closing_) return;
  for (Staged& staged : outbox_) {
    if (staged.stager == nullptr || staged.copy) continue;
    if (staged.asked || !TakeSlotFor(&staged)) return;
  }
}

// Returns false if there is no slot yet. Up to kOwnSlots are queued for; further ones are only
// taken if spare, so that lanes that have none come first.
bool LaneEngine::TakeSlotFor(Staged* staged) {
  Stager* const stager = staged->stager;
  std::optional<StageSlot> slot;
  if (slots_out_ >= slots_allowed_) return false;
  if (slots_out_ < kOwnSlots) {
    slot = stager->Take(StageWay::kToNetwork,
                        [self = owner_->KeepAlive(), this, stager](StageSlot given) {
                          loop_->Post([self, this, stager, given = std::move(given)]() mutable {
                            OnSlotToSend(stager, std::move(given));
                          });
                        });
    staged->asked = !slot;
  } else if (slots_out_ < kMaxSlots) {
    slot = stager->TakeSpare(StageWay::kToNetwork);
  }
  if (!slot) return false;  // retried when one of its slots is sent
  BeginGatherFor(staged, *std::move(slot));
  return true;
}

// A slot was granted after a wait. `this` is valid: the callback keeps the connection alive.
void LaneEngine::OnSlotToSend(Stager* stager, StageSlot slot) {
  const auto it = std::find_if(outbox_.begin(), outbox_.end(), [&](const Staged& staged) {
    return staged.asked && staged.stager == stager;
  });
  if (it == outbox_.end()) return;  // frozen meanwhile: leave the slot to others
  it->asked = false;
  BeginGatherFor(&*it, std::move(slot));
  FillOutbox();
}

void LaneEngine::BeginGatherFor(Staged* staged, StageSlot slot) {
  Frame* const frame = staged->frame;
  // A peer may request zero bytes.
  if (frame->payload_bytes > 0) {
    frame->payload.assign(1, {slot.memory().data(), frame->payload_bytes});
  }
  staged->copy = std::make_shared<StagedCopy>();
  staged->copy->slot = std::move(slot);
  staged->copy->pin = std::move(staged->pin);
  ++slots_out_;
  BeginGather(staged->stager, staged->copy, staged->blocks, TellOfCopies());
}

// Sends finished entries from the front only: frames leave in the order of the outbox, even if a
// later copy ends first.
void LaneEngine::SendStaged() {
  while (up_ && !closed_ && !outbox_.empty()) {
    const Staged& front = outbox_.front();
    if (front.stager != nullptr && (!front.copy || !IsOver(*front.copy))) break;
    Staged staged = std::move(outbox_.front());
    outbox_.pop_front();
    SendOneStaged(std::move(staged));
  }
  FillOutbox();
}

// Sends an entry whose copy has ended. If the copy failed, or the operation was stopped meanwhile,
// the slice is resolved or the read is refused instead.
void LaneEngine::SendOneStaged(Staged staged) {
  Frame* const frame = staged.frame;
  if (frame->plain) return SendFrame(frame);
  outbox_bytes_ -= staged.record.bytes;
  const auto& operation = staged.record.operation;
  if (staged.copy) {
    frame->staged = staged.copy;
    const Status gathered = staged.copy->outcome;
    if (!gathered || (operation && operation->ledger.error())) {
      const std::uint64_t read = OperationIn(*frame);
      LetGoOfSlot(frame);
      Recycle(frame);
      if (!operation) return SendFrame(NewRefusal(read, staged.record.slice, gathered.error()));
      return Resolve(operation, gathered ? std::nullopt : std::optional(gathered.error()));
    }
    staged.copy->pin.Release();
  }
  slots_allowed_ = std::min(kMaxSlots, slots_allowed_ + 1);
  frame->may_splice = true;
  frame->unsent = staged.record.bytes;
  unsent_bytes_ += frame->unsent;
  if (staged.record.reply) {
    unacked_bytes_ += staged.record.bytes;
    AddReplyRecord(std::move(staged.record));
  } else {
    AddSlice(std::move(staged.record));
  }
  Checksum(frame);
  SendFrame(frame);
}

template <class Holder>
void LaneEngine::LetGoOfSlot(Holder* holder) {
  if (!holder->staged) return;
  std::exchange(holder->staged, nullptr)->Release();
  --slots_out_;
}
template void LaneEngine::LetGoOfSlot(LaneEngine::Frame* holder);
template void LaneEngine::LetGoOfSlot(LaneEngine::Unacked* holder);

// Requires that no copy is in flight. Puts slices of writes into `unsent`; the peer requests its
// reads again.
void LaneEngine::DropOutbox(std::vector<std::pair<OperationRef, std::uint32_t>>* unsent) {
  for (Staged& staged : std::exchange(outbox_, {})) {
    if (staged.copy) {
      if (IsOver(*staged.copy)) staged.copy->Release();
      --slots_out_;
    }
    if (staged.frame->plain) --plain_;
    Recycle(staged.frame);
    if (staged.record.operation) {
      unsent->emplace_back(std::move(staged.record.operation), staged.record.slice);
    }
  }
  outbox_bytes_ = 0;
}

// ---- into GPU memory ----------------------------------------------------------------------------

// Replaces the addresses in pieces_ by a slot, or pauses until a slot is free.
Result<net::Placement> LaneEngine::PlaceInSlot(Stager* stager, std::uint64_t payload_bytes) {
  if (given_by_ != stager) given_.Release();
  std::optional<StageSlot> slot;
  if (given_) {
    slot = std::move(given_);
  } else if (!asked_to_land_) {
    slot = stager->Take(StageWay::kFromNetwork,
                        [self = owner_->KeepAlive(), this, stager](StageSlot given) {
                          loop_->Post([self, this, stager, given = std::move(given)]() mutable {
                            OnSlotToLand(stager, std::move(given));
                          });
                        });
    asked_to_land_ = !slot;
  }
  if (!slot) return net::Placement{net::Placement::Action::kPause, {}};
  incoming_blocks_.clear();
  for (const iovec& piece : pieces_) {
    incoming_blocks_.push_back(
        {.dst = cuda::AddressOf(piece.iov_base), .src = 0, .len = piece.iov_len});
  }
  pieces_.assign(1, {slot->memory().data(), payload_bytes});
  incoming_copy_ = std::make_shared<StagedCopy>();
  incoming_copy_->slot = *std::move(slot);
  incoming_stager_ = stager;
  return net::Placement{net::Placement::Action::kPlace, pieces_};
}

void LaneEngine::OnSlotToLand(Stager* stager, StageSlot slot) {
  asked_to_land_ = false;
  if (closed_ || !up_) return;
  given_ = std::move(slot);
  given_by_ = stager;
  lane_->Resume();
}

// Starts the copy of a payload that was just received into a slot.
void LaneEngine::Land(OperationRef read) {
  const std::shared_ptr<StagedCopy> copy = std::exchange(incoming_copy_, nullptr);
  copy->pin = std::move(incoming_region_);
  landings_.push_back({incoming_bytes_, incoming_operation_, std::move(read), copy});
  BeginScatter(incoming_stager_, copy, incoming_blocks_, TellOfCopies());
}

// Whoever deregisters a region may free its memory, so wait for copies into it.
void LaneEngine::AwaitLandingsIn(const RegionState* region) {
  const Deadline deadline = Deadline::After(kCopyTimeout);
  bool any = false;
  for (const Landing& landing : landings_) {
    if (!landing.copy || landing.copy->pin.get() != region) continue;
    any = true;
    if (!AwaitStagedCopy(*landing.copy, deadline)) {
      Log(LogLevel::kError, "transfer", "{}", CopyStuck().message());
    }
  }
  if (any) SettleLandings();
}

void LaneEngine::SettleLandings() {
  while (!landings_.empty() && (!landings_.front().copy || IsOver(*landings_.front().copy))) {
    const Landing landing = std::move(landings_.front());
    const Status landed = landing.copy ? landing.copy->outcome : Ok();
    if (!landed && !landing.read) SendNackOf(finished_, landing.operation, landed.error());
    landings_.pop_front();
    copied_here_bytes_ -= landing.copied;
    copied_here_blocks_ -= landing.blocks;
    if (landing.copy) landing.copy->Release();
    CountFinished(landing.bytes);
    if (landing.read) {
      Resolve(landing.read, landed ? std::nullopt : std::optional(landed.error()));
    }
  }
}

}  // namespace ferry::transfer
