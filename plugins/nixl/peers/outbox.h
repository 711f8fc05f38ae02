// The notifications to one peer, in their order.
#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/transfer/connection.h"
#include "plugins/nixl/job.h"
#include "plugins/nixl/peers/courier.h"

namespace ferry::nixl {

// kInvalidArgument for a text that no peer accepts.
Status CheckNotificationLength(std::size_t bytes);

// Is told when the peer has a notification, or why it was lost.
class Receipt {
 public:
  virtual void OnNotified(const Status& how) = 0;

 protected:
  ~Receipt() = default;
};

// Cuts texts into pieces and posts them one after the other. The peer answers some pieces once it
// has room for more, and until then at most a window of bytes is on its way. Pieces that the peer
// refuses, where its memory is short, are posted again with all that follow them, after a pause.
// Any thread.
class Outbox final : public Job {
 public:
  Outbox(std::string peer, Courier* courier) : peer_(std::move(peer)), courier_(courier) {}

  // Queues a text until Start(). Without a receipt its loss is logged.
  void Add(std::string text, std::shared_ptr<Receipt> receipt);
  // Lets the connection make progress. The caller holds no lock that a receipt takes.
  void Poll();

  // Posts what is queued, on this connection or one that came before and is not lost. Calls no
  // receipt.
  void Start(const transfer::Connection& connection) override;
  // Drops what is queued.
  void Fail(const Error& error) override;
  void Advance() override;

 private:
  struct Text {
    std::string bytes;
    std::shared_ptr<Receipt> receipt;  // with its poster; null: nobody asks
  };
  // A place in the stream of pieces.
  struct Place {
    std::uint64_t text = 0;  // counts all texts of the connection
    std::uint64_t offset = 0;
    std::uint64_t sequence = 0;
  };
  struct Piece {
    Place place;
    bool last = false;  // of its text
    transfer::Operation operation;
  };
  struct Question {
    std::uint64_t sequence = 0;  // of the piece that asks
    std::uint64_t bytes = 0;     // on their way until the answer
    transfer::Operation answer;
  };
  using Ended = std::vector<std::pair<std::shared_ptr<Receipt>, Status>>;

  // Errors end the connection's use.
  Status ResolveLocked();
  Status PostLocked();
  Status PostPieceLocked();
  void RewindLocked(const Place& place);
  void AdvanceLocked();
  void WatchLocked();
  void FailLocked(const Error& error);
  void Tell(std::unique_lock<std::mutex> lock);

  const std::string peer_;
  Courier* const courier_;
  std::mutex mutex_;  // this guards the rest
  std::optional<transfer::Connection> connection_;
  std::deque<Text> texts_;
  std::uint64_t first_ = 0;  // the number of texts_.front()
  Place next_;
  std::deque<Piece> posted_;
  std::optional<Place> refused_;  // the first piece that was
  std::deque<Question> questions_;
  std::uint64_t unanswered_ = 0;  // bytes of questions_
  std::uint64_t unasked_ = 0;     // bytes since the last of them
  std::uint64_t window_ = 0;
  Clock::duration pause_{};
  Clock::time_point paused_until_{};
  bool watched_ = false;  // the courier will call Advance()
  Ended ended_;           // to be told without the mutex
};

}  // namespace ferry::nixl
