// The plugin's threads, listening port and connection attempts.
#include "plugins/nccl/engine.h"

#include <fmt/core.h>

#include <utility>

#include "ferry/core/log.h"
#include "ferry/core/unknown_variables.h"
#include "ferry/net/builtin.h"
#include "plugins/nccl/attempt.h"
#include "plugins/nccl/report.h"

namespace ferry::nccl_net {
namespace {

std::string HostsIn(const std::vector<net::Address>& addresses) {
  std::string text;
  for (const net::Address& address : addresses) text += (text.empty() ? "" : ", ") + address.host;
  return text;
}

}  // namespace

Result<std::shared_ptr<Engine>> Engine::Create(Settings settings) {
  // Shared by the contexts and comms that use it.
  std::shared_ptr<Engine> engine(new Engine(std::move(settings)));
  FERRY_TRY(engine->Start());
  return engine;
}

Engine::Engine(Settings settings)
    : settings_(std::move(settings)),
      provider_(net::CreateBuiltinProvider()),
      spin_permits_(settings_.spinners) {}

Status Engine::Start() {
  const Config& config = settings_.config;
  SetLogLevel(config.log_level);
  SetLogFormat(config.log_format);
  WarnOfUnknownVariables();
  FERRY_TRY(AddLoops(settings_.swift_loops, &swift_));
  FERRY_TRY(AddLoops(settings_.workers, &bulk_));
  // On a loop whose worker always drives.
  FERRY_TRY_ASSIGN(acceptor_, Acceptor::Open(this, Bulk(0)));
  // NCCL's threads drive these loops while they poll.
  for (auto& loop : swift_) FERRY_TRY(loop->StartWorker("ferry-swift"));
  // The listener's loop starts last: lanes must not be accepted before all other loops run.
  for (std::size_t i = bulk_.size(); i-- > 0;) {
    FERRY_TRY(bulk_[i]->StartWorker("ferry-nccl", config.spin, &spin_permits_));
  }
  InformInit(
      fmt::format("listening on port {} at {}; {} workers, {} bulk lanes for each comm, {} devices",
                  acceptor_->told().front().port, HostsIn(acceptor_->told()), settings_.workers,
                  settings_.bulk_lanes, settings_.devices));
  return Ok();
}

Status Engine::AddLoops(std::size_t count, std::vector<std::unique_ptr<EventLoop>>* loops) {
  for (std::size_t i = 0; i < count; ++i) {
    FERRY_TRY_ASSIGN(auto loop, EventLoop::Create());
    loops->push_back(std::move(loop));
  }
  return Ok();
}

Engine::~Engine() {
  std::map<std::uint64_t, OwnedAttempt> attempts;
  {
    const std::lock_guard lock(mutex_);
    attempts.swap(attempts_);
  }
  attempts.clear();
  for (auto& loop : swift_) loop->Stop();
  for (auto& loop : bulk_) loop->Stop();
}

EventLoop* Engine::NextSwift() noexcept {
  return swift_[next_swift_.fetch_add(1, std::memory_order_relaxed) % swift_.size()].get();
}

EventLoop* Engine::Bulk(std::size_t turn) noexcept { return bulk_[turn % bulk_.size()].get(); }

std::uint64_t Engine::AddAttempt(const void* owner, std::unique_ptr<Attempt> attempt) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t id = next_attempt_++;
  attempts_.emplace(id, OwnedAttempt{owner, std::move(attempt)});
  return id;
}

std::shared_ptr<Attempt> Engine::FindAttempt(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  const auto it = attempts_.find(id);
  return it == attempts_.end() ? nullptr : it->second.attempt;
}

void Engine::DropAttempt(std::uint64_t id) {
  std::shared_ptr<Attempt> dropped;  // removed from attempts_, destroyed after the lock
  const std::lock_guard lock(mutex_);
  auto node = attempts_.extract(id);
  if (!node.empty()) dropped = std::move(node.mapped().attempt);
}

void Engine::DropAttempts(const void* owner) {
  // Removed from attempts_, destroyed after the lock.
  std::vector<std::shared_ptr<Attempt>> dropped;
  const std::lock_guard lock(mutex_);
  for (auto it = attempts_.begin(); it != attempts_.end();) {
    if (it->second.owner == owner) {
      dropped.push_back(std::move(it->second.attempt));
      it = attempts_.erase(it);
    } else {
      ++it;
    }
  }
}

}  // namespace ferry::nccl_net
