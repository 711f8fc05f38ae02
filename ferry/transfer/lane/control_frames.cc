// Merges acknowledgements, pings and pongs while one of them is queued.
#include "ferry/transfer/lane/control_frames.h"

#include <utility>

#include "ferry/transfer/lane/lane_limits.h"

namespace ferry::transfer {

bool* ControlFrames::QueuedFlag(wire::Type type) {
  switch (type) {
    case wire::Type::kAck: return &ack_queued_;
    case wire::Type::kPing: return &ping_queued_;
    case wire::Type::kPong: return &pong_queued_;
    default: return nullptr;
  }
}

bool ControlFrames::Add(wire::Type type) {
  if (bool* const queued = QueuedFlag(type); queued != nullptr && std::exchange(*queued, true)) {
    ack_due_ |= type == wire::Type::kAck;
    pong_due_ |= type == wire::Type::kPong;
    return false;
  }
  if (type == wire::Type::kLaneLost && queued_ >= kMaxPlain) return false;  // it is repeated
  if (type == wire::Type::kNack) ++refusals_queued_;
  ++queued_;
  return true;
}

ControlFrames::Next ControlFrames::OnSent(wire::Type type) {
  --queued_;
  if (bool* const queued = QueuedFlag(type)) *queued = false;
  switch (type) {
    case wire::Type::kAck: return std::exchange(ack_due_, false) ? Next::kAck : Next::kNothing;
    case wire::Type::kPong: return std::exchange(pong_due_, false) ? Next::kPong : Next::kNothing;
    case wire::Type::kNack: --refusals_queued_; return Next::kRefusals;
    default: return Next::kNothing;
  }
}

bool ControlFrames::may_refuse() const noexcept { return refusals_queued_ < kMaxNacks; }

}  // namespace ferry::transfer
