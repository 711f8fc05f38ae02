// Client of `ferry perf`: connects, runs every case and prints the rows.

#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <utility>

#include "ferry/core/random.h"
#include "ferry/core/trace.h"
#include "ferry/core/units.h"
#include "ferry/net/address.h"
#include "ferry/transfer/endpoint.h"
#include "tools/perf/cmd_perf.h"
#include "tools/perf/floor.h"
#include "tools/perf/run.h"
#include "tools/support/json.h"
#include "tools/support/operations.h"
#include "tools/support/report.h"

namespace ferry::tools {
namespace {

constexpr auto kShow = std::chrono::seconds(10);  // for the server to print a row

// ---- the connection -----------------------------------------------------------------------------

Result<Link> MakeLink(const PerfJob& job, const std::string& address, Deadline deadline) {
  FERRY_TRY_ASSIGN(const auto current, job.memory.MakeCurrent(job.config));
  FERRY_TRY_ASSIGN(auto endpoint, transfer::Endpoint::Create(job.config));
  FERRY_TRY_ASSIGN(auto connection, ConnectTo(&endpoint, address, deadline));
  return Link{std::move(endpoint), connection, Control(connection), std::nullopt};
}

Status OpenFloor(const PerfJob& job, Link* link, Deadline deadline) {
  const auto info = link->connection.Info();
  const net::LaneInfo& lane = info.lanes.front();
  const Config config = FloorConfig(job.config, lane.congestion_control);
  FERRY_TRY_ASSIGN(const Json answer,
                   link->control.Ask({{"do", perf_request::kFloorOpen},
                                      {"sockets", info.bulk_lanes},
                                      {"congestion_control", lane.congestion_control}},
                                     deadline));
  // The server's port of the floor; the token tells its sockets from those of others.
  FERRY_TRY_ASSIGN(const std::uint64_t port, NumberField(answer, "port"));
  FERRY_TRY_ASSIGN(const auto token_bytes, BytesField(answer, "token"));
  Uuid token;
  std::copy_n(token_bytes.begin(), std::min(token_bytes.size(), token.bytes.size()),
              token.bytes.begin());
  FERRY_TRY_ASSIGN(net::Address remote, net::ParseAddress(lane.remote, 0));
  remote.port = static_cast<std::uint16_t>(port);
  FERRY_TRY_ASSIGN(auto floor,
                   FloorSockets::Connect(config, remote, token, info.bulk_lanes, deadline));
  link->floor.emplace(std::move(floor));
  FERRY_TRY(link->control.HearAnswer(deadline));
  return Ok();
}

PerfRow::Transport TransportOf(const transfer::Connection& connection) {
  const transfer::ConnectionCounters counters = connection.Counters();
  PerfRow::Transport transport;
  for (const auto& lane : counters.lanes) {
    if (lane.up) ++transport.lanes[lane.info.interface];
  }
  transport.retries = counters.traffic.lanes.retries;
  transport.lanes_lost = counters.traffic.lanes_lost;
  transport.lanes_replaced = counters.traffic.lanes_replaced;
  transport.lane_stalls = counters.traffic.lane_stalls;
  transport.retransmitted_segments = counters.traffic.lanes.retransmitted_segments;
  return transport;
}

void PrintHead(const PerfJob& job, const transfer::ConnectionInfo& info) {
  const bool spin = job.config.spin.count() > 0;
  PrintLine(fmt::format("{} over {}, {} lanes ({} for bulk), {} to {} memory", info.peer,
                        info.provider, info.lanes.size(), info.bulk_lanes, job.memory.ToString(),
                        job.peer_memory.ToString()));
  PrintLine(fmt::format("congestion control {}; security {}", info.lanes.front().congestion_control,
                        Printable(info.lanes.front().security)));
  PrintLine(fmt::format("depth {}, {} rounds, {}", job.depth, job.rounds,
                        spin ? "waiting by polling" : "waiting asleep"));
  if (job.floor) {
    PrintLine(
        fmt::format("floor (GB/s) and CPU ratio: a plain contiguous copy over {} sockets with the "
                    "same options",
                    info.bulk_lanes));
  }
  PrintLine(PerfTableHead());
}

Status ReportCase(const PerfJob& job, const PerfCase& perf_case, Link* link) {
  const Deadline deadline = Deadline::After(job.deadline);
  const auto row_or_error = MeasureCase(job, perf_case, link);
  // Other waits have times of their own.
  if (!row_or_error && row_or_error.error().code() == Code::kTimedOut && deadline.expired()) {
    return Error(Code::kTimedOut,
                 fmt::format("{} did not end within {} (--deadline): {}", TitleOf(perf_case),
                             FormatDuration(job.deadline), row_or_error.error().message()));
  }
  FERRY_TRY_ASSIGN(PerfRow row, row_or_error);
  row.transport = TransportOf(link->connection);
  PrintLine(job.json ? DumpJson(ToJson(row)) : PerfTableLine(row));
  const Json result{
      {"do", perf_request::kResult}, {"seconds_avg", row.seconds_avg}, {"gbps", row.gbps}};
  if (const auto shown = link->control.Ask(result, Deadline::After(kShow)); !shown) {
    return shown.error();
  }
  if (row.verified.value_or(true)) return Ok();
  return Error(Code::kInternal, row.wrong);
}

Status WriteTraces(const PerfJob& job, const Link& link) {
  if (job.trace.empty()) return Ok();
  Trace all;
  for (const Trace& trace : link.traces) all.Append(trace);
  return all.Write(job.trace);
}

}  // namespace

Config FloorConfig(const Config& config, const std::string& congestion_control) {
  Config floor = config;
  // The report has the reason for the choice behind the name.
  floor.congestion_control =
      CongestionControl::Named(congestion_control.substr(0, congestion_control.find(' ')));
  return floor;
}

Status RunPerfClient(const PerfJob& job, const std::string& address) {
  const Deadline deadline = Deadline::After(job.config.connect_timeout);
  FERRY_TRY_ASSIGN(Link link, MakeLink(job, address, deadline));
  if (job.floor) {
    const Status opened = OpenFloor(job, &link, deadline);
    if (!opened && opened.error().code() == Code::kTimedOut) {
      return Error(Code::kTimedOut,
                   fmt::format("the plain-socket floor to {} was not open within {} "
                               "(FERRY_CONNECT_TIMEOUT): {}",
                               address, FormatDuration(job.config.connect_timeout),
                               opened.error().message()));
    }
    FERRY_TRY(opened);
  }
  if (!job.json) PrintHead(job, link.connection.Info());
  for (const PerfCase& perf_case : job.cases) FERRY_TRY(ReportCase(job, perf_case, &link));
  FERRY_TRY(WriteTraces(job, link));
  const std::string transport = TransportLine(TransportOf(link.connection));
  if (!job.json && !transport.empty()) PrintLine(transport);
  return Ok();
}

}  // namespace ferry::tools
