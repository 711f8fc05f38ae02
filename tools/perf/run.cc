// Measures one case of `ferry perf` in rounds, beside the floor, and verifies its bytes.

#include "tools/perf/run.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "ferry/core/random.h"
#include "ferry/core/units.h"
#include "ferry/net/address.h"
#include "tools/perf/marks.h"
#include "tools/perf/memory.h"
#include "tools/support/json.h"
#include "tools/support/process.h"

namespace ferry::tools {
namespace {

// How long a round of operations and one of round trips should take, and the trials that tell how
// many of them that is.
constexpr double kRoundSeconds = 0.5;
constexpr double kTrialSeconds = 0.05;
constexpr double kPingSeconds = 0.25;
constexpr std::uint64_t kMin = 5;
constexpr std::uint64_t kMax = 1'000'000;
constexpr std::uint64_t kPingTrial = 50;
constexpr std::uint64_t kMinPings = 100;
constexpr std::uint64_t kMaxPings = 50'000;
constexpr std::array kFloorChunks = {512 * kKiB, kMiB};
constexpr int kChunkTrials = 3;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::uint64_t CountFor(double seconds, double seconds_each, std::uint64_t low, std::uint64_t high) {
  return static_cast<std::uint64_t>(
      std::clamp(seconds / seconds_each, static_cast<double>(low), static_cast<double>(high)));
}

// Operations one after another; those that are marked are checked afterwards.
struct Part {
  std::uint64_t count = 1;
  Marks marks = {};
};

// Results of the rounds of a case.
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
      : job_(job),
        case_(perf_case),
        link_(link),
        deadline_(Deadline::After(job.deadline)),
        most_marks_(job.verify ? MarksFor(perf_case) : 0) {}

  Result<PerfRow> Run();

 private:
  Status SetUp();
  Status PrepareAll(const transfer::RemoteRegion& remote, const Layout& far);
  Result<std::optional<double>> TraceOne();
  Result<std::uint64_t> Calibrate();
  Status ChooseChunk(std::uint64_t count);
  Status MeasureRound(std::uint64_t index, Rounds* rounds);
  Status MeasureOurs(Rounds* rounds);
  Status MeasureFloor(Rounds* rounds);
  Status MeasureChecked(Rounds* rounds);
  Status MeasurePings(Rounds* rounds);
  PerfRow RowOf(const Rounds& rounds) const;
  std::string ProgressOf(const Rounds& rounds, Clock::duration since) const;

  Result<Sample> RunOurs(const Part& part, std::vector<double>* seconds);
  Status PostAll(const Part& part, std::vector<double>* seconds);
  Result<transfer::Operation> Post(std::uint64_t slot);
  // One timed part, including the steps before its clock starts and after it stops.
  Result<Sample> Measure(std::vector<double>* seconds);
  Status FillSource(std::uint64_t slot, std::uint64_t seed);
  Result<std::optional<std::uint64_t>> FindWrong(std::uint64_t slot, std::uint64_t seed);
  Status Check(const Part& part);
  Status CheckSlot(std::uint64_t slot, std::uint64_t seed, const std::string& what);
  Result<Sample> RunFloor(std::uint64_t count);
  Status RunPings(std::uint64_t count, std::vector<double>* half_round_trips);
  Status RunFloorPings(std::uint64_t count, std::vector<double>* half_round_trips);
  // Adds the server's part to the sample.
  Status HearEnd(Sample* sample);

  Result<Json> Ask(const Json& question) { return link_->control.Ask(question, deadline_); }

  bool ToServer() const { return case_.op != Op::kRead; }
  std::uint64_t SlotAt(std::uint64_t slot) const { return slot * case_.SlotBytes(); }
  std::span<std::byte> Slot(std::uint64_t slot) const {
    return buffer_.bytes().subspan(SlotAt(slot), case_.RegionBytes());
  }

  const PerfJob& job_;
  const PerfCase case_;
  Link* const link_;
  const Deadline deadline_;
  const std::uint64_t most_marks_;  // 0: nothing is checked
  const std::uint64_t slots_ = RandomU64();
  const Layout layout_{case_, slots_};
  std::uint64_t iterations_ = 0;
  std::uint64_t pings_ = 0;
  bool checksum_ = false;
  std::uint64_t chunk_ = kMiB;
  PerfMemory buffer_;
  std::optional<transfer::Region> region_;             // after its memory
  std::vector<transfer::PreparedTransfer> transfers_;  // by destination slot

  const std::uint64_t plain_seed_ = RandomU64();  // of the bytes in the source's first slot
  std::uint64_t marked_seed_ = 0;                 // and in its second, in this round
  std::uint64_t verified_ = 0;                    // operations
  std::string wrong_;                             // what was found first; empty: nothing
};

// ---- one timed part -----------------------------------------------------------------------------

// CPU time is that of both processes, times of launches those of the receiving one.
Status CaseRun::HearEnd(Sample* sample) {
  FERRY_TRY_ASSIGN(const Json answer, link_->control.HearAnswer(deadline_));
  FERRY_TRY_ASSIGN(const double theirs, RealField(answer, "cpu_seconds"));
  sample->cpu_seconds += theirs;
  if (!ToServer()) {
    sample->launch = LaunchesOf(link_->connection);
  } else if (answer.contains("launch_us")) {
    sample->launch.emplace();
    FERRY_TRY_ASSIGN(sample->launch->average, RealField(answer, "launch_us"));
    FERRY_TRY_ASSIGN(sample->launch->longest, RealField(answer, "longest_launch_us"));
  }
  return Ok();
}

// `slot`: of the destination.
Result<transfer::Operation> CaseRun::Post(std::uint64_t slot) {
  switch (case_.op) {
    case Op::kWrite:
      return link_->connection.Write(transfers_[slot],
                                     {.deadline = deadline_, .checksum = checksum_});
    case Op::kRead:
      return link_->connection.Read(transfers_[slot],
                                    {.deadline = deadline_, .checksum = checksum_});
    case Op::kSend: break;
  }
  const std::uint64_t source = slot == kPlainSlot ? kPlainSlot : kMarkedSource;
  return link_->connection.Send(kDataTag, Slot(source), {.deadline = deadline_});
}

// Keeps `depth` operations in flight. Each is timed from its post until it is the oldest and has
// ended, which for depths over 1 includes the time behind those before it.
Status CaseRun::PostAll(const Part& part, std::vector<double>* seconds) {
  InFlight operations;
  std::deque<Clock::time_point> posted;
  SlotCursor slots(part.marks);
  const auto finish = [&]() -> Status {
    FERRY_TRY(operations.FinishOldest(deadline_));
    if (seconds != nullptr) seconds->push_back(SecondsSince(posted.front()));
    posted.pop_front();
    return Ok();
  };
  for (std::uint64_t i = 0; i < part.count; ++i) {
    if (operations.size() == job_.depth) FERRY_TRY(finish());
    posted.push_back(Clock::now());
    FERRY_TRY_ASSIGN(auto operation, Post(slots.NextDestination()));
    operations.Add(std::move(operation));
  }
  while (operations.size() > 0) FERRY_TRY(finish());
  return Ok();
}

Result<Sample> CaseRun::RunOurs(const Part& part, std::vector<double>* seconds) {
  const bool two_sided = case_.op == Op::kSend;
  // The server has posted its receives when it answers, so that no message waits for one.
  FERRY_TRY(two_sided ? Ask({{"do", perf_request::kReceive},
                             {"count", part.count},
                             {"depth", job_.depth},
                             {"marks", part.marks.ToJson()}})
                      : Ask({{"do", perf_request::kBegin}}));
  const double cpu = CpuSeconds();
  const auto begin = Clock::now();
  FERRY_TRY(PostAll(part, seconds));
  Sample sample{.seconds = SecondsSince(begin), .cpu_seconds = CpuSeconds() - cpu};
  if (!two_sided) FERRY_TRY(link_->control.Say({{"do", perf_request::kEnd}}, deadline_));
  FERRY_TRY(HearEnd(&sample));
  return sample;
}

Result<Sample> CaseRun::RunFloor(std::uint64_t count) {
  const bool to_server = ToServer();
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
  FERRY_TRY(HearEnd(&sample));
  return sample;
}

Status CaseRun::RunPings(std::uint64_t count, std::vector<double>* half_round_trips) {
  FERRY_TRY(Ask({{"do", perf_request::kPong}, {"count", count}}));
  std::uint64_t ping = 0;
  std::uint64_t pong = 0;
  static_assert(sizeof ping == kPingBytes);
  const auto sent = std::as_bytes(std::span(&ping, 1));
  const auto heard = std::as_writable_bytes(std::span(&pong, 1));
  InFlight operations;
  for (std::uint64_t i = 0; i < count; ++i) {
    ping = plain_seed_ + i;
    const auto begin = Clock::now();
    // Posted before the send, so that the answer never waits for it.
    FERRY_TRY_ASSIGN(auto receive,
                     link_->connection.Recv(kPongTag, kWholeTag, heard, {.deadline = deadline_}));
    operations.Add(std::move(receive));
    FERRY_TRY_ASSIGN(auto send, link_->connection.Send(kPingTag, sent, {.deadline = deadline_}));
    operations.Add(std::move(send));
    FERRY_TRY(operations.FinishOldest(deadline_));
    half_round_trips->push_back(SecondsSince(begin) / 2);
    FERRY_TRY(operations.FinishOldest(deadline_));
    if (pong != ping && wrong_.empty()) {
      wrong_ =
          fmt::format("round trip {} of {} of 8 bytes came back with other bytes", i + 1, count);
    }
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

// Unmarked operations all write one slot, and read another one's source; each marked operation has
// a slot of its own, so that its bytes are still there when the round is over.
// Prepares one transfer for each slot of the destination.
Status CaseRun::PrepareAll(const transfer::RemoteRegion& remote, const Layout& far) {
  const bool write = case_.op == Op::kWrite;
  for (std::uint64_t slot = kPlainSlot; slot < SlotsOf(/*is_source=*/false, most_marks_); ++slot) {
    const LaidOut to{write ? far : layout_, SlotAt(slot)};
    const LaidOut from{write ? layout_ : far,
                       SlotAt(slot == kPlainSlot ? kPlainSlot : kMarkedSource)};
    std::vector<transfer::TransferPart> parts(1);
    parts[0] = {&*region_, &remote, BlocksBetween(to, from)};
    FERRY_TRY_ASSIGN(auto transfer, write ? link_->connection.PrepareWrite(std::move(parts))
                                          : link_->connection.PrepareRead(std::move(parts)));
    transfers_.push_back(std::move(transfer));
  }
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
                                           {"marks", most_marks_},
                                           {"memory", job_.peer_memory.ToString()},
                                           {"seconds", static_cast<std::uint64_t>(seconds)}}));
  FERRY_TRY_ASSIGN(const auto key, BytesField(answer, "key"));
  FERRY_TRY_ASSIGN(const auto remote, link_->connection.Import(key));
  const std::uint64_t slots = SlotsOf(/*is_source=*/ToServer(), most_marks_);
  FERRY_TRY_ASSIGN(buffer_, PerfMemory::Allocate(
                                job_.memory, SlotAt(slots - 1) + case_.RegionBytes(), job_.config));
  FERRY_TRY_ASSIGN(auto region, link_->endpoint.Register(buffer_.bytes(), transfer::Rights::kNone));
  region_.emplace(std::move(region));
  if (case_.op != Op::kSend) FERRY_TRY(PrepareAll(remote, Layout(case_, far_slots)));
  if (!job_.verify) return Ok();
  // Old contents must not be mistaken for transferred bytes.
  if (ToServer()) {
    FERRY_TRY(Ask({{"do", perf_request::kPoison}}));
  } else {
    FERRY_TRY(buffer_.Poison());
  }
  return FillSource(kPlainSlot, plain_seed_);
}

// Number of operations that take about as long as a round should.
Result<std::uint64_t> CaseRun::Calibrate() {
  FERRY_TRY(RunOurs({.count = std::max<std::uint64_t>(job_.warmup, 1)}, nullptr));
  if (job_.iterations != 0) return job_.iterations;
  // Until a trial takes long enough to be measured.
  for (std::uint64_t count = 1;; count *= 4) {
    FERRY_TRY_ASSIGN(const Sample sample, RunOurs({.count = count}, nullptr));
    if (sample.seconds < kTrialSeconds && count < kMax) continue;
    return CountFor(kRoundSeconds, sample.seconds / static_cast<double>(count), kMin, kMax);
  }
}

// "The best plain copy" includes how much each system call moves.
// The best of a few trials of each; the floor then uses it in all rounds.
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

Result<Sample> CaseRun::Measure(std::vector<double>* seconds) {
  Part part{.count = iterations_, .marks = Marks::Choose(iterations_, most_marks_)};
  if (job_.verify) {
    marked_seed_ = RandomU64();
    // New bytes in each round, so that those of the last round cannot pass for them.
    FERRY_TRY(FillSource(kMarkedSource, marked_seed_));
  }
  if (job_.warmup > 0) FERRY_TRY(RunOurs({.count = job_.warmup}, nullptr));
  FERRY_TRY_ASSIGN(const Sample sample, RunOurs(part, seconds));
  FERRY_TRY(Check(part));
  return sample;
}

Status CaseRun::MeasureOurs(Rounds* rounds) {
  FERRY_TRY_ASSIGN(const Sample sample, Measure(&rounds->seconds));
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
  FERRY_TRY_ASSIGN(const Sample sample, Measure(nullptr));
  rounds->checked.push_back(sample);
  checksum_ = false;
  return Ok();
}

Status CaseRun::MeasurePings(Rounds* rounds) {
  if (pings_ == 0) {
    std::vector<double> trial;
    FERRY_TRY(RunPings(kPingTrial, &trial));
    pings_ = CountFor(kPingSeconds, 2 * Median(std::move(trial)), kMinPings, kMaxPings);
  }
  const bool floor_first = rounds->ours.size() % 2 == 0;
  if (link_->floor && floor_first) FERRY_TRY(RunFloorPings(pings_, &rounds->floor_pings));
  FERRY_TRY(RunPings(pings_, &rounds->pings));
  if (link_->floor && !floor_first) FERRY_TRY(RunFloorPings(pings_, &rounds->floor_pings));
  return Ok();
}

// The order alternates, so that neither always runs with the caches left by the other.
Status CaseRun::MeasureRound(std::uint64_t index, Rounds* rounds) {
  if (index % 2 == 0) FERRY_TRY(MeasureFloor(rounds));
  if (index % 2 == 0) FERRY_TRY(MeasureChecked(rounds));
  FERRY_TRY(MeasureOurs(rounds));
  if (index % 2 != 0) FERRY_TRY(MeasureChecked(rounds));
  if (index % 2 != 0) FERRY_TRY(MeasureFloor(rounds));
  return case_.op == Op::kSend ? MeasurePings(rounds) : Ok();
}

// ---- what has been moved ------------------------------------------------------------------------

Status CaseRun::FillSource(std::uint64_t slot, std::uint64_t seed) {
  if (ToServer()) return buffer_.Fill({layout_, SlotAt(slot)}, seed);
  FERRY_TRY(Ask({{"do", perf_request::kFill}, {"slot", slot}, {"seed", seed}}));
  return Ok();
}

// In a slot of the destination.
Result<std::optional<std::uint64_t>> CaseRun::FindWrong(std::uint64_t slot, std::uint64_t seed) {
  if (!ToServer()) return buffer_.FindWrong({layout_, SlotAt(slot)}, seed);
  FERRY_TRY_ASSIGN(const Json answer,
                   Ask({{"do", perf_request::kCheck}, {"slot", slot}, {"seed", seed}}));
  if (!answer.contains("wrong_at")) return std::optional<std::uint64_t>();
  FERRY_TRY_ASSIGN(const std::uint64_t at, NumberField(answer, "wrong_at"));
  return std::optional(at);
}

Status CaseRun::CheckSlot(std::uint64_t slot, std::uint64_t seed, const std::string& what) {
  FERRY_TRY_ASSIGN(const auto wrong_at, FindWrong(slot, seed));
  if (wrong_at && wrong_.empty()) {
    wrong_ = fmt::format("{}{}: {} has wrong bytes at the receiver, first at byte {} of {}",
                         TitleOf(case_), checksum_ ? " with checksums" : "", what, *wrong_at,
                         case_.size);
  }
  return Ok();
}

// Checks every marked operation, and the slot that all others write.
Status CaseRun::Check(const Part& part) {
  std::uint64_t slot = kPlainSlot;
  for (const std::uint64_t operation : part.marks.operations()) {
    FERRY_TRY(CheckSlot(++slot, marked_seed_,
                        fmt::format("operation {} of {} of a round", operation + 1, part.count)));
  }
  verified_ += slot;
  // Nothing was checked, or all operations were marked.
  if (slot == 0 || part.count == slot) return Ok();
  return CheckSlot(kPlainSlot, plain_seed_, fmt::format("the last of {} operations", part.count));
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
  if (const auto launch = rounds.ours.back().launch) {
    row.launch_us = launch->average;
    row.longest_launch_us = launch->longest;
  }
  row.iterations = iterations_;
  row.depth = job_.depth;
  row.wait = job_.config.spin.count() > 0 ? "spin" : "block";
  row.congestion_control = info.lanes.front().congestion_control;
  row.security = info.lanes.front().security;
  if (!transfers_.empty()) {
    const transfer::PathReport path = transfers_.front().path();
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

// Runs one operation with a timeline; records the overlap of copies and sockets if there were both.
Result<std::optional<double>> CaseRun::TraceOne() {
  // A run of its own, because a trace costs time.
  Trace& trace = link_->traces.emplace_back();
  SetActiveTrace(&trace);
  const auto ran = RunOurs({}, nullptr);
  SetActiveTrace(nullptr);
  if (!ran) return ran.error();
  const auto copies = trace.LanesLike("GPU ");
  const auto sockets = trace.LanesLike("lane ");
  if (copies.empty() || sockets.empty() || job_.memory.is_host()) return std::optional<double>();
  return std::optional(trace.Overlap(copies, sockets));
}

// "write of 64 MiB: round 3 of 5, 2560 MiB a round, 5.10 GB/s, 3 s left"
std::string CaseRun::ProgressOf(const Rounds& rounds, Clock::duration since) const {
  const std::size_t done = rounds.ours.size();
  const std::uint64_t bytes = case_.size * iterations_;
  std::string text = fmt::format("{}: round {} of {}, {} MiB a round", TitleOf(case_), done + 1,
                                 job_.rounds, bytes / kMiB);
  if (done == 0) return text;
  const double left =
      Seconds(since) / static_cast<double>(done) * static_cast<double>(job_.rounds - done);
  return text + fmt::format(", {:.2f} GB/s, {:.0f} s left",
                            static_cast<double>(bytes) / 1e9 / rounds.ours.back().seconds, left);
}

Result<PerfRow> CaseRun::Run() {
  Progress progress;
  FERRY_TRY(SetUp());
  FERRY_TRY_ASSIGN(iterations_, Calibrate());
  if (link_->floor) FERRY_TRY(ChooseChunk(std::max<std::uint64_t>(iterations_ / 10, 1)));
  Rounds rounds;
  const auto begin = Clock::now();
  for (std::uint64_t round = 0; round < job_.rounds; ++round) {
    progress.Show(ProgressOf(rounds, Clock::now() - begin));
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
    row.verified = wrong_.empty();
    row.verified_operations = verified_;
    row.wrong = wrong_;
  }
  return row;
}

}  // namespace

std::string TitleOf(const PerfCase& perf_case) {
  std::string title = fmt::format("{} of {}", OpName(perf_case.op), FormatSize(perf_case.size));
  if (perf_case.block_size == 0) return title;
  return title + fmt::format(" in blocks of {}", FormatSize(perf_case.block_size));
}

std::optional<LaunchMicroseconds> LaunchesOf(const transfer::Connection& connection) {
  std::uint64_t chunks = 0;
  double sum = 0;
  double longest = 0;
  for (const net::LaneInfo& lane : connection.Info().lanes) {
    if (lane.launches == nullptr) continue;
    chunks += lane.launches->chunks.load();
    sum += static_cast<double>(lane.launches->nanoseconds.load());
    longest =
        std::max(longest, static_cast<double>(lane.launches->longest_nanoseconds.load()) / 1e3);
  }
  if (chunks == 0) return std::nullopt;
  return LaunchMicroseconds{sum / 1e3 / static_cast<double>(chunks), longest};
}

Result<PerfRow> MeasureCase(const PerfJob& job, const PerfCase& perf_case, Link* link) {
  return CaseRun(job, perf_case, link).Run();
}

}  // namespace ferry::tools
