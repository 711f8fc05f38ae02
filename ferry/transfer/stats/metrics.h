// HTTP server for an endpoint's metrics in the Prometheus format.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "ferry/core/deadline.h"
#include "ferry/core/result.h"
#include "ferry/transfer/counters.h"

namespace ferry::transfer {

// Serves an endpoint's counters over HTTP at /metrics, in the Prometheus text format, with two
// threads of its own. Builds without prometheus-cpp have no server.
class MetricsServer {
 public:
  using Source = std::function<EndpointCounters()>;

  // `address`: as config.metrics_address; its host is resolved before the deadline. If the port is
  // in use, one of the 63 after it, with a line in the log. `source` is called on the server's
  // threads until this object is destroyed. Errors: kInvalidArgument (not an address to listen at),
  // kTimedOut, kUnavailable (all these ports are in use), kUnsupported (no prometheus-cpp).
  static Result<std::unique_ptr<MetricsServer>> Start(const std::string& address, Deadline deadline,
                                                      Source source);
  virtual ~MetricsServer() = default;

  virtual std::uint16_t port() const noexcept = 0;
};

}  // namespace ferry::transfer
