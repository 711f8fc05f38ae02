// Implements cases of `ferry perf` that an NCCL network plugin carries.

#include "ferry/tools/perf/plugin.h"

#include <fmt/core.h>

#include <utility>

#include "ferry/tools/support/json.h"
#include "ferry/tools/support/process.h"

namespace ferry::tools {

LaunchMicroseconds LaunchOf(const Carrier& carrier) {
  const net::plugin::LaunchTimes times = carrier.launch_times();
  if (times.chunks == 0) return {};
  return {Seconds(times.sum) * 1e6 / static_cast<double>(times.chunks),
          Seconds(times.longest) * 1e6};
}

std::function<std::uint64_t()> OffsetsOf(const PerfCase& perf_case, const Marks& marks,
                                         bool is_source) {
  return [slots = SlotCursor(marks), is_source, bytes = perf_case.SlotBytes()]() mutable {
    return bytes * (is_source ? slots.NextSource() : slots.NextDestination());
  };
}

Result<std::unique_ptr<CarriedCase>> CarriedCase::Open(const PerfJob& job,
                                                       const PerfCase& perf_case,
                                                       std::span<std::byte> memory,
                                                       Control* control, Deadline deadline) {
  std::unique_ptr<CarriedCase> carried(new CarriedCase(perf_case, control));
  FERRY_TRY_ASSIGN(carried->carrier_, Carrier::Open(*job.carrier, memory, job.memory, job.config));
  const bool to_server = perf_case.op != Op::kRead;
  const Json question{{"do", perf_request::kPluginOpen},
                      {"to_server", to_server},
                      {"channels", job.carrier->stripe.channels},
                      {"chunk", job.carrier->stripe.chunk_bytes}};
  FERRY_TRY(to_server ? carried->OpenToServer(question, deadline)
                      : carried->OpenFromServer(question, deadline));
  return carried;
}

Status CarriedCase::OpenToServer(const Json& question, Deadline deadline) {
  FERRY_TRY_ASSIGN(const Json answer, control_->Ask(question, deadline));
  FERRY_TRY_ASSIGN(const auto handles, HandlesField(answer));
  if (Status connected = carrier_->Connect(handles, deadline); !connected) {
    return control_->CauseOf(std::move(connected));
  }
  FERRY_TRY(control_->HearAnswer(deadline));
  return Ok();
}

Status CarriedCase::OpenFromServer(Json question, Deadline deadline) {
  FERRY_TRY(carrier_->Listen());
  question["handles"] = HandlesToHex(carrier_->handles());
  FERRY_TRY(control_->Say(question, deadline));
  if (Status accepted = carrier_->Accept(deadline); !accepted) {
    return control_->CauseOf(std::move(accepted));
  }
  FERRY_TRY(control_->HearAnswer(deadline));
  return Ok();
}

Result<Sample> CarriedCase::Run(std::uint64_t count, std::uint64_t depth, const Marks& marks,
                                Deadline deadline) {
  FERRY_TRY(control_->Ask({{"do", perf_request::kPluginRun},
                           {"count", count},
                           {"depth", depth},
                           {"marks", marks.ToJson()}},
                          deadline));
  Carrier::Run run{.bytes = case_.size, .count = count, .depth = depth};
  run.next_offset = OffsetsOf(case_, marks, /*is_source=*/case_.op != Op::kRead);
  const double cpu = CpuSeconds();
  const auto begin = Clock::now();
  const bool from_server = case_.op == Op::kRead;
  Status moved = from_server ? carrier_->Receive(run, deadline) : carrier_->Send(run, deadline);
  if (!moved) return control_->CauseOf(std::move(moved)).error();
  Sample sample;
  if (from_server) sample.seconds = Seconds(Clock::now() - begin);
  sample.cpu_seconds = CpuSeconds() - cpu;
  FERRY_TRY_ASSIGN(const Json answer, control_->HearAnswer(deadline));
  if (!from_server) sample.seconds = Seconds(Clock::now() - begin);
  FERRY_TRY_ASSIGN(const double theirs, RealField(answer, "cpu_seconds"));
  sample.cpu_seconds += theirs;
  if (from_server) {
    sample.launch = LaunchOf(*carrier_);
  } else {
    FERRY_TRY_ASSIGN(const double average, RealField(answer, "launch_us"));
    FERRY_TRY_ASSIGN(const double longest, RealField(answer, "longest_launch_us"));
    sample.launch = LaunchMicroseconds{average, longest};
  }
  return sample;
}

}  // namespace ferry::tools
