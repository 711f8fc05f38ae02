// Starts and stops an endpoint, accepts connections and keeps the connection table.
#include "ferry/transfer/endpoint/endpoint_core.h"

#include <fmt/core.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <set>
#include <thread>
#include <utility>

#include "ferry/core/log.h"
#include "ferry/net/machine/local_addresses.h"
#include "ferry/transfer/endpoint/acceptor.h"
#include "ferry/transfer/endpoint/dialer.h"
#include "ferry/transfer/handshake/endpoint_address.h"
#include "ferry/transfer/lane/lane_site.h"
#include "ferry/transfer/recovery/lane_health.h"

namespace ferry::transfer {
namespace {

constexpr std::size_t kMaxInterfaceLanes = 16;

// Half the cores.
int Automatic() {
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 2, 2, 16);
}

constexpr std::chrono::seconds kTrimInterval{1};

// Whether the process's last trim is long ago; then this begins another. All endpoints share the
// allocator, whose other users wait while it is trimmed.
bool MayTrim() {
  static std::atomic<Clock::time_point> last_trim{};
  const auto now = Clock::now();
  auto last = last_trim.load();
  return now - last >= kTrimInterval && last_trim.compare_exchange_strong(last, now);
}

// What replacing the connection's lanes needs.
RecoveryContext RecoveryFor(EndpointCore* endpoint, const ConnectionCore& connection,
                            const std::optional<Secret>& secret) {
  return {.config = &connection.config(),
          .home = connection.home(),
          .peer_name = connection.peer_name(),
          .lanes = connection.lanes().size(),
          .connection = connection.peer().connection,
          .token = connection.peer().token,
          .provider = &endpoint->provider(),
          .secret = secret,
          .may_use =
              [endpoint, has_secret = secret.has_value()](const net::LaneInfo& lane,
                                                          const std::string& peer_name) {
                return endpoint->policy().CheckLane(lane, peer_name, has_secret);
              },
          .trust = endpoint->policy().TrustIn(secret.has_value()),
          .process = connection.peer().process};
}

}  // namespace

EndpointCore::EndpointCore(const Config& config, std::unique_ptr<net::Provider> provider,
                           CheckIdentity check)
    : config_(config),
      provider_(std::move(provider)),
      check_identity_(std::move(check)),
      lanes_(config.lanes > 0 ? config.lanes : Automatic() + 1),
      held_(std::make_shared<HeldMemoryPool>(config.peer_memory_total, config.peer_memory)) {}

EndpointCore::~EndpointCore() = default;

Status EndpointCore::Start(const SecretText& secret) {
  FERRY_TRY(policy_.Load(secret));
  if (check_identity_ && !policy_.secret()) {
    return Error(Code::kInvalidArgument,
                 "peers identify themselves with the proof of a secret; give the endpoint one");
  }
  if (config_.tls != TlsMode::kOff && !provider_->capabilities().tls) {
    return Error(Code::kUnsupported,
                 fmt::format("the provider {} has no TLS; set FERRY_TLS=off, or use another one",
                             provider_->name()));
  }
  // The lane for small operations shares a loop with another lane.
  const int loops = lanes_ - static_cast<int>(FirstBulkLaneOf(static_cast<std::size_t>(lanes_)));
  const int workers = config_.workers > 0 ? config_.workers : std::min(Automatic(), loops);
  FERRY_TRY(loops_.Create(workers));
  FERRY_TRY(ServeMetrics());
  acceptor_ = std::make_unique<Acceptor>(this);
  FERRY_TRY_ASSIGN(
      listener_, provider_->Listen({config_.listen_host, 0}, config_, loops_.front(),
                                   [this](auto lane) { acceptor_->OnAccepted(std::move(lane)); }));
  listening_ = listener_->addresses();
  // Lanes that are lost by this are replaced.
  listener_->AnswerByInterfaceOnLoop();
  link_watch_ = provider_->WatchLinks(
      loops_.front(), [this](const net::LinkChange& change) { OnLinkChange(change); });
  // The listener's loop starts last: nobody is accepted before all the others run, so after an
  // error everything made so far can simply be destroyed.
  FERRY_TRY(loops_.StartWorkers());
  return Ok();
}

// Processes that share a setting may be more than there are ports, and some builds have no server:
// neither is a reason to be without an endpoint.
Status EndpointCore::ServeMetrics() {
  if (config_.metrics_address.empty()) return Ok();
  auto started =
      MetricsServer::Start(config_.metrics_address, Deadline::After(config_.connect_timeout),
                           [this] { return Counters(); });
  if (started) {
    metrics_ = *std::move(started);
    return Ok();
  }
  const Code code = started.error().code();
  if (code != Code::kUnavailable && code != Code::kUnsupported) return started.error();
  Log(LogLevel::kWarn, "transfer", "this endpoint serves no metrics: {}",
      started.error().message());
  return Ok();
}

// The allocator keeps what a connection has freed, in pieces between what lives: tens of MiB after
// a peer that made us hold much. Once for all connections that end within a second, and not on the
// loop, since it takes milliseconds.
void EndpointCore::TrimSoonOnLoop() {
  if (trim_timer_ != 0) return;
  trim_timer_ = loops_.front()->AddTimerOnLoop(Clock::now() + kTrimInterval, [this] {
    trim_timer_ = 0;
    if (!MayTrim()) return TrimSoonOnLoop();
    (void)device_memory_.background_tasks().Post([] { (void)::malloc_trim(0); });
  });
}

// Order: first nothing new comes in (names, metrics, listener), then all connections close, then
// the loops stop; only then may the objects that their tasks use be destroyed.
void EndpointCore::Shutdown() {
  if (closing_.exchange(true)) return;
  names_.Cancel();
  metrics_.reset();
  loops_.front()->Post([this] {
    listener_.reset();
    link_watch_.reset();
    acceptor_->ClearOnLoop();
  });
  connections_.Close();
  for (const auto& connection : connections_.All()) {
    connection->Close(Error(Code::kCancelled, "this endpoint was closed"));
  }
  loops_.front()->NotifyWaiters();
  connections_.AwaitEmpty();
  loops_.Stop();
  std::vector<std::shared_ptr<Dialer>> dialers;  // shared with the threads in Endpoint::Connect
  {
    const std::lock_guard lock(mutex_);
    has_stopped_ = true;
    dialers.swap(dialers_);
  }
  for (const auto& dialer : dialers) dialer->GiveUp();
  listener_.reset();
  link_watch_.reset();
  acceptor_.reset();
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
  const auto interfaces = provider_->InterfacesTo(peer, config_);
  const bool here = !interfaces.empty() && interfaces.front() == "lo";
  return here ? lanes_ : LanesOverInterfaces();
}

EndpointAddress EndpointCore::Told() const {
  EndpointAddress address{id_, net::ToldAddresses(provider_->Addresses(config_), listening_)};
  address.at.resize(std::min(address.at.size(), EndpointAddress::kMaxAddresses));
  return address;
}

EndpointAddress EndpointCore::OtherAddresses() const {
  EndpointAddress address = Told();
  // The peer knows the one address that is listened at.
  if (!config_.listen_host.empty() && address.at.size() == 1) address.at.clear();
  address.at.resize(std::min(address.at.size(), kMaxInterfaceLanes));
  return address;
}

void EndpointCore::OnLinkChange(const net::LinkChange& change) {
  Log(LogLevel::kInfo, "transfer", "link {} went {}", change.interface, change.up ? "up" : "down");
  for (const auto& connection : connections_.All()) connection->OnLinkChange(change);
}

// ---- listener -----------------------------------------------------------------------------------

void EndpointCore::PauseAcceptingOnLoop(bool paused) {
  if (listener_) listener_->PauseOnLoop(paused);
}

void EndpointCore::ExpectLanesOnLoop(const std::string& host, std::size_t lanes,
                                     Clock::time_point until) {
  if (listener_) listener_->ExpectOnLoop(host, lanes, until);
}

// ---- counters -----------------------------------------------------------------------------------

EndpointCounters EndpointCore::Counters() {
  EndpointCounters counters = connections_.Counters();
  counters.handshakes_refused = policy_.refused();
  const RegionTable::Size size = regions_.Registered();
  counters.regions = size.regions;
  counters.region_bytes = size.bytes;
  counters.held_bytes = held_->held();
  counters.staging = device_memory_.Counters();
  return counters;
}

// ---- connections --------------------------------------------------------------------------------

// If nobody is inside, only connections that share the region's GPU memory are asked.
void EndpointCore::RevokeEverywhere(const std::shared_ptr<RegionState>& region, bool drained) {
  for (const RegionOpener& opener : region->openers.All()) {
    if (drained && !opener.shares) continue;
    const auto connection = connections_.Find(opener.connection);
    if (!connection) continue;
    if (opener.shares) connection->TakeBack(region);
    if (!drained) connection->Revoke(region);
  }
}

void EndpointCore::FailHolders(const std::shared_ptr<RegionState>& region) {
  for (const RegionOpener& opener : region->openers.All()) {
    const auto connection = connections_.Find(opener.connection);
    if (connection) connection->FailIfHolding(region, opener.lanes);
  }
}

std::shared_ptr<ConnectionCore> EndpointCore::EstablishOnLoop(
    Peer agreed, std::vector<std::unique_ptr<net::Lane>> lanes,
    const std::vector<EventLoop*>& loops, const Dialled* dialled) {
  auto connection = std::make_shared<ConnectionCore>(config_, &regions_, std::move(agreed), loops);
  if (dialled != nullptr) {
    connection->monitor().SetPaths(
        RecoveryFor(this, *connection, dialled->secret),
        NetworkPathsTo(*provider_, config_, {dialled->at, dialled->interface}, dialled->others));
  }
  if (!Keep(connection)) return nullptr;
  BringUpOnLoop(connection, std::move(lanes));
  return connection;
}

bool EndpointCore::Keep(const std::shared_ptr<ConnectionCore>& connection) {
  connection->SetRefusalLog(&policy_.log());
  connection->memory().SetPool(held_, connection->lanes().size() * kLaneReserve);
  connection->sharing().SetMemory(&device_memory_);
  connection->SetClosedCallback([this, raw = connection.get()] {
    loops_.front()->Post([this] { TrimSoonOnLoop(); });
    connections_.Forget(raw);
  });
  return connections_.Keep(connection);
}

// The lanes are adopted here, on the loop that they belong to; each moves to its own loop
// afterwards.
void EndpointCore::BringUpOnLoop(const std::shared_ptr<ConnectionCore>& connection,
                                 std::vector<std::unique_ptr<net::Lane>> lanes) {
  std::vector<net::LaneInfo> infos;
  infos.reserve(lanes.size());
  for (const auto& lane : lanes) infos.push_back(lane->Info());
  connection->monitor().records().Set(std::move(infos));
  for (std::size_t i = lanes.size(); i-- > 0;)
    connection->lanes().lane(i).Adopt(std::move(lanes[i]));
  connection->home()->Post([connection] { connection->Start(); });
  if (connection->monitor().called()) return;
  connections_.Enqueue(connection);
  loops_.front()->NotifyWaiters();
}

void EndpointCore::Follow(const std::shared_ptr<Dialer>& dialer) {
  const std::lock_guard lock(mutex_);
  if (!has_stopped_) dialers_.push_back(dialer);
}

void EndpointCore::Forget(const std::shared_ptr<Dialer>& dialer) {
  const std::lock_guard lock(mutex_);
  dialers_.erase(std::remove(dialers_.begin(), dialers_.end(), dialer), dialers_.end());
}

}  // namespace ferry::transfer
