// Measures calls of an unpack kernel for `ferry copy-bench --unpack --ladder`.
#include "tools/bench/unpack/unpack_ladder.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "ferry/core/units.h"
#include "ferry/cuda/address.h"
#include "ferry/cuda/open_devices.h"
#include "tools/support/json.h"
#include "tools/support/process.h"
#include "tools/support/report.h"

namespace ferry::tools {
namespace {

constexpr auto kClimbTimeout = std::chrono::seconds(60);

struct NamedRung {
  Rung rung;
  const char* what;
  double their_ms;  // of "Why is my unpack kernel slow": a chunk of 512 KiB on its machine
};
constexpr std::array<NamedRung, kRungs> kNamedRungs{
    {{Rung::kAllAnew, "stream, launcher, memory and a wait for each chunk", 53},
     {Rung::kKeptLauncher, "launcher kept; memory and a wait for each chunk", 45},
     {Rung::kAsynchronous, "memory for each chunk, one wait at the end", 1},
     {Rung::kPreallocated, "memory allocated in advance (Unpacker)", 0.5},
     {Rung::kOneLaunch, "one launch for all chunks (Unpacker)", 0.1},
     {Rung::kCopyEngine, "the copy engine, a copy for each fragment", 0.53}}};

char LetterOf(Rung rung) { return static_cast<char>('a' + static_cast<int>(rung)); }

}  // namespace

Result<std::unique_ptr<UnpackLadder>> UnpackLadder::Create(cuda::DeviceApi* api, int ordinal,
                                                           UnpackBed* bed) {
  std::unique_ptr<UnpackLadder> ladder(new UnpackLadder(api));
  FERRY_TRY_ASSIGN(ladder->chunks_, bed->ReadAll());
  const std::size_t count = ladder->chunks_.size();
  if (count > tcpx::kMaxUnpackBatches) {
    return Error(Code::kInvalidArgument,
                 fmt::format("--size makes {} chunks, and --ladder takes at most {}; give 4MiB",
                             count, tcpx::kMaxUnpackBatches));
  }
  FERRY_TRY_ASSIGN(const auto facts, api->Describe(ordinal));
  tcpx::UnpackerOptions options;
  options.most_batches = static_cast<std::uint32_t>(count);
  for (const PlacedList& chunk : ladder->chunks_) {
    FERRY_TRY_ASSIGN(auto descriptors, ladder->Describe(ordinal, chunk, DeviceGroups(facts)));
    ladder->descriptors_.push_back(std::move(descriptors));
  }
  FERRY_TRY_ASSIGN(ladder->stream_, api->CreateStream(ordinal, cuda::StreamPriority::kHigh));
  options.by = tcpx::UnpackBy::kKernel;
  FERRY_TRY_ASSIGN(ladder->kernel_, tcpx::Unpacker::Create(api, ordinal, options));
  options.by = tcpx::UnpackBy::kDma;
  FERRY_TRY_ASSIGN(ladder->engine_, tcpx::Unpacker::Create(api, ordinal, options));
  return ladder;
}

// In pinned memory, where a plugin leaves them.
Result<UnpackLadder::Descriptors> UnpackLadder::Describe(int ordinal, const PlacedList& chunk,
                                                         std::uint32_t groups) const {
  const std::size_t count = chunk.blocks.size();
  Descriptors made;
  FERRY_TRY_ASSIGN(made.blocks, api_->AllocatePinned(ordinal, count * sizeof(PackedBlock)));
  auto* out = static_cast<PackedBlock*>(made.blocks.data());
  std::uint64_t bits = chunk.dst.address | chunk.src.address;
  for (const Block& block : chunk.blocks) {
    *out++ = Pack({chunk.dst.address + block.dst, chunk.src.address + block.src, block.len});
    bits |= block.dst | block.src | block.len;
  }
  made.arguments.count = static_cast<std::uint32_t>(count);
  made.arguments.groups = std::min(groups, (made.arguments.count - 1) / kBlockKernelWarps + 1);
  made.arguments.words = AreWords(bits);
  return made;
}

// Allocates memory for the descriptors, copies them there, and launches.
Status UnpackLadder::Launch(cuda::StreamRef stream, const Descriptors& chunk) {
  const std::size_t bytes = chunk.blocks.size();
  FERRY_TRY_ASSIGN(auto memory, api_->AllocateDevice(stream.ordinal(), bytes));
  const cuda::CopyItem item{memory.data(), chunk.blocks.data(), bytes};
  BlockKernelArguments arguments = chunk.arguments;
  arguments.blocks = static_cast<const PackedBlock*>(memory.data());
  launched_.push_back(std::move(memory));
  FERRY_TRY(api_->Copy(stream, cuda::CopyKind::kHostToDevice, {&item, 1}));
  return cuda::LaunchKernel(*api_, stream, kBlockKernel, arguments);
}

Status UnpackLadder::Finish(cuda::StreamRef stream, Deadline deadline) {
  FERRY_TRY(api_->Wait(stream, deadline));
  launched_.clear();
  return Ok();
}

Status UnpackLadder::Climb(Rung rung, Deadline deadline) {
  switch (rung) {
    case Rung::kAllAnew:
      for (const Descriptors& chunk : descriptors_) {
        FERRY_TRY_ASSIGN(const cuda::Stream stream,
                         api_->CreateStream(stream_.ordinal(), cuda::StreamPriority::kHigh));
        FERRY_TRY(Launch(stream, chunk));
        FERRY_TRY(Finish(stream, deadline));
      }
      return Ok();
    case Rung::kKeptLauncher:
      for (const Descriptors& chunk : descriptors_) {
        FERRY_TRY(Launch(stream_, chunk));
        FERRY_TRY(Finish(stream_, deadline));
      }
      return Ok();
    case Rung::kAsynchronous:
      for (const Descriptors& chunk : descriptors_) FERRY_TRY(Launch(stream_, chunk));
      return Finish(stream_, deadline);
    case Rung::kPreallocated:
      for (const PlacedList& chunk : chunks_) FERRY_TRY(kernel_->Enqueue({&chunk, 1}));
      return kernel_->Drain(deadline);
    case Rung::kOneLaunch: FERRY_TRY(kernel_->Enqueue(chunks_)); return kernel_->Drain(deadline);
    case Rung::kCopyEngine: break;
  }
  FERRY_TRY(engine_->Enqueue(chunks_));
  return engine_->Drain(deadline);
}

namespace {

struct LadderRow {
  NamedRung rung;
  double seconds = 0;  // all chunks
  bool verified = false;
};

Result<LadderRow> Measure(const NamedRung& rung, unsigned rounds, UnpackBed* bed,
                          UnpackLadder* ladder) {
  LadderRow row{.rung = rung};
  FERRY_TRY(bed->Spoil());
  std::vector<double> seconds;
  for (unsigned round = 0; round <= rounds; ++round) {
    if (Interrupted()) return InterruptedError();
    const auto begin = Clock::now();
    FERRY_TRY(ladder->Climb(rung.rung, Deadline::After(kClimbTimeout)));
    if (round > 0) {  // warm by now
      seconds.push_back(Seconds(Clock::now() - begin));
      continue;
    }
    FERRY_TRY_ASSIGN(row.verified, bed->IsUnpacked());
  }
  row.seconds = Median(seconds);
  return row;
}

void Print(const LadderRow& row, const UnpackBenchJob& job, std::uint64_t fragment_bytes,
           std::size_t chunks) {
  const double ms = row.seconds / static_cast<double>(chunks) * 1e3;
  const std::string letter(1, LetterOf(row.rung.rung));
  if (job.json) {
    return PrintLine(Json{
        {"rung", letter},
        {"what", row.rung.what},
        {"fragment_bytes", fragment_bytes},
        {"bytes", job.bytes},
        {"chunks", chunks},
        {"ms_per_chunk", ms},
        {"their_ms_per_chunk", row.rung.their_ms},
        {"gbps", static_cast<double>(job.bytes) / row.seconds / 1e9},
        {"verified",
         row.verified}}.dump());
  }
  PrintLine(fmt::format("{}  {:<50}  {:>11.4f}  {:>6}  {}", letter, row.rung.what, ms,
                        row.rung.their_ms, row.verified ? "yes" : "NO"));
}

}  // namespace

Status RunUnpackLadder(const UnpackBenchJob& job) {
  FERRY_TRY_ASSIGN(cuda::DeviceApi * api, cuda::OpenDevices(job.config));
  for (const std::uint64_t fragment_bytes : job.fragment_bytes) {
    FERRY_TRY_ASSIGN(const auto bed,
                     UnpackBed::Create(api, job, job.message_bytes, fragment_bytes));
    FERRY_TRY_ASSIGN(const auto ladder, UnpackLadder::Create(api, job.ordinal, bed.get()));
    const std::size_t chunks = bed->messages().size();
    if (!job.json) {
      PrintLine(fmt::format("{} chunks of at most {} bytes in fragments of {}", chunks,
                            job.message_bytes, fragment_bytes));
      PrintLine(fmt::format("{:<53}  {:>11}  {:>6}  {}", "for each chunk", "ms a chunk", "theirs",
                            "verified"));
    }
    for (const NamedRung& rung : kNamedRungs) {
      FERRY_TRY_ASSIGN(const LadderRow row, Measure(rung, job.rounds, bed.get(), ladder.get()));
      Print(row, job, fragment_bytes, chunks);
    }
  }
  if (!job.json) {
    PrintLine(
        "theirs: \"Why is my unpack kernel slow\", whose machine waited 48 ms for each chunk.\n"
        "A wait takes as long as the work before it. Where a chunk's copy takes microseconds,\n"
        "only the driver's calls are left to save, and the steps are smaller.");
  }
  return Ok();
}

}  // namespace ferry::tools
