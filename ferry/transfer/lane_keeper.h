#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/event_loop.h"
#include "ferry/net/provider.h"

namespace ferry::transfer {

class ConnectionCore;
class EndpointCore;
class Rejoin;

// A way to the peer: one of its addresses, and the interface by which the route to it leaves.
struct Way {
  net::Address to;
  std::string interface;
};

// The ways to a peer that is known to listen at `dialled`, which comes first, and perhaps at
// `others`: one for each interface that the routes to them leave by and config.interfaces allows,
// `dialled`'s family before the other. Any thread.
std::vector<Way> WaysTo(const net::Provider& provider, const Config& config, const Way& dialled,
                        const std::vector<net::Address>& others);

// Keeps a connection's lanes in use, on the side that has connected: spreads them over the ways to
// the peer, replaces lost and silent ones over ways that work, and brings them back to their own
// way when that works again. Belongs to the connection's home loop.
class LaneKeeper {
 public:
  // Both outlive this.
  LaneKeeper(EndpointCore* endpoint, ConnectionCore* connection, std::vector<Way> ways);
  ~LaneKeeper();

  void StartOnLoop();
  // Ends all attempts.
  void StopOnLoop();
  void OnLaneLostOnLoop(std::uint32_t lane, net::LaneLoss loss);
  // The lane may be of no use: another way is tried, and the lane is in use until that works.
  void OnSuspectOnLoop(std::uint32_t lane, const char* why);
  void OnLinkChangeOnLoop(const net::LinkChange& change);
  void BeatOnLoop(Clock::time_point now);

  // By an attempt, once: nothing, or why it failed. `frozen`: the old lane is in use no more.
  void OnAttemptOverOnLoop(std::uint32_t lane, const std::optional<Error>& error, bool frozen);

 private:
  struct WayState {
    Way way;
    Clock::time_point bad_until{};
    unsigned failures = 0;  // in a row
  };
  struct Care {
    std::size_t own = 0;  // the way that it should take
    std::size_t way = 0;  // that it takes, or took last
    std::size_t trying = 0;
    bool down = false;
    bool suspect = false;
    std::shared_ptr<Rejoin> attempt;  // with the tasks that it has posted to its loops
    std::uint32_t attempts = 0;
  };

  void StepOnLoop(std::uint32_t lane);
  std::optional<std::size_t> ChooseWay(const Care& care, Clock::time_point now) const;
  bool InGoodUse(std::size_t way) const;
  void MarkBad(std::size_t way, Clock::duration how_long);
  void RetryLaterOnLoop();
  void NoteFailure(std::uint32_t lane, const WayState& state, const Error& error) const;

  EndpointCore* const endpoint_;
  ConnectionCore* const connection_;
  std::vector<WayState> ways_;
  std::vector<Care> lanes_;
  EventLoop::TimerId retry_ = 0;
  bool stopped_ = false;
};

}  // namespace ferry::transfer
