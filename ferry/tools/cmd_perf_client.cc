#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ferry/core/random.h"
#include "ferry/core/trace.h"
#include "ferry/core/units.h"
#include "ferry/net/address.h"
#include "ferry/tools/cmd_perf.h"
#include "ferry/tools/floor.h"
#include "ferry/tools/json.h"
#include "ferry/tools/operations.h"
#include "ferry/tools/perf_memory.h"
#include "ferry/tools/perf_plugin.h"
#include "ferry/tools/process.h"
#include "ferry/tools/report.h"
#include "ferry/transfer/endpoint.h"

namespace ferry::tools {
namespace {

constexpr double kRoundSeconds = 0.5;
constexpr double kTrialSeconds = 0.05;
constexpr double kPingSeconds = 0.25;
constexpr std::uint64_t kFewest = 5;
constexpr std::uint64_t kMost = 1'000'000;
constexpr std::uint64_t kPingTrial = 50;
constexpr std::uint64_t kFewestPings = 100;
constexpr std::uint64_t kMostPings = 50'000;
constexpr std::array kFloorChunks = {512 * kKiB, kMiB};
constexpr int kChunkTrials = 3;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::uint64_t CountFor(double seconds, double seconds_each, std::uint64_t low, std::uint64_t high) {
  return static_cast<std::uint64_t>(
      std::clamp(seconds / seconds_each, static_cast<double>(low), static_cast<double>(high)));
}

// The connection to the server, and the floor's beside it.
struct Link {
  transfer::Endpoint endpoint;
  transfer::Connection connection;
  Control control;
  std::optional<FloorSockets> floor;
  std::deque<Trace> traces{};  // of single operations
};

// What the rounds of a case gave.
struct Rounds {
  std::vector<Sample> ours;
  std::vector<Sample> floor;
  std::vector<Sample> checked;  // ours, with checksums
  std::vector<double> seconds;  // of each operation
  std::vector<double> pings;    // half round trips
  std::vector<double> floor_pings;
};

// Measures one case.
class CaseRun {
 public:
  CaseRun(const PerfJob& job, const PerfCase& perf_case, Link* link)
      : job_(job), case_(perf_case), link_(link), deadline_(Deadline::After(job.deadline)) {}

  Result<PerfRow> Run();
  // "write of 64 MiB"
  std::string Title() const;

 private:
  Status SetUp();
  Status Prepare(const transfer::RemoteRegion& remote, const Layout& far);
  Result<std::optional<double>> TraceOne();
  Result<std::uint64_t> Calibrate();
  Status ChooseChunk(std::uint64_t count);
  Status MeasureRound(std::uint64_t index, Rounds* rounds);
  Status MeasureOurs(Rounds* rounds);
  Status MeasureFloor(Rounds* rounds);
  Status MeasureChecked(Rounds* rounds);
  Status MeasurePings(Rounds* rounds);
  Result<bool> Verify();
  PerfRow RowOf(const Rounds& rounds) const;

  Result<Sample> RunOurs(std::uint64_t count, std::vector<double>* seconds);
  Result<Sample> RunCarried(std::uint64_t count, std::vector<double>* seconds);
  Status PostAll(std::uint64_t count, std::vector<double>* seconds);
  Result<transfer::Operation> Post();
  Result<Sample> RunFloor(std::uint64_t count);
  Status RunPings(std::uint64_t count, std::vector<double>* half_round_trips);
  Status RunFloorPings(std::uint64_t count, std::vector<double>* half_round_trips);
  Result<double> HearCpu();

  Result<Json> Ask(const Json& question) { return link_->control.Ask(question, deadline_); }
  transfer::PostOptions Options() const {
    return {.deadline = deadline_, .notification = {}, .checksum = checksum_};
  }

  const PerfJob& job_;
  const PerfCase case_;
  Link* const link_;
  const Deadline deadline_;
  const std::uint64_t slots_ = RandomU64();
  const Layout layout_{case_, slots_};
  std::uint64_t iterations_ = 0;
  std::uint64_t pings_ = 0;
  bool checksum_ = false;
  std::uint64_t chunk_ = kMiB;
  PerfMemory buffer_;
  std::optional<transfer::Region> region_;  // after its memory
  std::optional<transfer::PreparedTransfer> transfer_;
  std::unique_ptr<CarriedCase> carried_;  // likewise; null without a plugin
};

std::string CaseRun::Title() const {
  std::string title = fmt::format("{} of {}", OpName(case_.op), FormatSize(case_.size));
  if (case_.block_size != 0) title += fmt::format(" in blocks of {}", FormatSize(case_.block_size));
  return title;
}

// ---- one timed part -----------------------------------------------------------------------------

Result<double> CaseRun::HearCpu() {
  FERRY_TRY_ASSIGN(const Json answer, link_->control.HearAnswer(deadline_));
  return RealField(answer, "cpu_seconds");
}

Result<transfer::Operation> CaseRun::Post() {
  switch (case_.op) {
    case Op::kWrite: return link_->connection.Write(*transfer_, Options());
    case Op::kRead: return link_->connection.Read(*transfer_, Options());
    case Op::kSend: break;
  }
  return link_->connection.Send(kDataTag, buffer_.bytes(), Options());
}

Status CaseRun::PostAll(std::uint64_t count, std::vector<double>* seconds) {
  InFlight operations;
  std::deque<Clock::time_point> posted;
  const auto finish = [&]() -> Status {
    FERRY_TRY(operations.FinishOldest(deadline_));
    if (seconds != nullptr) seconds->push_back(SecondsSince(posted.front()));
    posted.pop_front();
    return Ok();
  };
  for (std::uint64_t i = 0; i < count; ++i) {
    if (operations.size() == job_.depth) FERRY_TRY(finish());
    posted.push_back(Clock::now());
    FERRY_TRY_ASSIGN(auto operation, Post());
    operations.Add(std::move(operation));
  }
  while (operations.size() > 0) FERRY_TRY(finish());
  return Ok();
}

Result<Sample> CaseRun::RunOurs(std::uint64_t count, std::vector<double>* seconds) {
  if (carried_) return RunCarried(count, seconds);
  const bool two_sided = case_.op == Op::kSend;
  FERRY_TRY(two_sided
                ? Ask({{"do", perf_request::kReceive}, {"count", count}, {"depth", job_.depth}})
                : Ask({{"do", perf_request::kBegin}}));
  const double cpu = CpuSeconds();
  const auto begin = Clock::now();
  FERRY_TRY(PostAll(count, seconds));
  Sample sample{.seconds = SecondsSince(begin), .cpu_seconds = CpuSeconds() - cpu};
  if (!two_sided) FERRY_TRY(link_->control.Say({{"do", perf_request::kEnd}}, deadline_));
  FERRY_TRY_ASSIGN(const double theirs, HearCpu());
  sample.cpu_seconds += theirs;
  return sample;
}

// One side alone does not see when each ends at the other: all have their mean.
Result<Sample> CaseRun::RunCarried(std::uint64_t count, std::vector<double>* seconds) {
  FERRY_TRY_ASSIGN(const Sample sample, carried_->Run(count, job_.depth, deadline_));
  if (seconds != nullptr) {
    seconds->insert(seconds->end(), count, sample.seconds / static_cast<double>(count));
  }
  return sample;
}

Result<Sample> CaseRun::RunFloor(std::uint64_t count) {
  const bool to_server = case_.op != Op::kRead;
  const FloorRun run{.asked_for = !to_server, .count = count, .depth = job_.depth, .chunk = chunk_};
  FERRY_TRY(Ask({{"do", perf_request::kFloorRun},
                 {"to_server", to_server},
                 {"count", run.count},
                 {"depth", run.depth},
                 {"chunk", run.chunk}}));
  const auto memory = buffer_.host().first(case_.size);
  const double cpu = CpuSeconds();
  const auto begin = Clock::now();
  FERRY_TRY(to_server ? link_->floor->Produce(memory, run) : link_->floor->Consume(memory, run));
  Sample sample{.seconds = SecondsSince(begin), .cpu_seconds = CpuSeconds() - cpu};
  FERRY_TRY_ASSIGN(const double theirs, HearCpu());
  sample.cpu_seconds += theirs;
  return sample;
}

Status CaseRun::RunPings(std::uint64_t count, std::vector<double>* half_round_trips) {
  FERRY_TRY(Ask({{"do", perf_request::kPong}, {"count", count}}));
  const std::array<std::byte, kPingBytes> ping{};
  std::array<std::byte, kPingBytes> pong{};
  InFlight operations;
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto begin = Clock::now();
    FERRY_TRY_ASSIGN(auto receive, link_->connection.Recv(kPongTag, kWholeTag, pong, Options()));
    operations.Add(std::move(receive));
    FERRY_TRY_ASSIGN(auto send, link_->connection.Send(kPingTag, ping, Options()));
    operations.Add(std::move(send));
    FERRY_TRY(operations.FinishOldest(deadline_));
    half_round_trips->push_back(SecondsSince(begin) / 2);
    FERRY_TRY(operations.FinishOldest(deadline_));
  }
  FERRY_TRY(link_->control.HearAnswer(deadline_));
  return Ok();
}

Status CaseRun::RunFloorPings(std::uint64_t count, std::vector<double>* half_round_trips) {
  const bool spin = job_.config.spin.count() > 0;
  FERRY_TRY(Ask({{"do", perf_request::kFloorPong}, {"count", count}, {"spin", spin}}));
  FERRY_TRY(link_->floor->Ping({.count = count, .spin = spin}, half_round_trips));
  FERRY_TRY(link_->control.HearAnswer(deadline_));
  return Ok();
}

// ---- before the rounds --------------------------------------------------------------------------

Status CaseRun::Prepare(const transfer::RemoteRegion& remote, const Layout& far) {
  const bool write = case_.op == Op::kWrite;
  std::vector<transfer::TransferPart> parts(1);
  parts[0] = {&*region_, &remote,
              write ? BlocksBetween(far, layout_) : BlocksBetween(layout_, far)};
  FERRY_TRY_ASSIGN(auto transfer, write ? link_->connection.PrepareWrite(std::move(parts))
                                        : link_->connection.PrepareRead(std::move(parts)));
  transfer_.emplace(std::move(transfer));
  return Ok();
}

Status CaseRun::SetUp() {
  const std::uint64_t far_slots = RandomU64();
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(job_.deadline).count();
  FERRY_TRY_ASSIGN(const Json answer, Ask({{"do", perf_request::kSetUp},
                                           {"op", OpName(case_.op)},
                                           {"size", case_.size},
                                           {"block_size", case_.block_size},
                                           {"slots", far_slots},
                                           {"memory", job_.peer_memory.ToString()},
                                           {"seconds", static_cast<std::uint64_t>(seconds)}}));
  FERRY_TRY_ASSIGN(const auto key, BytesField(answer, "key"));
  FERRY_TRY_ASSIGN(const auto remote, link_->connection.Import(key));
  FERRY_TRY_ASSIGN(buffer_, PerfMemory::Allocate(job_.memory, case_.RegionBytes(), job_.config));
  FERRY_TRY_ASSIGN(auto region, link_->endpoint.Register(buffer_.bytes(), transfer::Rights::kNone));
  region_.emplace(std::move(region));
  if (job_.carrier) {
    FERRY_TRY_ASSIGN(carried_,
                     CarriedCase::Open(job_, case_, buffer_.bytes(), &link_->control, deadline_));
  } else if (case_.op != Op::kSend) {
    FERRY_TRY(Prepare(remote, Layout(case_, far_slots)));
  }
  return buffer_.Fill(layout_, RandomU64());
}

// How many operations take about as long as a round should.
Result<std::uint64_t> CaseRun::Calibrate() {
  FERRY_TRY(RunOurs(std::max<std::uint64_t>(job_.warmup, 1), nullptr));
  if (job_.iterations != 0) return job_.iterations;
  for (std::uint64_t count = 1;; count *= 4) {
    FERRY_TRY_ASSIGN(const Sample sample, RunOurs(count, nullptr));
    if (sample.seconds < kTrialSeconds && count < kMost) continue;
    return CountFor(kRoundSeconds, sample.seconds / static_cast<double>(count), kFewest, kMost);
  }
}

// "The best plain copy" includes how much each system call moves.
Status CaseRun::ChooseChunk(std::uint64_t count) {
  std::array<double, kFloorChunks.size()> best;
  best.fill(std::numeric_limits<double>::max());
  for (int trial = 0; trial < kChunkTrials; ++trial) {
    for (std::size_t i = 0; i < best.size(); ++i) {
      chunk_ = kFloorChunks[i];
      FERRY_TRY_ASSIGN(const Sample sample, RunFloor(count));
      best[i] = std::min(best[i], sample.seconds);
    }
  }
  chunk_ = kFloorChunks[static_cast<std::size_t>(std::min_element(best.begin(), best.end()) -
                                                 best.begin())];
  return Ok();
}

// ---- the rounds ---------------------------------------------------------------------------------

Status CaseRun::MeasureOurs(Rounds* rounds) {
  if (job_.warmup > 0) FERRY_TRY(RunOurs(job_.warmup, nullptr));
  FERRY_TRY_ASSIGN(const Sample sample, RunOurs(iterations_, &rounds->seconds));
  rounds->ours.push_back(sample);
  return Ok();
}

Status CaseRun::MeasureFloor(Rounds* rounds) {
  if (!link_->floor) return Ok();
  if (job_.warmup > 0) FERRY_TRY(RunFloor(job_.warmup));
  FERRY_TRY_ASSIGN(const Sample sample, RunFloor(iterations_));
  rounds->floor.push_back(sample);
  return Ok();
}

Status CaseRun::MeasureChecked(Rounds* rounds) {
  if (!job_.crc || case_.op == Op::kSend) return Ok();
  checksum_ = true;
  if (job_.warmup > 0) FERRY_TRY(RunOurs(job_.warmup, nullptr));
  FERRY_TRY_ASSIGN(const Sample sample, RunOurs(iterations_, nullptr));
  rounds->checked.push_back(sample);
  checksum_ = false;
  return Ok();
}

Status CaseRun::MeasurePings(Rounds* rounds) {
  if (pings_ == 0) {
    std::vector<double> trial;
    FERRY_TRY(RunPings(kPingTrial, &trial));
    pings_ = CountFor(kPingSeconds, 2 * Median(std::move(trial)), kFewestPings, kMostPings);
  }
  const bool floor_first = rounds->ours.size() % 2 == 0;
  if (link_->floor && floor_first) FERRY_TRY(RunFloorPings(pings_, &rounds->floor_pings));
  FERRY_TRY(RunPings(pings_, &rounds->pings));
  if (link_->floor && !floor_first) FERRY_TRY(RunFloorPings(pings_, &rounds->floor_pings));
  return Ok();
}

// Who goes first alternates, so that neither always finds the caches of the other.
Status CaseRun::MeasureRound(std::uint64_t index, Rounds* rounds) {
  if (index % 2 == 0) FERRY_TRY(MeasureFloor(rounds));
  if (index % 2 == 0) FERRY_TRY(MeasureChecked(rounds));
  FERRY_TRY(MeasureOurs(rounds));
  if (index % 2 != 0) FERRY_TRY(MeasureChecked(rounds));
  if (index % 2 != 0) FERRY_TRY(MeasureFloor(rounds));
  return case_.op == Op::kSend ? MeasurePings(rounds) : Ok();
}

Result<bool> CaseRun::Verify() {
  const std::uint64_t seed = RandomU64();
  const bool to_server = case_.op != Op::kRead;
  if (to_server) {
    FERRY_TRY(buffer_.Fill(layout_, seed));
    FERRY_TRY(Ask({{"do", perf_request::kPoison}}));
  } else {
    FERRY_TRY(Ask({{"do", perf_request::kFill}, {"seed", seed}}));
    FERRY_TRY(buffer_.Poison());
  }
  FERRY_TRY(RunOurs(1, nullptr));
  if (!to_server) return buffer_.Holds(layout_, seed);
  FERRY_TRY_ASSIGN(const Json answer, Ask({{"do", perf_request::kCheck}, {"seed", seed}}));
  return FlagField(answer, "same");
}

// Sets the fields that are medians over the rounds.
void Summarize(const Rounds& rounds, std::uint64_t size, std::uint64_t iterations, PerfRow* row) {
  const auto count = static_cast<double>(iterations);
  const double giga = static_cast<double>(size) * count / 1e9;
  const auto median = [](const std::vector<Sample>& samples, auto value) {
    std::vector<double> values;
    values.reserve(samples.size());
    for (const Sample& sample : samples) values.push_back(value(sample));
    return Median(std::move(values));
  };
  const auto rate = [&](const Sample& sample) { return giga / sample.seconds; };
  const auto cpu = [&](const Sample& sample) { return sample.cpu_seconds / giga; };
  row->seconds_avg = median(rounds.ours, [&](const Sample& s) { return s.seconds / count; });
  row->ops_per_second = median(rounds.ours, [&](const Sample& s) { return count / s.seconds; });
  row->gbps = median(rounds.ours, rate);
  row->cpu_seconds_per_gb = median(rounds.ours, cpu);
  for (const Sample& sample : rounds.ours) row->rounds.push_back({rate(sample), std::nullopt});
  if (!rounds.checked.empty()) {
    row->crc_gbps = median(rounds.checked, rate);
    row->crc_cpu_seconds_per_gb = median(rounds.checked, cpu);
  }
  if (rounds.floor.empty()) return;
  row->floor_gbps = median(rounds.floor, rate);
  row->floor_cpu_seconds_per_gb = median(rounds.floor, cpu);
  for (std::size_t i = 0; i < row->rounds.size(); ++i) {
    row->rounds[i].floor_gbps = rate(rounds.floor[i]);
  }
}

PerfRow CaseRun::RowOf(const Rounds& rounds) const {
  const auto info = link_->connection.Info();
  PerfRow row;
  row.op = OpName(case_.op);
  row.memory = job_.memory.ToString();
  if (job_.peer_memory.ordinal != job_.memory.ordinal) {
    row.memory += "-" + job_.peer_memory.ToString();
  }
  row.provider = info.provider;
  row.size = case_.size;
  row.block_size = case_.block_size;
  row.lanes = info.lanes.size();
  if (carried_) {
    row.provider = "plugin " + carried_->carrier().plugin().name();
    row.lanes = carried_->carrier().channels();
    row.launch_us = rounds.ours.back().launch->average;
    row.longest_launch_us = rounds.ours.back().launch->longest;
  }
  row.iterations = iterations_;
  row.depth = job_.depth;
  row.wait = job_.config.spin.count() > 0 ? "spin" : "block";
  row.congestion_control = info.lanes.front().congestion_control;
  row.security = info.lanes.front().security;
  if (transfer_) {
    const transfer::PathReport path = transfer_->path();
    row.path = transfer::PathName(path.path);
    row.path_reason = path.why;
  }
  Summarize(rounds, case_.size, iterations_, &row);
  row.seconds_p50 = Percentile(rounds.seconds, 0.5);
  row.seconds_p99 = Percentile(rounds.seconds, 0.99);
  if (!rounds.pings.empty()) {
    row.half_rtt_us_p50 = 1e6 * Percentile(rounds.pings, 0.5);
    row.half_rtt_us_p99 = 1e6 * Percentile(rounds.pings, 0.99);
  }
  if (!rounds.floor_pings.empty()) {
    row.floor_half_rtt_us_p50 = 1e6 * Percentile(rounds.floor_pings, 0.5);
    row.floor_half_rtt_us_p99 = 1e6 * Percentile(rounds.floor_pings, 0.99);
  }
  return row;
}

// One operation on a timeline; how much of copies and sockets was at once, where there were both.
Result<std::optional<double>> CaseRun::TraceOne() {
  Trace& trace = link_->traces.emplace_back();
  SetActiveTrace(&trace);
  const auto ran = RunOurs(1, nullptr);
  SetActiveTrace(nullptr);
  if (!ran) return ran.error();
  const auto copies = trace.LanesLike("GPU ");
  const auto sockets = trace.LanesLike("lane ");
  if (copies.empty() || sockets.empty() || job_.memory.is_host()) return std::optional<double>();
  return std::optional(trace.Overlap(copies, sockets));
}

Result<PerfRow> CaseRun::Run() {
  Progress progress;
  FERRY_TRY(SetUp());
  FERRY_TRY_ASSIGN(iterations_, Calibrate());
  if (link_->floor) FERRY_TRY(ChooseChunk(std::max<std::uint64_t>(iterations_ / 10, 1)));
  Rounds rounds;
  for (std::uint64_t round = 0; round < job_.rounds; ++round) {
    progress.Show(fmt::format("{}: round {} of {}", Title(), round + 1, job_.rounds));
    FERRY_TRY(MeasureRound(round, &rounds));
  }
  PerfRow row = RowOf(rounds);
  if (!job_.memory.is_host()) {
    FERRY_TRY_ASSIGN(row.h2d_gbps, buffer_.CopyRate(cuda::CopyKind::kHostToDevice, case_.size));
    FERRY_TRY_ASSIGN(row.d2h_gbps, buffer_.CopyRate(cuda::CopyKind::kDeviceToHost, case_.size));
  }
  if (!job_.trace.empty()) {
    FERRY_TRY_ASSIGN(row.overlap, TraceOne());
  }
  if (job_.verify) {
    progress.Show(Title() + ": verifying");
    FERRY_TRY_ASSIGN(row.verified, Verify());
  }
  return row;
}

// ---- the connection -----------------------------------------------------------------------------

Result<Link> MakeLink(const PerfJob& job, const std::string& address, Deadline deadline) {
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
  PrintLine(
      fmt::format("{} over {}, {} lanes ({} for bulk), congestion control {}, security {}, depth "
                  "{}, {} rounds, {}",
                  info.peer, info.provider, info.lanes.size(), info.bulk_lanes,
                  info.lanes.front().congestion_control, Printable(info.lanes.front().security),
                  job.depth, job.rounds, spin ? "waiting by polling" : "waiting asleep"));
  if (job.floor) {
    PrintLine(fmt::format("floor: plain contiguous copy over {} sockets with the same options",
                          info.bulk_lanes));
  }
  if (job.carrier) {
    PrintLine(fmt::format("carried by {} over {} channels in chunks of {}", job.carrier->plugin,
                          job.carrier->stripe.channels,
                          FormatSize(job.carrier->stripe.chunk_bytes)));
  }
  PrintLine(PerfTableHead());
}

Status ReportCase(const PerfJob& job, const PerfCase& perf_case, Link* link) {
  CaseRun run(job, perf_case, link);
  const auto row_or_error = run.Run();
  if (!row_or_error && row_or_error.error().code() == Code::kTimedOut) {
    return Error(Code::kTimedOut,
                 fmt::format("{} did not end within {} (--deadline): {}", run.Title(),
                             FormatDuration(job.deadline), row_or_error.error().message()));
  }
  FERRY_TRY_ASSIGN(PerfRow row, row_or_error);
  row.transport = TransportOf(link->connection);
  PrintLine(job.json ? DumpJson(ToJson(row)) : PerfTableLine(row));
  if (row.verified.value_or(true)) return Ok();
  return Error(Code::kInternal, fmt::format("the bytes of the last {} of {} differ at the far side",
                                            row.op, FormatSize(row.size)));
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
  floor.congestion_control = congestion_control.substr(0, congestion_control.find(' '));
  return floor;
}

Status RunPerfClient(const PerfJob& job, const std::string& address) {
  const Deadline deadline = Deadline::After(job.config.connect_timeout);
  FERRY_TRY_ASSIGN(Link link, MakeLink(job, address, deadline));
  if (job.floor) FERRY_TRY(OpenFloor(job, &link, deadline));
  if (!job.json) PrintHead(job, link.connection.Info());
  for (const PerfCase& perf_case : job.cases) FERRY_TRY(ReportCase(job, perf_case, &link));
  FERRY_TRY(WriteTraces(job, link));
  const std::string transport = TransportLine(TransportOf(link.connection));
  if (!job.json && !transport.empty()) PrintLine(transport);
  return Ok();
}

}  // namespace ferry::tools
