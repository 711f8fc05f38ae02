#pragma once
#include <vector>

#include "ferry/transfer/counters.h"

namespace prometheus {  // NOLINT(readability-identifier-naming): the library's
struct MetricFamily;
}

namespace ferry::transfer {

// The snapshot in Prometheus' terms: base units, _total for what only grows, no more series than
// kMaxPeers hosts, their lanes and interfaces make. In builds with prometheus-cpp only.
std::vector<prometheus::MetricFamily> FamiliesOf(const EndpointCounters& counters);

}  // namespace ferry::transfer
