// Tests of `ferry copy-bench` and `ferry kernel-bench`: their arguments, and small runs on
// simulated devices.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <set>
#include <string>
#include <vector>

#include "tools/bench/copies/copies.h"
#include "tools/bench/copies/pipeline.h"
#include "tools/bench/copies/staged.h"
#include "tools/bench/kernels/kernels.h"
#include "tools/bench/unpack/unpack.h"
#include "tools/support/json.h"
#include "tools/testing/captured_output.h"
#include "tools/testing/command_line.h"

namespace ferry::tools {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Config BenchDevices() {
  Config config;
  config.devices = DeviceChoice::Simulated("1:301");
  return config;
}

// What a benchmark prints, line by line; a failure of the run fails the test.
template <class Job>
std::vector<std::string> LinesOf(Status (*run)(const Job&), const Job& job) {
  CapturedOutput out(STDOUT_FILENO);
  const Status status = run(job);
  Ended ended;
  ended.out = out.Take();
  EXPECT_TRUE(status) << status.error().ToString();
  return ended.lines();
}
template <class Job>
std::vector<Json> JsonOf(Status (*run)(const Job&), const Job& job) {
  std::vector<Json> rows;
  for (const std::string& line : LinesOf(run, job)) {
    rows.push_back(Json::parse(line, nullptr, false));
    EXPECT_TRUE(rows.back().is_object()) << line;
  }
  return rows;
}
template <class Job>
std::string FailureOf(Status (*run)(const Job&), const Job& job) {
  const CapturedOutput out(STDOUT_FILENO);
  const Status status = run(job);
  return status ? std::string() : status.error().message();
}

// ---- copies -------------------------------------------------------------------------------------

CopyBenchJob SmallCopies() {
  CopyBenchJob job;
  job.config = BenchDevices();
  job.directions = {"H2D", "D2H", "D2D", "duplex"};
  job.executors = {"dma", "kernel", "prepared"};
  job.host_sides = {"scattered", "contiguous"};
  job.block_sizes = {4096};
  job.bytes = 16384;
  job.ceiling_bytes = 32768;
  job.rounds = 1;
  job.json = true;
  return job;
}

TEST(CopyBench, MeasuresEachDirectionWithEachExecutorAndChecksEveryByte) {
  const auto rows = JsonOf(RunCopyBench, SmallCopies());
  // Twice for duplex, once for each layout.
  ASSERT_EQ(rows.size(), 3U + 3 + 3 + 6);
  std::set<std::string> names;
  for (const Json& row : rows) {
    SCOPED_TRACE(row.dump());
    names.insert(row["direction"].get<std::string>() + row["executor"].get<std::string>() +
                 row["host_side"].get<std::string>());
    const bool duplex = row["direction"] == "duplex";
    EXPECT_TRUE(row["verified"].get<bool>());
    EXPECT_EQ(row["bytes"], duplex ? 2 * 16384 : 16384);
    EXPECT_EQ(row["block_size"], 4096);
    EXPECT_GT(row["gbps"].get<double>(), 0);
    EXPECT_GT(row["wall_gbps"].get<double>(), 0);
    EXPECT_GT(row["ceiling_gbps"].get<double>(), 0);
    EXPECT_EQ(row.contains("plain_gbps"), row["direction"] == "D2D");
    EXPECT_GT(row.value("dma_ratio", 0.0), 0) << "dma came first";
  }
  EXPECT_EQ(names.size(), rows.size()) << "no row twice";
}

TEST(CopyBench, ComparesWithDmaOnlyWhereItWasMeasuredBefore) {
  CopyBenchJob job = SmallCopies();
  job.directions = {"H2D"};
  job.executors = {"kernel", "dma", "kernel"};
  job.block_sizes = {8192, 16384};
  const auto rows = JsonOf(RunCopyBench, job);
  ASSERT_EQ(rows.size(), 6U);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i].contains("dma_gbps"), i % 3 != 0) << i;
  }
}

TEST(CopyBench, TheTableHasOneHeadAndALineForEachRow) {
  CopyBenchJob job = SmallCopies();
  job.json = false;
  job.directions = {"D2D", "H2D"};
  job.executors = {"dma", "kernel"};
  const auto lines = LinesOf(RunCopyBench, job);
  ASSERT_EQ(lines.size(), 5U);
  EXPECT_THAT(lines[0],
              AllOf(HasSubstr("direction"), HasSubstr("one copy"), HasSubstr("verified")));
  EXPECT_THAT(lines[1],
              AllOf(HasSubstr("D2D"), HasSubstr("of a plain copy's"), Not(HasSubstr("x dma"))));
  EXPECT_THAT(lines[2], AllOf(HasSubstr("kernel"), HasSubstr("x dma")));
  EXPECT_THAT(lines[3], AllOf(HasSubstr("H2D"), HasSubstr(" yes"), Not(HasSubstr("plain copy"))));
}

TEST(CopyBench, WhatThereIsNotIsNamed) {
  CopyBenchJob job = SmallCopies();
  job.directions = {"up"};
  EXPECT_THAT(FailureOf(RunCopyBench, job), HasSubstr("unknown direction \"up\"; give H2D"));
  job = SmallCopies();
  job.executors = {"magic"};
  EXPECT_THAT(FailureOf(RunCopyBench, job), HasSubstr("unknown executor \"magic\"; give dma"));
  job = SmallCopies();
  job.ordinal = 1;
  EXPECT_THAT(FailureOf(RunCopyBench, job), HasSubstr("device 1 of 1"));
  job.config.devices = DeviceChoice::None();
  EXPECT_THAT(FailureOf(RunCopyBench, job), HasSubstr("devices=none"));
}

#ifndef FERRY_WITHOUT_TCPX
// ---- unpacking ----------------------------------------------------------------------------------

UnpackBenchJob SmallUnpack() {
  UnpackBenchJob job;
  job.config = BenchDevices();
  job.bytes = 50000;
  job.message_bytes = 16384;
  job.fragment_bytes = {1024, 4096};
  job.rounds = 1;
  job.json = true;
  return job;
}

TEST(UnpackBench, MeasuresEachWayAtEachSizeOfFragments) {
  const auto rows = JsonOf(RunUnpackBench, SmallUnpack());
  ASSERT_EQ(rows.size(), 6U);
  const char* const kWays[] = {"dma", "host", "kernel"};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    SCOPED_TRACE(rows[i].dump());
    EXPECT_EQ(rows[i]["unpack"], kWays[i % 3]);
    EXPECT_EQ(rows[i]["fragment_bytes"], i < 3 ? 1024 : 4096);
    EXPECT_EQ(rows[i]["messages"], 4) << "the last one is shorter";
    EXPECT_TRUE(rows[i]["verified"].get<bool>());
    EXPECT_GT(rows[i]["dma_ratio"].get<double>(), 0);
    EXPECT_EQ(rows[i]["reaches_dma"], rows[i]["dma_ratio"].get<double>() >= 0.8);
    EXPECT_GT(rows[i]["seconds"].get<double>(), 0);
    EXPECT_LE(rows[i]["enqueue_seconds"].get<double>(), rows[i]["seconds"].get<double>());
  }
  EXPECT_DOUBLE_EQ(rows[0]["dma_ratio"].get<double>(), 1);
}

TEST(UnpackBench, AFragmentMayBeAWholeMessage) {
  UnpackBenchJob job = SmallUnpack();
  job.fragment_bytes = {16384};
  job.bytes = 16384;
  job.json = false;
  const auto lines = LinesOf(RunUnpackBench, job);
  ASSERT_EQ(lines.size(), 4U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_THAT(lines[i], AllOf(HasSubstr(" 16384 B fragments"), HasSubstr("verified yes")));
  }
  EXPECT_THAT(lines[3], HasSubstr("kernel within 20 % of dma (d2d), or faster: "));
}

TEST(UnpackBench, ComparesRowsThatTheGpuReadsWithAPreparedList) {
  const auto rows = JsonOf(RunRowsBench, SmallUnpack());
  ASSERT_EQ(rows.size(), 4U);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    SCOPED_TRACE(rows[i].dump());
    EXPECT_EQ(rows[i]["unpack_rows"], i % 2 == 0 ? "in order" : "shuffled");
    EXPECT_EQ(rows[i]["fragment_bytes"], i < 2 ? 1024 : 4096);
    EXPECT_EQ(rows[i]["messages"], 1);
    EXPECT_TRUE(rows[i]["verified"].get<bool>());
    for (const char* const way : {"prepared", "blocks", "rows"}) {
      EXPECT_GT(rows[i][std::string(way) + "_gbps"].get<double>(), 0);
      EXPECT_GT(rows[i][std::string(way) + "_many_gbps"].get<double>(), 0);
    }
  }
}

TEST(UnpackBench, TheLadderHasARowForEachRungBesideTheDocumentsFigure) {
  UnpackBenchJob job = SmallUnpack();
  job.fragment_bytes = {1024};
  const auto rows = JsonOf(RunUnpackLadder, job);
  ASSERT_EQ(rows.size(), 6U);
  const double theirs[] = {53, 45, 1, 0.5, 0.1, 0.53};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    SCOPED_TRACE(rows[i].dump());
    EXPECT_EQ(rows[i]["rung"], std::string(1, static_cast<char>('a' + i)));
    EXPECT_DOUBLE_EQ(rows[i]["their_ms_per_chunk"].get<double>(), theirs[i]);
    EXPECT_GT(rows[i]["ms_per_chunk"].get<double>(), 0);
    EXPECT_EQ(rows[i]["chunks"], 4);
    EXPECT_TRUE(rows[i]["verified"].get<bool>());
  }
  job.json = false;
  const auto lines = LinesOf(RunUnpackLadder, job);
  ASSERT_EQ(lines.size(), 11U) << "a head of two lines, the rungs, and three about the difference";
  EXPECT_THAT(lines[2], AllOf(HasSubstr("a  stream, launcher"), HasSubstr("53  yes")));
  EXPECT_THAT(lines[9], HasSubstr("A wait takes as long as the work before it"));
}

#endif  // FERRY_WITHOUT_TCPX

// ---- pipelines ----------------------------------------------------------------------------------

TEST(PipelineBench, TheTableComparesPipelinesWithOneStepAtATime) {
  PipelineBenchJob job;
  job.config = BenchDevices();
  job.bytes = 20001;
  job.chunk_bytes = 4096;
  job.staging_threads = 1;
  job.rounds = 1;
  const auto lines = LinesOf(RunPipelineBench, job);
  ASSERT_EQ(lines.size(), 12U);
  EXPECT_THAT(lines[0], AllOf(HasSubstr("a chunk of 4096 bytes"), HasSubstr("by 1 threads")));
  EXPECT_THAT(lines[2], AllOf(HasSubstr("pageable"), HasSubstr("blocking"), HasSubstr(" 1.00 ")));
  EXPECT_THAT(lines[7], AllOf(HasSubstr("pinned"), HasSubstr("blocking")));
  for (std::size_t i = 2; i < lines.size(); ++i) EXPECT_THAT(lines[i], HasSubstr("yes"));
  job.json = true;
  const auto rows = JsonOf(RunPipelineBench, job);
  ASSERT_EQ(rows.size(), 10U);
  for (const Json& row : rows) {
    EXPECT_TRUE(row.value("verified", false)) << row << ": gpu_check passes no row without it";
    EXPECT_GT(row.value("chunk_copy_seconds", 0.0), 0) << row;
  }
}

TEST(PipelineBench, ATimelineThatCannotBeWrittenIsAnErrorBeforeAnythingIsMeasured) {
  PipelineBenchJob job;
  job.config = BenchDevices();
  job.bytes = job.chunk_bytes = 4096;
  job.trace = "/no/such/folder/trace.json";
  EXPECT_THAT(FailureOf(RunPipelineBench, job), HasSubstr("/no/such/folder/trace.json"));
}

// ---- staged copies ------------------------------------------------------------------------------

TEST(StagedBench, EachFormIsMeasuredWithEachNumberOfStages) {
  BenchJob job;
  job.config = BenchDevices();
  job.bytes = 100'000;
  job.rounds = 1;
  job.json = true;
  const auto lines = LinesOf(RunStagedBench, job);
  ASSERT_EQ(lines.size(), 10U) << "one of registers, and three forms with 1 to 3 stages";
  for (const std::string& line : lines) {
    const Json row = Json::parse(line);
    EXPECT_TRUE(row["verified"].get<bool>()) << line;
    EXPECT_EQ(row["bytes"], 6 * 16 * 1024) << "whole tiles";
    EXPECT_GT(row["gbps"].get<double>(), 0);
  }
  job.bytes = 1000;
  EXPECT_THAT(FailureOf(RunStagedBench, job), HasSubstr("--size should be at least 16384"));
}

#ifndef FERRY_WITHOUT_KERNELS
// ---- kernels ------------------------------------------------------------------------------------

TEST(KernelBenchJobs, AreChosenByOp) {
  KernelBenchJob job;
  job.list = true;
  job.tiny = true;
  job.json = true;
  const auto all = JsonOf(RunKernelBench, job);
  job.ops = {"rope", "rms_norm"};
  const auto some = JsonOf(RunKernelBench, job);
  EXPECT_LT(some.size(), all.size());
  std::set<std::string> ops;
  for (const Json& row : some) ops.insert(row["op"].get<std::string>());
  EXPECT_EQ(ops, (std::set<std::string>{"rms_norm", "rope"}));
  job.ops = {"rope", "ropes"};
  EXPECT_THAT(FailureOf(RunKernelBench, job),
              AllOf(HasSubstr("unknown op \"ropes\"; give "), HasSubstr("rms_norm, ")));
}

TEST(KernelBenchJobs, WriteATableOrAnObjectForTheDeviceAndEachRow) {
  KernelBenchJob job;
  job.config = BenchDevices();
  job.tiny = true;
  job.ops = {"rms_norm"};
  job.seconds = 0;
  const auto lines = LinesOf(RunKernelBench, job);
  ASSERT_GE(lines.size(), 2U);
  EXPECT_THAT(lines[0], AllOf(HasSubstr("p10"), HasSubstr("share of a copy's")));
  EXPECT_THAT(lines[1], AllOf(HasSubstr("rms_norm bf16"), HasSubstr("GB/s")));
  job.json = true;
  const auto rows = JsonOf(RunKernelBench, job);
  ASSERT_EQ(rows.size(), lines.size());
  EXPECT_EQ(rows[0]["device"], "simulated device");
  EXPECT_EQ(rows[0]["compute_capability"], "9.0");
  EXPECT_TRUE(rows[1]["written"].get<bool>());
}

TEST(KernelBenchJobs, NeedTheDeviceThatIsNamedUnlessTheyOnlyList) {
  KernelBenchJob job;
  job.config = BenchDevices();
  job.tiny = true;
  job.ordinal = 1;
  EXPECT_THAT(FailureOf(RunKernelBench, job), HasSubstr("device 1 of 1"));
  job.list = true;
  EXPECT_EQ(FailureOf(RunKernelBench, job), "");
}

#endif  // FERRY_WITHOUT_KERNELS

// ---- arguments ----------------------------------------------------------------------------------

struct BenchMistake {
  CommandLine arguments;
  const char* about;
};

TEST(BenchArguments, MistakesAreNamedBeforeAnythingIsMeasured) {
  const std::vector<BenchMistake> mistakes = {
      {{"copy-bench", "--size", "many"}, "many"},
      {{"copy-bench", "--block-size", "0"}, "--block-size 0 should be at least 1"},
      {{"copy-bench", "--size", "4KiB", "--block-size", "8KiB"}, "at most --size"},
      {{"copy-bench", "--block-size", "x"}, "x"},
      {{"copy-bench", "--rounds", "0"}, "--rounds"},
      {{"copy-bench", "--rounds", "1001"}, "--rounds"},
      {{"copy-bench", "--host-side", "tidy"}, "--host-side"},
      {{"copy-bench", "--device", "x"}, "--device"},
      {{"copy-bench", "--chunk", "4KiB"}, "--pipeline"},
      {{"copy-bench", "--staging-threads", "2"}, "--pipeline"},
      {{"copy-bench", "--trace", "t.json"}, "--pipeline"},
      {{"copy-bench", "--pipeline", "--unpack"}, "--pipeline"},
      {{"copy-bench", "--staged", "--unpack"}, "--unpack"},
      {{"copy-bench", "--pipeline", "--staging-threads", "65"}, "--staging-threads"},
      {{"copy-bench", "--pipeline", "--size", "0"}, "--size and --chunk should be at least 1"},
      {{"copy-bench", "--pipeline", "--chunk", "0"}, "--size and --chunk should be at least 1"},
      {{"copy-bench", "--ladder"}, "--unpack"},
      {{"copy-bench", "--unpack", "--size", "5GiB"}, "more than the 4 GiB"},
      {{"copy-bench", "--unpack", "--block-size", "1000"}, "fragments of 1000 bytes"},
      {{"copy-bench", "--unpack", "--block-size", "1"}, "fragments of 1 bytes"},
      {{"copy-bench", "--set", "lanes=99"}, "lanes"},
      {{"kernel-bench", "--device", "gpu"}, "--device gpu does not name a GPU; write cuda:N"},
      {{"kernel-bench", "--device", "cuda:"}, "does not name a GPU"},
      {{"kernel-bench", "--device", "cuda:-1"}, "does not name a GPU"},
      {{"kernel-bench", "--device", "cuda:1x"}, "does not name a GPU"},
      {{"kernel-bench", "--seconds", "61"}, "--seconds"},
      {{"kernel-bench", "--seconds", "-1"}, "--seconds"},
#ifndef FERRY_WITHOUT_KERNELS
      {{"kernel-bench", "--list", "--op", "nothing"}, "unknown op \"nothing\""},
#endif
  };
  for (const BenchMistake& mistake : mistakes) {
    CommandLine arguments = mistake.arguments;
    arguments.insert(arguments.end(), {"--set", "devices=simulated:1:301"});
    const Ended ended = RunHere(arguments);
    EXPECT_EQ(ended.exit_code, kExitUsage) << mistake.about << ": " << ended.message();
    EXPECT_THAT(ended.message(), HasSubstr(mistake.about));
    EXPECT_EQ(ended.out, "");
  }
}

#ifdef FERRY_WITHOUT_TCPX
TEST(BenchArguments, UnpackIsRefusedWithTheOptionThatBuildsIt) {
  const Ended ended = RunHere({"copy-bench", "--unpack", "--set", "devices=simulated:1:301"});
  EXPECT_FALSE(ended.status);
  EXPECT_THAT(ended.message(), HasSubstr("-DFERRY_TCPX=ON"));
}
#else
TEST(BenchArguments, ListsAreSeparatedByCommasOrRepeated) {
  const Ended ended = RunHere({"copy-bench", "--unpack", "--size", "512KiB", "--block-size",
                               "64KiB,128KiB", "--block-size", "512KiB", "--rounds", "1", "--json",
                               "--set", "devices=simulated:1:301"});
  ASSERT_TRUE(ended.status) << ended.message();
  EXPECT_EQ(ended.lines().size(), 15U) << "three sizes: three ways each, and two orders of rows";
}
#endif

#ifdef FERRY_WITHOUT_KERNELS
TEST(BenchArguments, KernelBenchIsRefusedWithTheOptionThatBuildsIt) {
  const Ended ended = RunHere({"kernel-bench", "--set", "devices=simulated:1:301"});
  EXPECT_FALSE(ended.status);
  EXPECT_THAT(ended.message(), HasSubstr("-DFERRY_KERNELS=ON"));
}
#else
TEST(BenchArguments, AGpuIsNamedWithOrWithoutItsKind) {
  for (const char* device : {"cuda:0", "0"}) {
    const Ended listed =
        RunHere({"kernel-bench", "--list", "--tiny", "--op", "rope", "--device", device});
    EXPECT_TRUE(listed.status) << listed.message();
    EXPECT_THAT(listed.out, HasSubstr("rope"));
  }
}
#endif

}  // namespace
}  // namespace ferry::tools
