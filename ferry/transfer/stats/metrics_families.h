// Converts counter snapshots to Prometheus metric families.
#pragma once
#include <vector>

#include "ferry/transfer/counters.h"

namespace prometheus {  // NOLINT(readability-identifier-naming): the library's
struct MetricFamily;
}

namespace ferry::transfer {

// Converts a snapshot to Prometheus families: base units, suffix _total for counters. The number of
// series is bounded by kMaxPeers hosts, their lanes and interfaces. Only in builds with
// prometheus-cpp.
std::vector<prometheus::MetricFamily> FamiliesOf(const EndpointCounters& counters);

}  // namespace ferry::transfer
