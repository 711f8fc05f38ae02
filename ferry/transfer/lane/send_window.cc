// Tracks frames from when they are sent until the peer has processed them.
#include "ferry/transfer/lane/send_window.h"

#include <algorithm>
#include <utility>

namespace ferry::transfer {

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

}  // namespace ferry::transfer
