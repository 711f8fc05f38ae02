// Server of `ferry perf`: answers the control messages of one client after another.

#include <fmt/core.h>

#include <array>
#include <optional>
#include <string>
#include <utility>

#include "ferry/core/units.h"
#include "ferry/net/address.h"
#include "ferry/transfer/endpoint.h"
#include "tools/perf/cmd_perf.h"
#include "tools/perf/floor.h"
#include "tools/perf/marks.h"
#include "tools/perf/memory.h"
#include "tools/perf/run.h"
#include "tools/support/acceptor.h"
#include "tools/support/json.h"
#include "tools/support/operations.h"
#include "tools/support/process.h"
#include "tools/support/report.h"

namespace ferry::tools {
namespace {

constexpr std::uint64_t kMaxSockets = 64;
constexpr std::uint64_t kMaxSeconds = 24 * 3600;
// Added to the client's deadline, so that the client ends first: its error says what did not come.
constexpr auto kAfterClient = std::chrono::seconds(5);
constexpr auto kFirstRequest = std::chrono::seconds(10);
constexpr auto kFloorConnects = std::chrono::seconds(10);

// A client sends requests as JSON over the connection that is measured, one at a time, and waits
// for each answer. "set up" may come again, for the next case.
// Everything that one client has set up here.
class Session {
 public:
  Session(const PerfServerJob& job, transfer::Endpoint* endpoint, transfer::Connection connection)
      : job_(job), endpoint_(endpoint), connection_(std::move(connection)), control_(connection_) {}

  // Until the client leaves.
  Status Serve();

 private:
  using Handler = Status (Session::*)(const Json& request);
  struct Row {
    const char* request;
    Handler handler;
  };
  static const std::array<Row, 12> kRows;

  Status Handle(const Json& request);
  Status SetUp(const Json& request);
  Status Begin(const Json& request);
  Status End(const Json& request);
  Status Receive(const Json& request);
  Status Pong(const Json& request);
  Status Fill(const Json& request);
  Status DoPoison(const Json& request);
  Status Check(const Json& request);
  Status ShowResult(const Json& request);
  Status FloorOpen(const Json& request);
  Status FloorRunOnce(const Json& request);
  Status FloorPong(const Json& request);

  Status Say(const Json& message) { return control_.Say(message, deadline_); }
  Status SayReady() { return Say({{"ready", true}}); }
  Status SayEnd(double cpu_before);
  Status PostReceive(std::uint64_t tag, std::span<std::byte> buffer, InFlight* receives);

  // Verified slots of this side's memory.
  std::uint64_t slots() const { return SlotsOf(/*is_source=*/case_.op == Op::kRead, most_marks_); }
  std::uint64_t SlotAt(std::uint64_t slot) const { return slot * case_.SlotBytes(); }
  Result<LaidOut> LaidOutField(const Json& request) const;

  const PerfServerJob& job_;
  transfer::Endpoint* const endpoint_;
  transfer::Connection connection_;
  Control control_;
  Deadline deadline_ = Deadline::After(kFirstRequest);
  double cpu_at_begin_ = 0;

  PerfCase case_;
  std::uint64_t most_marks_ = 0;
  std::optional<Layout> layout_;
  MemoryChoice memory_choice_;
  PerfMemory buffer_;
  std::optional<transfer::Region> region_;  // after its memory
  std::optional<FloorSockets> floor_;
};

const std::array<Session::Row, 12> Session::kRows = {{
    {perf_request::kSetUp, &Session::SetUp},
    {perf_request::kBegin, &Session::Begin},
    {perf_request::kEnd, &Session::End},
    {perf_request::kReceive, &Session::Receive},
    {perf_request::kPong, &Session::Pong},
    {perf_request::kFill, &Session::Fill},
    {perf_request::kPoison, &Session::DoPoison},
    {perf_request::kCheck, &Session::Check},
    {perf_request::kResult, &Session::ShowResult},
    {perf_request::kFloorOpen, &Session::FloorOpen},
    {perf_request::kFloorRun, &Session::FloorRunOnce},
    {perf_request::kFloorPong, &Session::FloorPong},
}};

Status Session::Serve() {
  for (;;) {
    FERRY_TRY_ASSIGN(const Json request, control_.Hear(deadline_));
    // A failed request is told to the client and ends nothing; Hear() fails when the client is
    // gone.
    const Status handled = Handle(request);
    if (handled) continue;
    FERRY_TRY(Say(ErrorToJson(handled.error())));
  }
}

Status Session::Handle(const Json& request) {
  if (request.contains("kind")) {
    return Error(Code::kUnsupported, "a `ferry perf server` listens there, not a transfer server");
  }
  FERRY_TRY_ASSIGN(const std::string name, TextField(request, "do"));
  for (const Row& row : kRows) {
    if (name != row.request) continue;
    // The others use the memory of a case.
    if (row.handler != &Session::SetUp && row.handler != &Session::FloorOpen && !layout_) {
      return Error(Code::kInvalidArgument,
                   fmt::format("the request \"{}\" came before \"set up\"", name));
    }
    return (this->*row.handler)(request);
  }
  return Error(Code::kUnsupported,
               fmt::format("this server does not know the request \"{}\"; use the same version of "
                           "ferry on both sides",
                           name));
}

Status Session::SetUp(const Json& request) {
  // First: a request that fails halfway must not leave memory of one case with the size of another.
  layout_.reset();
  FERRY_TRY_ASSIGN(const std::string op, TextField(request, "op"));
  FERRY_TRY_ASSIGN(case_.op, ParseOp(op));
  FERRY_TRY_ASSIGN(case_.size, BoundedField(request, "size", 1, std::uint64_t{1} << 48));
  FERRY_TRY_ASSIGN(case_.block_size, BoundedField(request, "block_size", 0, case_.size));
  FERRY_TRY(CheckBlocks(case_));
  FERRY_TRY_ASSIGN(const std::uint64_t shuffle, NumberField(request, "slots"));
  FERRY_TRY_ASSIGN(most_marks_, BoundedField(request, "marks", 0, kMaxMarks));
  FERRY_TRY_ASSIGN(const std::uint64_t seconds, BoundedField(request, "seconds", 1, kMaxSeconds));
  FERRY_TRY_ASSIGN(const std::string memory_text, TextField(request, "memory"));
  FERRY_TRY_ASSIGN(memory_choice_, MemoryChoice::Parse(memory_text));
  deadline_ = Deadline::After(std::chrono::seconds(seconds) + kAfterClient);
  region_.reset();  // before its memory
  buffer_ = PerfMemory();
  FERRY_TRY_ASSIGN(
      buffer_,
      PerfMemory::Allocate(memory_choice_, SlotAt(slots() - 1) + case_.RegionBytes(), job_.config));
  FERRY_TRY_ASSIGN(auto region, endpoint_->Register(buffer_.bytes(), transfer::Rights::kReadWrite));
  region_.emplace(std::move(region));
  layout_.emplace(case_, shuffle);
  return Say({{"key", ToHex(region_->key())}});
}

Status Session::Begin(const Json& /*request*/) {
  cpu_at_begin_ = CpuSeconds();
  return SayReady();
}

Status Session::End(const Json& /*request*/) { return SayEnd(cpu_at_begin_); }

Status Session::SayEnd(double cpu_before) {
  Json answer{{"cpu_seconds", CpuSeconds() - cpu_before}};
  if (const auto launches = LaunchesOf(connection_)) {
    answer["launch_us"] = launches->average;
    answer["longest_launch_us"] = launches->longest;
  }
  return Say(answer);
}

Status Session::PostReceive(std::uint64_t tag, std::span<std::byte> buffer, InFlight* receives) {
  FERRY_TRY_ASSIGN(auto receive, connection_.Recv(tag, kWholeTag, buffer, {.deadline = deadline_}));
  receives->Add(std::move(receive));
  return Ok();
}

Status Session::Receive(const Json& request) {
  FERRY_TRY_ASSIGN(const std::uint64_t count, NumberField(request, "count"));
  FERRY_TRY_ASSIGN(const std::uint64_t depth, BoundedField(request, "depth", 1, kMaxDepth));
  FERRY_TRY_ASSIGN(const Marks marks, Marks::FromJson(request, count, most_marks_));
  SlotCursor cursor(marks);
  const double cpu = CpuSeconds();
  InFlight receives;
  const auto post = [&] {
    const std::uint64_t at = SlotAt(cursor.NextDestination());
    return PostReceive(kDataTag, buffer_.bytes().subspan(at, case_.size), &receives);
  };
  std::uint64_t posted = 0;
  for (; posted < std::min(count, depth); ++posted) FERRY_TRY(post());
  FERRY_TRY(SayReady());
  while (receives.size() > 0) {
    FERRY_TRY(receives.FinishOldest(deadline_));
    if (posted++ < count) FERRY_TRY(post());
  }
  return SayEnd(cpu);
}

Status Session::Pong(const Json& request) {
  FERRY_TRY_ASSIGN(const std::uint64_t count, NumberField(request, "count"));
  std::array<std::byte, kPingBytes> ping{};
  std::array<std::byte, kPingBytes> pong{};
  InFlight receives;
  InFlight sends;
  FERRY_TRY(PostReceive(kPingTag, ping, &receives));
  FERRY_TRY(SayReady());
  for (std::uint64_t i = 0; i < count; ++i) {
    FERRY_TRY(receives.FinishOldest(deadline_));
    const auto heard = ping;
    if (i + 1 < count) FERRY_TRY(PostReceive(kPingTag, ping, &receives));
    // The next ping has brought the acknowledgement of the last pong.
    if (sends.size() > 0) FERRY_TRY(sends.FinishOldest(deadline_));
    pong = heard;
    FERRY_TRY_ASSIGN(auto send, connection_.Send(kPongTag, pong, {.deadline = deadline_}));
    sends.Add(std::move(send));
  }
  while (sends.size() > 0) FERRY_TRY(sends.FinishOldest(deadline_));
  return Say({{"done", true}});
}

Result<LaidOut> Session::LaidOutField(const Json& request) const {
  FERRY_TRY_ASSIGN(const std::uint64_t slot, BoundedField(request, "slot", 0, slots() - 1));
  return LaidOut{*layout_, SlotAt(slot)};
}

Status Session::Fill(const Json& request) {
  FERRY_TRY_ASSIGN(const std::uint64_t seed, NumberField(request, "seed"));
  FERRY_TRY_ASSIGN(const LaidOut at, LaidOutField(request));
  FERRY_TRY(buffer_.Fill(at, seed));
  return Say({{"done", true}});
}

Status Session::DoPoison(const Json& /*request*/) {
  FERRY_TRY(buffer_.Poison());
  return Say({{"done", true}});
}

Status Session::Check(const Json& request) {
  FERRY_TRY_ASSIGN(const std::uint64_t seed, NumberField(request, "seed"));
  FERRY_TRY_ASSIGN(const LaidOut at, LaidOutField(request));
  FERRY_TRY_ASSIGN(const auto wrong_at, buffer_.FindWrong(at, seed));
  return Say(wrong_at ? Json{{"wrong_at", *wrong_at}} : Json{{"done", true}});
}

Status Session::ShowResult(const Json& request) {
  FERRY_TRY_ASSIGN(const double seconds, RealField(request, "seconds_avg"));
  FERRY_TRY_ASSIGN(const double gbps, RealField(request, "gbps"));
  if (!job_.json) {
    PrintLine(fmt::format("client {}: {}: {}", connection_.Info().peer, TitleOf(case_),
                          AverageText(seconds, gbps)));
  }
  return Say({{"done", true}});
}

Status Session::FloorOpen(const Json& request) {
  FERRY_TRY_ASSIGN(const std::uint64_t sockets, BoundedField(request, "sockets", 1, kMaxSockets));
  FERRY_TRY_ASSIGN(const std::string congestion, TextField(request, "congestion_control"));
  const Config config = FloorConfig(job_.floor_config, congestion);
  FERRY_TRY_ASSIGN(const net::Address local,
                   net::ParseAddress(connection_.Info().lanes.front().local, 0));
  FERRY_TRY_ASSIGN(FloorListener listener, FloorListener::Open(config, local.host));
  FERRY_TRY(Say({{"port", listener.port()}, {"token", ToHex(listener.token().bytes)}}));
  FERRY_TRY_ASSIGN(auto floor, listener.Accept(config, sockets, Deadline::After(kFloorConnects)));
  floor_.emplace(std::move(floor));
  return SayReady();
}

Error NoFloor() { return Error(Code::kInvalidArgument, "the floor's sockets are not open"); }

Status Session::FloorRunOnce(const Json& request) {
  if (!floor_) return NoFloor();
  const bool to_server = FlagField(request, "to_server");
  FloorRun run{.asked_for = !to_server};
  FERRY_TRY_ASSIGN(run.count, NumberField(request, "count"));
  FERRY_TRY_ASSIGN(run.depth, BoundedField(request, "depth", 1, kMaxDepth));
  FERRY_TRY_ASSIGN(run.chunk, BoundedField(request, "chunk", 1, kGiB));
  const double cpu = CpuSeconds();
  FERRY_TRY(SayReady());
  const auto memory = buffer_.host().first(case_.size);
  FERRY_TRY(to_server ? floor_->Consume(memory, run) : floor_->Produce(memory, run));
  return SayEnd(cpu);
}

Status Session::FloorPong(const Json& request) {
  if (!floor_) return NoFloor();
  FERRY_TRY_ASSIGN(const std::uint64_t count, NumberField(request, "count"));
  FERRY_TRY(SayReady());
  FERRY_TRY(floor_->Pong({.count = count, .spin = FlagField(request, "spin")}));
  return Say({{"done", true}});
}

// An announcement for people, or for the program that started this one.
void Announce(const Config& config, const transfer::Endpoint& endpoint, bool json) {
  const net::Address address{config.listen_host, endpoint.port()};
  const std::uint16_t metrics = endpoint.metrics_port();
  if (json) {
    Json line{{"listening", address.ToString()}, {"port", endpoint.port()}};
    if (metrics != 0) line["metrics_port"] = metrics;
    PrintLine(DumpJson(line));
  } else {
    PrintLine(fmt::format("listening on {}{}; stop with Ctrl-C", address.ToString(),
                          metrics != 0 ? fmt::format(", metrics on port {}", metrics) : ""));
  }
}

}  // namespace

Status RunPerfServer(const PerfServerJob& job) {
  FERRY_TRY_ASSIGN(const auto current, job.gpu.MakeCurrent(job.config));
  FERRY_TRY_ASSIGN(auto endpoint, transfer::Endpoint::Create(job.config));
  Announce(job.config, endpoint, job.json);
  Acceptor acceptor(&endpoint);
  while (!Interrupted()) {
    auto connection = acceptor.Next();
    if (!connection) break;
    const std::string peer = connection->Info().peer;
    if (!job.json) PrintLine(fmt::format("client {} has connected", peer));
    Session session(job, &endpoint, *connection);
    const Status ended = session.Serve();
    if (!job.json && !Interrupted()) {
      PrintLine(fmt::format("client {} has left: {}", peer, Printable(ended.error().message())));
    }
    connection->Close();
  }
  return Ok();
}

}  // namespace ferry::tools
