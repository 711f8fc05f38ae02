// The state of a connection, and what its parts share.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "ferry/core/config.h"
#include "ferry/core/loop/event_loop.h"
#include "ferry/core/result.h"
#include "ferry/transfer/lane/lane_site.h"
#include "ferry/transfer/stats/connection_stats.h"

namespace ferry::transfer {

// The life of a connection, from the adoption of its lanes to the moment when none of them touches
// memory any more. Any thread may ask; the home loop moves it, apart from Lose().
class ConnectionState {
 public:
  enum class State : std::uint8_t {
    kStarting,   // some lanes are not adopted yet
    kLostEarly,  // lost meanwhile
    kUp,
    kLost,    // nothing new begins; what has arrived is still processed
    kEnding,  // every lane was told to close
    kClosed,  // no lane touches memory any more
  };

  State state() const noexcept { return state_.load(); }
  bool starting() const noexcept { return state() <= State::kLostEarly; }
  bool lost() const noexcept { return state() != State::kStarting && state() != State::kUp; }
  bool ending() const noexcept { return state() >= State::kEnding; }
  bool closed() const noexcept { return state() == State::kClosed; }

  // All lanes are adopted.
  void Start();
  // Any thread. Nothing new begins from now on; the first error is kept. Returns false if the
  // connection was lost before. `unlogged`: the events so far, if the peer has closed the
  // connection; the caller logs that when it knows whether an operation has failed by it.
  bool Lose(const Error& error, std::optional<std::string> unlogged = std::nullopt);
  // Call before every lane is told to close. Requires lost().
  void End();
  // The last lane is closed.
  void Close();

  // Why it was lost.
  Error error() const;
  std::optional<std::string> unlogged() const;

  // A failure in kStarting waits for Start(), because the other lanes cannot be closed before they
  // are adopted. The first is kept. Home loop.
  void FailAtStart(const Error& error) {
    if (!failed_at_start_) failed_at_start_ = error;
  }
  const std::optional<Error>& failed_at_start() const noexcept { return failed_at_start_; }

 private:
  // Call under mutex_.
  void MoveTo(State to);

  std::atomic<State> state_{State::kStarting};  // written under mutex_
  mutable std::mutex mutex_;
  Error error_{Code::kPeerLost, ""};      // under mutex_
  std::optional<std::string> unlogged_;   // under mutex_
  std::optional<Error> failed_at_start_;  // home loop
};

// Shared by the parts of a connection. Owned by the connection, which outlives them.
struct ConnectionCommon {
  ConnectionCommon(const Config& its_config, LaneContext its_context, EventLoop* its_home,
                   std::function<void(const Error&)> fail)
      : config(its_config),
        stats(its_context.peer_name),
        context(std::move(its_context)),
        home(its_home),
        fail_now(std::move(fail)) {
    context.config = &config;
  }
  ConnectionCommon(const ConnectionCommon&) = delete;
  ConnectionCommon& operator=(const ConnectionCommon&) = delete;

  const Config config;
  ConnectionState state;
  ConnectionStats stats;
  LaneContext context;
  EventLoop* const home;
  // Fails everything with the error and closes the lanes. Home loop.
  const std::function<void(const Error&)> fail_now;
};

}  // namespace ferry::transfer
