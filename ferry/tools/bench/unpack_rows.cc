// Measures unpacking from rows in host memory for `ferry copy-bench --unpack`.
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/cuda/address.h"
#include "ferry/cuda/open_devices.h"
#include "ferry/tcpx/unpack/unpacker.h"
#include "ferry/tools/bench/prepared_copy.h"
#include "ferry/tools/bench/unpack.h"
#include "ferry/tools/support/json.h"
#include "ferry/tools/support/process.h"
#include "ferry/tools/support/report.h"

namespace ferry::tools {
namespace {

constexpr auto kRowsTimeout = std::chrono::seconds(60);
constexpr unsigned kCalls = 20;  // one behind the other

// What a call has to do in each way: the same copy from a list that was prepared, from blocks that
// the CPU makes of the rows, or from the rows.
enum Way : unsigned char { kPrepared, kBlocks, kRows, kWays };
constexpr const char* kWayNames[]{"prepared", "blocks", "rows"};

// A message as long as its rows allow, in the pinned memory of a plugin.
struct FilledMessage {
  std::span<tcpx::Fragment> rows;
  tcpx::PostedRun run;
  std::vector<Block> blocks;
};

class RowsBench {
 public:
  RowsBench(cuda::DeviceApi* api, const UnpackBenchJob& job) : api_(api), job_(job) {}

  Status Run() {
    for (const std::uint64_t fragment : job_.fragment_bytes) {
      for (const bool in_order : {true, false}) {
        FERRY_TRY(Fill(fragment, in_order));
        FERRY_TRY(Measure());
        FERRY_TRY_ASSIGN(const bool verified, Verify());
        Print(fragment, in_order, verified);
        unpacker_.reset();
        prepared_.reset();
      }
    }
    return Ok();
  }

 private:
  // Fragments in random places of the pool; each message's rows in its order, or in none.
  Status Fill(std::uint64_t fragment_bytes, bool in_order) {
    const std::uint64_t count = (job_.bytes + fragment_bytes - 1) / fragment_bytes;
    std::mt19937_64 random(fragment_bytes);
    FERRY_TRY(MakeMemory(count, fragment_bytes, &random));
    std::vector<std::uint64_t> places(count);
    std::iota(places.begin(), places.end(), 0);
    std::shuffle(places.begin(), places.end(), random);
    auto* const rows = static_cast<tcpx::Fragment*>(rows_.data());
    messages_.clear();
    for (std::uint64_t first = 0; first < count; first += tcpx::kMaxFragments) {
      const std::uint64_t here = std::min<std::uint64_t>(tcpx::kMaxFragments, count - first);
      FilledMessage message{{rows + first, here}, {first * fragment_bytes, 0}, {}};
      for (std::uint64_t i = 0; i < here; ++i) {
        const std::uint64_t len =
            std::min(fragment_bytes, job_.bytes - (first + i) * fragment_bytes);
        message.rows[i] = {static_cast<std::uint32_t>(places[first + i] * fragment_bytes),
                           static_cast<std::uint32_t>(len), message.run.bytes};
        message.run.bytes += len;
      }
      if (!in_order) std::shuffle(message.rows.begin(), message.rows.end(), random);
      messages_.push_back(std::move(message));
    }
    return MakeWays(count * fragment_bytes, count);
  }

  Status MakeMemory(std::uint64_t count, std::uint64_t fragment_bytes, std::mt19937_64* random) {
    const std::uint64_t pool_bytes = count * fragment_bytes;
    FERRY_TRY_ASSIGN(stream_, api_->CreateStream(job_.ordinal, cuda::StreamPriority::kHigh));
    FERRY_TRY_ASSIGN(end_, api_->CreateEvent(job_.ordinal, cuda::EventTiming::kOff));
    FERRY_TRY_ASSIGN(pool_, api_->AllocateDevice(job_.ordinal, pool_bytes));
    FERRY_TRY_ASSIGN(target_, api_->AllocateDevice(job_.ordinal, job_.bytes));
    FERRY_TRY_ASSIGN(host_, api_->AllocatePinned(job_.ordinal, pool_bytes));
    FERRY_TRY_ASSIGN(rows_, api_->AllocatePinned(job_.ordinal, count * sizeof(tcpx::Fragment)));
    FERRY_TRY_ASSIGN(rows_place_, Place::OnHost(*api_, job_.ordinal, rows_.data()));
    source_.resize(pool_bytes);
    for (std::byte& one : source_) one = static_cast<std::byte>((*random)());
    std::memcpy(host_.data(), source_.data(), pool_bytes);
    return Move(cuda::CopyKind::kHostToDevice, pool_.data(), host_.data(), pool_bytes);
  }

  Status Move(cuda::CopyKind kind, void* dst, const void* src, std::uint64_t bytes) {
    const cuda::CopyItem item{dst, src, bytes};
    FERRY_TRY(api_->Copy(stream_, kind, {&item, 1}));
    return api_->Wait(stream_, Deadline::After(kRowsTimeout));
  }

  Status MakeWays(std::uint64_t pool_bytes, std::uint64_t count) {
    pool_bytes_ = pool_bytes;
    tcpx::UnpackerOptions options;
    // Room for two calls of blocks, which may be cut.
    const std::uint64_t cut = job_.bytes / tcpx::kUnpackPiece;
    options.most_pieces = std::max(options.most_pieces, 2 * (count + cut + messages_.size()));
    FERRY_TRY_ASSIGN(unpacker_, tcpx::Unpacker::Create(api_, job_.ordinal, options));
    std::vector<PlacedList> lists;
    requests_.clear();
    for (FilledMessage& message : messages_) {
      FERRY_TRY(Read(&message));
      lists.push_back(ListOf(message));
      const auto at =
          static_cast<std::uint64_t>(message.rows.data() - messages_.front().rows.data());
      requests_.push_back(
          {cuda::PointerTo<const tcpx::Fragment>(rows_place_.mapped + at * sizeof(tcpx::Fragment)),
           message.rows.size(), ReceiveOf(message), ListOf(message).dst, ListOf(message).src});
    }
    FERRY_TRY_ASSIGN(prepared_, PrepareCopy(api_, job_.ordinal, cuda::CopyKind::kDeviceToDevice,
                                            lists, PrepareOptions{}));
    return Ok();
  }

  tcpx::PostedReceive ReceiveOf(const FilledMessage& message) const {
    return {pool_bytes_, message.run.bytes, {&message.run, 1}};
  }
  PlacedList ListOf(const FilledMessage& message) const {
    return {message.blocks, Place::OnDevice(target_.data()), Place::OnDevice(pool_.data())};
  }
  Status Read(FilledMessage* message) {
    message->blocks.clear();
    return reader_.Read(message->rows, ReceiveOf(*message), &message->blocks);
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
    std::vector<PlacedList> lists;
    for (FilledMessage& message : messages_) {
      FERRY_TRY(Read(&message));
      lists.push_back(ListOf(message));
    }
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
    // Old contents must not be taken for unpacked bytes.
    std::memset(host_.data(), 0xE5, job_.bytes);
    FERRY_TRY(Move(cuda::CopyKind::kHostToDevice, target_.data(), host_.data(), job_.bytes));
    FERRY_TRY_ASSIGN(std::ignore, Time(kRows, 1));
    FERRY_TRY(Move(cuda::CopyKind::kDeviceToHost, host_.data(), target_.data(), job_.bytes));
    for (const FilledMessage& message : messages_) {
      for (const tcpx::Fragment& row : message.rows) {
        if (std::memcmp(host_.bytes().data() + message.run.offset + row.dst,
                        source_.data() + row.src, row.len) != 0) {
          return false;
        }
      }
    }
    return true;
  }

  void Print(std::uint64_t fragment_bytes, bool in_order, bool verified) {
    const auto rate = [&](double seconds) {
      return static_cast<double>(job_.bytes) / seconds / 1e9;
    };
    const double ratio = one_[kPrepared] / one_[kRows];
    const double many_ratio = many_[kPrepared] / many_[kRows];
    if (job_.json) {
      Json line{{"unpack_rows", in_order ? "in order" : "shuffled"},
                {"fragment_bytes", fragment_bytes},
                {"bytes", job_.bytes},
                {"messages", messages_.size()},
                {"calls", kCalls},
                {"ratio", ratio},
                {"many_ratio", many_ratio},
                {"launch_us", launch_seconds_ * 1e6},
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
        in_order ? "in order" : "shuffled", fragment_bytes, messages_.size(), rate(one_[kRows]),
        ratio, kCalls, rate(many_[kRows]), many_ratio, rate(one_[kBlocks]), rate(many_[kBlocks]),
        launch_seconds_ * 1e6, verified ? "yes" : "NO"));
  }

  cuda::DeviceApi* const api_;
  const UnpackBenchJob& job_;
  std::uint64_t pool_bytes_ = 0;
  std::vector<std::byte> source_;
  cuda::Stream stream_;
  cuda::Event end_;
  cuda::DeviceBuffer pool_;
  cuda::DeviceBuffer target_;
  cuda::PinnedBuffer host_;
  cuda::PinnedBuffer rows_;
  Place rows_place_;
  std::vector<FilledMessage> messages_;
  std::vector<tcpx::RowsRequest> requests_;
  tcpx::FragmentReader reader_;
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
