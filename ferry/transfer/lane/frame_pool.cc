// Creates, recycles and frees the frames of a lane.
#include "ferry/transfer/lane/frame_pool.h"

#include <algorithm>
#include <utility>

#include "ferry/core/check.h"
#include "ferry/transfer/lane/lane_limits.h"

namespace ferry::transfer {
namespace {

// Free frames kept for reuse: the limit at any time, and the limit after a heartbeat has found them
// unused.
constexpr std::size_t kMaxFreeFrames = 256;
constexpr std::size_t kFreeFramesAtRest = 16;

std::size_t SizeOf(const LaneFrame& frame) {
  return sizeof frame + frame.meta.capacity() + frame.payload.capacity() * sizeof(iovec);
}

}  // namespace

LaneFrame* FramePool::New(wire::Type type, std::uint64_t operation_id, bool checked) {
  LaneFrame* const frame = TakeFree();
  frame->used = true;
  frame->type = type;
  frame->meta.clear();
  frame->payload.clear();
  frame->registered = {};
  frame->payload_bytes = 0;
  frame->may_splice = false;
  frame->over_network = false;
  frame->spliced_to = 0;
  frame->payload_number = 0;
  frame->unsent = 0;
  frame->plain = false;
  frame->sequenced = false;
  frame->kept = false;
  frame->checked = checked;
  wire::MessageHeader header;
  header.type = type;
  header.operation = operation_id;
  wire::Append(&frame->meta, header);
  return frame;
}

LaneFrame* FramePool::TakeFree() {
  if (free_.empty()) {
    frames_.push_back(std::make_unique<LaneFrame>());
    frames_.back()->place = frames_.size() - 1;
    return frames_.back().get();
  }
  LaneFrame* const frame = free_.back();
  free_.pop_back();
  free_bytes_ -= SizeOf(*frame);
  return frame;
}

void FramePool::HoldPlain(LaneFrame* frame, std::uint64_t bytes) {
  frame->cost = LaneFrame::Cost::kPlain;
  frame->held = bytes;
  memory_->Hold(bytes);
}

void FramePool::HoldKept(LaneFrame* frame, std::uint64_t bytes) {
  frame->cost = LaneFrame::Cost::kKept;
  frame->held = bytes;
  memory_->HoldKept(bytes);
}

void FramePool::HoldAnswer(LaneFrame* frame, std::uint64_t bytes, AnswerMemory from) {
  frame->cost = LaneFrame::Cost::kAnswer;
  frame->answer_from = from;
  frame->held = bytes;
  memory_->HoldAnswer(bytes, from);
}

void FramePool::Keep(LaneFrame* frame) {
  frame->kept = true;
  ++kept_;
}

void FramePool::ReturnMemory(LaneFrame* frame) {
  const std::uint64_t held = std::exchange(frame->held, 0);
  switch (std::exchange(frame->cost, LaneFrame::Cost::kNothing)) {
    case LaneFrame::Cost::kNothing: break;
    case LaneFrame::Cost::kPlain: return memory_->Release(held);
    case LaneFrame::Cost::kKept: return memory_->ReleaseKept(held);
    case LaneFrame::Cost::kAnswer: return memory_->ReleaseAnswer(held, frame->answer_from);
  }
}

// The frame's buffers are kept only up to a small size.
void FramePool::Recycle(LaneFrame* frame) {
  if (!std::exchange(frame->used, false)) return;
  if (std::exchange(frame->kept, false)) --kept_;
  ReturnMemory(frame);
  FreeIfOver(kSmallMeta, &frame->meta);
  FreeIfOver(kSmallList, &frame->payload);
  const std::size_t bytes = free_bytes_ + SizeOf(*frame);
  if (free_.size() >= kMaxFreeFrames || bytes > kMaxFreeBytes) return Delete(frame);
  free_bytes_ = bytes;
  spare_bytes_ = std::max(spare_bytes_, bytes);
  free_.push_back(frame);
}

void FramePool::RecycleUnkept() {
  std::vector<LaneFrame*> lost;
  for (const auto& frame : frames_) {
    if (frame->used && !frame->kept) lost.push_back(frame.get());
  }
  for (LaneFrame* const frame : lost) Recycle(frame);
}

// Constant time: the last frame takes the freed index.
void FramePool::Delete(LaneFrame* frame) {
  const std::size_t place = frame->place;
  frames_.back()->place = place;
  std::swap(frames_[place], frames_.back());
  frames_.pop_back();
}

// Halves the free frames at each call, so that memory of a burst is returned within a few
// heartbeats.
void FramePool::Trim() {
  const std::size_t rest = std::max(kFreeFramesAtRest, free_.size() / 2);
  while (free_.size() > rest) Delete(TakeFree());
  spare_bytes_ = free_bytes_;
  if (frames_.capacity() > 4 * std::max(frames_.size(), kFreeFramesAtRest)) frames_.shrink_to_fit();
  if (free_.capacity() > 4 * kFreeFramesAtRest) free_.shrink_to_fit();
}

void FramePool::Clear() {
  for (const auto& frame : frames_) {
    if (frame->cost == LaneFrame::Cost::kAnswer) {
      memory_->CancelAnswer(frame->held, frame->answer_from);
    }
  }
  std::vector<LaneFrame*>().swap(free_);
  std::vector<std::unique_ptr<LaneFrame>>().swap(frames_);
  kept_ = free_bytes_ = spare_bytes_ = 0;
}

std::uint64_t OperationIn(const net::OutFrame& frame) {
  wire::MessageHeader header;
  FERRY_CHECK(wire::MetaReader(frame.meta).Read(&header), frame.meta.size());
  return header.operation;
}

}  // namespace ferry::transfer
