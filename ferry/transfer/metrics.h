#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "ferry/core/deadline.h"
#include "ferry/core/result.h"
#include "ferry/transfer/counters.h"

namespace ferry::transfer {

// Serves an endpoint's counters over HTTP at /metrics, in Prometheus' text format, with two threads
// of its own. Without prometheus-cpp the build has none.
class MetricsServer {
 public:
  using Source = std::function<EndpointCounters()>;

  // `address`: as config.metrics_address, whose host is looked up by the deadline. `source` is
  // called by the server's threads until this goes. Errors: kInvalidArgument (host), kTimedOut,
  // kUnavailable (port taken, threads), kUnsupported.
  static Result<std::unique_ptr<MetricsServer>> Start(const std::string& address, Deadline deadline,
                                                      Source source);
  virtual ~MetricsServer() = default;

  virtual std::uint16_t port() const noexcept = 0;
};

}  // namespace ferry::transfer
