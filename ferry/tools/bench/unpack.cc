// Measures unpacking of fragmented messages for `ferry copy-bench --unpack`.

#include "ferry/tools/bench/unpack.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <utility>

#include "ferry/core/deadline.h"
#include "ferry/cuda/open_devices.h"
#include "ferry/tcpx/unpack/unpacker.h"
#include "ferry/tools/support/json.h"
#include "ferry/tools/support/process.h"
#include "ferry/tools/support/report.h"

namespace ferry::tools {
namespace {

using cuda::CopyKind;
using tcpx::UnpackBy;

constexpr auto kUnpackTimeout = std::chrono::seconds(60);
// A copy for each fragment takes microseconds each.
constexpr unsigned kSlowRounds = 3;
// The kernel should be at most a fifth slower than a copy for each fragment (dma; d2d in UCCL).
constexpr double kMinDmaRatio = 0.8;

// A message in the pool, and what the unpacker is told of it.
struct PooledMessage {
  std::vector<tcpx::Fragment> fragments;
  tcpx::PostedRun run;
  std::vector<Block> blocks;
};

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
      FERRY_TRY(Scatter(fragment));
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
  // Memory for fragments of this size, each in a place of the pool of its own.
  Status Scatter(std::uint64_t fragment_bytes) {
    messages_.clear();
    const std::uint64_t count = (job_.bytes + fragment_bytes - 1) / fragment_bytes;
    std::vector<std::uint64_t> places(count);
    std::iota(places.begin(), places.end(), 0);
    // The same places in every run, so that results can be compared.
    std::mt19937_64 random(fragment_bytes);
    std::shuffle(places.begin(), places.end(), random);
    auto place = places.begin();
    for (std::uint64_t at = 0; at < job_.bytes; at += job_.message_bytes) {
      PooledMessage message;
      message.run = {at, std::min(job_.message_bytes, job_.bytes - at)};
      for (std::uint64_t dst = 0; dst < message.run.bytes; dst += fragment_bytes) {
        if (place == places.end()) break;
        message.fragments.push_back(
            {static_cast<std::uint32_t>(*place++ * fragment_bytes),
             static_cast<std::uint32_t>(std::min(fragment_bytes, message.run.bytes - dst)), dst});
      }
      // Packets arrive in any order, so fragments are neither sorted nor adjacent.
      std::shuffle(message.fragments.begin(), message.fragments.end(), random);
      messages_.push_back(std::move(message));
    }
    pool_bytes_ = count * fragment_bytes;
    return MakeMemory(&random);
  }

  Status MakeMemory(std::mt19937_64* random) {
    const std::uint64_t most = std::max(pool_bytes_, job_.bytes);
    FERRY_TRY_ASSIGN(stream_, api_->CreateStream(job_.ordinal, cuda::StreamPriority::kNormal));
    FERRY_TRY_ASSIGN(pool_, api_->AllocateDevice(job_.ordinal, pool_bytes_));
    FERRY_TRY_ASSIGN(target_, api_->AllocateDevice(job_.ordinal, job_.bytes));
    FERRY_TRY_ASSIGN(host_, api_->AllocatePinned(job_.ordinal, most));
    source_.resize(most);
    for (std::byte& one : source_) one = static_cast<std::byte>((*random)());
    std::memcpy(host_.data(), source_.data(), pool_bytes_);
    return Move(CopyKind::kHostToDevice, pool_.data(), host_.data(), pool_bytes_);
  }

  Status Move(CopyKind kind, void* dst, const void* src, std::uint64_t bytes) {
    const cuda::CopyItem item{dst, src, bytes};
    FERRY_TRY(api_->Copy(stream_, kind, {&item, 1}));
    return api_->Wait(stream_, Deadline::After(kUnpackTimeout));
  }

  Status Read(PooledMessage* message) {
    message->blocks.clear();
    return reader_.Read(message->fragments, {pool_bytes_, message->run.bytes, {&message->run, 1}},
                        &message->blocks);
  }

  Result<UnpackRow> Measure(UnpackBy by, std::uint64_t fragment_bytes) {
    UnpackRow row{.by = by, .fragment_bytes = fragment_bytes};
    tcpx::UnpackerOptions options;
    options.by = by;
    const std::uint64_t pieces_of_one =
        (fragment_bytes + tcpx::kUnpackPiece - 1) / tcpx::kUnpackPiece;
    for (const PooledMessage& message : messages_) {
      // Room for all messages in one batch, and another batch behind it.
      options.most_pieces = std::max<std::uint64_t>(
          options.most_pieces, 2 * messages_.size() * message.fragments.size() * pieces_of_one);
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
    FERRY_TRY_ASSIGN(row.read_seconds, ReadAll());
    unpacker_.reset();
    return row;
  }

  Result<double> ReadAll() {
    const auto begin = Clock::now();
    for (PooledMessage& message : messages_) FERRY_TRY(Read(&message));
    return Seconds(Clock::now() - begin) / static_cast<double>(messages_.size());
  }

  PlacedList Request(const PooledMessage& message) const {
    return {message.blocks, Place::OnDevice(target_.data()), Place::OnDevice(pool_.data())};
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
    std::vector<PlacedList> requests;
    for (PooledMessage& message : messages_) {
      FERRY_TRY(Read(&message));
      requests.push_back(Request(message));
    }
    // Without the reading of fragments, which read_seconds has.
    const auto begin = Clock::now();
    FERRY_TRY_ASSIGN(const std::uint64_t ticket, unpacker_->Enqueue(requests));
    const double enqueue = Seconds(Clock::now() - begin);
    FERRY_TRY(WaitFor(ticket));
    return BatchTimes{enqueue, Seconds(Clock::now() - begin)};
  }

  Status UnpackEach(std::vector<double>* launches) {
    for (PooledMessage& message : messages_) {
      const auto begin = Clock::now();
      FERRY_TRY(Read(&message));
      const PlacedList request = Request(message);
      FERRY_TRY_ASSIGN(const std::uint64_t ticket, unpacker_->Enqueue({&request, 1}));
      launches->push_back(Seconds(Clock::now() - begin));
      FERRY_TRY(WaitFor(ticket));
    }
    return Ok();
  }

  Result<bool> Verify() {
    // Old contents must not be taken for unpacked bytes.
    std::memset(host_.data(), 0xE5, job_.bytes);
    FERRY_TRY(Move(CopyKind::kHostToDevice, target_.data(), host_.data(), job_.bytes));
    if (const auto unpacked = UnpackAll(); !unpacked) return unpacked.error();
    std::memset(host_.data(), 0xE5, job_.bytes);
    FERRY_TRY(Move(CopyKind::kDeviceToHost, host_.data(), target_.data(), job_.bytes));
    for (const PooledMessage& message : messages_) {
      for (const tcpx::Fragment& one : message.fragments) {
        if (std::memcmp(host_.bytes().data() + message.run.offset + one.dst,
                        source_.data() + one.src, one.len) != 0) {
          return false;
        }
      }
    }
    return true;
  }

  void Print(const UnpackRow& row) {
    const double gbps = static_cast<double>(job_.bytes) / row.seconds / 1e9;
    const double dma_ratio = dma_seconds_ / row.seconds;
    if (job_.json) {
      PrintLine(Json{{"unpack", tcpx::UnpackName(row.by)},
                     {"fragment_bytes", row.fragment_bytes},
                     {"bytes", job_.bytes},
                     {"messages", messages_.size()},
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
  std::vector<PooledMessage> messages_;
  std::uint64_t pool_bytes_ = 0;
  std::vector<std::byte> source_;
  cuda::Stream stream_;
  cuda::DeviceBuffer pool_;
  cuda::DeviceBuffer target_;
  cuda::PinnedBuffer host_;
  tcpx::FragmentReader reader_;
  std::unique_ptr<tcpx::Unpacker> unpacker_;  // goes before the memory that it uses
  double dma_seconds_ = 0;
};

}  // namespace

Status RunUnpackBench(const UnpackBenchJob& job) {
  FERRY_TRY_ASSIGN(cuda::DeviceApi * api, cuda::OpenDevices(job.config));
  return UnpackBench(api, job).Run();
}

}  // namespace ferry::tools
