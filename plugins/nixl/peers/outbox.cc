// Posts the pieces of notifications within the window that the peer's answers open.
#include "plugins/nixl/peers/outbox.h"

#include <fmt/core.h>

#include <algorithm>
#include <string_view>

#include "plugins/nixl/log.h"
#include "plugins/nixl/peers/wire.h"

namespace ferry::nixl {
namespace {

constexpr std::size_t kMaxPosted = 64;
// Bytes on their way without an answer. Less where the peer has less room.
constexpr std::uint64_t kMaxWindow = 1 << 20;
// The peer is asked after so many bytes.
constexpr std::uint64_t kBytesPerQuestion = 64 << 10;
// What a peer keeps for a piece, beyond its bytes.
constexpr std::uint64_t kPieceCost = kPieceHeaderBytes + 96;
constexpr Clock::duration kMinPause = milliseconds(1);
constexpr Clock::duration kMaxPause = milliseconds(100);

// How an operation that is done has ended.
Status EndOf(transfer::Operation* operation) {
  return operation->Wait(Deadline::After(Clock::duration::zero()));
}

bool IsRefused(const Status& status) {
  return !status && status.error().code() == Code::kUnavailable;
}

}  // namespace

Status CheckNotificationLength(std::size_t bytes) {
  if (bytes <= kMaxMessageBytes) return Ok();
  return Error(Code::kInvalidArgument,
               fmt::format("a notification has {} bytes, the limit is {}; move the bytes by a "
                           "transfer, or send several notifications",
                           bytes, kMaxMessageBytes));
}

void Outbox::Add(std::string text, std::shared_ptr<Receipt> receipt) {
  const std::lock_guard lock(mutex_);
  texts_.push_back({std::move(text), std::move(receipt)});
}

void Outbox::Start(const transfer::Connection& connection) {
  const std::lock_guard lock(mutex_);
  if (!connection_ || connection_->lost()) {
    if (connection_) {
      posted_.clear();
      questions_.clear();
    }
    connection_ = connection;
    next_ = {.text = first_, .offset = 0, .sequence = 0};
    refused_.reset();
    unanswered_ = unasked_ = 0;
    window_ = kMaxWindow;
    pause_ = kMinPause;
    paused_until_ = {};
  }
  // Without ResolveLocked(): receipts are told on the courier's thread.
  if (const Status posted = PostLocked(); !posted) {
    FailLocked(posted.error());
    return courier_->Retry(shared_from_this());
  }
  WatchLocked();
}

void Outbox::Fail(const Error& error) {
  std::unique_lock lock(mutex_);
  FailLocked(error);
  Tell(std::move(lock));
}

void Outbox::Advance() {
  std::unique_lock lock(mutex_);
  watched_ = false;
  AdvanceLocked();
  Tell(std::move(lock));
}

void Outbox::Poll() {
  std::unique_lock lock(mutex_);
  if (!posted_.empty()) (void)posted_.front().operation.Poll();
  AdvanceLocked();
  Tell(std::move(lock));
}

// Lock order: a receipt's mutex, then this one.
void Outbox::Tell(std::unique_lock<std::mutex> lock) {
  Ended ended;
  ended.swap(ended_);
  lock.unlock();
  for (const auto& [receipt, how] : ended) receipt->OnNotified(how);
}

void Outbox::AdvanceLocked() {
  if (!connection_) return;
  Status going = ResolveLocked();
  if (going) going = PostLocked();
  if (!going) return FailLocked(going.error());
  WatchLocked();
}

Status Outbox::ResolveLocked() {
  while (!questions_.empty() && questions_.front().answer.Done()) {
    FERRY_TRY(EndOf(&questions_.front().answer));
    unanswered_ -= questions_.front().bytes;
    questions_.pop_front();
  }
  while (!posted_.empty() && posted_.front().operation.Done()) {
    Piece piece = std::move(posted_.front());
    posted_.pop_front();
    Status ended = EndOf(&piece.operation);
    if (!ended && !IsRefused(ended)) return ended;
    // The peer drops what follows a piece that it has refused.
    if (!ended && !refused_) refused_ = piece.place;
    if (refused_) continue;
    pause_ = kMinPause;
    if (!piece.last) continue;
    if (texts_.front().receipt) ended_.emplace_back(std::move(texts_.front().receipt), Ok());
    texts_.pop_front();
    ++first_;
  }
  if (refused_ && posted_.empty()) RewindLocked(*std::exchange(refused_, std::nullopt));
  return Ok();
}

void Outbox::RewindLocked(const Place& place) {
  next_ = place;
  while (!questions_.empty() && questions_.back().sequence >= place.sequence) {
    questions_.back().answer.Cancel();
    unanswered_ -= questions_.back().bytes;
    questions_.pop_back();
  }
  unasked_ = 0;
  window_ = std::max(window_ / 2, kBytesPerQuestion);
  paused_until_ = Clock::now() + pause_;
  pause_ = std::min(2 * pause_, kMaxPause);
}

Status Outbox::PostLocked() {
  if (refused_ || Clock::now() < paused_until_) return Ok();
  while (next_.text - first_ < texts_.size() && posted_.size() < kMaxPosted &&
         unanswered_ + unasked_ < window_) {
    const Status posted = PostPieceLocked();
    // As many operations as may be are in flight.
    if (IsRefused(posted)) {
      paused_until_ = Clock::now() + kMinPause;
      return Ok();
    }
    FERRY_TRY(posted);
  }
  return Ok();
}

Status Outbox::PostPieceLocked() {
  const std::string& text = texts_[next_.text - first_].bytes;
  const std::string_view piece = std::string_view(text).substr(next_.offset, kMaxPieceBytes);
  const bool last = next_.offset + piece.size() == text.size();
  const std::uint64_t bytes = unasked_ + piece.size() + kPieceCost;
  const bool asks = bytes >= kBytesPerQuestion;
  // Before the piece: an answer that came first would be kept as a message that nobody receives.
  std::optional<transfer::Operation> answer;
  if (asks) {
    FERRY_TRY_ASSIGN(answer, connection_->Recv(next_.sequence, ~std::uint64_t{0}, {}));
  }
  auto operation = connection_->Notify(PieceFrame({.sequence = next_.sequence,
                                                   .offset = next_.offset,
                                                   .total = text.size(),
                                                   .asks = asks ? std::uint64_t{1} : 0},
                                                  piece));
  if (!operation) {
    if (answer) answer->Cancel();
    return operation.error();
  }
  posted_.push_back({next_, last, *std::move(operation)});
  unasked_ = bytes;
  if (answer) {
    questions_.push_back({next_.sequence, bytes, *std::move(answer)});
    unanswered_ += bytes;
    unasked_ = 0;
  }
  ++next_.sequence;
  next_.offset = last ? 0 : next_.offset + piece.size();
  if (last) ++next_.text;
  return Ok();
}

// The middle of what is posted, so that more is posted before the last has ended.
void Outbox::WatchLocked() {
  if (watched_ || texts_.empty()) return;
  watched_ = true;
  if (!posted_.empty()) {
    courier_->Watch(shared_from_this(), posted_[posted_.size() / 2].operation);
  } else if (Clock::now() < paused_until_ || questions_.empty()) {
    courier_->Retry(shared_from_this(), paused_until_ - Clock::now());
  } else {
    courier_->Watch(shared_from_this(), questions_.front().answer);
  }
}

void Outbox::FailLocked(const Error& error) {
  std::size_t lost = 0;
  for (Text& text : texts_) {
    if (text.receipt) {
      ended_.emplace_back(std::move(text.receipt), error);
    } else {
      ++lost;
    }
  }
  texts_.clear();
  posted_.clear();
  questions_.clear();
  connection_.reset();
  if (lost == 0) return;
  Log(LogLevel::kError,
      fmt::format("{} notifications to agent '{}' were lost: {}", lost, peer_, error.ToString()),
      error.where());
}

}  // namespace ferry::nixl
