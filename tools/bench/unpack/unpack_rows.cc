// Measures unpacking from rows in host memory for `ferry copy-bench --unpack`.
#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <tuple>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/cuda/address.h"
#include "ferry/cuda/open_devices.h"
#include "ferry/tcpx/unpack/unpacker.h"
#include "tools/bench/copies/prepared_copy.h"
#include "tools/bench/unpack/unpack.h"
#include "tools/bench/unpack/unpack_bed.h"
#include "tools/support/json.h"
#include "tools/support/process.h"
#include "tools/support/report.h"

namespace ferry::tools {
namespace {

constexpr auto kRowsTimeout = std::chrono::seconds(60);
constexpr unsigned kCalls = 20;  // one behind the other

// What a call has to do in each way: the same copy from a list that was prepared, from blocks that
// the CPU makes of the rows, or from the rows.
enum Way : unsigned char { kPrepared, kBlocks, kRows, kWays };
constexpr const char* kWayNames[]{"prepared", "blocks", "rows"};

class RowsBench {
 public:
  RowsBench(cuda::DeviceApi* api, const UnpackBenchJob& job) : api_(api), job_(job) {}

  Status Run() {
    for (const std::uint64_t fragment : job_.fragment_bytes) {
      for (const FragmentOrder order : {FragmentOrder::kOfMessage, FragmentOrder::kShuffled}) {
        FERRY_TRY(Fill(fragment, order));
        FERRY_TRY(Measure());
        FERRY_TRY_ASSIGN(const bool verified, Verify());
        Print(fragment, order, verified);
        unpacker_.reset();
        prepared_.reset();
      }
    }
    return Ok();
  }

 private:
  // Messages as long as their rows allow, whose rows lie in pinned memory as a plugin's do.
  Status Fill(std::uint64_t fragment_bytes, FragmentOrder order) {
    FERRY_TRY_ASSIGN(bed_, UnpackBed::Create(api_, job_, tcpx::kMaxFragments * fragment_bytes,
                                             fragment_bytes, order));
    std::size_t count = 0;
    for (const PooledMessage& message : bed_->messages()) count += message.fragments.size();
    FERRY_TRY_ASSIGN(rows_, api_->AllocatePinned(job_.ordinal, count * sizeof(tcpx::Fragment)));
    FERRY_TRY_ASSIGN(const Place place, Place::OnHost(*api_, job_.ordinal, rows_.data()));
    requests_.clear();
    auto* rows = static_cast<tcpx::Fragment*>(rows_.data());
    const auto* mapped = cuda::PointerTo<const tcpx::Fragment>(place.mapped);
    for (const PooledMessage& message : bed_->messages()) {
      const std::size_t here = message.fragments.size();
      std::copy(message.fragments.begin(), message.fragments.end(), rows);
      const PlacedList list = bed_->ListOf(message);
      requests_.push_back({mapped, here, bed_->ReceiveOf(message), list.dst, list.src});
      rows += here;
      mapped += here;
    }
    return MakeWays(count);
  }

  Status MakeWays(std::uint64_t count) {
    FERRY_TRY_ASSIGN(stream_, api_->CreateStream(job_.ordinal, cuda::StreamPriority::kHigh));
    FERRY_TRY_ASSIGN(end_, api_->CreateEvent(job_.ordinal, cuda::EventTiming::kOff));
    tcpx::UnpackerOptions options;
    // Room for two calls of blocks, which may be cut.
    const std::uint64_t cut = job_.bytes / tcpx::kUnpackPiece;
    options.most_pieces =
        std::max(options.most_pieces, 2 * (count + cut + bed_->messages().size()));
    FERRY_TRY_ASSIGN(unpacker_, tcpx::Unpacker::Create(api_, job_.ordinal, options));
    FERRY_TRY_ASSIGN(const std::vector<PlacedList> lists, bed_->ReadAll());
    FERRY_TRY_ASSIGN(prepared_, PrepareCopy(api_, job_.ordinal, cuda::CopyKind::kDeviceToDevice,
                                            lists, PrepareOptions{}));
    return Ok();
  }

  // From now until the last byte of `calls` calls is in place, for each of them.
  Result<double> Time(Way way, unsigned calls, double* launch_seconds = nullptr) {
    const auto begin = Clock::now();
    std::uint64_t ticket = 0;
    for (unsigned call = 0; call < calls; ++call) {
      FERRY_TRY_ASSIGN(ticket, Queue(way));
    }
    if (launch_seconds != nullptr) *launch_seconds = Seconds(Clock::now() - begin);
    if (way == kPrepared) FERRY_TRY(api_->Record(end_, stream_));
    const Deadline deadline = Deadline::After(kRowsTimeout);
    for (;;) {
      if (way == kPrepared) {
        FERRY_TRY_ASSIGN(const bool done, api_->Query(end_));
        if (done) break;
      } else {
        FERRY_TRY_ASSIGN(const std::uint64_t done, unpacker_->Completed());
        if (done >= ticket) break;
      }
      if (deadline.expired()) return Error(Code::kTimedOut, "unpacking did not end in a minute");
    }
    const double seconds = Seconds(Clock::now() - begin) / calls;
    for (const tcpx::RefusedRows& refused : unpacker_->TakeRefused(ticket)) return refused.error;
    return seconds;
  }

  Result<std::uint64_t> Queue(Way way) {
    if (way == kPrepared) {
      FERRY_TRY(prepared_->Enqueue(stream_));
      return std::uint64_t{0};
    }
    if (way == kRows) return unpacker_->EnqueueRows(requests_);
    FERRY_TRY_ASSIGN(const std::vector<PlacedList> lists, bed_->ReadAll());
    for (;;) {
      auto ticket = unpacker_->Enqueue(lists);
      if (ticket || ticket.error().code() != Code::kUnavailable) return ticket;
      FERRY_TRY_ASSIGN(std::ignore, unpacker_->Completed());
    }
  }

  Status Measure() {
    std::vector<double> one[kWays];
    std::vector<double> many[kWays];
    std::vector<double> launches;
    for (unsigned round = 0; round <= job_.rounds; ++round) {
      if (Interrupted()) return InterruptedError();
      for (const Way way : {kPrepared, kBlocks, kRows}) {
        double launch = 0;
        FERRY_TRY_ASSIGN(const double alone, Time(way, 1, &launch));
        FERRY_TRY_ASSIGN(const double each, Time(way, kCalls));
        if (round == 0) continue;  // memory that is used for the first time
        one[way].push_back(alone);
        many[way].push_back(each);
        if (way == kRows) launches.push_back(launch);
      }
    }
    for (const Way way : {kPrepared, kBlocks, kRows}) {
      one_[way] = Median(one[way]);
      many_[way] = Median(many[way]);
    }
    launch_seconds_ = Median(launches);
    return Ok();
  }

  Result<bool> Verify() {
    FERRY_TRY(bed_->Spoil());
    FERRY_TRY_ASSIGN(std::ignore, Time(kRows, 1));
    return bed_->IsUnpacked();
  }

  void Print(std::uint64_t fragment_bytes, FragmentOrder order, bool verified) {
    const char* const order_name = order == FragmentOrder::kOfMessage ? "in order" : "shuffled";
    const auto rate = [&](double seconds) {
      return static_cast<double>(job_.bytes) / seconds / 1e9;
    };
    const double ratio = one_[kPrepared] / one_[kRows];
    const double many_ratio = many_[kPrepared] / many_[kRows];
    if (job_.json) {
      Json line{{"unpack_rows", order_name}, {"fragment_bytes", fragment_bytes},
                {"bytes", job_.bytes},       {"messages", bed_->messages().size()},
                {"calls", kCalls},           {"ratio", ratio},
                {"many_ratio", many_ratio},  {"launch_us", launch_seconds_ * 1e6},
                {"verified", verified}};
      for (const Way way : {kPrepared, kBlocks, kRows}) {
        line[std::string(kWayNames[way]) + "_gbps"] = rate(one_[way]);
        line[std::string(kWayNames[way]) + "_many_gbps"] = rate(many_[way]);
      }
      return PrintLine(line.dump());
    }
    PrintLine(fmt::format(
        "rows {:<8} {:>6} B fragments, {} messages: {:.2f} GB/s, {:.2f} of a prepared list ({} "
        "calls: {:.2f} GB/s, {:.2f}), blocks by the CPU {:.2f} ({:.2f}) GB/s; {:.2f} us until it "
        "is launched; verified {}",
        order_name, fragment_bytes, bed_->messages().size(), rate(one_[kRows]), ratio, kCalls,
        rate(many_[kRows]), many_ratio, rate(one_[kBlocks]), rate(many_[kBlocks]),
        launch_seconds_ * 1e6, verified ? "yes" : "NO"));
  }

  cuda::DeviceApi* const api_;
  const UnpackBenchJob& job_;
  std::unique_ptr<UnpackBed> bed_;
  cuda::Stream stream_;
  cuda::Event end_;
  cuda::PinnedBuffer rows_;
  std::vector<tcpx::RowsRequest> requests_;
  std::unique_ptr<PreparedCopy> prepared_;  // these two go before the memory that they use
  std::unique_ptr<tcpx::Unpacker> unpacker_;
  double one_[kWays]{};   // seconds of a call alone
  double many_[kWays]{};  // of each of kCalls
  double launch_seconds_ = 0;
};

}  // namespace

Status RunRowsBench(const UnpackBenchJob& job) {
  FERRY_TRY_ASSIGN(cuda::DeviceApi * api, cuda::OpenDevices(job.config));
  return RowsBench(api, job).Run();
}

}  // namespace ferry::tools
