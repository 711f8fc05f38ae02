// Entry point for the measurement of one case of `ferry perf`.
#pragma once
#include <deque>
#include <optional>
#include <string>

#include "ferry/core/result.h"
#include "ferry/core/trace.h"
#include "ferry/transfer/endpoint.h"
#include "tools/perf/cmd_perf.h"
#include "tools/perf/floor.h"
#include "tools/support/operations.h"
#include "tools/support/report.h"

namespace ferry::tools {

// A client's connection to its server, and the floor's sockets.
struct Link {
  transfer::Endpoint endpoint;
  transfer::Connection connection;
  Control control;
  std::optional<FloorSockets> floor;
  std::deque<Trace> traces{};  // of single operations
};

// "write of 64 MiB"
std::string TitleOf(const PerfCase& perf_case);

// Measures a case in rounds and verifies the bytes that its timed operations moved. Blocks.
Result<PerfRow> MeasureCase(const PerfJob& job, const PerfCase& perf_case, Link* link);

}  // namespace ferry::tools
