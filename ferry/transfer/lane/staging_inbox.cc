// Receives payloads into slots and copies them into GPU memory.
#include "ferry/transfer/lane/staging_inbox.h"

#include <utility>

#include "ferry/core/log.h"
#include "ferry/cuda/address.h"
#include "ferry/transfer/handshake/wire.h"
#include "ferry/transfer/lane/frame_pool.h"
#include "ferry/transfer/lane/lane_staging.h"

namespace ferry::transfer {
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
  if (!events_->host()->ResumeForSlot()) spare_.Release();
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

}  // namespace ferry::transfer
