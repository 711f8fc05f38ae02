#include "ferry/transfer/endpoint_core.h"

#include <fmt/core.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "ferry/core/log.h"
#include "ferry/transfer/reception.h"

namespace ferry::transfer {
namespace {

int Automatic(int configured, int lowest, int highest) {
  if (configured > 0) return configured;
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::clamp(cores / 2, lowest, highest);
}

}  // namespace

EndpointCore::EndpointCore(const Config& config, std::unique_ptr<net::Provider> provider)
    : config_(config), provider_(std::move(provider)), lanes_(Automatic(config.lanes, 2, 16)) {}

EndpointCore::~EndpointCore() = default;

Status EndpointCore::Start() {
  FERRY_TRY_ASSIGN(secret_, Secret::FromConfig(config_));
  const int workers =
      std::min(Automatic(config_.workers, 2, 16), config_.workers > 0 ? 64 : lanes_);
  for (int i = 0; i < workers; ++i) {
    FERRY_TRY_ASSIGN(auto loop, EventLoop::Create());
    loops_.push_back(std::move(loop));
  }
  reception_ = std::make_unique<Reception>(this);
  FERRY_TRY_ASSIGN(listener_, provider_->Listen({config_.listen_host, 0}, config_, front_loop(),
                                                [this](auto lane) {
                                                  reception_->OnAcceptedOnLoop(std::move(lane));
                                                }));
  listening_ = listener_->address();
  for (std::size_t i = 0; i < loops_.size(); ++i) {
    loops_[i]->StartWorker(fmt::format("ferry-{}", i).c_str());
  }
  return Ok();
}

void EndpointCore::Shutdown() {
  if (closing_.exchange(true)) return;
  front_loop()->Post([this] {
    listener_.reset();
    reception_->ClearOnLoop();
  });
  std::vector<std::shared_ptr<ConnectionCore>> all;  // a copy: they leave the table meanwhile
  {
    const std::lock_guard lock(mutex_);
    all.assign(connections_.begin(), connections_.end());
    accepted_.clear();
  }
  for (const auto& connection : all) {
    connection->Close(Error(Code::kCancelled, "this endpoint was closed"));
  }
  all.clear();
  front_loop()->NotifyWaiters();
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return connections_.empty(); });
  }
  for (const auto& loop : loops_) loop->Stop();
  listener_.reset();
  reception_.reset();
}

std::vector<EventLoop*> EndpointCore::ChooseLoops(std::size_t lanes) {
  const std::size_t first = next_loop_.fetch_add(1);
  std::vector<EventLoop*> chosen;
  chosen.reserve(lanes);
  for (std::size_t i = 0; i < lanes; ++i) {
    chosen.push_back(loops_[(first + i) % loops_.size()].get());
  }
  return chosen;
}

void EndpointCore::RevokeEverywhere(const std::shared_ptr<RegionState>& region) {
  std::vector<std::shared_ptr<ConnectionCore>> all;  // a copy: they leave the table meanwhile
  {
    const std::lock_guard lock(mutex_);
    all.assign(connections_.begin(), connections_.end());
  }
  for (const auto& connection : all) connection->Revoke(region, [] {});
}

void EndpointCore::FailHolders(const std::shared_ptr<RegionState>& region) {
  std::vector<std::shared_ptr<ConnectionCore>> all;  // a copy, as above
  {
    const std::lock_guard lock(mutex_);
    all.assign(connections_.begin(), connections_.end());
  }
  for (const auto& connection : all) connection->FailIfHolding(region);
}

void EndpointCore::Keep(const std::shared_ptr<ConnectionCore>& connection) {
  connection->SetClosedCallback([this, raw = connection.get()] { Forget(raw); });
  const std::lock_guard lock(mutex_);
  connections_.insert(connection);
}

void EndpointCore::Forget(const ConnectionCore* connection) {
  std::shared_ptr<ConnectionCore> last;  // destroyed after the lock
  const std::lock_guard lock(mutex_);
  const auto it = std::find_if(connections_.begin(), connections_.end(),
                               [&](const auto& kept) { return kept.get() == connection; });
  if (it == connections_.end()) return;
  last = *it;
  connections_.erase(it);
  // Gone before anybody took it.
  accepted_.erase(std::remove(accepted_.begin(), accepted_.end(), last), accepted_.end());
  changed_.notify_all();
}

void EndpointCore::BringUpOnLoop(const std::shared_ptr<ConnectionCore>& connection,
                                 std::vector<std::unique_ptr<net::Lane>> lanes, bool from_outside) {
  std::vector<net::LaneInfo> infos;
  infos.reserve(lanes.size());
  for (const auto& lane : lanes) infos.push_back(lane->Info());
  connection->SetLaneInfos(std::move(infos));
  for (std::size_t i = lanes.size(); i-- > 0;) connection->channel(i).Adopt(std::move(lanes[i]));
  connection->home()->Post([connection] { connection->StartOnLoop(); });
  if (closing_.load()) {
    connection->Fail(Error(Code::kCancelled, "this endpoint was closed"));
    return;
  }
  if (!from_outside) return;
  {
    const std::lock_guard lock(mutex_);
    accepted_.push_back(connection);
  }
  front_loop()->NotifyWaiters();
}

std::shared_ptr<ConnectionCore> EndpointCore::TakeAccepted() {
  const std::lock_guard lock(mutex_);
  if (accepted_.empty()) return nullptr;
  auto connection = std::move(accepted_.front());
  accepted_.pop_front();
  return connection;
}

}  // namespace ferry::transfer
