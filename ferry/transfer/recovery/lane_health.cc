// Chooses network paths for lanes and schedules their replacement.
#include "ferry/transfer/recovery/lane_health.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "ferry/core/log_limiter.h"
#include "ferry/transfer/recovery/rejoin.h"
#include "ferry/transfer/stats/event_ring.h"

namespace ferry::transfer {
namespace {

// How long a network path is avoided after a lane on it was dropped, or failed to come up; the
// latter time doubles with each consecutive failure.
constexpr auto kAfterLoss = milliseconds(1000);
constexpr auto kAfterFailure = milliseconds(100);
constexpr auto kAfterManyFailures = milliseconds(5000);

bool IsV6(const net::Address& address) { return address.host.find(':') != std::string::npos; }

}  // namespace

std::vector<NetworkPath> NetworkPathsTo(const net::Provider& provider, const Config& config,
                                        const NetworkPath& dialled,
                                        const std::vector<net::Address>& others) {
  std::vector<NetworkPath> paths{dialled};
  const auto add = [&](const net::Address& to, const std::string& interface, bool is_forced) {
    const bool known = std::any_of(paths.begin(), paths.end(), [&](const NetworkPath& path) {
      return path.interface == interface || (is_forced && path.to == to);
    });
    const bool usable = !interface.empty() && interface != "lo" &&
                        net::InterfaceAllowed(config.interfaces, interface);
    if (usable && !known) paths.push_back({to, interface, is_forced});
  };
  std::vector<std::pair<net::Address, std::vector<std::string>>> reached;
  for (const bool same_family : {true, false}) {
    for (const net::Address& to : others) {
      if ((IsV6(to) == IsV6(dialled.to)) != same_family) continue;
      reached.emplace_back(to, provider.InterfacesTo(to, config));
    }
  }
  for (const auto& [to, interfaces] : reached) {
    if (!interfaces.empty()) add(to, interfaces.front(), /*is_forced=*/false);
  }
  // Several interfaces in one subnet: each takes an address of the peer that no path has yet.
  for (const auto& [to, interfaces] : reached) {
    for (std::size_t i = 1; i < interfaces.size(); ++i) add(to, interfaces[i], /*is_forced=*/true);
  }
  return paths;
}

LaneHealth::LaneHealth(RecoveryContext context, RecoveryHost* host, std::vector<NetworkPath> paths)
    : context_(std::move(context)), host_(host) {
  for (NetworkPath& path : paths) paths_.push_back({std::move(path)});
  lanes_.resize(context_.lanes);
  // All lanes have come up over the first path.
  for (std::size_t i = 0; i < lanes_.size(); ++i) lanes_[i].own = i % paths_.size();
}

LaneHealth::~LaneHealth() = default;

void LaneHealth::Start() {
  for (std::uint32_t i = 0; i < lanes_.size(); ++i) Step(i);
}

void LaneHealth::Stop() {
  stopped_ = true;
  if (retry_ != 0) context_.home->CancelTimerOnLoop(std::exchange(retry_, 0));
  for (LaneState& lane_state : lanes_) {
    if (auto attempt = std::exchange(lane_state.attempt, nullptr)) attempt->Cancel();
  }
}

// ---- what is heard of lanes ---------------------------------------------------------------------

void LaneHealth::MarkBad(std::size_t path, Clock::duration how_long) {
  paths_[path].bad_until = std::max(paths_[path].bad_until, Clock::now() + how_long);
}

// A reset does not mark the path as bad: it shows that packets still get through.
void LaneHealth::OnLaneLost(std::uint32_t lane, net::LaneLoss loss) {
  if (stopped_) return;
  LaneState& lane_state = lanes_[lane];
  lane_state.down = true;
  // If there is no other path, this one is retried at once.
  if (loss != net::LaneLoss::kReset && paths_.size() > 1) MarkBad(lane_state.path, kAfterLoss);
  Step(lane);
}

void LaneHealth::OnSuspect(std::uint32_t lane, const char* why) {
  LaneState& lane_state = lanes_[lane];
  if (stopped_ || lane_state.down || lane_state.suspect || paths_.size() == 1) return;
  host_->Note(fmt::format("lane {} on {} {}: trying another network path", lane,
                          paths_[lane_state.path].path.interface, why));
  PeerLogLimiter().Write(
      LogLevel::kWarn, "transfer", net::HostOf(context_.peer_name),
      {{"peer", context_.peer_name}, {"lane", std::to_string(lane)}},
      fmt::format("lane {} to {} on {} {}: trying another network path", lane, context_.peer_name,
                  paths_[lane_state.path].path.interface, why));
  lane_state.suspect = true;
  MarkBad(lane_state.path, kAfterLoss);
  Step(lane);
}

// A link that is up again clears its path's failures; a link that is down makes its path unusable
// at once, without waiting for timeouts.
void LaneHealth::OnLinkChange(const net::LinkChange& change) {
  if (stopped_) return;
  for (std::size_t i = 0; i < paths_.size(); ++i) {
    if (paths_[i].path.interface != change.interface) continue;
    if (change.up) {
      paths_[i].bad_until = {};
      paths_[i].failures = 0;
      paths_[i].unauthenticated = false;
    } else {
      MarkBad(i, kAfterLoss);
    }
  }
  for (std::uint32_t i = 0; i < lanes_.size(); ++i) Step(i);
}

void LaneHealth::Beat() {
  if (stopped_) return;
  for (std::uint32_t i = 0; i < lanes_.size(); ++i) Step(i);
}

// ---- what is done about it ----------------------------------------------------------------------

// A path on which another lane works is known to be good.
bool LaneHealth::InGoodUse(std::size_t path) const {
  return std::any_of(lanes_.begin(), lanes_.end(), [&](const LaneState& lane_state) {
    return lane_state.path == path && !lane_state.down && !lane_state.suspect;
  });
}

// The lane's own path comes first, even if the lane works elsewhere. Otherwise only a lane that is
// down or suspect moves, preferably to a path on which another lane works. nullopt: stay.
std::optional<std::size_t> LaneHealth::ChoosePath(const LaneState& lane_state,
                                                  Clock::time_point now) const {
  const auto good = [&](std::size_t path) { return paths_[path].bad_until <= now; };
  const bool must_move = lane_state.down || lane_state.suspect;
  if (good(lane_state.own) && (lane_state.down || lane_state.path != lane_state.own))
    return lane_state.own;
  if (!must_move) return std::nullopt;
  std::optional<std::size_t> chosen;
  for (std::size_t i = 0; i < paths_.size(); ++i) {
    // A new lane does not improve on a silent lane over the same path; after a lost lane it may.
    if (!good(i) || (!lane_state.down && i == lane_state.path)) continue;
    if (!chosen || (InGoodUse(i) && !InGoodUse(*chosen))) chosen = i;
  }
  return chosen;
}

// Authentication has failed at the address that the user dialed, and no other path is any better.
// Waiting does not help: other failures are those of a network, which may recover.
bool LaneHealth::NobodyAuthenticates() const {
  return paths_.front().unauthenticated &&
         std::all_of(paths_.begin(), paths_.end(),
                     [](const PathState& state) { return state.failures > 0; });
}

// Starts an attempt if the lane should move; at most one per lane at a time.
void LaneHealth::Step(std::uint32_t lane) {
  LaneState& lane_state = lanes_[lane];
  if (stopped_ || lane_state.attempt) return;
  const auto path = ChoosePath(lane_state, Clock::now());
  if (!path) {
    if (lane_state.down) RetryLater();
    return;
  }
  lane_state.trying = *path;
  lane_state.attempt = std::make_shared<Rejoin>(context_, host_, this, lane, ++lane_state.attempts);
  lane_state.attempt->Start(paths_[*path].path);
}

// A lane is down and no path is worth trying right now.
void LaneHealth::RetryLater() {
  if (retry_ != 0) return;
  auto when = Clock::time_point::max();
  for (const PathState& state : paths_) when = std::min(when, state.bad_until);
  retry_ = context_.home->AddTimerOnLoop(when, [this] {
    retry_ = 0;
    for (std::uint32_t i = 0; i < lanes_.size(); ++i) Step(i);
  });
}

void LaneHealth::NoteFailure(std::uint32_t lane, const PathState& state, const Error& error) const {
  // Attempts continue for as long as the lane is down.
  if (WorthKeeping(state.failures + 1)) {
    host_->Note(fmt::format("lane {} did not come up on {} at {}: {}", lane, state.path.interface,
                            state.path.to.ToString(), error.message()));
  }
  PeerLogLimiter().Write(
      LogLevel::kInfo, "transfer", net::HostOf(context_.peer_name),
      {{"peer", context_.peer_name}, {"lane", std::to_string(lane)}},
      fmt::format("lane {} to {} did not come up on {} at {}: {}", lane, context_.peer_name,
                  state.path.interface, state.path.to.ToString(), error.message()));
}

// After success the lane is checked again: its own path may have become good meanwhile. After a
// failure the path is avoided for a time that doubles.
void LaneHealth::OnAttemptOver(std::uint32_t lane, const std::optional<Error>& error, bool frozen) {
  if (stopped_) return;
  LaneState& lane_state = lanes_[lane];
  const auto attempt = std::exchange(lane_state.attempt, nullptr);
  PathState& state = paths_[lane_state.trying];
  if (!error) {
    lane_state.path = lane_state.trying;
    lane_state.down = lane_state.suspect = false;
    state.failures = 0;
    state.unauthenticated = false;
    return Step(lane);
  }
  NoteFailure(lane, state, *error);
  const bool none_up =
      std::all_of(lanes_.begin(), lanes_.end(), [](const LaneState& each) { return each.down; });
  // The host is reachable and knows no such connection, or one of us does not accept the other. A
  // refusal carries no proof, even if there is a secret: so it is trusted only from the address
  // that the user dialed, and only while no lane is up. At another address there may be a different
  // host, and the attempt failed just as if it had not answered.
  const bool refused = attempt->refused() || attempt->unauthenticated();
  if (refused && none_up && lane_state.trying == 0) {
    return host_->Fail(Error(Code::kPeerLost, error->message()));
  }
  const Clock::duration pause = kAfterFailure * (1U << std::min(state.failures, 10U));
  ++state.failures;
  state.unauthenticated = attempt->unauthenticated();
  MarkBad(lane_state.trying, std::min<Clock::duration>(pause, kAfterManyFailures));
  if (frozen) lane_state.down = true;
  // If nothing waits, attempts continue: certificates may be renewed.
  if (lane_state.down && NobodyAuthenticates()) host_->FailIfWaitedFor(lane, *error);
  Step(lane);
}

}  // namespace ferry::transfer
