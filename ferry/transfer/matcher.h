#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "ferry/transfer/operation.h"

namespace ferry::transfer {

// What keeping a message, or a notification, costs beside its bytes.
inline constexpr std::uint64_t kKeptRecordBytes = 96;

// A message that came before its receive.
struct ArrivedMessage {
  std::uint64_t tag = 0;
  std::uint64_t bytes = 0;
  std::uint64_t peer_operation = 0;
  bool offered = false;         // the bytes are still at the sender
  std::vector<std::byte> data;  // otherwise
};

// Pairs receives with messages: first posted, first matched; first arrived, first taken. A receive
// takes a message whose tag agrees with its own in the bits of its mask. One thread.
class Matcher {
 public:
  using Receive = std::shared_ptr<OperationState>;  // with the connection's table

  // The oldest message that `receive` takes, which leaves the queue; else `receive` is queued.
  std::optional<ArrivedMessage> Post(const Receive& receive);
  // The oldest receive that takes `tag`, which leaves the queue; else null.
  Receive TakeReceive(std::uint64_t tag);
  // Undoes TakeReceive: before all others.
  void PutBack(const Receive& receive) { posted_.push_front(receive); }
  // Queues a message for which TakeReceive gave null.
  void Keep(ArrivedMessage message);
  bool RemoveReceive(const OperationState* receive);
  bool RemoveOffer(std::uint64_t peer_operation);

  std::uint64_t kept_bytes() const noexcept { return kept_bytes_; }
  std::size_t kept_messages() const noexcept { return arrived_.size(); }

 private:
  std::deque<Receive> posted_;
  std::deque<ArrivedMessage> arrived_;
  std::uint64_t kept_bytes_ = 0;
};

}  // namespace ferry::transfer
