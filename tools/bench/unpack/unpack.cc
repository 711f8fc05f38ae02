// Measures unpacking of fragmented messages for `ferry copy-bench --unpack`.

#include "tools/bench/unpack/unpack.h"

#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <tuple>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/cuda/open_devices.h"
#include "ferry/tcpx/unpack/unpacker.h"
#include "tools/bench/unpack/unpack_bed.h"
#include "tools/support/json.h"
#include "tools/support/process.h"
#include "tools/support/report.h"

namespace ferry::tools {
namespace {

using tcpx::UnpackBy;

constexpr auto kUnpackTimeout = std::chrono::seconds(60);
// A copy for each fragment takes microseconds each.
constexpr unsigned kSlowRounds = 3;
// The kernel should be at most a fifth slower than a copy for each fragment (dma; d2d in UCCL).
constexpr double kMinDmaRatio = 0.8;

struct UnpackRow {
  UnpackBy by = UnpackBy::kKernel;
  std::uint64_t fragment_bytes = 0;
  double seconds = 0;          // all messages in a batch: from their blocks until the end is seen
  double enqueue_seconds = 0;  // of that: until the call returns
  double read_seconds = 0;     // of a message: from its fragments to checked blocks
  double launch_seconds = 0;   // of a message alone: from its fragments until its copy is queued
  bool verified = false;
};

class UnpackBench {
 public:
  UnpackBench(cuda::DeviceApi* api, const UnpackBenchJob& job) : api_(api), job_(job) {}

  Status Run() {
    for (const std::uint64_t fragment : job_.fragment_bytes) {
      FERRY_TRY_ASSIGN(bed_, UnpackBed::Create(api_, job_, job_.message_bytes, fragment));
      dma_seconds_ = 0;
      for (const UnpackBy by : {UnpackBy::kDma, UnpackBy::kHost, UnpackBy::kKernel}) {
        FERRY_TRY_ASSIGN(const UnpackRow row, Measure(by, fragment));
        if (by == UnpackBy::kDma) dma_seconds_ = row.seconds;
        Print(row);
      }
    }
    return Ok();
  }

 private:
  Result<UnpackRow> Measure(UnpackBy by, std::uint64_t fragment_bytes) {
    UnpackRow row{.by = by, .fragment_bytes = fragment_bytes};
    tcpx::UnpackerOptions options;
    options.by = by;
    const std::uint64_t pieces_of_one =
        (fragment_bytes + tcpx::kUnpackPiece - 1) / tcpx::kUnpackPiece;
    for (const PooledMessage& message : bed_->messages()) {
      // Room for all messages in one batch, and another batch behind it.
      options.most_pieces = std::max<std::uint64_t>(
          options.most_pieces,
          2 * bed_->messages().size() * message.fragments.size() * pieces_of_one);
    }
    FERRY_TRY_ASSIGN(unpacker_, tcpx::Unpacker::Create(api_, job_.ordinal, options));
    FERRY_TRY_ASSIGN(row.verified, Verify());
    const unsigned rounds =
        by == UnpackBy::kKernel ? job_.rounds : std::min(kSlowRounds, job_.rounds);
    std::vector<double> all;
    std::vector<double> enqueues;
    std::vector<double> launches;
    for (unsigned round = 0; round < rounds; ++round) {
      if (Interrupted()) return InterruptedError();
      FERRY_TRY_ASSIGN(const BatchTimes times, UnpackAll());
      all.push_back(times.all);
      enqueues.push_back(times.enqueue);
      FERRY_TRY(UnpackEach(&launches));
    }
    row.seconds = Median(all);
    row.enqueue_seconds = Median(enqueues);
    row.launch_seconds = Median(launches);
    FERRY_TRY_ASSIGN(row.read_seconds, TimeOfReading());
    unpacker_.reset();
    return row;
  }

  Result<double> TimeOfReading() {
    const auto begin = Clock::now();
    FERRY_TRY_ASSIGN(std::ignore, bed_->ReadAll());
    return Seconds(Clock::now() - begin) / static_cast<double>(bed_->messages().size());
  }

  // The unpacker's batches end in their order.
  Status WaitFor(std::uint64_t ticket) {
    const Deadline deadline = Deadline::After(kUnpackTimeout);
    for (;;) {
      FERRY_TRY_ASSIGN(const std::uint64_t done, unpacker_->Completed());
      if (done >= ticket) return Ok();
      if (deadline.expired())
        return Error(Code::kTimedOut, "unpacking did not end before its deadline");
    }
  }

  struct BatchTimes {
    double enqueue = 0;
    double all = 0;
  };
  Result<BatchTimes> UnpackAll() {
    FERRY_TRY_ASSIGN(const std::vector<PlacedList> requests, bed_->ReadAll());
    // Without the reading of fragments, which read_seconds has.
    const auto begin = Clock::now();
    FERRY_TRY_ASSIGN(const std::uint64_t ticket, unpacker_->Enqueue(requests));
    const double enqueue = Seconds(Clock::now() - begin);
    FERRY_TRY(WaitFor(ticket));
    return BatchTimes{enqueue, Seconds(Clock::now() - begin)};
  }

  Status UnpackEach(std::vector<double>* launches) {
    for (PooledMessage& message : bed_->messages()) {
      const auto begin = Clock::now();
      FERRY_TRY(bed_->Read(&message));
      const PlacedList request = bed_->ListOf(message);
      FERRY_TRY_ASSIGN(const std::uint64_t ticket, unpacker_->Enqueue({&request, 1}));
      launches->push_back(Seconds(Clock::now() - begin));
      FERRY_TRY(WaitFor(ticket));
    }
    return Ok();
  }

  Result<bool> Verify() {
    FERRY_TRY(bed_->Spoil());
    FERRY_TRY_ASSIGN(std::ignore, UnpackAll());
    return bed_->IsUnpacked();
  }

  void Print(const UnpackRow& row) {
    const double gbps = static_cast<double>(job_.bytes) / row.seconds / 1e9;
    const double dma_ratio = dma_seconds_ / row.seconds;
    if (job_.json) {
      PrintLine(Json{{"unpack", tcpx::UnpackName(row.by)},
                     {"fragment_bytes", row.fragment_bytes},
                     {"bytes", job_.bytes},
                     {"messages", bed_->messages().size()},
                     {"seconds", row.seconds},
                     {"gbps", gbps},
                     {"enqueue_seconds", row.enqueue_seconds},
                     {"read_us_per_message", row.read_seconds * 1e6},
                     {"launch_us_per_message", row.launch_seconds * 1e6},
                     {"dma_ratio", dma_ratio},
                     {"reaches_dma", dma_ratio >= kMinDmaRatio},
                     {"verified", row.verified}}
                    .dump());
      return;
    }
    PrintLine(fmt::format(
        "{:<6} {:>6} B fragments: {:>8.2f} GB/s, {:.1f} x dma; {:.2f} us to read "
        "a message of {}, {:.2f} us until it is launched; verified {}",
        tcpx::UnpackName(row.by), row.fragment_bytes, gbps, dma_ratio, row.read_seconds * 1e6,
        job_.message_bytes, row.launch_seconds * 1e6, row.verified ? "yes" : "NO"));
    if (row.by == tcpx::UnpackBy::kKernel) {
      PrintLine(fmt::format("kernel within 20 % of dma (d2d), or faster: {}",
                            dma_ratio >= kMinDmaRatio ? "yes" : "NO"));
    }
  }

  cuda::DeviceApi* const api_;
  const UnpackBenchJob& job_;
  std::unique_ptr<UnpackBed> bed_;
  std::unique_ptr<tcpx::Unpacker> unpacker_;  // goes before the memory that it uses
  double dma_seconds_ = 0;
};

}  // namespace

Status RunUnpackBench(const UnpackBenchJob& job) {
  FERRY_TRY_ASSIGN(cuda::DeviceApi * api, cuda::OpenDevices(job.config));
  return UnpackBench(api, job).Run();
}

}  // namespace ferry::tools
