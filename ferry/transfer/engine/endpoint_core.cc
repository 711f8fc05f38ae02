// Starts and stops an endpoint, accepts connections and keeps the connection table.
#include "ferry/transfer/engine/endpoint_core.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <thread>
#include <utility>

#include "ferry/core/log.h"
#include "ferry/transfer/handshake/dialer.h"
#include "ferry/transfer/handshake/endpoint_address.h"
#include "ferry/transfer/handshake/server_handshake.h"
#include "ferry/transfer/recovery/lane_health.h"

namespace ferry::transfer {
namespace {

constexpr std::size_t kMaxInterfaceLanes = 16;

// Half the cores.
int Automatic() {
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 2, 2, 16);
}

// What replacing the connection's lanes needs.
RecoveryContext RecoveryFor(EndpointCore* endpoint, const ConnectionCore& connection) {
  return {.config = &connection.config(),
          .home = connection.home(),
          .peer_name = connection.peer_name(),
          .lanes = connection.lanes(),
          .connection = connection.peer().connection,
          .token = connection.peer().token,
          .provider = &endpoint->provider(),
          .secret = &endpoint->secret(),
          .may_use = [endpoint](const HelloExchange& lane, const std::string& peer_name) {
            return endpoint->CheckLane(lane, peer_name);
          }};
}

}  // namespace

EndpointCore::EndpointCore(const Config& config, std::unique_ptr<net::Provider> provider)
    : config_(config),
      provider_(std::move(provider)),
      lanes_(config.lanes > 0 ? config.lanes : Automatic() + 1),
      held_(std::make_shared<HeldMemoryPool>(config.peer_memory_total, config.peer_memory)) {}

EndpointCore::~EndpointCore() = default;

Status EndpointCore::Start() {
  FERRY_TRY_ASSIGN(secret_, Secret::FromConfig(config_));
  if (config_.tls != TlsMode::kOff && !provider_->capabilities().tls) {
    return Error(Code::kUnsupported,
                 fmt::format("the provider {} has no TLS; set FERRY_TLS=off, or use another one",
                             provider_->name()));
  }
  // The lane for small operations shares a loop with another lane.
  const int loops = lanes_ - static_cast<int>(FirstBulkLaneOf(static_cast<std::size_t>(lanes_)));
  const int workers = config_.workers > 0 ? config_.workers : std::min(Automatic(), loops);
  for (int i = 0; i < workers; ++i) {
    FERRY_TRY_ASSIGN(auto loop, EventLoop::Create());
    loops_.push_back(std::move(loop));
  }
  if (!config_.metrics_address.empty()) {
    FERRY_TRY_ASSIGN(metrics_, MetricsServer::Start(config_.metrics_address,
                                                    Deadline::After(config_.connect_timeout),
                                                    [this] { return Counters(); }));
  }
  server_handshake_ = std::make_unique<ServerHandshake>(this);
  FERRY_TRY_ASSIGN(listener_, provider_->Listen({config_.listen_host, 0}, config_, front_loop(),
                                                [this](auto lane) {
                                                  server_handshake_->OnAccepted(std::move(lane));
                                                }));
  listening_ = listener_->address();
  link_watch_ = provider_->WatchLinks(
      front_loop(), [this](const net::LinkChange& change) { OnLinkChange(change); });
  // The listener's loop starts last: nobody is accepted before all the others run, so after an
  // error everything made so far can simply be destroyed.
  for (std::size_t i = loops_.size(); i-- > 0;) {
    FERRY_TRY(loops_[i]->StartWorker(fmt::format("ferry-{}", i).c_str()));
  }
  return Ok();
}

// Order: first nothing new comes in (names, metrics, listener), then all connections close, then
// the loops stop; only then may the objects that their tasks use be destroyed.
void EndpointCore::Shutdown() {
  if (closing_.exchange(true)) return;
  names_.Cancel();
  metrics_.reset();
  front_loop()->Post([this] {
    listener_.reset();
    link_watch_.reset();
    server_handshake_->ClearOnLoop();
  });
  std::vector<std::shared_ptr<ConnectionCore>> all;  // a copy: they leave the table meanwhile
  {
    const std::lock_guard lock(mutex_);
    all.assign(connections_.begin(), connections_.end());
    accepted_.clear();
    accept_ready_.Set(true);
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
  std::vector<std::weak_ptr<Dialer>> dialers;
  {
    const std::lock_guard lock(mutex_);
    dialers.swap(dialers_);
  }
  for (const auto& each : dialers) {
    if (const auto dialer = each.lock()) dialer->GiveUp();
  }
  listener_.reset();
  link_watch_.reset();
  server_handshake_.reset();
}

// ---- interfaces ---------------------------------------------------------------------------------

int EndpointCore::LanesOverInterfaces() const {
  if (config_.lanes > 0) return lanes_;
  std::set<std::string> interfaces;
  for (const net::LocalAddress& local : provider_->Addresses(config_)) {
    interfaces.insert(local.interface);
  }
  // One lane for bulk over each interface, plus the lane for small operations.
  return std::max(lanes_, static_cast<int>(std::min(interfaces.size(), kMaxInterfaceLanes)) + 1);
}

int EndpointCore::LanesTo(const net::Address& peer) const {
  return provider_->InterfaceTo(peer) == "lo" ? lanes_ : LanesOverInterfaces();
}

EndpointAddress EndpointCore::OtherAddresses() const {
  EndpointAddress address{id_, {}};
  // If a host to listen at was configured, other addresses do not answer.
  const bool any = config_.listen_host.empty() || listening_.host.empty();
  for (const net::LocalAddress& local : provider_->Addresses(config_)) {
    if (!any || address.at.size() == kMaxInterfaceLanes) break;
    address.at.push_back({local.host, listening_.port});
  }
  return address;
}

void EndpointCore::OnLinkChange(const net::LinkChange& change) {
  Log(LogLevel::kInfo, "transfer", "link {} went {}", change.interface, change.up ? "up" : "down");
  std::vector<std::shared_ptr<ConnectionCore>> all;  // a copy: they leave the table meanwhile
  {
    const std::lock_guard lock(mutex_);
    all.assign(connections_.begin(), connections_.end());
  }
  for (const auto& connection : all) connection->OnLinkChange(change);
}

// Compares tokens in constant time. Only connections that the peer has dialed can be rejoined by
// it.
std::shared_ptr<ConnectionCore> EndpointCore::FindConnection(std::uint32_t number,
                                                             const Uuid& token) {
  const std::lock_guard lock(mutex_);
  for (const auto& connection : connections_) {
    const Peer& peer = connection->peer();
    const bool same = peer.connection == number && SameBytes(peer.token.bytes, token.bytes);
    if (same && !connection->called() && !connection->lost()) return connection;
  }
  return nullptr;
}

// ---- pending peers ------------------------------------------------------------------------------

void EndpointCore::BeginCall(const std::string& local_name) {
  const std::lock_guard lock(mutex_);
  calls_.insert(local_name);
}

void EndpointCore::EndCall(const std::string& local_name) {
  const std::lock_guard lock(mutex_);
  if (const auto it = calls_.find(local_name); it != calls_.end()) calls_.erase(it);
}

bool EndpointCore::IsOwnCall(const std::string& remote_name) {
  const std::lock_guard lock(mutex_);
  return calls_.count(remote_name) > 0;
}

void EndpointCore::PauseAcceptingOnLoop(bool paused) {
  if (listener_) listener_->PauseOnLoop(paused);
}

void EndpointCore::ExpectLanesOnLoop(const std::string& host, std::size_t lanes,
                                     Clock::time_point until) {
  if (listener_) listener_->ExpectOnLoop(host, lanes, until);
}

void EndpointCore::RefusedHandshake(const std::string& peer_name, const std::string& sentence) {
  handshakes_refused_.fetch_add(1, std::memory_order_relaxed);
  refusal_log_.Write(LogLevel::kWarn, "transfer", net::HostOf(peer_name), {{"peer", peer_name}},
                     sentence);
}

std::size_t EndpointCore::ConnectionsFromOutside() {
  const std::lock_guard lock(mutex_);
  return static_cast<std::size_t>(
      std::count_if(connections_.begin(), connections_.end(),
                    [](const auto& connection) { return !connection->called(); }));
}

// ---- counters -----------------------------------------------------------------------------------

// Under the mutex, so that a connection is counted either as open or as ended, and totals never
// decrease.
EndpointCounters EndpointCore::Counters() {
  EndpointCounters counters;
  {
    const std::lock_guard lock(mutex_);
    std::vector<ConnectionCounters> open;
    std::uint64_t lost = 0;
    open.reserve(connections_.size());
    for (const auto& connection : connections_) {
      if (connection->was_lost()) ++lost;
      open.push_back(connection->Counters());
    }
    counters = aggregator_.Snapshot(std::move(open), lost);
  }
  counters.handshakes_refused = handshakes_refused_.load(std::memory_order_relaxed);
  const RegionTable::Size size = regions_.Registered();
  counters.regions = size.regions;
  counters.region_bytes = size.bytes;
  counters.held_bytes = held_->held();
  counters.staging = device_memory_.Counters();
  return counters;
}

// ---- connections --------------------------------------------------------------------------------

// The route to the peer decides which interface the lane uses; the config decides whether that is
// allowed.
Status EndpointCore::CheckLane(const HelloExchange& hello_exchange,
                               const std::string& peer_name) const {
  if (!secret_ && !Trusts(hello_exchange.is_local() || hello_exchange.is_authenticated())) {
    return Error(
        Code::kRefused,
        fmt::format("{} is on another machine and there is no secret to authenticate it; set "
                    "FERRY_SECRET_FILE on both sides, or FERRY_INSECURE=on in a network you trust",
                    peer_name));
  }
  const std::string& allowed = config_.interfaces;
  if (hello_exchange.is_local() || net::InterfaceAllowed(allowed, hello_exchange.interface()))
    return Ok();
  return Error(Code::kInvalidArgument,
               fmt::format("the route to {} leaves by {}, which FERRY_INTERFACES={} does not "
                           "allow; connect to another address of the peer, or allow it",
                           peer_name, hello_exchange.interface(), allowed));
}

// Round robin, so that connections spread over the loops.
std::vector<EventLoop*> EndpointCore::ChooseLoops(std::size_t lanes) {
  const std::size_t first = next_loop_.fetch_add(1);
  std::vector<EventLoop*> chosen;
  chosen.reserve(lanes);
  // The first lane for bulk is on the home loop, too: an operation on one lane needs no other
  // thread.
  const std::size_t bulk = FirstBulkLaneOf(lanes);
  for (std::size_t i = 0; i < lanes; ++i) {
    chosen.push_back(loops_[(first + (i > bulk ? i - bulk : 0)) % loops_.size()].get());
  }
  return chosen;
}

std::shared_ptr<ConnectionCore> EndpointCore::FindConnection(std::uint32_t number) {
  const std::lock_guard lock(mutex_);
  return number < by_number_.size() ? by_number_[number] : nullptr;
}

// If nobody is inside, only connections that share the region's GPU memory are asked.
void EndpointCore::RevokeEverywhere(const std::shared_ptr<RegionState>& region, bool drained) {
  for (const RegionOpener& opener : region->openers.All()) {
    if (drained && !opener.shares) continue;
    const auto connection = FindConnection(opener.connection);
    if (!connection) continue;
    if (opener.shares) connection->TakeBack(region);
    if (!drained) connection->Revoke(region);
  }
}

void EndpointCore::FailHolders(const std::shared_ptr<RegionState>& region) {
  for (const RegionOpener& opener : region->openers.All()) {
    const auto connection = FindConnection(opener.connection);
    if (connection) connection->FailIfHolding(region, opener.lanes);
  }
}

std::shared_ptr<ConnectionCore> EndpointCore::EstablishOnLoop(
    Peer agreed, std::vector<std::unique_ptr<net::Lane>> lanes, std::vector<EventLoop*> loops,
    const Dialled* dialled) {
  auto connection = std::make_shared<ConnectionCore>(config_, &regions_, std::move(agreed), loops);
  if (dialled != nullptr) {
    connection->monitor().SetPaths(
        RecoveryFor(this, *connection),
        NetworkPathsTo(*provider_, config_, {dialled->at, dialled->interface}, dialled->others));
  }
  Keep(connection);
  BringUpOnLoop(connection, std::move(lanes));
  return connection;
}

void EndpointCore::Keep(const std::shared_ptr<ConnectionCore>& connection) {
  connection->SetRefusalLog(&refusal_log_);
  connection->memory().SetPool(held_);
  connection->sharing().SetMemory(&device_memory_);
  connection->SetClosedCallback([this, raw = connection.get()] { Forget(raw); });
  const std::lock_guard lock(mutex_);
  if (free_numbers_.empty()) {
    free_numbers_.push_back(static_cast<std::uint32_t>(by_number_.size()));
    by_number_.emplace_back();
  }
  connection->SetNumber(free_numbers_.back());
  free_numbers_.pop_back();
  by_number_[connection->number()] = connection;
  connections_.insert(connection);
  aggregator_.OnBegin(connection->peer_name(), !connection->called());
}

void EndpointCore::Forget(const ConnectionCore* connection) {
  std::shared_ptr<ConnectionCore> last;  // destroyed after the lock is released
  const std::lock_guard lock(mutex_);
  const auto it = std::find_if(connections_.begin(), connections_.end(),
                               [&](const auto& kept) { return kept.get() == connection; });
  if (it == connections_.end()) return;
  last = *it;
  connections_.erase(it);
  by_number_[last->number()].reset();
  free_numbers_.push_back(last->number());
  aggregator_.OnEnd(last->Counters(), last->was_lost());
  // Gone before anybody took it.
  accepted_.erase(std::remove(accepted_.begin(), accepted_.end(), last), accepted_.end());
  changed_.notify_all();
}

// The lanes are adopted here, on the loop that they belong to; each moves to its own loop
// afterwards.
void EndpointCore::BringUpOnLoop(const std::shared_ptr<ConnectionCore>& connection,
                                 std::vector<std::unique_ptr<net::Lane>> lanes) {
  std::vector<net::LaneInfo> infos;
  infos.reserve(lanes.size());
  for (const auto& lane : lanes) infos.push_back(lane->Info());
  connection->monitor().records().Set(std::move(infos));
  for (std::size_t i = lanes.size(); i-- > 0;) connection->lane(i).Adopt(std::move(lanes[i]));
  connection->home()->Post([connection] { connection->Start(); });
  if (closing_.load()) {
    connection->Fail(Error(Code::kCancelled, "this endpoint was closed"));
    return;
  }
  if (connection->called()) return;
  {
    const std::lock_guard lock(mutex_);
    accepted_.push_back(connection);
    accept_ready_.Set(true);
  }
  front_loop()->NotifyWaiters();
}

void EndpointCore::Follow(const std::shared_ptr<Dialer>& dialer) {
  const std::lock_guard lock(mutex_);
  dialers_.erase(std::remove_if(dialers_.begin(), dialers_.end(),
                                [](const auto& each) { return each.expired(); }),
                 dialers_.end());
  dialers_.push_back(dialer);
}

std::shared_ptr<ConnectionCore> EndpointCore::TakeAccepted() {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<ConnectionCore> connection;  // moves to the caller of Accept
  if (!accepted_.empty()) {
    connection = std::move(accepted_.front());
    accepted_.pop_front();
  }
  // Shutdown() stores closing_ first, then sets the flag for good under the mutex.
  if (accepted_.empty() && !closing()) accept_ready_.Set(false);
  return connection;
}

Result<UniqueFd> EndpointCore::AcceptDescriptor() {
  const std::lock_guard lock(mutex_);
  return accept_ready_.Descriptor(!accepted_.empty() || closing());
}

}  // namespace ferry::transfer
