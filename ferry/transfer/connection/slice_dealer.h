// Chooses the lanes that carry an operation's slices.
#pragma once
#include <cstddef>
#include <cstdint>

#include "ferry/transfer/connection/lane_group.h"

namespace ferry::transfer {

class LaneLives;

// A write or read of host memory up to kMaxSmallBytes uses the first lane, with the messages,
// unless kMaxSmallDepth of them are already in flight: those of a deep queue count as bulk.
inline constexpr std::uint64_t kMaxSmallBytes = 64 * 1024;
inline constexpr std::uint64_t kMaxSmallDepth = 4;
// Once that limit is reached, this many of the next small operations count as bulk, too.
inline constexpr std::uint64_t kSmallAsBulk = 64;

// Chooses the lanes that carry an operation's slices. Home loop only.
class SliceDealer {
 public:
  // `lives`: of the connection's lanes; must outlive this object.
  explicit SliceDealer(const LaneLives* lives);

  // The lanes for an operation that begins its slices. Counts it as in flight until End().
  LaneSet Begin(OperationState* operation);
  // The lanes for an operation with this many slices: as many as it has slices; those that are up,
  // or all if none is.
  LaneSet LanesFor(std::size_t slices) const;
  // Whether the first lane, too, carries slices of the operation that were returned.
  bool FirstCarries(const OperationState& operation) const;
  void End(OperationState* operation);

 private:
  // Excludes operations that need staging slots or GPU copies: a lane waits for those.
  bool IsSmall(const Plan& plan) const;
  bool GoesWithMessages();
  bool BulkIsDown() const;

  const LaneLives* const lives_;
  const std::size_t first_bulk_;
  std::uint64_t small_in_flight_ = 0;  // operations marked `small`
  std::uint64_t small_as_bulk_ = 0;    // number of next small operations that count as bulk
};

}  // namespace ferry::transfer
