// Times each op and prints one row for each, for `ferry kernel-bench`.

#include "tools/bench/kernels/kernels.h"

#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "ferry/core/units.h"
#include "ferry/cuda/open_devices.h"
#include "tools/bench/kernels/kernel_case.h"
#include "tools/bench/kernels/kernel_runner.h"
#include "tools/support/json.h"
#include "tools/support/process.h"
#include "tools/support/report.h"

namespace ferry::tools {
namespace {

// Facts of an H200, for the plans of --list, which uses no device.
constexpr int kListedMultiprocessors = 132;
// Below this number of bytes the time of an op, and of a copy, is that of a launch.
constexpr std::uint64_t kMinForShare = 4 * kMiB;
constexpr std::uint64_t kTinyMinForShare = 4 * kKiB;

struct KernelRow {
  const KernelCase* what = nullptr;
  KernelTimes times;
  std::optional<CopyCeiling> ceiling;  // where it says something
  std::string failure;
};

// The fields that are known before any measurement.
Json CaseToJson(const KernelCase& one, bool tiny) {
  Json sizes = Json::object();
  for (const KernelSize& size : one.sizes) sizes[size.name] = size.value;
  Json json{{"name", NameOf(one)},    {"op", one.op},
            {"variant", one.variant}, {"dtype", kernels::NameOf(one.dtype)},
            {"sizes", sizes},         {"bytes", one.bytes},
            {"flops", one.flops},     {"launches", SetsOf(one, tiny)}};
  return json;
}

double KernelRate(double amount, double seconds, double unit) { return amount / seconds / unit; }

Json RowToJson(const KernelRow& row, bool tiny) {
  Json json = CaseToJson(*row.what, tiny);
  if (!row.failure.empty()) {
    json["error"] = row.failure;
    return json;
  }
  const bool of_flops = row.what->flops > 0;
  const double gbps = KernelRate(static_cast<double>(row.what->bytes), row.times.median, 1e9);
  json["samples"] = row.times.samples;
  json["us"] = row.times.median * 1e6;
  json["us_p10"] = row.times.p10 * 1e6;
  json["us_p90"] = row.times.p90 * 1e6;
  json["us_min"] = row.times.least * 1e6;
  json["us_max"] = row.times.most * 1e6;
  json["gbps"] = gbps;
  json["tflops"] = of_flops ? Json(KernelRate(row.what->flops, row.times.median, 1e12)) : Json();
  json["ceiling_gbps"] = row.ceiling ? Json(row.ceiling->gbps) : Json();
  json["ceiling_by"] = row.ceiling ? Json(row.ceiling->by) : Json();
  json["ceiling_ratio"] = row.ceiling ? Json(gbps / row.ceiling->gbps) : Json();
  // The ceiling of matrix products is not measured here.
  json["ceiling_tflops"] = Json();
  json["written"] = true;
  json["checked"] = row.times.checked;
  return json;
}

std::string LineOf(const KernelRow& row) {
  const std::string name = NameOf(*row.what);
  if (!row.failure.empty()) return fmt::format("{:<86}  {}", name, row.failure);
  const double us = row.times.median * 1e6;
  const std::string spread =
      fmt::format("{:>10.2f}  {:>10.2f}  {:>10.2f}", us, row.times.p10 * 1e6, row.times.p90 * 1e6);
  if (row.what->flops > 0) {
    return fmt::format("{:<86}  {}  {:>9.1f} TFLOP/s", name, spread,
                       KernelRate(row.what->flops, row.times.median, 1e12));
  }
  const double gbps = KernelRate(static_cast<double>(row.what->bytes), row.times.median, 1e9);
  if (!row.ceiling) return fmt::format("{:<86}  {}  {:>9.1f} GB/s  {:>6}", name, spread, gbps, "-");
  return fmt::format("{:<86}  {}  {:>9.1f} GB/s  {:>6.1f} % of {:.1f} ({})", name, spread, gbps,
                     100 * gbps / row.ceiling->gbps, row.ceiling->gbps, row.ceiling->by);
}

// Ops in the order of their cases.
std::vector<std::string> OpsOf(const std::vector<KernelCase>& cases) {
  std::vector<std::string> ops;
  for (const KernelCase& one : cases) {
    if (std::find(ops.begin(), ops.end(), one.op) == ops.end()) ops.push_back(one.op);
  }
  return ops;
}

Status Choose(const std::vector<std::string>& wanted, std::vector<KernelCase>* cases) {
  if (wanted.empty()) return Ok();
  const std::vector<std::string> there = OpsOf(*cases);
  for (const std::string& op : wanted) {
    if (std::find(there.begin(), there.end(), op) != there.end()) continue;
    std::string all;
    for (const std::string& name : there) all += (all.empty() ? "" : ", ") + name;
    return Error(Code::kInvalidArgument, fmt::format("unknown op \"{}\"; give {}", op, all));
  }
  std::erase_if(*cases, [&](const KernelCase& one) {
    return std::find(wanted.begin(), wanted.end(), one.op) == wanted.end();
  });
  return Ok();
}

class KernelBench {
 public:
  explicit KernelBench(const KernelBenchJob* job) : job_(job) {}

  void List(const std::vector<KernelCase>& cases) {
    for (const KernelCase& one : cases) {
      PrintLine(job_->json ? DumpJson(CaseToJson(one, job_->tiny)) : NameOf(one));
    }
  }

  Status Run(KernelRunner* runner, const std::vector<KernelCase>& cases) {
    if (!job_->json) {
      PrintLine(fmt::format("{:<86}  {:>10}  {:>10}  {:>10}  {:>14}  {}", "op", "us", "p10", "p90",
                            "rate", "share of a copy's"));
    }
    std::size_t failed = 0;
    for (const KernelCase& one : cases) {
      if (Interrupted()) return InterruptedError();
      progress_.Show(NameOf(one));
      KernelRow row{.what = &one, .times = {}, .ceiling = {}, .failure = {}};
      const Status measured = MeasureRow(runner, &row);
      if (!measured) {
        row.failure = measured.error().message();
        ++failed;
      }
      PrintLine(job_->json ? DumpJson(RowToJson(row, job_->tiny)) : LineOf(row));
      if (!measured && EndsAll(measured.error().code())) return measured.error();
    }
    if (failed == 0) return Ok();
    return Error(Code::kInternal,
                 fmt::format("{} of {} rows failed; see what they say", failed, cases.size()));
  }

 private:
  // Nothing more can be measured then.
  static bool EndsAll(Code code) { return code == Code::kDeviceLost || code == Code::kTimedOut; }

  Status MeasureRow(KernelRunner* runner, KernelRow* row) const {
    FERRY_TRY_ASSIGN(row->times, runner->Measure(*row->what));
    const std::uint64_t least = job_->tiny ? kTinyMinForShare : kMinForShare;
    // A copy is the ceiling of ops that move memory, and only where its time is not that of a
    // launch.
    if (row->what->flops > 0 || row->what->bytes < least) return Ok();
    FERRY_TRY_ASSIGN(row->ceiling, runner->CeilingFor(row->what->bytes));
    return Ok();
  }

  const KernelBenchJob* const job_;
  Progress progress_;
};

}  // namespace

Status RunKernelBench(const KernelBenchJob& job) {
  KernelCaseOptions options{.facts = {}, .tiny = job.tiny};
  options.facts.compute_major = 9;
  options.facts.multiprocessors = kListedMultiprocessors;
  cuda::DeviceApi* api = nullptr;
  if (!job.list) {
    FERRY_TRY_ASSIGN(api, cuda::OpenDevices(job.config));
    FERRY_TRY_ASSIGN(options.facts, api->Describe(job.ordinal));
  }
  std::vector<KernelCase> cases = KernelCases(options);
  FERRY_TRY(Choose(job.ops, &cases));
  KernelBench bench(&job);
  if (job.list) {
    bench.List(cases);
    return Ok();
  }
  if (job.json) {
    PrintLine(DumpJson(Json{{"device", options.facts.name},
                            {"multiprocessors", options.facts.multiprocessors},
                            {"compute_capability", fmt::format("{}.{}", options.facts.compute_major,
                                                               options.facts.compute_minor)}}));
  }
  FERRY_TRY_ASSIGN(auto runner,
                   KernelRunner::Create(
                       api, {.ordinal = job.ordinal, .seconds = job.seconds, .tiny = job.tiny}));
  Status done = bench.Run(runner.get(), cases);
  // A kernel that has not ended may still use the runner's memory, which is leaked rather than
  // freed.
  if (!done && done.error().code() == Code::kTimedOut) static_cast<void>(runner.release());
  return done;
}

}  // namespace ferry::tools
