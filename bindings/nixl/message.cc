// Posts the pieces of notifications.
#include "bindings/nixl/message.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "bindings/nixl/log.h"

namespace ferry::nixl {
namespace {

// In flight at once: far below what a peer keeps for us until its thread takes it.
constexpr std::size_t kMaxPosted = 8;
// Notifications to one peer that have begun and not ended, and their bytes.
constexpr std::size_t kMaxBegun = 64;
constexpr std::uint64_t kMaxBegunBytes = 1 << 20;

std::uint64_t NewId() noexcept {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

void LogLoss(const std::string& peer, const Error& error) {
  Log(LogLevel::kError,
      fmt::format("a notification to agent '{}' was lost: {}", peer, error.ToString()),
      error.where());
}

}  // namespace

Status Message::CheckLength(std::size_t bytes) {
  if (bytes <= kMaxMessageBytes) return Ok();
  return Error(Code::kInvalidArgument, fmt::format("a notification has {} bytes, the limit is {}",
                                                   bytes, kMaxMessageBytes));
}

Message::Message(std::string text) : text_(std::move(text)), id_(NewId()) {}

std::vector<std::byte> Message::WholeFrame(std::string_view text) {
  return PieceFrame({.message = NewId(), .offset = 0, .total = text.size()}, text);
}

Status Message::PostPiece(transfer::Connection* connection, std::uint64_t offset) {
  const std::string_view piece = std::string_view(text_).substr(offset, kMaxPieceBytes);
  const PieceHeader header{.message = id_, .offset = offset, .total = text_.size()};
  FERRY_TRY_ASSIGN(auto operation, connection->Notify(PieceFrame(header, piece)));
  posted_.push_back({offset, std::move(operation)});
  return Ok();
}

Status Message::ResolveEnded() {
  // Each is looked at once and the order of those in flight stays, so the first is the oldest.
  for (std::size_t left = posted_.size(); left > 0; --left) {
    Posted piece = std::move(posted_.front());
    posted_.pop_front();
    if (!piece.operation.Done()) {
      posted_.push_back(std::move(piece));
      continue;
    }
    const Status ended = piece.operation.Wait(Deadline::After(Clock::duration::zero()));
    if (ended) continue;
    if (ended.error().code() != Code::kUnavailable) return ended.error();
    refused_.push_back(piece.offset);  // its queue is full
  }
  return Ok();
}

Result<bool> Message::PostMore(transfer::Connection* connection) {
  const auto refused = [](const Status& posted) {
    return !posted && posted.error().code() == Code::kUnavailable;
  };
  if (!refused_.empty()) {
    if (!posted_.empty()) return true;
    // Nothing else tells when there is room again.
    const Status posted = PostPiece(connection, refused_.front());
    if (!posted && !refused(posted)) return posted.error();
    if (posted) refused_.pop_front();
    // New pieces wait for refused ones: as long as the peer has no room for those, it has none for
    // more.
    return true;
  }
  while (posted_.size() < kMaxPosted && (!begun_ || next_offset_ < text_.size())) {
    const Status posted = PostPiece(connection, next_offset_);
    if (refused(posted)) return true;
    if (!posted) return posted.error();
    begun_ = true;
    next_offset_ = std::min<std::uint64_t>(text_.size(), next_offset_ + kMaxPieceBytes);
  }
  return false;
}

std::optional<Status> Message::Advance(transfer::Connection* connection, Courier* courier,
                                       const std::shared_ptr<Job>& job) {
  if (Status ended = ResolveEnded(); !ended) return ended;
  const Result<bool> no_room = PostMore(connection);
  if (!no_room) return Status(no_room.error());
  if (posted_.empty() && refused_.empty() && begun_ && next_offset_ == text_.size()) return Ok();
  if (*no_room || posted_.empty()) {
    // No operation in flight would report that room is there, so time has to.
    courier->Retry(job);
  } else if (!posted_.front().watched) {
    posted_.front().watched = true;
    courier->Watch(job, posted_.front().operation);
  }
  return std::nullopt;
}

void Message::Poll() {
  if (!posted_.empty()) (void)posted_.front().operation.Poll();
}

void Outbox::Submit(std::shared_ptr<NotificationJob> job) {
  const std::lock_guard lock(mutex_);
  waiting_.push_back(std::move(job));
  BeginLocked();
}

void Outbox::Ended(const NotificationJob& job, const Status& how) {
  const std::lock_guard lock(mutex_);
  EndLocked(job, how);
  BeginLocked();
}

void Outbox::Drop(const Error& error) {
  const std::lock_guard lock(mutex_);
  DropLocked(error);
}

// Under mutex_, so that they are posted in their order. Lock order: this mutex, then a job's.
void Outbox::BeginLocked() {
  while (!waiting_.empty()) {
    const std::uint64_t bytes = waiting_.front()->size();
    // One may begin whatever its length.
    if (begun_ != 0 && (begun_ == kMaxBegun || begun_bytes_ + bytes > kMaxBegunBytes)) return;
    const std::shared_ptr<NotificationJob> job = std::move(waiting_.front());  // with its poster
    waiting_.pop_front();
    ++begun_;
    begun_bytes_ += bytes;
    if (const auto ended = job->Step()) EndLocked(*job, *ended);
  }
}

void Outbox::EndLocked(const NotificationJob& job, const Status& how) {
  --begun_;
  begun_bytes_ -= job.size();
  if (how) return;
  LogLoss(job.peer(), how.error());
  // The others have the same connection.
  if (how.error().code() == Code::kPeerLost || how.error().code() == Code::kCancelled) {
    DropLocked(how.error());
  }
}

void Outbox::DropLocked(const Error& error) {
  if (waiting_.empty()) return;
  Log(LogLevel::kError,
      fmt::format("{} more notifications to agent '{}' were lost: {}", waiting_.size(),
                  waiting_.front()->peer(), error.ToString()),
      error.where());
  waiting_.clear();
}

void NotificationJob::Start(const transfer::Connection& connection) {
  {
    const std::lock_guard lock(mutex_);
    connection_ = connection;
  }
  outbox_->Submit(std::static_pointer_cast<NotificationJob>(shared_from_this()));
}

void NotificationJob::Fail(const Error& error) { LogLoss(peer_, error); }

void NotificationJob::Advance() {
  if (const auto ended = Step()) outbox_->Ended(*this, *ended);
}

std::optional<Status> NotificationJob::Step() {
  const std::lock_guard lock(mutex_);
  if (over_) return std::nullopt;
  auto ended = message_.Advance(&*connection_, courier_, shared_from_this());
  if (!ended) return std::nullopt;
  over_ = true;
  connection_.reset();
  return ended;
}

}  // namespace ferry::nixl
