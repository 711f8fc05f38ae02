// Command line of `ferry copy-bench`.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "ferry/core/units.h"
#include "ferry/tcpx/unpack/fragments.h"
#include "tools/bench/copies/copies.h"
#include "tools/bench/copies/pipeline.h"
#include "tools/bench/copies/staged.h"
#include "tools/bench/unpack/unpack.h"
#include "tools/support/command.h"

namespace ferry::tools {
namespace {

constexpr const char* kCopySize = "64MiB";
constexpr const char* kPipelineSize = "256MiB";
constexpr const char* kLadderSize = "4MiB";
constexpr std::uint64_t kMaxPool = std::uint64_t{4} << 30;  // what fragments can address

struct Words {
  CopyBenchJob job;
  std::string size;
  std::vector<std::string> block_sizes;  // none given: those that follow
  bool pipeline = false;
  bool unpack = false;
  bool ladder = false;
  bool staged = false;
  std::string chunk = "4MiB";
  // One alone is slower than the bus; half of the cores are left to others.
  int staging_threads = std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 2, 1, 4);
  std::string trace;
  std::vector<std::string> settings;
};

Status RunPipeline(const Words& words) {
  PipelineBenchJob job{words.job};
  job.trace = words.trace;
  job.staging_threads = words.staging_threads;
  FERRY_TRY_ASSIGN(job.bytes, ParseSize(words.size.empty() ? kPipelineSize : words.size));
  FERRY_TRY_ASSIGN(job.chunk_bytes, ParseSize(words.chunk));
  if (job.bytes == 0 || job.chunk_bytes == 0) {
    return Error(Code::kInvalidArgument, "--size and --chunk should be at least 1");
  }
  return RunPipelineBench(job);
}

Status RunUnpack(const CopyBenchJob& copies, bool ladder) {
  UnpackBenchJob job{copies};
  job.fragment_bytes = copies.block_sizes;
  if (job.bytes > kMaxPool) {
    return Error(Code::kInvalidArgument,
                 "--size is more than the 4 GiB that fragments can address; give less");
  }
  for (const std::uint64_t size : job.fragment_bytes) {
    if (job.message_bytes % size == 0 && job.message_bytes / size < tcpx::kMaxFragments) continue;
    return Error(Code::kInvalidArgument,
                 "fragments of " + std::to_string(size) +
                     " bytes do not make a message of 512 KiB; give sizes like 1KiB or 4KiB");
  }
  if (ladder) return RunUnpackLadder(job);
  FERRY_TRY(RunUnpackBench(job));
  return RunRowsBench(job);
}

Status Run(Words* words) {
  CopyBenchJob& job = words->job;
  FERRY_TRY_ASSIGN(job.config, LoadConfig(words->settings));
  if (words->pipeline) return RunPipeline(*words);
  if (words->size.empty()) words->size = words->ladder ? kLadderSize : kCopySize;
  FERRY_TRY_ASSIGN(job.bytes, ParseSize(words->size));
  if (words->block_sizes.empty()) {
    words->block_sizes = {"4KiB", "16KiB", "64KiB", "1MiB"};
    if (words->unpack) words->block_sizes = {"1KiB", "4KiB", "16KiB"};
    if (words->ladder) words->block_sizes = {"4KiB"};
  }
  if (words->staged) return RunStagedBench(job);
  for (const std::string& text : words->block_sizes) {
    FERRY_TRY_ASSIGN(const std::uint64_t size, ParseSize(text));
    if (size == 0 || size > job.bytes) {
      return Error(Code::kInvalidArgument,
                   "--block-size " + text + " should be at least 1 and at most --size");
    }
    job.block_sizes.push_back(size);
  }
  return words->unpack ? RunUnpack(job, words->ladder) : RunCopyBench(job);
}

}  // namespace

namespace {

// What it measures, and of which sizes.
void DeclareCopies(CLI::App* app, Words* words) {
  CopyBenchJob& job = words->job;
  app->add_option("--device", job.ordinal, "GPU, by CUDA's number")->type_name("N");
  app->add_option("--direction", job.directions, "H2D, D2H, D2D or duplex; a list, or repeated")
      ->delimiter(',')
      ->type_name("WAY");
  app->add_option("--executor", job.executors, "dma, kernel or prepared; a list, or repeated")
      ->delimiter(',')
      ->type_name("NAME");
  app->add_option("--host-side", job.host_sides,
                  "Layout of the host's side of duplex: scattered or contiguous; a list")
      ->delimiter(',')
      ->check(CLI::IsMember({"scattered", "contiguous"}))
      ->type_name("HOW");
  app->add_option("--block-size", words->block_sizes,
                  "Bytes of a block, like 16KiB; a list (4KiB,16KiB,64KiB,1MiB; --unpack: "
                  "1KiB,4KiB,16KiB; --ladder: 4KiB)")
      ->delimiter(',')
      ->type_name("SIZE");
  app->add_option("--size", words->size,
                  "Total bytes to copy (64MiB; --pipeline: 256MiB; --ladder: 4MiB)")
      ->type_name("SIZE");
  app->add_option("--rounds", job.rounds, "Rounds; results are medians over them")
      ->capture_default_str()
      ->check(CLI::Range(1U, 1000U))
      ->type_name("N");
}

}  // namespace

void DeclareCopyBench(CLI::App* app, Invocation* invocation) {
  // Lives as long as the program: the parser writes into it, the subcommand reads it. Each
  // declaration begins with the defaults.
  static Words words;
  words = Words();
  CopyBenchJob& job = words.job;
  job.directions = {"H2D", "D2H", "D2D", "duplex"};
  job.executors = {"dma", "kernel", "prepared"};
  job.host_sides = {"scattered", "contiguous"};
  DeclareCopies(app, &words);
  auto* const pipeline = app->add_flag(
      "--pipeline", words.pipeline,
      "Measure instead: through a kernel and back, one step at a time and on several streams");
  auto* const unpack =
      app->add_flag("--unpack", words.unpack,
                    "Measure instead: unpacking of 512 KiB messages whose fragments (--block-size) "
                    "lie in a pool in GPU memory")
          ->excludes(pipeline);
  app->add_flag(
         "--ladder", words.ladder,
         "Measure instead: the same messages from a stream, memory and a wait for each to one "
         "launch for all")
      ->needs(unpack);
  app->add_flag(
         "--staged", words.staged,
         "Measure instead: copies within the GPU by way of shared memory, by cp.async and by "
         "cuda::pipeline, with 1 to 3 stages")
      ->excludes(pipeline)
      ->excludes(unpack);
  app->add_option("--chunk", words.chunk, "Bytes of a chunk of a pipeline")
      ->needs(pipeline)
      ->capture_default_str()
      ->type_name("SIZE");
  app->add_option("--staging-threads", words.staging_threads, "Threads that copy pageable memory")
      ->needs(pipeline)
      ->capture_default_str()
      ->check(CLI::Range(1, 64))
      ->type_name("N");
  app->add_option("--trace", words.trace, "Timeline of the pipelines, for Perfetto")
      ->needs(pipeline)
      ->type_name("FILE");
  DeclareSettings(app, &words.settings);
  DeclareJson(app, invocation);
  app->callback([invocation] {
    words.job.json = invocation->json;
    invocation->run = [] { return Run(&words); };
  });
}

}  // namespace ferry::tools
