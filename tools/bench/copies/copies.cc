// Measures copies of block lists with each executor for `ferry copy-bench`.

#include "tools/bench/copies/copies.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string_view>
#include <utility>

#include "ferry/copy/device_executor.h"
#include "ferry/core/deadline.h"
#include "ferry/cuda/address.h"
#include "ferry/cuda/open_devices.h"
#include "tools/bench/copies/prepared_copy.h"
#include "tools/support/json.h"
#include "tools/support/process.h"
#include "tools/support/report.h"

namespace ferry::tools {
namespace {

using cuda::CopyKind;

// A copy for each block takes microseconds; beyond this number fewer rounds are enough.
constexpr std::size_t kManyCopies = 4096;
constexpr unsigned kFewRounds = 3;
constexpr auto kTimeout = std::chrono::seconds(60);

// Copies of a prepared list that are queued at once, and as many of the copy it is compared with.
constexpr unsigned kBackToBack = 20;

struct CopyRow {
  std::string direction;
  std::string executor;
  std::string host_side;  // "scattered" or "contiguous"
  std::uint64_t block_size = 0;
  std::uint64_t bytes = 0;
  double wall_seconds = 0;    // from the call until the end is seen
  double device_seconds = 0;  // between events before and after; 0 for duplex
  double ceiling_gbps = 0;    // one large copy of the engine, that way
  double plain_gbps = 0;      // of D2D: the plain copy of as many bytes, back to back; or 0
  bool verified = false;
};

double Rate(std::uint64_t bytes, double seconds) {
  return static_cast<double>(bytes) / seconds / 1e9;
}

Result<CopyKind> KindNamed(const std::string& direction) {
  for (const CopyKind kind :
       {CopyKind::kHostToDevice, CopyKind::kDeviceToHost, CopyKind::kDeviceToDevice}) {
    if (direction == cuda::CopyKindName(kind)) return kind;
  }
  return Error(Code::kInvalidArgument,
               fmt::format("unknown direction \"{}\"; give H2D, D2H, D2D or duplex", direction));
}

// One way: a stream, memory on both sides of it, and what is copied there.
struct Lane {
  CopyKind kind{};
  cuda::Stream stream;
  cuda::Event begin;
  cuda::Event end;
  cuda::DeviceBuffer device;
  cuda::DeviceBuffer other_device;  // the destination of D2D
  cuda::PinnedBuffer host;
  Place src;
  Place dst;
  BlockList list;
  std::unique_ptr<DeviceExecutor> executor;
};

// Prepares the list of the first call; all later calls use the same list.
class PreparedExecutor final : public DeviceExecutor {
 public:
  PreparedExecutor(cuda::DeviceApi* api, int ordinal) : api_(api), ordinal_(ordinal) {}
  std::string_view name() const noexcept override { return "prepared"; }
  Status Enqueue(cuda::StreamRef stream, CopyKind kind,
                 std::span<const PlacedList> lists) override {
    if (prepared_ == nullptr) {
      FERRY_TRY_ASSIGN(prepared_, PrepareCopy(api_, ordinal_, kind, lists));
    }
    return prepared_->Enqueue(stream);
  }

 private:
  cuda::DeviceApi* const api_;
  const int ordinal_;
  std::unique_ptr<PreparedCopy> prepared_;
};

struct Times {
  double wall = 0;
  double device = 0;
};

class Bench {
 public:
  Bench(cuda::DeviceApi* api, const CopyBenchJob* job) : api_(api), job_(job) {}

  Status Run() {
    for (const std::string& direction : job_->directions) {
      std::vector<Lane> lanes;
      const bool duplex = direction == "duplex";
      if (duplex) {
        FERRY_TRY(AddLane(CopyKind::kHostToDevice, &lanes));
        FERRY_TRY(AddLane(CopyKind::kDeviceToHost, &lanes));
      } else {
        FERRY_TRY_ASSIGN(const CopyKind kind, KindNamed(direction));
        FERRY_TRY(AddLane(kind, &lanes));
      }
      CopyRow row;
      row.direction = direction;
      FERRY_TRY_ASSIGN(row.ceiling_gbps, Ceiling(&lanes));
      if (direction == "D2D") {
        FERRY_TRY_ASSIGN(row.plain_gbps, Plain(&lanes));
      }
      const std::vector<std::string> one{"scattered"};
      for (const std::string& host_side : duplex ? job_->host_sides : one) {
        row.host_side = host_side;
        FERRY_TRY(MeasureAll(&lanes, row));
      }
    }
    return Ok();
  }

 private:
  Status MeasureAll(std::vector<Lane>* lanes, CopyRow row) {
    for (const std::uint64_t size : job_->block_sizes) {
      dma_gbps_ = 0;
      for (const std::string& executor : job_->executors) {
        row.block_size = size;
        row.executor = executor;
        FERRY_TRY(Measure(lanes, &row));
        Print(row);
      }
    }
    return Ok();
  }

  Status AddLane(CopyKind kind, std::vector<Lane>* lanes) {
    const int ordinal = job_->ordinal;
    // Twice the bytes, since blocks lie in every second place.
    const std::uint64_t bytes = std::max(2 * job_->bytes, job_->ceiling_bytes);
    Lane lane;
    lane.kind = kind;
    FERRY_TRY_ASSIGN(lane.stream, api_->CreateStream(ordinal, cuda::StreamPriority::kNormal));
    FERRY_TRY_ASSIGN(lane.begin, api_->CreateEvent(ordinal, cuda::EventTiming::kOn));
    FERRY_TRY_ASSIGN(lane.end, api_->CreateEvent(ordinal, cuda::EventTiming::kOn));
    FERRY_TRY_ASSIGN(lane.device, api_->AllocateDevice(ordinal, bytes));
    FERRY_TRY_ASSIGN(lane.host, api_->AllocatePinned(ordinal, bytes));
    FERRY_TRY_ASSIGN(const Place host, Place::OnHost(*api_, ordinal, lane.host.data()));
    lane.src = lane.dst = Place::OnDevice(lane.device.data());
    if (kind == CopyKind::kHostToDevice) lane.src = host;
    if (kind == CopyKind::kDeviceToHost) lane.dst = host;
    if (kind == CopyKind::kDeviceToDevice) {
      FERRY_TRY_ASSIGN(lane.other_device, api_->AllocateDevice(ordinal, bytes));
      lane.dst = Place::OnDevice(lane.other_device.data());
    }
    std::memset(lane.host.data(), 1, bytes);
    lanes->push_back(std::move(lane));
    return Ok();
  }

  Result<std::unique_ptr<DeviceExecutor>> Make(const std::string& name) const {
    if (name == "dma") return MakeDmaExecutor(api_);
    if (name == "kernel") return MakeKernelExecutor(api_, job_->ordinal);
    if (name == "prepared") {
      return std::unique_ptr<DeviceExecutor>(
          std::make_unique<PreparedExecutor>(api_, job_->ordinal));
    }
    return Error(Code::kInvalidArgument,
                 fmt::format("unknown executor \"{}\"; give dma, kernel or prepared", name));
  }

  // Blocks of every second place, in an order of their own on each side; or one after another on
  // the host's.
  BlockList Shuffled(CopyKind kind, std::uint64_t size, bool packed) const {
    const std::size_t count = std::max<std::uint64_t>(job_->bytes / size, 1);
    std::vector<std::uint64_t> dst(count);
    for (std::size_t i = 0; i < count; ++i) dst[i] = 2 * size * i;
    std::vector<std::uint64_t> src = dst;
    // The same order in every run, so that results can be compared.
    std::mt19937_64 random(count);
    std::shuffle(dst.begin(), dst.end(), random);
    std::shuffle(src.begin(), src.end(), random);
    if (packed) {
      auto& host = kind == CopyKind::kHostToDevice ? src : dst;
      for (std::size_t i = 0; i < count; ++i) host[i] = size * i;
    }
    BlockList list;
    list.Reserve(count);
    for (std::size_t i = 0; i < count; ++i) list.Add({dst[i], src[i], size});
    return list;
  }

  // One block and the engine on each lane.
  void SetWhole(std::vector<Lane>* lanes, std::uint64_t bytes) const {
    for (Lane& lane : *lanes) {
      lane.list.Clear();
      lane.list.Add({0, 0, bytes});
      lane.executor = MakeDmaExecutor(api_);
    }
  }

  Result<double> Ceiling(std::vector<Lane>* lanes) const {
    SetWhole(lanes, job_->ceiling_bytes);
    FERRY_TRY_ASSIGN(const Times times, MedianOf(lanes, job_->rounds, 1));
    // Two streams have no common events, so duplex is timed by the host.
    return Rate(job_->ceiling_bytes * lanes->size(), lanes->size() > 1 ? times.wall : times.device);
  }

  // cudaMemcpyAsync of as many bytes as the rows have, and as often as prepared lists.
  Result<double> Plain(std::vector<Lane>* lanes) const {
    SetWhole(lanes, job_->bytes);
    FERRY_TRY_ASSIGN(const Times times, MedianOf(lanes, job_->rounds, kBackToBack));
    return Rate(job_->bytes * kBackToBack, times.device);
  }

  Status Measure(std::vector<Lane>* lanes, CopyRow* row) {
    row->verified = true;
    row->bytes = 0;
    for (Lane& lane : *lanes) {
      lane.list = Shuffled(lane.kind, row->block_size, row->host_side == "contiguous");
      row->bytes += lane.list.total_bytes();
      FERRY_TRY_ASSIGN(lane.executor, Make(row->executor));
      FERRY_TRY_ASSIGN(const bool right, Verify(&lane));
      row->verified &= right;
    }
    const unsigned rounds = lanes->front().list.size() > kManyCopies && row->executor == "dma"
                                ? std::min(kFewRounds, job_->rounds)
                                : job_->rounds;
    FERRY_TRY_ASSIGN(const Times times, MedianOf(lanes, rounds, 1));
    row->wall_seconds = times.wall;
    row->device_seconds = lanes->size() > 1 ? 0 : times.device;
    // A prepared copy is one launch without work on the host, so several follow each other without
    // a gap, as layers of a model would.
    if (row->executor == "prepared" && lanes->size() == 1) {
      FERRY_TRY_ASSIGN(const Times many, MedianOf(lanes, rounds, kBackToBack));
      row->device_seconds = many.device / kBackToBack;
    }
    if (row->executor == "dma") dma_gbps_ = DeviceRate(*row);
    return Ok();
  }

  // Measures rounds in each of which every lane's list is queued this often.
  Result<Times> MedianOf(std::vector<Lane>* lanes, unsigned rounds, unsigned times) const {
    std::vector<double> wall;
    std::vector<double> device;
    for (unsigned round = 0; round <= rounds; ++round) {
      const auto begin = Clock::now();
      for (Lane& lane : *lanes) {
        const PlacedList placed{lane.list.blocks(), lane.dst, lane.src};
        FERRY_TRY(api_->Record(lane.begin, lane.stream));
        for (unsigned i = 0; i < times; ++i) {
          FERRY_TRY(lane.executor->Enqueue(lane.stream, lane.kind, {&placed, 1}));
        }
        FERRY_TRY(api_->Record(lane.end, lane.stream));
      }
      for (const Lane& lane : *lanes) {
        FERRY_TRY(SpinUntil(lane.end));
      }
      if (round == 0) continue;  // warm by now
      wall.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
      FERRY_TRY_ASSIGN(const auto between, api_->Elapsed(lanes->front().begin, lanes->front().end));
      device.push_back(std::chrono::duration<double>(between).count());
    }
    return Times{Median(wall), Median(device)};
  }

  // Polls, because a sleeping wait would add to copies that take microseconds.
  Status SpinUntil(const cuda::Event& event) const {
    const Deadline deadline = Deadline::After(kTimeout);
    for (;;) {
      FERRY_TRY_ASSIGN(const bool ready, api_->Query(event));
      if (ready) return Interrupted() ? InterruptedError() : Ok();
      if (deadline.expired())
        return Error(Code::kTimedOut, "a copy did not end before its deadline");
    }
  }

  // Poisons the destination, copies fresh bytes, and looks at every one of both sides.
  Result<bool> Verify(Lane* lane) const {
    const std::uint64_t bytes = 2 * job_->bytes;
    std::vector<std::byte> source(bytes);
    std::vector<std::byte> expected(bytes, std::byte{0xa5});
    std::mt19937_64 random(std::random_device{}());
    for (std::size_t i = 0; i + 8 <= bytes; i += 8) {
      const std::uint64_t word = random();
      std::memcpy(source.data() + i, &word, sizeof word);
    }
    for (const Block& block : lane->list.blocks()) {
      std::memcpy(expected.data() + block.dst, source.data() + block.src, block.len);
    }
    FERRY_TRY(Put(lane, lane->src, source));
    FERRY_TRY(Put(lane, lane->dst, std::vector<std::byte>(bytes, std::byte{0xa5})));
    const PlacedList placed{lane->list.blocks(), lane->dst, lane->src};
    FERRY_TRY(lane->executor->Enqueue(lane->stream, lane->kind, {&placed, 1}));
    FERRY_TRY(api_->Wait(lane->stream, Deadline::After(kTimeout)));
    FERRY_TRY_ASSIGN(const auto got, Get(lane, lane->dst, bytes));
    return got == expected;
  }

  bool IsOnHost(const Lane& lane, const Place& place) const {
    return cuda::PointerTo(place.address) == lane.host.data();
  }

  Status Put(Lane* lane, const Place& place, const std::vector<std::byte>& bytes) const {
    std::byte* into = lane->host.bytes().data();
    if (IsOnHost(*lane, place)) {
      std::memcpy(into, bytes.data(), bytes.size());
      return Ok();
    }
    FERRY_TRY_ASSIGN(const auto staging, api_->AllocatePinned(job_->ordinal, bytes.size()));
    std::memcpy(staging.data(), bytes.data(), bytes.size());
    const cuda::CopyItem item{cuda::PointerTo(place.address), staging.data(), bytes.size()};
    FERRY_TRY(api_->Copy(lane->stream, CopyKind::kHostToDevice, {&item, 1}));
    return api_->Wait(lane->stream, Deadline::After(kTimeout));
  }

  Result<std::vector<std::byte>> Get(Lane* lane, const Place& place, std::uint64_t count) const {
    if (IsOnHost(*lane, place)) {
      const auto bytes = lane->host.bytes().first(count);
      return std::vector<std::byte>(bytes.begin(), bytes.end());
    }
    FERRY_TRY_ASSIGN(const auto staging, api_->AllocatePinned(job_->ordinal, count));
    const cuda::CopyItem item{staging.data(), cuda::PointerTo(place.address), count};
    FERRY_TRY(api_->Copy(lane->stream, CopyKind::kDeviceToHost, {&item, 1}));
    FERRY_TRY(api_->Wait(lane->stream, Deadline::After(kTimeout)));
    const auto bytes = staging.bytes();
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  }

  static double DeviceRate(const CopyRow& row) {
    return Rate(row.bytes, row.device_seconds > 0 ? row.device_seconds : row.wall_seconds);
  }

  void Print(const CopyRow& row) {
    const double wall = Rate(row.bytes, row.wall_seconds);
    const double device = DeviceRate(row);
    if (job_->json) return PrintJson(row, wall, device);
    if (!std::exchange(has_head_, true)) {
      PrintLine(fmt::format("{:<9}  {:<8}  {:<10}  {:>9}  {:>10}  {:>10}  {:>10}  {:>6}  {}",
                            "direction", "executor", "host side", "block", "GB/s", "wall GB/s",
                            "one copy", "share", "verified"));
    }
    std::string line =
        fmt::format("{:<9}  {:<8}  {:<10}  {:>9}  {:>10.2f}  {:>10.2f}  {:>10.2f}  {:>6.3f}  {:<8}",
                    row.direction, row.executor, row.host_side, row.block_size, device, wall,
                    row.ceiling_gbps, device / row.ceiling_gbps, row.verified ? "yes" : "NO");
    if (row.plain_gbps > 0) {
      line +=
          fmt::format("  {:.3f} of a plain copy's {:.1f}", device / row.plain_gbps, row.plain_gbps);
    }
    if (dma_gbps_ > 0 && row.executor != "dma") {
      line += fmt::format("  {:.1f} x dma", device / dma_gbps_);
    }
    PrintLine(line);
  }

  void PrintJson(const CopyRow& row, double wall, double device) const {
    Json json{{"direction", row.direction},
              {"executor", row.executor},
              {"host_side", row.host_side},
              {"block_size", row.block_size},
              {"bytes", row.bytes},
              {"gbps", device},
              {"wall_gbps", wall},
              {"ceiling_gbps", row.ceiling_gbps},
              {"ceiling_ratio", device / row.ceiling_gbps},
              {"verified", row.verified}};
    if (row.plain_gbps > 0) {
      json["plain_gbps"] = row.plain_gbps;
      json["plain_ratio"] = device / row.plain_gbps;
    }
    if (dma_gbps_ > 0) {
      json["dma_gbps"] = dma_gbps_;
      json["dma_ratio"] = device / dma_gbps_;
    }
    PrintLine(json.dump());
  }

  cuda::DeviceApi* const api_;
  const CopyBenchJob* const job_;
  bool has_head_ = false;
  double dma_gbps_ = 0;  // of the rows with the same blocks; 0 where it was not measured before
};

}  // namespace

Status RunCopyBench(const CopyBenchJob& job) {
  FERRY_TRY_ASSIGN(cuda::DeviceApi * api, cuda::OpenDevices(job.config));
  return Bench(api, &job).Run();
}

}  // namespace ferry::tools
