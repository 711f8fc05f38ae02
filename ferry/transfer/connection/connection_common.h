// What the parts of one connection's engine have in common.
#pragma once
#include <string>
#include <utility>

#include "ferry/core/config.h"
#include "ferry/core/event_loop.h"
#include "ferry/transfer/connection/connection_state.h"
#include "ferry/transfer/lane/lane_owner.h"
#include "ferry/transfer/stats/connection_stats.h"

namespace ferry::transfer {

// Ends the connection for a part of it that has found a reason.
class FailureHandler {
 public:
  // Fails everything with `error` and closes the lanes. Home loop.
  virtual void FailNow(const Error& error) = 0;

 protected:
  ~FailureHandler() = default;
};

// What the parts of a connection's engine have in common. Owned by the connection, which outlives
// the parts.
struct ConnectionCommon {
  ConnectionCommon(const Config& its_config, LaneContext its_context, EventLoop* its_home,
                   FailureHandler* its_failures)
      : config(its_config),
        stats(its_context.peer_name),
        context(std::move(its_context)),
        home(its_home),
        failures(its_failures) {
    context.config = &config;
  }
  ConnectionCommon(const ConnectionCommon&) = delete;
  ConnectionCommon& operator=(const ConnectionCommon&) = delete;

  const Config config;
  ConnectionState state;
  ConnectionStats stats;
  LaneContext context;
  EventLoop* const home;
  FailureHandler* const failures;
};

}  // namespace ferry::transfer
