// Copies data out of and into GPU memory for a lane, reports the ends of copies, and waits for
// them.
#include "ferry/transfer/lane/lane_staging.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "ferry/core/log.h"
#include "ferry/cuda/address.h"
#include "ferry/transfer/handshake/wire.h"
#include "ferry/transfer/lane/frames/frame_sender.h"

namespace ferry::transfer {

// ---- StagingOutbox ------------------------------------------------------------------------------

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

}  // namespace

const RegionState* StagedFrame::region() const {
  if (copy) return copy->pin.get();
  return stager != nullptr ? pin.get() : record.pin.get();
}

bool StagingOutbox::MayStage() const {
  const bool waits = !frames_.empty() && frames_.back().stager && !frames_.back().copy;
  return slots_out_ < slots_allowed_ && !waits;
}

void StagingOutbox::Add(StagedFrame staged) {
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
  bytes_ += staged.record.bytes;
  frames_.push_back(std::move(staged));
  Fill();
}

void StagingOutbox::Fill() {
  if (stopped_) return;
  for (StagedFrame& staged : frames_) {
    if (staged.stager == nullptr || staged.copy) continue;
    if (staged.asked || !TakeSlotFor(&staged)) return;
  }
}

// Returns false if there is no slot yet. Up to kOwnSlots are queued for; further ones are only
// taken if spare, so that lanes that have none come first.
bool StagingOutbox::TakeSlotFor(StagedFrame* staged) {
  Stager* const stager = staged->stager;
  std::optional<StageSlot> slot;
  if (slots_out_ >= slots_allowed_) return false;
  if (slots_out_ < kOwnSlots) {
    slot = stager->Take(StageWay::kToNetwork, events_->PostSlot([this, stager](StageSlot given) {
      OnSlot(stager, std::move(given));
    }));
    staged->asked = !slot;
  } else if (slots_out_ < kMaxSlots) {
    slot = stager->TakeSpare(StageWay::kToNetwork);
  }
  if (!slot) return false;  // retried when one of its slots is sent
  BeginCopy(staged, *std::move(slot));
  return true;
}

// A slot was granted after a wait.
void StagingOutbox::OnSlot(Stager* stager, StageSlot slot) {
  const auto it = std::find_if(frames_.begin(), frames_.end(), [&](const StagedFrame& staged) {
    return staged.asked && staged.stager == stager;
  });
  if (it == frames_.end()) return;  // frozen meanwhile: leave the slot to others
  it->asked = false;
  BeginCopy(&*it, std::move(slot));
  Fill();
}

void StagingOutbox::BeginCopy(StagedFrame* staged, StageSlot slot) {
  LaneFrame* const frame = staged->frame;
  // Checked payloads go through pinned memory, as at the receiver, whose unpacker does not sum.
  const auto into =
      staged->stager->sends_from_gpu() && !frame->checked ? SlotMemory::kGpu : SlotMemory::kPinned;
  // A peer may request zero bytes.
  if (frame->payload_bytes > 0 && into == SlotMemory::kGpu) {
    frame->registered = slot.on_gpu(frame->payload_bytes);
  } else if (frame->payload_bytes > 0) {
    frame->payload.assign(1, {slot.memory().data(), frame->payload_bytes});
  }
  staged->copy = std::make_shared<StagedCopy>();
  staged->copy->slot = std::move(slot);
  staged->copy->pin = std::move(staged->pin);
  staged->copy->summed = frame->checked && staged->stager->sums();
  ++slots_out_;
  BeginGather(staged->stager, staged->copy, staged->blocks, events_->WhenCopied(), into);
}

std::optional<StagedFrame> StagingOutbox::TakeReady() {
  if (frames_.empty()) return std::nullopt;
  const StagedFrame& front = frames_.front();
  if (front.stager != nullptr && (!front.copy || !IsOver(*front.copy))) return std::nullopt;
  std::optional<StagedFrame> staged(std::move(frames_.front()));
  frames_.pop_front();
  bytes_ -= staged->record.bytes;
  return staged;
}

std::vector<StagedFrame> StagingOutbox::TakeStopped() {
  std::vector<StagedFrame> stopped;
  const auto goes = [&](StagedFrame& staged) {
    const auto& operation = staged.record.operation;
    if (staged.copy || !operation || !operation->ledger.error()) return false;
    bytes_ -= staged.record.bytes;
    stopped.push_back(std::move(staged));
    return true;
  };
  frames_.erase(std::remove_if(frames_.begin(), frames_.end(), goes), frames_.end());
  return stopped;
}

std::vector<StagedFrame*> StagingOutbox::WaitingFor(const RegionState* region) {
  std::vector<StagedFrame*> waiting;
  for (StagedFrame& staged : frames_) {
    if (!staged.copy && staged.region() == region) waiting.push_back(&staged);
  }
  return waiting;
}

std::deque<StagedFrame> StagingOutbox::TakeAll() {
  for (StagedFrame& staged : frames_) {
    if (!staged.copy) continue;
    if (IsOver(*staged.copy)) staged.copy->Release();
    --slots_out_;
  }
  bytes_ = 0;
  return std::exchange(frames_, {});
}

bool StagingOutbox::AwaitCopies(Deadline deadline) const {
  bool all = true;
  for (const StagedFrame& staged : frames_) {
    all &= !staged.copy || AwaitStagedCopy(*staged.copy, deadline);
  }
  return all;
}

void StagingOutbox::ReleaseSlot(StagedCopyRef* copy) {
  if (!*copy) return;
  std::exchange(*copy, nullptr)->Release();
  --slots_out_;
}

void StagingOutbox::AllowMore() { slots_allowed_ = std::min(kMaxSlots, slots_allowed_ + 1); }

bool StagingOutbox::HoldsRegion(const RegionState* region) const {
  return std::any_of(frames_.begin(), frames_.end(),
                     [&](const StagedFrame& staged) { return staged.region() == region; });
}

// ---- StagingInbox -------------------------------------------------------------------------------

namespace {

// Limits per lane, of copies in flight. A peer of this release has fewer bytes in flight: the limit
// only bounds what another peer can make us hold, and for how long it can occupy the GPU.
constexpr std::size_t kMaxLandings = 256;
constexpr std::size_t kMaxCopiedBlocks = 4 * wire::kMaxCopiesPerFrame;
constexpr std::uint64_t kMaxCopied = 4 * wire::kMaxCopyBytes;

}  // namespace

bool StagingInbox::PlaceInSlot(Stager* stager, std::uint64_t bytes, std::vector<iovec>* pieces) {
  if (spare_of_ != stager) spare_.Release();
  std::optional<StageSlot> slot;
  if (spare_) {
    slot = std::move(spare_);
  } else if (!asked_) {
    slot = stager->Take(StageWay::kFromNetwork, events_->PostSlot([this, stager](StageSlot given) {
      OnSlot(stager, std::move(given));
    }));
    asked_ = !slot;
  }
  if (!slot) return false;
  blocks_.clear();
  for (const iovec& piece : *pieces) {
    blocks_.push_back({.dst = cuda::AddressOf(piece.iov_base), .src = 0, .len = piece.iov_len});
  }
  pieces->assign(1, {slot->memory().data(), bytes});
  arriving_ = std::make_shared<StagedCopy>();
  arriving_->slot = *std::move(slot);
  arriving_from_ = stager;
  return true;
}

// A slot was granted after a wait. It goes to others if nothing waits for it any more.
void StagingInbox::OnSlot(Stager* stager, StageSlot slot) {
  asked_ = false;
  spare_ = std::move(slot);
  spare_of_ = stager;
  if (!events_->calls().resume_for_slot()) spare_.Release();
}

void StagingInbox::Land(Landing landing, RegionPin pin) {
  landing.copy = std::exchange(arriving_, nullptr);
  const StagedCopyRef copy = landing.copy;
  copy->pin = std::move(pin);
  copy->summed = landing.checked && arriving_from_->sums();
  landings_.push_back(std::move(landing));
  BeginScatter(arriving_from_, copy, blocks_, events_->WhenCopied());
}

bool StagingInbox::MayCopy() const {
  return landings_.size() < kMaxLandings && copied_bytes_ < kMaxCopied &&
         copied_blocks_ < kMaxCopiedBlocks;
}

void StagingInbox::AddCopy(Landing landing) {
  copied_bytes_ += landing.copied;
  copied_blocks_ += landing.blocks;
  landings_.push_back(std::move(landing));
}

void StagingInbox::AddPlain(std::uint64_t bytes) { landings_.push_back({.bytes = bytes}); }

std::optional<Landing> StagingInbox::TakeLanded() {
  const bool landed =
      !landings_.empty() && (!landings_.front().copy || IsOver(*landings_.front().copy));
  return landed ? TakeOldest() : std::nullopt;
}

std::optional<Landing> StagingInbox::TakeOldest() {
  if (landings_.empty()) return std::nullopt;
  std::optional<Landing> landing(std::move(landings_.front()));
  landings_.pop_front();
  copied_bytes_ -= landing->copied;
  copied_blocks_ -= landing->blocks;
  return landing;
}

bool StagingInbox::AwaitCopies(Deadline deadline) const {
  bool all = true;
  for (const Landing& landing : landings_) {
    all &= !landing.copy || AwaitStagedCopy(*landing.copy, deadline);
  }
  return all;
}

bool StagingInbox::AwaitCopiesInto(const RegionState* region) const {
  const Deadline deadline = Deadline::After(kCopyTimeout);
  bool any = false;
  for (const Landing& landing : landings_) {
    if (!landing.copy || landing.copy->pin.get() != region) continue;
    any = true;
    if (!AwaitStagedCopy(*landing.copy, deadline)) {
      Log(LogLevel::kError, "transfer", "{}", CopyStuck().message());
    }
  }
  return any;
}

void StagingInbox::FreeScratch(std::size_t most) { FreeIfOver(most, &blocks_); }

// ---- LaneStaging --------------------------------------------------------------------------------

UniqueFunction<void()> StagingEvents::WhenCopied() {
  return [self = owner_->KeepAlive(), this] {
    if (posted_.exchange(true)) return;
    loop_->Post([self, this] {
      (void)posted_.exchange(false);  // before the lane looks; sees the copies' ends
      calls_.copies_ended();
    });
  };
}

void LaneStaging::AwaitCopies() {
  const Deadline deadline = Deadline::After(kCopyTimeout);
  const bool sent = outbox_.AwaitCopies(deadline);
  const bool landed = inbox_.AwaitCopies(deadline);
  if (!sent || !landed) Log(LogLevel::kError, "transfer", "{}", CopyStuck().message());
}

bool IsOver(const StagedCopy& copy) { return copy.over.load(std::memory_order_acquire); }

Error TooLargeToStage(std::uint64_t bytes, const Stager& stager) {
  return Error(Code::kUnsupported,
               fmt::format("a slice of {} bytes exceeds the limit of {} bytes for GPU memory "
                           "there; use the region's key unchanged, which carries the limit",
                           bytes, stager.slot_bytes()));
}

Error CopyStuck() {
  return Error(Code::kDeviceLost, fmt::format("a GPU did not finish a copy within {} s; check for "
                                              "driver errors (dmesg, Xid), and restart the process",
                                              kCopyTimeout.count()));
}

}  // namespace ferry::transfer
