// Copies payloads from GPU memory into slots and keeps frames in order.
#include "ferry/transfer/lane/staging_outbox.h"

#include <algorithm>
#include <utility>

#include "ferry/cuda/address.h"
#include "ferry/transfer/lane/frame_pool.h"
#include "ferry/transfer/lane/lane_staging.h"

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

}  // namespace ferry::transfer
