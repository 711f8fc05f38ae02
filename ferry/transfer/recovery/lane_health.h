// Keeps a connection's lanes up: spreads them over network paths and replaces lost ones.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/loop/event_loop.h"
#include "ferry/net/provider.h"
#include "ferry/transfer/recovery/recovery_host.h"

namespace ferry::transfer {

class Rejoin;

// A network path to the peer: one of its addresses, and the local interface that lanes leave by.
struct NetworkPath {
  net::Address to;
  std::string interface;
  bool is_forced = false;  // the route would use another interface
};

// Network paths to a peer that is known to listen at `dialled`, which comes first, and possibly at
// `others`: one for each interface that leads to one of them (Provider::InterfacesTo()) and
// config.interfaces allows; addresses of `dialled`'s family come first, and so do interfaces that
// the routes use. Any thread.
std::vector<NetworkPath> NetworkPathsTo(const net::Provider& provider, const Config& config,
                                        const NetworkPath& dialled,
                                        const std::vector<net::Address>& others);

// Keeps a connection's lanes up, on the dialing side: spreads them over the network paths to the
// peer, replaces lost and silent lanes over working paths, and moves lanes back to their own path
// when it works again. Lives on the connection's home loop.
class LaneHealth {
 public:
  // `host` must outlive this object.
  LaneHealth(RecoveryContext context, RecoveryHost* host, std::vector<NetworkPath> paths);
  ~LaneHealth();

  void Start();
  // Cancels all attempts.
  void Stop();
  void OnLaneLost(std::uint32_t lane, net::LaneLoss loss);
  // The lane may be dead: tries another path. The lane stays in use until that succeeds.
  void OnSuspect(std::uint32_t lane, const char* why);
  void OnLinkChange(const net::LinkChange& change);
  // Call with each heartbeat.
  void Beat();

  // Called once by each attempt, with its error if it failed. `frozen`: the old lane is no longer
  // in use.
  void OnAttemptOver(std::uint32_t lane, const std::optional<Error>& error, bool frozen);

 private:
  struct PathState {
    NetworkPath path;
    Clock::time_point bad_until{};
    unsigned failures = 0;         // consecutive
    bool unauthenticated = false;  // the last of them (Rejoin::unauthenticated)
  };
  struct LaneState {
    std::size_t own = 0;   // index of the path that it should use
    std::size_t path = 0;  // index of the path that it uses, or used last
    std::size_t trying = 0;
    bool down = false;
    bool suspect = false;
    std::shared_ptr<Rejoin> attempt;  // shared with the tasks that it has posted to its loops
    std::uint32_t attempts = 0;
  };

  void Step(std::uint32_t lane);
  std::optional<std::size_t> ChoosePath(const LaneState& lane_state, Clock::time_point now) const;
  bool InGoodUse(std::size_t path) const;
  bool NobodyAuthenticates() const;
  void MarkBad(std::size_t path, Clock::duration how_long);
  void RetryLater();
  void NoteFailure(std::uint32_t lane, const PathState& state, const Error& error) const;

  const RecoveryContext context_;
  RecoveryHost* const host_;
  std::vector<PathState> paths_;
  std::vector<LaneState> lanes_;
  EventLoop::TimerId retry_ = 0;
  bool stopped_ = false;
};

}  // namespace ferry::transfer
