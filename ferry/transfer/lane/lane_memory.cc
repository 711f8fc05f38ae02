// Limits the memory that a lane holds for a peer that does not read or acknowledge.
#include "ferry/transfer/lane/lane_memory.h"

#include <algorithm>
#include <utility>

#include "ferry/core/units.h"
#include "ferry/transfer/handshake/wire.h"
#include "ferry/transfer/lane/lane_limits.h"

// Two honest sides must never both wait for the other to read. So a lane bounds its control frames
// without pausing (control_frames.h), and pauses for answers to reads only beyond the number of
// requests that a peer of this release makes.
namespace ferry::transfer {
namespace {

constexpr std::uint64_t kChargeStep = 4 * kKiB;

std::uint64_t InSteps(std::uint64_t bytes) {
  return (bytes + kChargeStep - 1) / kChargeStep * kChargeStep;
}

}  // namespace

void LaneMemory::Hold(std::uint64_t bytes) {
  held_ += bytes;
  if (held_ <= charged_) return;
  const std::uint64_t more = InSteps(held_ - charged_);
  memory_->Add(more);
  charged_ += more;
}

// Keeps one step in reserve, so that a lane at the edge of a step does not charge and return it for
// every frame.
void LaneMemory::Release(std::uint64_t bytes) {
  held_ -= bytes;
  const std::uint64_t spare = charged_ - held_;
  if (spare < 3 * kChargeStep) return;
  const std::uint64_t back = (spare / kChargeStep - 1) * kChargeStep;
  memory_->Remove(back);
  charged_ -= back;
}

// ---- answers to reads ---------------------------------------------------------------------------

// Upper bound of the cost of answers that a peer of this release can have requested and not
// acknowledged.
std::uint64_t LaneMemory::GuaranteedAnswers() const {
  return AskBudget(lanes_) + AnswerCost(wire::kMaxBlocksPerRead) +
         (kMaxReplies + 16) * kRecordBytes;
}

AnswerMemory LaneMemory::ReserveAnswer(std::uint64_t bytes, std::size_t answers) {
  if (answers >= 4 * kMaxReplies) return AnswerMemory::kNone;
  if (answer_bytes_ + bytes <= GuaranteedAnswers()) return AnswerMemory::kGuaranteed;
  // The rest of the guarantee is reserved for messages.
  const bool taken = !memory_->full() && memory_->TryAdd(bytes);
  return taken ? AnswerMemory::kOptional : AnswerMemory::kNone;
}

void LaneMemory::CancelAnswer(std::uint64_t bytes, AnswerMemory from) {
  if (from == AnswerMemory::kOptional) memory_->RemoveTried(bytes);
}

void LaneMemory::HoldAnswer(std::uint64_t bytes, AnswerMemory from) {
  answer_bytes_ += bytes;
  if (from != AnswerMemory::kOptional) Hold(bytes);
}

void LaneMemory::ReleaseAnswer(std::uint64_t bytes, AnswerMemory from) {
  answer_bytes_ -= bytes;
  from == AnswerMemory::kOptional ? memory_->RemoveTried(bytes) : Release(bytes);
}

void LaneMemory::HoldRecord() {
  answer_bytes_ += kRecordBytes;
  Hold(kRecordBytes);
}

void LaneMemory::ReleaseRecord() {
  answer_bytes_ -= kRecordBytes;
  Release(kRecordBytes);
}

// ---- the rest -----------------------------------------------------------------------------------

void LaneMemory::HoldKept(std::uint64_t bytes) {
  kept_bytes_ += bytes;
  Hold(bytes);
}

void LaneMemory::ReleaseKept(std::uint64_t bytes) {
  kept_bytes_ -= bytes;
  Release(bytes);
}

// A small part of the limit: what the peer requests beyond it need not be built before it reads.
bool LaneMemory::may_keep() const noexcept {
  return kept_bytes_ < std::min(HeldMemory::kGuaranteed, memory_->limit() / 32);
}

void LaneMemory::SetScratch(std::uint64_t bytes) {
  if (closed_) return;
  const std::uint64_t before = std::exchange(scratch_bytes_, bytes);
  if (bytes > before) Hold(bytes - before);
  if (bytes < before) Release(before - bytes);
}

void LaneMemory::SetBuffers(std::uint64_t bytes) {
  if (closed_) return;
  const std::uint64_t before = std::exchange(buffer_bytes_, InSteps(bytes));
  if (buffer_bytes_ > before) memory_->AddBuffers(buffer_bytes_ - before);
  if (buffer_bytes_ < before) memory_->RemoveBuffers(before - buffer_bytes_);
}

void LaneMemory::Close() {
  closed_ = true;
  memory_->Remove(std::exchange(charged_, 0));
  memory_->RemoveBuffers(std::exchange(buffer_bytes_, 0));
  held_ = answer_bytes_ = kept_bytes_ = scratch_bytes_ = 0;
}

}  // namespace ferry::transfer
