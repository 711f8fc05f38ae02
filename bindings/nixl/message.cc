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

std::uint64_t NewId() noexcept {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

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

void NotificationJob::Start(const transfer::Connection& connection) {
  const std::lock_guard lock(mutex_);
  connection_ = connection;
  AdvanceLocked();
}

void NotificationJob::Advance() {
  const std::lock_guard lock(mutex_);
  AdvanceLocked();
}

void NotificationJob::AdvanceLocked() {
  if (over_ || !connection_) return;
  const auto ended = message_.Advance(&*connection_, courier_, shared_from_this());
  if (!ended) return;
  over_ = true;
  connection_.reset();
  if (!*ended) Fail(ended->error());
}

void NotificationJob::Fail(const Error& error) {
  Log(LogLevel::kError,
      fmt::format("a notification to agent '{}' was lost: {}", peer_, error.ToString()),
      error.where());
}

}  // namespace ferry::nixl
