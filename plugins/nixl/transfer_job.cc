// Moves the bytes of a transfer, then its notification.
#include "plugins/nixl/transfer_job.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "plugins/nixl/log.h"

namespace ferry::nixl {

// ---- ActiveTransfers ----------------------------------------------------------------------------

void ActiveTransfers::Add(const std::shared_ptr<TransferJob>& transfer) {
  const std::lock_guard lock(mutex_);
  transfers_[transfer.get()] = transfer;
}

void ActiveTransfers::Remove(const TransferJob* transfer) {
  const std::lock_guard lock(mutex_);
  transfers_.erase(transfer);
}

void ActiveTransfers::CancelUsersOf(const transfer::Region* region) {
  std::vector<std::shared_ptr<TransferJob>> users;  // with the agent's requests
  {
    const std::lock_guard lock(mutex_);
    for (const auto& entry : transfers_) {
      auto transfer = entry.second.lock();
      if (transfer && transfer->Uses(region)) users.push_back(std::move(transfer));
    }
  }
  // Without mutex_, because Release() may call Remove(). Lock order: a transfer's mutex, then this
  // one.
  for (const auto& transfer : users) (void)transfer->Release();
}

// ---- TransferJob --------------------------------------------------------------------------------

TransferJob::TransferJob(abi::Direction direction, std::shared_ptr<Peer> peer,
                         std::vector<Part> parts, const Context* context)
    : direction_(direction), peer_(std::move(peer)), context_(context), parts_(std::move(parts)) {
  for (const Part& part : parts_) {
    locals_.push_back(part.local);
    bytes_ += part.blocks.total_bytes();
  }
}

bool TransferJob::Uses(const transfer::Region* region) const {
  return std::any_of(locals_.begin(), locals_.end(),
                     [&](const auto& local) { return local.get() == region; });
}

Status TransferJob::PrepareEarly() {
  const auto connection = peer_->connection();
  if (!connection) return Ok();
  const std::lock_guard lock(mutex_);
  return PrepareLocked(*connection);
}

Status TransferJob::PrepareLocked(const transfer::Connection& connection) {
  if (prepared_ || bytes_ == 0) return Ok();
  // The first attempt has used up the parts, and failed.
  if (parts_.empty()) {
    return Error(Code::kInvalidArgument, "the transfer could not be prepared before");
  }
  auto parts = TransferParts(&parts_);
  const std::vector<Part> regions = std::exchange(parts_, {});  // to which `parts` refers
  FERRY_TRY_ASSIGN(prepared_, direction_ == abi::Direction::kWrite
                                  ? connection.PrepareWrite(std::move(parts))
                                  : connection.PrepareRead(std::move(parts)));
  return Ok();
}

Status TransferJob::Post(std::optional<std::string> notification) {
  const auto self = std::static_pointer_cast<TransferJob>(shared_from_this());
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kIdle && state_ != State::kOver) {
      return Error(Code::kInvalidArgument, "the transfer is in flight; wait for its end");
    }
    state_ = State::kWaiting;
    outcome_ = abi::Outcome::kInProgress;
    notification_ = std::move(notification);
    began_ = Clock::now();
  }
  // Before Submit(), so that memory that is deregistered meanwhile finds this transfer. The state
  // is set before as well: another thread may call Start() at once.
  context_->active->Add(self);
  Status submitted = peer_->Submit(self);
  if (!submitted) {
    const std::lock_guard lock(mutex_);
    EndLocked(submitted);
  }
  return submitted;
}

void TransferJob::Start(const transfer::Connection& connection) {
  const std::lock_guard lock(mutex_);
  if (state_ != State::kWaiting) return;  // released meanwhile
  connection_ = connection;
  state_ = State::kMoving;
  if (Status prepared = PrepareLocked(connection); !prepared) return EndLocked(prepared);
  if (bytes_ == 0) return OnMovedLocked(Ok());
  PostLocked();
}

void TransferJob::Fail(const Error& error) {
  const std::lock_guard lock(mutex_);
  if (state_ == State::kWaiting) EndLocked(error);
}

void TransferJob::Advance() {
  const std::lock_guard lock(mutex_);
  AdvanceLocked();
}

void TransferJob::PostLocked() {
  auto posted = direction_ == abi::Direction::kWrite ? connection_->Write(*prepared_)
                                                     : connection_->Read(*prepared_);
  if (posted) {
    operation_ = *std::move(posted);
    // Nobody has to poll for a notification that follows.
    if (notification_) context_->courier->Watch(shared_from_this(), *operation_);
  } else if (posted.error().code() == Code::kUnavailable) {
    context_->courier->Retry(shared_from_this());  // as many operations as may be are in flight
  } else {
    EndLocked(posted.error());
  }
}

void TransferJob::AdvanceLocked() {
  if (state_ != State::kMoving) return;
  if (!operation_) return PostLocked();
  if (operation_->Done()) {
    OnMovedLocked(operation_->Wait(Deadline::After(Clock::duration::zero())));
  }
}

void TransferJob::OnMovedLocked(const Status& moved) {
  operation_.reset();
  if (!moved) return EndLocked(moved);
  peer_->Measured(bytes_, Clock::now() - began_);
  if (!notification_) return EndLocked(Ok());
  state_ = State::kNotifying;
  // Behind the notifications that were sent before.
  const auto self = std::static_pointer_cast<TransferJob>(shared_from_this());
  peer_->outbox()->Add(*std::exchange(notification_, std::nullopt), self);
  peer_->outbox()->Start(*connection_);
}

void TransferJob::OnNotified(const Status& how) {
  const std::lock_guard lock(mutex_);
  if (state_ == State::kNotifying) EndLocked(how);
}

void TransferJob::EndLocked(const Status& ended) {
  state_ = State::kOver;
  outcome_ = ended ? abi::Outcome::kSuccess : OutcomeOf(ended.error().code());
  // Told of a lost agent, NIXL's forgets the memory of that one: here its own.
  if (outcome_ == abi::Outcome::kRemoteDisconnect && peer_->own()) {
    outcome_ = abi::Outcome::kBackend;
  }
  operation_.reset();
  connection_.reset();
  notification_.reset();
  context_->active->Remove(this);
  if (ended || ended.error().code() == Code::kCancelled) return;
  // With the peer, all its transfers end: one line tells it.
  if (ended.error().code() == Code::kPeerLost && !peer_->FirstLoss()) return;
  (void)nixl::Fail(fmt::format("a {} of {} bytes {} agent '{}' failed",
                               direction_ == abi::Direction::kWrite ? "write" : "read", bytes_,
                               direction_ == abi::Direction::kWrite ? "to" : "from", peer_->name()),
                   ended.error());
}

abi::Outcome TransferJob::Check() {
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kMoving && operation_) {
      (void)operation_->Poll();
      AdvanceLocked();
    }
    if (state_ != State::kNotifying) return outcome_;
  }
  peer_->outbox()->Poll();  // calls OnNotified()
  const std::lock_guard lock(mutex_);
  return outcome_;
}

bool TransferJob::Release() {
  const std::lock_guard lock(mutex_);
  if (state_ == State::kMoving && operation_) {
    operation_->Cancel();
    // The library may still be in the memory; the agent has to ask again.
    if (!operation_->Poll()) return false;
    notification_.reset();  // a transfer that was released tells nobody
    OnMovedLocked(operation_->Wait(Deadline::After(Clock::duration::zero())));
    return true;
  }
  if (state_ == State::kWaiting || state_ == State::kMoving) {
    EndLocked(Error(Code::kCancelled, "the transfer was released before it began"));
  }
  return true;
}

}  // namespace ferry::nixl
