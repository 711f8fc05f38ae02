// Tests of the command line of `ferry perf`, and of whole runs whose client is this process.

#include "tools/perf/cmd_perf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "tools/support/json.h"
#include "tools/testing/command_line.h"
#include "tools/testing/peer_pair.h"

namespace ferry::tools {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

CommandLine Join(CommandLine first, const CommandLine& more) {
  first.insert(first.end(), more.begin(), more.end());
  return first;
}

// ---- arguments ----------------------------------------------------------------------------------

struct PerfMistake {
  CommandLine more;
  const char* about;
};

void ExpectRefused(const CommandLine& command, const PerfMistake& mistake) {
  const Ended ended = RunHere(Join(command, mistake.more));
  EXPECT_EQ(ended.exit_code, kExitUsage) << mistake.about << ": " << ended.message();
  EXPECT_THAT(ended.message(), HasSubstr(mistake.about));
  EXPECT_EQ(ended.out, "");
}

// No server listens there: a mistake is found before anything connects.
TEST(PerfArguments, MistakesAreFoundBeforeAnythingBegins) {
  const std::vector<PerfMistake> mistakes = {
      {{"--op", "throw"}, "unknown operation \"throw\"; choose write, read or send"},
      {{"--size", "0"}, "--size 0 cannot be used; give at least 1 byte"},
      {{"--size", "64MiB,0"}, "--size 0 cannot be used"},
      {{"--size", "1.5MiB"}, "1.5MiB"},
      {{"--size", "99999999TiB"}, "99999999TiB"},
      {{"--size", "4KiB", "--block-size", "8KiB"},
       "--block-size 8KiB cannot be used; it is larger"},
      {{"--block-size", "many"}, "many"},
      {{"--size", "1GiB", "--block-size", "1"}, "blocks, 16777216 is the most"},
      {{"--depth", "0"}, "--depth 0 cannot be used; give 1 to 65536"},
      {{"--depth", "65537"}, "--depth 65537 cannot be used"},
      {{"--rounds", "0"}, "--rounds 0 cannot be used"},
      {{"--rounds", "-1"}, "--rounds"},
      {{"--depth", "-1"}, "--depth"},
      {{"--warmup", "-1"}, "--warmup"},
      {{"--iters", "-1"}, "--iters"},
      {{"--iters", "some"}, "--iters"},
      {{"--deadline", "0"}, "--deadline 0 cannot be used; give a time above 0"},
      {{"--deadline", "soon"}, "soon"},
      {{"--memory", "gpu"}, "choose host, cuda or cuda:N"},
      {{"--peer-memory", "cuda:x"}, "choose host, cuda or cuda:N"},
      {{"--wait", "nap"}, "--wait"},
      {{"--lanes", "65"}, "lanes"},
      {{"--lanes", "-1"}, "lanes"},
      {{"--set", "lanes"}, "--set lanes has no value"},
      {{"--tls", "rot13"}, "rot13"},
      {{"--port", "65536"}, "--port"},
      {{"--unknown"}, "--unknown"},
      {{"--provider", "smoke"},
       "provider cannot be used: 'smoke' is not recognised; allowed is tcp"},
  };
  for (const PerfMistake& mistake : mistakes) {
    ExpectRefused({"perf", "client", "127.0.0.1:1"}, mistake);
    ExpectRefused({"perf", "loopback"}, mistake);
  }
}

TEST(PerfArguments, MistakesAboutAPluginAreFoundBeforeItIsLoaded) {
  const CommandLine through = {"perf", "client", "127.0.0.1:1", "--provider", "plugin:/no/such.so"};
  for (const PerfMistake& mistake :
       {PerfMistake{{"--channels", "65"}, "lanes cannot be used"},
        PerfMistake{{"--chunk", "16MiB"}, "allowed is 4 KiB..8 MiB"},
        PerfMistake{{"--unpack", "wood"}, "--unpack: plugin_unpack cannot be used: 'wood'"}}) {
    ExpectRefused(through, mistake);
  }
#ifdef FERRY_WITHOUT_TCPX
  ExpectRefused(through, {{}, "configure it with -DFERRY_TCPX=ON"});
#else
  ExpectRefused(through, {{}, "there is no network plugin /no/such.so"});
#endif
}

TEST(PerfArguments, EachSideHasItsOwn) {
  for (const PerfMistake& mistake :
       {PerfMistake{{"perf"}, "ubcommand"}, PerfMistake{{"perf", "teleport"}, "ubcommand"},
        PerfMistake{{"perf", "client"}, "host"},
        PerfMistake{{"perf", "server", "--size", "8"}, "--size"},
        PerfMistake{{"perf", "server", "--host", "::1"}, "--host"},
        PerfMistake{{"perf", "loopback", "127.0.0.1"}, "127.0.0.1"},
        PerfMistake{{"perf", "client", "a", "b"}, "b"}}) {
    ExpectRefused(mistake.more, {{}, mistake.about});
  }
  EXPECT_EQ(RunHere({"perf", "client", "no such host"}).exit_code, kExitPeer);
  EXPECT_EQ(RunHere({"perf", "client", "[::1"}).exit_code, kExitUsage);
}

TEST(PerfArguments, VariablesOfUcclAreDefaultsOfTheirOptions) {
  ASSERT_EQ(::setenv("UCCL_TCPX_PERF_SIZE", "0", 1), 0);
  ExpectRefused({"perf", "loopback"}, {{}, "--size 0 cannot be used"});
  const Ended given = RunHere({"perf", "client", "127.0.0.1:1", "--size", "8", "--json"});
  EXPECT_EQ(given.exit_code, kExitPeer) << "an option goes before its variable";
  ASSERT_EQ(::unsetenv("UCCL_TCPX_PERF_SIZE"), 0);
}

TEST(PerfArguments, AServerThatCannotListenSaysSo) {
  const Ended nowhere = RunHere({"perf", "server", "--listen", "192.0.2.1", "--port", "0"});
  EXPECT_FALSE(nowhere.status);
  EXPECT_THAT(nowhere.message(), HasSubstr("192.0.2.1"));
  EXPECT_EQ(nowhere.out, "") << "nothing is announced";
}

// ---- runs ---------------------------------------------------------------------------------------

// A short run, with what the test says in place of these values.
CommandLine Quick(const CommandLine& more) {
  CommandLine all{"perf", "loopback", "--lanes", "1", "--set", "workers=1"};
  const std::pair<const char*, const char*> usual[] = {
      {"--size", "5000"}, {"--iters", "2"}, {"--warmup", "0"}, {"--rounds", "1"}};
  for (const auto& [option, value] : usual) {
    if (std::find(more.begin(), more.end(), option) == more.end()) {
      all.insert(all.end(), {option, value});
    }
  }
  return Join(std::move(all), more);
}
CommandLine QuickAlone(const CommandLine& more) { return Join(Quick(more), {"--no-floor"}); }

std::vector<Json> RowsOf(const Ended& ended) {
  EXPECT_TRUE(ended.status) << ended.message();
  std::vector<Json> rows;
  for (const std::string& line : ended.lines()) rows.push_back(Json::parse(line, nullptr, false));
  return rows;
}

TEST(PerfRun, MeasuresEachSizeOfEachOperationInOrder) {
  const auto rows = RowsOf(
      RunHere(QuickAlone({"--json", "--op", "read,write", "--size", "1,4097", "--depth", "2"})));
  ASSERT_EQ(rows.size(), 4U);
  const char* const ops[] = {"read", "read", "write", "write"};
  const std::uint64_t sizes[] = {1, 4097, 1, 4097};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i]["op"], ops[i]);
    EXPECT_EQ(rows[i]["size"], sizes[i]);
    EXPECT_EQ(rows[i]["iterations"], 2);
    EXPECT_EQ(rows[i]["depth"], 2);
    EXPECT_EQ(rows[i]["verified"], true);
    EXPECT_EQ(rows[i]["verified_operations"], 2) << "of two both";
    EXPECT_TRUE(rows[i]["floor_gbps"].is_null());
    EXPECT_EQ(rows[i]["wait"], "block");
    EXPECT_EQ(rows[i]["transport"]["lanes"]["lo"], 1);
  }
}

TEST(PerfRun, BlocksAreShuffledOnBothSidesAndVerified) {
  for (const char* op : {"write", "read"}) {
    const auto rows = RowsOf(RunHere(QuickAlone({"--json", "--op", op, "--block-size", "64"})));
    ASSERT_EQ(rows.size(), 1U);
    EXPECT_EQ(rows[0]["block_size"], 64);
    EXPECT_EQ(rows[0]["verified"], true) << op;
  }
}

TEST(PerfRun, ChecksumsAreMeasuredBesideAndRoundsAlternate) {
  const auto rows =
      RowsOf(RunHere(QuickAlone({"--json", "--crc", "--rounds", "3", "--wait", "spin"})));
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_GT(rows[0]["crc_gbps"].get<double>(), 0);
  EXPECT_GT(rows[0]["crc_ratio"].get<double>(), 0);
  EXPECT_EQ(rows[0]["rounds"].size(), 3U);
  EXPECT_EQ(rows[0]["verified_operations"], 12) << "two of each round, with checksums and without";
  EXPECT_EQ(rows[0]["wait"], "spin");
}

TEST(PerfRun, TheFloorIsMeasuredInEachRound) {
  const auto rows = RowsOf(RunHere(Quick({"--json", "--rounds", "2", "--op", "read"})));
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_GT(rows[0]["floor_gbps"].get<double>(), 0);
  ASSERT_EQ(rows[0]["rounds"].size(), 2U);
  for (const Json& round : rows[0]["rounds"]) EXPECT_GT(round["floor_gbps"].get<double>(), 0);
}

TEST(PerfRun, NothingIsVerifiedWhereNobodyAskedForIt) {
  const auto rows = RowsOf(RunHere(QuickAlone({"--json", "--no-verify", "--warmup", "3"})));
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_TRUE(rows[0]["verified"].is_null());
  EXPECT_EQ(rows[0]["verified_operations"], 0);
}

TEST(PerfRun, GpuMemoryOfEitherSideIsNamedAndComparedWithPlainCopies) {
  const auto rows = RowsOf(RunHere(QuickAlone(
      {"--json", "--memory", "cuda:1", "--op", "write,read", "--set", "devices=simulated:2:203"})));
  ASSERT_EQ(rows.size(), 2U);
  for (const Json& row : rows) {
    EXPECT_EQ(row["memory"], "cuda:1-cuda:0") << "of the server, the next GPU";
    EXPECT_EQ(row["verified"], true);
    EXPECT_GT(row["h2d_gbps"].get<double>(), 0);
    EXPECT_GT(row["d2h_gbps"].get<double>(), 0);
  }
  const auto mixed = RowsOf(RunHere(QuickAlone({"--json", "--memory", "host", "--peer-memory",
                                                "cuda", "--set", "devices=simulated:2:203"})));
  ASSERT_EQ(mixed.size(), 1U);
  EXPECT_EQ(mixed[0]["memory"], "host-cuda:0");
  EXPECT_FALSE(mixed[0].contains("h2d_gbps"));
}

TEST(PerfRun, AGpuThatTheServerDoesNotHaveIsTheServersError) {
  const Ended ended =
      RunHere(QuickAlone({"--peer-memory", "cuda:7", "--set", "devices=simulated:2:203"}));
  EXPECT_EQ(ended.exit_code, kExitUsage);
  EXPECT_THAT(ended.message(), HasSubstr("the server says: GPU 7 does not exist: 2 are visible"));
}

TEST(PerfRun, TheTextSaysWhatHoldsForAllRows) {
  const Ended ended = RunHere(QuickAlone({}));
  ASSERT_TRUE(ended.status) << ended.message();
  const auto lines = ended.lines();
  ASSERT_EQ(lines.size(), 6U) << ended.out;
  EXPECT_THAT(lines[0], AllOf(HasSubstr("over tcp, 1 lanes (1 for bulk), host to host memory")));
  EXPECT_THAT(lines[1], HasSubstr("security none"));
  EXPECT_EQ(lines[2], "depth 1, 1 rounds, waiting asleep");
  EXPECT_THAT(lines[4], AllOf(HasSubstr("write"), HasSubstr(" 5000 B "), HasSubstr("yes")));
  EXPECT_THAT(lines[5], ContainsRegex("^  Avg: [0-9.]+ ms, BW: [0-9.]+ GB/s$"));
}

TEST(PerfRun, ATimelineIsWritten) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("ferry-perf-trace-" + std::to_string(::getpid()) + ".json");
  RowsOf(RunHere(QuickAlone({"--json", "--trace", path.string()})));
  std::ifstream file(path);
  const Json trace = Json::parse(file, nullptr, false);
  EXPECT_FALSE(trace.is_discarded());
  EXPECT_FALSE(trace.value("traceEvents", Json::array()).empty());
  std::filesystem::remove(path);
  const Ended unwritable = RunHere(QuickAlone({"--trace", "/no/such/folder/trace.json"}));
  EXPECT_FALSE(unwritable.status);
  EXPECT_THAT(unwritable.message(), HasSubstr("/no/such/folder/trace.json"));
}

TEST(PerfRun, ADeadlineThatPassesNamesTheRow) {
  const Ended ended = RunHere(QuickAlone({"--size", "1MiB", "--deadline", "1us"}));
  EXPECT_EQ(ended.exit_code, kExitTimedOut) << ended.message();
  EXPECT_THAT(ended.message(), HasSubstr("write of 1 MiB did not end within 1 us (--deadline)"));
}

// ---- servers that answer wrongly ----------------------------------------------------------------

struct WrongAnswers {
  std::vector<const char*> answers;
  CommandLine more;
  int exit_code;
  const char* about;
};

TEST(PerfClient, AnswersThatDoNotFitAreErrors) {
  const std::vector<WrongAnswers> cases = {
      {{R"({"ready": true})"}, {"--no-floor"}, 1, "\"key\""},
      {{R"({"key": "0g"})"}, {"--no-floor"}, 1, "hexadecimal"},
      {{R"({"key": "00"})"}, {"--no-floor"}, 2, "key"},
      {{R"({"error": {"code": "Unavailable", "message": "no room"}})"},
       {"--no-floor"},
       1,
       "the server says: no room"},
      {{R"({"error": {"code": "Refused"}})"}, {"--no-floor"}, 1, "\"message\""},
      {{R"({"port": 1})"}, {}, 1, "\"token\""},
      {{R"({"token": "00"})"}, {}, 1, "\"port\""},
      {{R"({"port": "x", "token": "00"})"}, {}, 1, "\"port\""},
      {{R"({"error": {"code": "Cancelled", "message": "interrupted"}})"}, {}, 3, "interrupted"},
  };
  for (const WrongAnswers& one : cases) {
    std::vector<Json> answers;
    for (const char* answer : one.answers) answers.push_back(Json::parse(answer));
    ScriptedServer server(answers);
    const Ended ended = RunHere(
        Join({"perf", "client", server.address(), "--lanes", "1", "--deadline", "20s"}, one.more));
    EXPECT_EQ(ended.exit_code, one.exit_code) << ended.message();
    EXPECT_THAT(ended.message(), HasSubstr(one.about));
    const auto heard = server.Heard();
    ASSERT_EQ(heard.size(), 1U) << one.about;
    EXPECT_EQ(heard[0]["do"], one.more.empty() ? perf_request::kFloorOpen : perf_request::kSetUp);
  }
}

TEST(PerfClient, AsksForWhatTheCommandLineSays) {
  ScriptedServer server(ScriptedServer::Answers{ErrorToJson(Error(Code::kUnavailable, "enough"))});
  (void)RunHere({"perf", "client", server.address(), "--lanes", "1", "--no-floor", "--op", "read",
                 "--size", "1MiB", "--block-size", "4KiB", "--deadline", "1500ms", "--peer-memory",
                 "cuda:3"});
  const auto heard = server.Heard();
  ASSERT_EQ(heard.size(), 1U);
  EXPECT_EQ(heard[0]["op"], "read");
  EXPECT_EQ(heard[0]["size"], 1 << 20);
  EXPECT_EQ(heard[0]["block_size"], 4096);
  EXPECT_EQ(heard[0]["memory"], "cuda:3");
  EXPECT_EQ(heard[0]["seconds"], 2) << "rounded up";
  EXPECT_GT(heard[0]["marks"], 0);
}

TEST(PerfClient, AServerThatLeavesIsLost) {
  ScriptedServer server(ScriptedServer::Answers{});
  const Ended ended = RunHere({"perf", "client", server.address(), "--lanes", "1", "--no-floor"});
  EXPECT_EQ(ended.exit_code, kExitPeer) << ended.message();
}

}  // namespace
}  // namespace ferry::tools
