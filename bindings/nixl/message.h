// A notification of any length on its way to a peer.
#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "bindings/nixl/courier.h"
#include "bindings/nixl/job.h"
#include "bindings/nixl/wire.h"

namespace ferry::nixl {

// Cuts a text into pieces and posts them, a few at a time. Pieces for which the peer has no room
// are posted again. One thread at a time.
class Message {
 public:
  // kInvalidArgument for a text that no peer accepts.
  static Status CheckLength(std::size_t bytes);
  explicit Message(std::string text);

  // Resolves what has ended and posts what may be posted; `job` is advanced when this can go on.
  // The outcome once the peer has all pieces; nullopt before.
  std::optional<Status> Advance(transfer::Connection* connection, Courier* courier,
                                const std::shared_ptr<Job>& job);
  // Lets the connection make progress.
  void Poll();
  std::size_t size() const noexcept { return text_.size(); }

  // The frame of a text that fits into one.
  static std::vector<std::byte> WholeFrame(std::string_view text);

 private:
  struct Posted {
    std::uint64_t offset = 0;
    transfer::Operation operation;
    bool watched = false;
  };

  // nullopt: posted. An error that is not kUnavailable ends the message.
  Status PostPiece(transfer::Connection* connection, std::uint64_t offset);
  // Refused pieces first, then new ones. Returns whether the peer has no room at present. An error
  // ends the message.
  Result<bool> PostMore(transfer::Connection* connection);
  // An error ends the message.
  Status ResolveEnded();

  const std::string text_;
  const std::uint64_t id_;
  std::uint64_t next_offset_ = 0;
  bool begun_ = false;                 // an empty text has one piece, too
  std::deque<std::uint64_t> refused_;  // offsets of pieces to post again
  std::deque<Posted> posted_;
};

class NotificationJob;

// Lets the notifications to one peer begin in their order, a few at a time: those of a flood that
// the peer does not take hold no descriptors, and the peer has pieces of few of them. Any thread.
class Outbox {
 public:
  // Begins the job, now or after others.
  void Submit(std::shared_ptr<NotificationJob> job);
  // For a job that began and has ended.
  void Ended(const NotificationJob& job, const Status& how);
  // Drops the jobs that have not begun, and logs why.
  void Drop(const Error& error);

 private:
  void BeginLocked();
  void EndLocked(const NotificationJob& job, const Status& how);
  void DropLocked(const Error& error);

  std::mutex mutex_;
  std::deque<std::shared_ptr<NotificationJob>> waiting_;  // under mutex_; with their posters
  std::size_t begun_ = 0;                                 // under mutex_
  std::uint64_t begun_bytes_ = 0;                         // under mutex_
};

// A notification that belongs to no transfer. Its errors are logged: nobody asks for them.
class NotificationJob final : public Job {
 public:
  NotificationJob(std::string peer, std::string text, std::shared_ptr<Outbox> outbox,
                  Courier* courier)
      : peer_(std::move(peer)),
        outbox_(std::move(outbox)),
        message_(std::move(text)),
        courier_(courier) {}

  void Start(const transfer::Connection& connection) override;
  void Fail(const Error& error) override;
  void Advance() override;
  // Posts what may be posted. How it ended, if this ended it; Outbox::Ended() is the caller's to
  // call then.
  std::optional<Status> Step();
  const std::string& peer() const noexcept { return peer_; }
  std::size_t size() const noexcept { return message_.size(); }

 private:
  const std::string peer_;
  const std::shared_ptr<Outbox> outbox_;  // shared with the peer
  std::mutex mutex_;
  Message message_;
  Courier* const courier_;
  std::optional<transfer::Connection> connection_;
  bool over_ = false;
};

}  // namespace ferry::nixl
