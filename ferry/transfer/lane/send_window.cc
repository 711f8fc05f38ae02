// Keeps frames until they are acknowledged, and requested reads until they are answered.
#include "ferry/transfer/lane/send_window.h"

#include <algorithm>
#include <utility>

namespace ferry::transfer {

// ---- SendWindow ---------------------------------------------------------------------------------

void SendWindow::Add(SentFrame frame) {
  bytes_ += frame.bytes;
  copying_bytes_ += frame.copied;
  replies_ += frame.reply ? 1 : 0;
  frames_.push_back(std::move(frame));
}

void SendWindow::AddSlice(SentFrame frame, Clock::time_point now) {
  frame.since = now;
  frame.ahead = bytes_ + frame.bytes;
  Add(std::move(frame));
}

SendWindow::Ack SendWindow::Acknowledge(std::uint32_t ack) {
  const std::uint32_t count = ack - first_;
  if (count > frames_.size()) return Ack::kInvalid;
  if (count <= acked_) return Ack::kStale;
  acked_ = count;
  return Ack::kProgress;
}

std::optional<SentFrame> SendWindow::TakeSettled() {
  if (settled() == nullptr) return std::nullopt;
  std::optional<SentFrame> frame(std::move(frames_.front()));
  frames_.pop_front();
  ++first_;
  --acked_;
  --sent_;
  bytes_ -= frame->bytes;
  copying_bytes_ -= frame->copied;
  replies_ -= frame->reply ? 1 : 0;
  return frame;
}

SentFrame* SendWindow::Find(std::uint32_t sequence) {
  const std::uint32_t index = sequence - first_;
  return index < frames_.size() ? &frames_[index] : nullptr;
}

const SentFrame* SendWindow::OldestNamed() const {
  for (std::size_t i = acked_; i < sent_; ++i) {
    if (frames_[i].payload != 0) return &frames_[i];
  }
  return nullptr;
}

std::deque<SentFrame> SendWindow::TakeAll() {
  bytes_ = unsent_bytes_ = copying_bytes_ = 0;
  acked_ = sent_ = replies_ = 0;
  return std::exchange(frames_, {});
}

void SendWindow::ReleasePins() {
  for (SentFrame& frame : frames_) frame.pin.Release();
}

bool SendWindow::HoldsOperation(const OperationState* operation) const {
  return std::any_of(frames_.begin(), frames_.end(),
                     [&](const SentFrame& frame) { return frame.operation.get() == operation; });
}

bool SendWindow::HoldsRegion(const RegionState* region) const {
  return std::any_of(frames_.begin(), frames_.end(),
                     [&](const SentFrame& frame) { return frame.pin.get() == region; });
}

bool SendWindow::HoldsWork() const {
  return std::any_of(frames_.begin(), frames_.end(), [](const SentFrame& frame) {
    return frame.operation != nullptr || frame.frame != nullptr;
  });
}

bool SendWindow::OwesData() const {
  return std::any_of(frames_.begin(), frames_.end(), [](const SentFrame& frame) {
    return frame.operation != nullptr || frame.reply;
  });
}

// ---- ReadRequests -------------------------------------------------------------------------------

void ReadRequests::Add(ReadSlice slice) {
  bytes_ += slice.bytes;
  cost_ += slice.cost;
  slices_.push_back(std::move(slice));
}

const ReadSlice* ReadRequests::Find(std::uint64_t operation_id, std::uint32_t slice) const {
  const ReadSlice* const first = oldest();
  const bool is_it =
      first != nullptr && first->operation_id == operation_id && first->slice == slice;
  return is_it ? first : nullptr;
}

ReadSlice ReadRequests::TakeOldest() {
  ReadSlice slice = std::move(slices_.front());
  slices_.pop_front();
  bytes_ -= slice.bytes;
  cost_ -= slice.cost;
  return slice;
}

std::deque<ReadSlice> ReadRequests::TakeAll() {
  bytes_ = cost_ = 0;
  return std::exchange(slices_, {});
}

std::size_t ReadRequests::Abandon(const OperationState* operation) {
  std::size_t count = 0;
  for (ReadSlice& slice : slices_) {
    if (slice.operation.get() != operation) continue;
    slice.operation.reset();
    ++count;
  }
  return count;
}

bool ReadRequests::HoldsWork() const {
  return std::any_of(slices_.begin(), slices_.end(),
                     [](const ReadSlice& slice) { return slice.operation != nullptr; });
}

}  // namespace ferry::transfer
