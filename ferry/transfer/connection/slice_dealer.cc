// Decides which lanes carry which operation.
#include "ferry/transfer/connection/slice_dealer.h"

#include <utility>

#include "ferry/transfer/lane/lane_lives.h"

namespace ferry::transfer {

SliceDealer::SliceDealer(const LaneLives* lives)
    : lives_(lives), first_bulk_(FirstBulkLaneOf(lives->size())) {}

bool SliceDealer::IsSmall(const Plan& plan) const {
  return first_bulk_ > 0 && plan.slice_count == 1 && plan.bytes <= kMaxSmallBytes && !plan.staged &&
         plan.shared_with == 0;
}

// A program that keeps many small operations in flight posts them in batches. If the first of each
// batch went over the first lane, every batch would wait for one more lane.
bool SliceDealer::GoesWithMessages() {
  if (small_in_flight_++ >= kMaxSmallDepth) small_as_bulk_ = kSmallAsBulk;
  if (small_as_bulk_ > 0) {
    --small_as_bulk_;
    return false;
  }
  return lives_->up(0);
}

// A small operation uses the first lane alone, which is on the home loop: no other thread is woken.
LaneSet SliceDealer::Begin(OperationState* operation) {
  operation->small = IsSmall(*operation->plan);
  if (operation->small && GoesWithMessages()) return LaneBit(0);
  return LanesFor(operation->plan->slice_count);
}

bool SliceDealer::BulkIsDown() const { return !lives_->AnyUp(first_bulk_); }

LaneSet SliceDealer::LanesFor(std::size_t slices) const {
  const bool none_is_up = BulkIsDown();
  LaneSet chosen = none_is_up && first_bulk_ > 0 ? LaneBit(0) : 0;
  for (std::size_t i = first_bulk_; i < lives_->size() && slices > 0; ++i) {
    if (!lives_->up(i) && !none_is_up) continue;
    chosen |= LaneBit(i);
    --slices;
  }
  return chosen;
}

bool SliceDealer::FirstCarries(const OperationState& operation) const {
  return operation.small || BulkIsDown();
}

void SliceDealer::End(OperationState* operation) {
  if (std::exchange(operation->small, false)) --small_in_flight_;
}

}  // namespace ferry::transfer
