// Which control frames a lane has queued: limits them for a peer that does not read.
#pragma once
#include <cstddef>

#include "ferry/transfer/handshake/wire.h"

namespace ferry::transfer {

// Counts the frames without acknowledgement that are queued in a lane. A peer that does not read
// must not make them pile up, and a lane cannot pause for them: two sides would wait for each
// other. So at most one acknowledgement, ping and pong is queued at a time, and few refusals.
// Lives on the lane's loop.
class ControlFrames {
 public:
  // What must be sent after a frame has left: it was merged with that frame, or waited for it.
  enum class Next { kNothing, kAck, kPong, kRefusals };

  // Whether a frame of this type is to be sent. If not, one that is queued stands for it, or it is
  // repeated later.
  bool Add(wire::Type type);
  // A frame for which Add returned true has left.
  Next OnSent(wire::Type type);
  // Such a frame was dropped before it reached the lane.
  void Drop() { --queued_; }
  // Whether a refusal may be sent with its text.
  bool may_refuse() const noexcept;
  // The lane was replaced: nothing is queued in the new one.
  void Reset() { *this = ControlFrames(); }

 private:
  // Types of which at most one frame is queued at a time; null for all others.
  bool* QueuedFlag(wire::Type type);

  std::size_t queued_ = 0;
  std::size_t refusals_queued_ = 0;
  bool ack_queued_ = false;
  bool ack_due_ = false;  // send another one after the queued one
  bool ping_queued_ = false;
  bool pong_queued_ = false;
  bool pong_due_ = false;
};

}  // namespace ferry::transfer
