// Measures forms of staged copy kernels for `ferry copy-bench --staged`.
#include "tools/bench/copies/staged.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/function_ref.h"
#include "ferry/cuda/open_devices.h"
#include "tools/bench/copies/staged_kernels.h"
#include "tools/support/json.h"
#include "tools/support/process.h"
#include "tools/support/report.h"

namespace ferry::tools {
namespace {

using cuda::CopyKind;

constexpr auto kStagedTimeout = std::chrono::seconds(60);
constexpr int kStagedInRow = 20;                 // calls between two events
constexpr std::uint32_t kGroupsOfProcessor = 4;  // as many as fit with three stages

struct NamedForm {
  const char* name;
  StagedForm form;
};
constexpr std::array<NamedForm, 3> kStagedForms{
    {{"cp.async", StagedForm::kPtx},
     {"cuda::pipeline, thread", StagedForm::kThreadPipeline},
     {"cuda::pipeline, block", StagedForm::kBlockPipeline}}};

class StagedBench {
 public:
  StagedBench(cuda::DeviceApi* api, const BenchJob& job)
      : api_(api), job_(job), bytes_(job.bytes / kStagedTile * kStagedTile) {}

  Status Run() {
    FERRY_TRY(MakeMemory());
    const cuda::CopyItem item{dst_.data(), src_.data(), bytes_};
    FERRY_TRY_ASSIGN(engine_seconds_, TimeOf([&] {
                       return api_->Copy(stream_, CopyKind::kDeviceToDevice, {&item, 1});
                     }));
    if (!job_.json) {
      PrintLine(fmt::format("{} bytes, tiles of {}; the copy engine: {:.1f} GB/s", bytes_,
                            kStagedTile, Rate(engine_seconds_)));
      PrintLine(fmt::format("{:<23} {:>6}  {:>10}  {:>9}  {:>9}  {:>11}  {}", "form", "stages",
                            "us", "GB/s", "of engine", "of cp.async", "verified"));
    }
    FERRY_TRY(Measure({"registers", StagedForm::kRegisters}, 1));
    for (int stages = 1; stages <= kMaxStagedStages; ++stages) {
      for (const NamedForm& form : kStagedForms) FERRY_TRY(Measure(form, stages));
    }
    return Ok();
  }

 private:
  Status MakeMemory() {
    if (bytes_ == 0) {
      return Error(Code::kInvalidArgument,
                   fmt::format("--size should be at least {}, a tile", kStagedTile));
    }
    FERRY_TRY_ASSIGN(const auto facts, api_->Describe(job_.ordinal));
    groups_ = static_cast<std::uint32_t>(std::min<std::uint64_t>(
        bytes_ / kStagedTile,
        std::uint64_t{kGroupsOfProcessor} * static_cast<std::uint32_t>(facts.multiprocessors)));
    FERRY_TRY_ASSIGN(stream_, api_->CreateStream(job_.ordinal, cuda::StreamPriority::kNormal));
    FERRY_TRY_ASSIGN(begin_, api_->CreateEvent(job_.ordinal, cuda::EventTiming::kOn));
    FERRY_TRY_ASSIGN(end_, api_->CreateEvent(job_.ordinal, cuda::EventTiming::kOn));
    FERRY_TRY_ASSIGN(src_, api_->AllocateDevice(job_.ordinal, bytes_));
    FERRY_TRY_ASSIGN(dst_, api_->AllocateDevice(job_.ordinal, bytes_));
    FERRY_TRY_ASSIGN(host_, api_->AllocatePinned(job_.ordinal, bytes_));
    source_.resize(bytes_);
    std::mt19937_64 random(bytes_);
    for (std::size_t i = 0; i < bytes_; i += sizeof(std::uint64_t)) {
      const std::uint64_t word = random();
      std::memcpy(source_.data() + i, &word, sizeof word);
    }
    std::memcpy(host_.data(), source_.data(), bytes_);
    return Move(CopyKind::kHostToDevice, src_.data(), host_.data());
  }

  Status Move(CopyKind kind, void* dst, const void* src) {
    const cuda::CopyItem item{dst, src, bytes_};
    FERRY_TRY(api_->Copy(stream_, kind, {&item, 1}));
    return api_->Wait(stream_, Deadline::After(kStagedTimeout));
  }

  // Seconds of one of several calls that follow each other; the median over the rounds.
  Result<double> TimeOf(FunctionRef<Status()> queue) {
    std::vector<double> seconds;
    for (unsigned round = 0; round <= job_.rounds; ++round) {
      if (Interrupted()) return InterruptedError();
      FERRY_TRY(api_->Record(begin_, stream_));
      for (int i = 0; i < kStagedInRow; ++i) FERRY_TRY(queue());
      FERRY_TRY(api_->Record(end_, stream_));
      FERRY_TRY(api_->Wait(end_, Deadline::After(kStagedTimeout)));
      if (round == 0) continue;  // warm by now
      FERRY_TRY_ASSIGN(const auto between, api_->Elapsed(begin_, end_));
      seconds.push_back(std::chrono::duration<double>(between).count() / kStagedInRow);
    }
    return Median(seconds);
  }

  Status Measure(const NamedForm& form, int stages) {
    const StagedArguments arguments{.form = form.form,
                                    .stages = stages,
                                    .dst = dst_.data(),
                                    .src = src_.data(),
                                    .tiles = static_cast<std::uint32_t>(bytes_ / kStagedTile),
                                    .groups = groups_};
    std::memset(host_.data(), 0xa5, bytes_);
    FERRY_TRY(Move(CopyKind::kHostToDevice, dst_.data(), host_.data()));
    FERRY_TRY(cuda::LaunchKernel(*api_, stream_, kStagedKernel, arguments));
    FERRY_TRY(Move(CopyKind::kDeviceToHost, host_.data(), dst_.data()));
    const bool verified = std::memcmp(host_.data(), source_.data(), bytes_) == 0;
    FERRY_TRY_ASSIGN(const double seconds, TimeOf([&] {
                       return cuda::LaunchKernel(*api_, stream_, kStagedKernel, arguments);
                     }));
    if (form.form == StagedForm::kPtx) ptx_seconds_ = seconds;
    Print(form.name, stages, seconds, verified);
    return Ok();
  }

  double Rate(double seconds) const { return static_cast<double>(bytes_) / seconds / 1e9; }

  void Print(const char* form, int stages, double seconds, bool verified) const {
    if (job_.json) {
      Json row{{"staged_form", form},   {"stages", stages},
               {"bytes", bytes_},       {"us", seconds * 1e6},
               {"gbps", Rate(seconds)}, {"copy_engine_ratio", engine_seconds_ / seconds},
               {"verified", verified}};
      if (ptx_seconds_ > 0) row["cp_async_ratio"] = ptx_seconds_ / seconds;
      return PrintLine(row.dump());
    }
    PrintLine(fmt::format("{:<23} {:>6}  {:>10.2f}  {:>9.1f}  {:>9.3f}  {:>11}  {}", form, stages,
                          seconds * 1e6, Rate(seconds), engine_seconds_ / seconds,
                          ptx_seconds_ > 0 ? fmt::format("{:.3f}", ptx_seconds_ / seconds) : "",
                          verified ? "yes" : "NO"));
  }

  cuda::DeviceApi* const api_;
  const BenchJob job_;
  const std::uint64_t bytes_;
  std::uint32_t groups_ = 1;
  cuda::Stream stream_;
  cuda::Event begin_;
  cuda::Event end_;
  cuda::DeviceBuffer src_;
  cuda::DeviceBuffer dst_;
  cuda::PinnedBuffer host_;
  std::vector<std::byte> source_;
  double engine_seconds_ = 0;
  double ptx_seconds_ = 0;  // with as many stages; 0: not measured yet
};

}  // namespace

Status RunStagedBench(const BenchJob& job) {
  FERRY_TRY_ASSIGN(cuda::DeviceApi * api, cuda::OpenDevices(job.config));
  return StagedBench(api, job).Run();
}

}  // namespace ferry::tools
