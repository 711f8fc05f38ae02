// Reports the ends of copies to a lane, and waits for them.
#include "ferry/transfer/lane/lane_staging.h"

#include <fmt/core.h>

#include "ferry/core/log.h"

namespace ferry::transfer {

UniqueFunction<void()> StagingEvents::WhenCopied() {
  return [self = owner_->KeepAlive(), this] {
    if (posted_.exchange(true)) return;
    loop_->Post([self, this] {
      (void)posted_.exchange(false);  // before the lane looks; sees the copies' ends
      host_->OnCopiesEnded();
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
