// Connects to a listening rank again until it accepts or the timeout passes.
#include "plugins/nccl/attempt.h"

#include <fmt/core.h>

#include <utility>

#include "ferry/net/candidates.h"
#include "plugins/nccl/engine.h"
#include "plugins/nccl/rank.h"
#include "plugins/nccl/send_comm.h"

namespace ferry::nccl_net {
namespace {

std::optional<Error> RefusalOf(const RankWire& own, const ListenAddress& address) {
  const std::string peer = address.at.front().ToString();
  if (address.version != kWireVersion) return OtherVersion(address.version, peer);
  return FindDifference(own, address.rank, peer);
}

}  // namespace

Attempt::Attempt(Engine* engine, EventLoop* swift, ListenAddress address)
    : engine_(engine),
      swift_(swift),
      address_(std::move(address)),
      deadline_(Deadline::After(engine->settings().config.connect_timeout)),
      refusal_(RefusalOf(engine->settings().rank, address_)) {}

Attempt::~Attempt() {
  if (comm_ != nullptr) comm_->Close();
}

Result<std::unique_ptr<Attempt>> Attempt::Begin(Engine* engine, EventLoop* swift,
                                                const void* handle) {
  FERRY_TRY_ASSIGN(ListenAddress address, ReadHandle(handle));
  std::unique_ptr<Attempt> attempt(new Attempt(engine, swift, std::move(address)));
  FERRY_TRY(attempt->Dial());
  return attempt;
}

Status Attempt::Dial() {
  auto dialled = SendComm::Dial(engine_, swift_, address_, refusal_, deadline_);
  // The refusal is the result even if the other rank cannot be told.
  if (!dialled) return refusal_.value_or(dialled.error());
  comm_ = *std::move(dialled);
  return Ok();
}

Error Attempt::Told(const Error& error) const {
  if (retries_ == 0) return error;
  return {error.code(), fmt::format("{} (attempt {}; the previous one: {})", error.message(),
                                    retries_ + 1, last_)};
}

Result<std::shared_ptr<SendComm>> Attempt::Poll() {
  if (comm_ != nullptr && comm_->failed()) {
    const Error error = comm_->failure();
    const bool may_retry = comm_->turned_away() && !refusal_;
    std::exchange(comm_, nullptr)->Close();
    again_ = Clock::now() + net::Candidates::PauseAfter(retries_ + 1);
    if (!may_retry || again_ >= deadline_.when()) return Told(error);
    ++retries_;
    last_ = error.message();
  } else if (comm_ != nullptr && comm_->connected()) {
    return std::exchange(comm_, nullptr);
  }
  if (comm_ == nullptr && Clock::now() >= again_) FERRY_TRY(Dial());
  swift_->DriveOnce();
  return std::shared_ptr<SendComm>();
}

}  // namespace ferry::nccl_net
