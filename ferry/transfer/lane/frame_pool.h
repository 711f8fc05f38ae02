// The frames that a lane sends, reused from a pool.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/net/provider.h"
#include "ferry/transfer/gpu/staged_copy.h"
#include "ferry/transfer/handshake/wire.h"
#include "ferry/transfer/lane/lane_memory.h"

namespace ferry::transfer {

// A frame that a lane sends. Belongs to its FramePool; used by one sender at a time.
struct LaneFrame final : net::OutFrame {
  // How its memory is counted (lane_memory.h).
  enum class Cost : std::uint8_t { kNothing, kPlain, kKept, kAnswer };

  std::size_t place = 0;  // index in the pool
  bool used = false;      // not free
  wire::Type type{};
  Cost cost = Cost::kNothing;
  AnswerMemory answer_from = AnswerMemory::kNone;  // kAnswer only
  std::uint64_t held = 0;                          // bytes of `cost`
  std::uint64_t unsent = 0;                        // counted in SendWindow::unsent_bytes()
  bool plain = false;                              // counted in ControlFrames
  bool sequenced = false;                          // recorded in the SendWindow
  bool kept = false;                // kept until acknowledged, to be resent over another lane
  bool checked = false;             // carries checksums
  Clock::time_point handed_over{};  // to the lane; only if payloads are traced
  // The slot that holds the payload. Kept until the frame is sent, or until it is acknowledged if
  // the frame was sent zero-copy.
  StagedCopyRef staged;
};

// Creates and reuses frames. Lives on the lane's loop.
class FramePool {
 public:
  // `memory` must outlive this.
  explicit FramePool(LaneMemory* memory) : memory_(memory) {}

  // A frame whose metadata is the header of this type.
  LaneFrame* New(wire::Type type, std::uint64_t operation_id, bool checked);
  // Count the frame's memory until it is recycled. At most one of them, once.
  void HoldPlain(LaneFrame* frame, std::uint64_t bytes);
  void HoldKept(LaneFrame* frame, std::uint64_t bytes);
  void HoldAnswer(LaneFrame* frame, std::uint64_t bytes, AnswerMemory from);
  // Marks the frame as one that is kept until it is acknowledged.
  void Keep(LaneFrame* frame);
  std::size_t kept() const noexcept { return kept_; }
  // Returns the frame and everything that it holds. Idempotent.
  void Recycle(LaneFrame* frame);
  // Recycles the frames that are not kept: the lane that was to send them is lost.
  void RecycleUnkept();
  // Frees some of the unused frames. Call once per heartbeat interval.
  void Trim();
  // Deletes all frames and returns their optional memory; LaneMemory::Close() returns the rest.
  void Clear();

  const std::vector<std::unique_ptr<LaneFrame>>& all() const noexcept { return frames_; }
  std::size_t unused() const noexcept { return free_.size(); }
  // Largest size of the unused frames since the last Trim(), in bytes.
  std::size_t spare_bytes() const noexcept { return spare_bytes_; }

 private:
  LaneFrame* TakeFree();
  void ReturnMemory(LaneFrame* frame);
  void Delete(LaneFrame* frame);

  LaneMemory* const memory_;
  std::vector<std::unique_ptr<LaneFrame>> frames_;
  std::vector<LaneFrame*> free_;
  std::size_t free_bytes_ = 0;  // of free_
  std::size_t spare_bytes_ = 0;
  std::size_t kept_ = 0;
};

// The operation id in a frame's header.
std::uint64_t OperationIn(const net::OutFrame& frame);

// Frees the list's memory if its capacity is larger.
template <class T>
void FreeIfOver(std::size_t most, std::vector<T>* list) {
  if (list->capacity() > most) std::vector<T>().swap(*list);
}

}  // namespace ferry::transfer
