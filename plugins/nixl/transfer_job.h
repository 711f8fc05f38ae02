// A transfer between two lists of descriptors, with the notification that follows it.
#pragma once
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "ferry/transfer/connection.h"
#include "plugins/nixl/abi.h"
#include "plugins/nixl/job.h"
#include "plugins/nixl/memory.h"
#include "plugins/nixl/peers/courier.h"
#include "plugins/nixl/peers/outbox.h"
#include "plugins/nixl/peers/peer.h"

namespace ferry::nixl {

class TransferJob;

// The transfers that have begun and not ended, so that memory can be withdrawn from them. Any
// thread.
class ActiveTransfers {
 public:
  void Add(const std::shared_ptr<TransferJob>& transfer);
  void Remove(const TransferJob* transfer);
  // Cancels those that use the region.
  void CancelUsersOf(const transfer::Region* region);

 private:
  std::mutex mutex_;
  std::unordered_map<const TransferJob*, std::weak_ptr<TransferJob>> transfers_;  // under mutex_
};

// What was prepared once and is posted any number of times, one after the other. Any thread.
class TransferJob final : public Job, public Receipt {
 public:
  // What transfers have in common; outlives them.
  struct Context {
    Courier* courier = nullptr;
    ActiveTransfers* active = nullptr;
  };

  TransferJob(abi::Direction direction, std::shared_ptr<Peer> peer, std::vector<Part> parts,
              const Context* context);

  // Prepares now if the connection is up, so that a mistake is told early and posting is fast.
  Status PrepareEarly();
  // Begins. Errors: as Peer::Submit(), kInvalidArgument while it is in flight.
  Status Post(std::optional<std::string> notification);
  // How it is: in progress, or how it ended. Lets the connection make progress.
  abi::Outcome Check();
  // Requests an early end. Whether nothing uses its memory any more; does not block.
  bool Release();
  bool Uses(const transfer::Region* region) const;
  std::uint64_t bytes() const noexcept { return bytes_; }
  Peer& peer() const noexcept { return *peer_; }

  void Start(const transfer::Connection& connection) override;
  void Fail(const Error& error) override;
  void Advance() override;
  void OnNotified(const Status& how) override;

 private:
  enum class State { kIdle, kWaiting, kMoving, kNotifying, kOver };

  Status PrepareLocked(const transfer::Connection& connection);
  void PostLocked();
  void AdvanceLocked();
  void OnMovedLocked(const Status& moved);
  void EndLocked(const Status& ended);

  const abi::Direction direction_;
  const std::shared_ptr<Peer> peer_;  // shared with the table of peers
  const Context* const context_;
  std::vector<std::shared_ptr<transfer::Region>> locals_;  // as in LocalMemory
  std::uint64_t bytes_ = 0;

  std::mutex mutex_;
  std::vector<Part> parts_;                             // under mutex_; until they are prepared
  std::optional<transfer::PreparedTransfer> prepared_;  // under mutex_
  State state_ = State::kIdle;                          // under mutex_
  abi::Outcome outcome_ = abi::Outcome::kNotPosted;     // under mutex_
  std::optional<std::string> notification_;             // under mutex_
  Clock::time_point began_;                             // under mutex_
  std::optional<transfer::Connection> connection_;      // under mutex_
  std::optional<transfer::Operation> operation_;        // under mutex_
};

}  // namespace ferry::nixl
