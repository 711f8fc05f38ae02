// Tests of a perf server by requests that no client of this program makes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/perf/cmd_perf.h"
#include "tools/perf/floor.h"
#include "tools/support/json.h"
#include "tools/testing/command_line.h"
#include "tools/testing/peer_pair.h"

namespace ferry::tools {
namespace {

using ::testing::HasSubstr;

// One server for all tests; each has a client of its own.
class PerfServerTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    shared_server = std::make_unique<TestServer>("perf", CommandLine{"--set", "workers=1"});
  }
  static void TearDownTestSuite() { shared_server.reset(); }
  void SetUp() override {
    ASSERT_TRUE(shared_server->started());
    client_.emplace(shared_server->address());
  }

  // A request for memory that fits, with other values of some fields.
  static Json SetUpRequest(const Json& other = Json::object()) {
    Json request{{"do", perf_request::kSetUp}, {"op", "write"}, {"size", 1000},
                 {"block_size", 64},           {"slots", 7},    {"marks", 2},
                 {"memory", "host"},           {"seconds", 60}};
    request.update(other);
    return request;
  }
  void SetUpMemory(const Json& other = Json::object()) {
    const Json answer = client_->Ask(SetUpRequest(other));
    ASSERT_EQ(ErrorText(answer), "");
    EXPECT_FALSE(answer.value("key", "").empty());
  }
  std::string ErrorOf(const Json& request) { return ErrorText(client_->Ask(request)); }
  // What the server answers to {"do": name} with these fields.
  Json Do(const char* name, Json fields = Json::object()) {
    fields["do"] = name;
    return client_->Ask(fields);
  }

  static std::unique_ptr<TestServer> shared_server;
  std::optional<ScriptedClient> client_;
};
std::unique_ptr<TestServer> PerfServerTest::shared_server;

TEST_F(PerfServerTest, RequestsBeforeMemoryIsSetUpAreRefused) {
  for (const char* name :
       {perf_request::kBegin, perf_request::kEnd, perf_request::kReceive, perf_request::kPong,
        perf_request::kFill, perf_request::kPoison, perf_request::kCheck, perf_request::kResult,
        perf_request::kFloorRun, perf_request::kFloorPong}) {
    EXPECT_EQ(ErrorOf({{"do", name}}),
              std::string("the server says: the request \"") + name + "\" came before \"set up\"");
  }
}

TEST_F(PerfServerTest, RequestsThatItDoesNotKnowAreRefusedAndItGoesOn) {
  EXPECT_THAT(ErrorOf({{"do", "fly"}}), HasSubstr("does not know the request \"fly\""));
  EXPECT_THAT(ErrorOf({{"do", 7}}), HasSubstr("\"do\""));
  EXPECT_THAT(ErrorOf(Json::object()), HasSubstr("\"do\""));
  EXPECT_THAT(ErrorOf({{"kind", "file"}}), HasSubstr("not a transfer server"));
  SetUpMemory();
}

TEST_F(PerfServerTest, ACaseThatDoesNotFitIsRefused) {
  struct {
    Json other;
    const char* about;
  } const kCases[] = {
      {{{"op", "throw"}}, "unknown operation"},
      {{{"op", 1}}, "\"op\""},
      {{{"size", 0}}, "size 0 is out of range"},
      {{{"size", (std::uint64_t{1} << 48) + 1}}, "out of range"},
      {{{"size", -1}}, "\"size\""},
      {{{"block_size", 1001}}, "block_size 1001 is out of range; allowed is 0..1000"},
      {{{"size", std::uint64_t{1} << 40}, {"block_size", 1}}, "16777216 is the most"},
      {{{"slots", "many"}}, "\"slots\""},
      {{{"marks", 18}}, "marks 18 is out of range"},
      {{{"seconds", 0}}, "seconds 0 is out of range"},
      {{{"seconds", 24 * 3600 + 1}}, "out of range"},
      {{{"memory", "wood"}}, "unknown memory"},
      {{{"memory", nullptr}}, "\"memory\""},
      {{{"size", std::uint64_t{1} << 48}, {"block_size", 0}}, "memory are available"},
  };
  for (const auto& [other, about] : kCases) {
    EXPECT_THAT(ErrorOf(SetUpRequest(other)), HasSubstr(about)) << other.dump();
  }
  SetUpMemory();
}

// A size that was taken while the memory was not would let a peer write beyond it.
TEST_F(PerfServerTest, AfterACaseThatWasRefusedNothingIsSetUp) {
  SetUpMemory();
  EXPECT_THAT(ErrorOf(SetUpRequest({{"size", std::uint64_t{1} << 30}, {"seconds", 0}})),
              HasSubstr("seconds"));
  EXPECT_THAT(ErrorText(Do(perf_request::kFill, {{"slot", 1}, {"seed", 1}})),
              HasSubstr("came before"));
  EXPECT_THAT(ErrorText(Do(perf_request::kPoison)), HasSubstr("came before"));
  SetUpMemory();
  EXPECT_EQ(ErrorText(Do(perf_request::kPoison)), "");
}

TEST_F(PerfServerTest, PatternsAreFilledAndCheckedSlotBySlot) {
  SetUpMemory();
  EXPECT_EQ(ErrorText(Do(perf_request::kPoison)), "");
  EXPECT_EQ(Do(perf_request::kFill, {{"slot", 1}, {"seed", 5}}).value("done", false), true);
  EXPECT_EQ(Do(perf_request::kCheck, {{"slot", 1}, {"seed", 5}}).value("done", false), true);
  EXPECT_EQ(Do(perf_request::kCheck, {{"slot", 1}, {"seed", 6}}).value("wrong_at", 9), 0);
  EXPECT_EQ(Do(perf_request::kCheck, {{"slot", 2}, {"seed", 5}}).value("wrong_at", 9), 0);
}

TEST_F(PerfServerTest, AResultIsTwoNumbers) {
  SetUpMemory();
  EXPECT_EQ(ErrorText(Do(perf_request::kResult, {{"seconds_avg", 0.5}, {"gbps", 2.5}})), "");
  EXPECT_THAT(ErrorText(Do(perf_request::kResult, {{"seconds_avg", 0.5}})), HasSubstr("\"gbps\""));
  EXPECT_THAT(ErrorText(Do(perf_request::kResult, {{"seconds_avg", "long"}, {"gbps", 2.5}})),
              HasSubstr("\"seconds_avg\""));
}

TEST_F(PerfServerTest, SlotsBeyondTheMarkedOnesAreRefused) {
  SetUpMemory({{"marks", 2}});
  for (const char* name : {perf_request::kFill, perf_request::kCheck}) {
    EXPECT_EQ(ErrorText(Do(name, {{"slot", 2}, {"seed", 1}})), "");
    EXPECT_THAT(ErrorText(Do(name, {{"slot", 3}, {"seed", 1}})), HasSubstr("allowed is 0..2"));
    EXPECT_THAT(ErrorText(Do(name, {{"slot", 0}})), HasSubstr("\"seed\""));
    EXPECT_THAT(ErrorText(Do(name, {{"seed", 0}})), HasSubstr("\"slot\""));
  }
  SetUpMemory({{"op", "read"}, {"marks", 17}});
  EXPECT_THAT(ErrorText(Do(perf_request::kFill, {{"slot", 2}, {"seed", 1}})),
              HasSubstr("allowed is 0..1"))
      << "a source has one slot for all that are marked";
  SetUpMemory({{"marks", 0}});
  EXPECT_THAT(ErrorText(Do(perf_request::kFill, {{"slot", 1}, {"seed", 1}})),
              HasSubstr("allowed is 0..0"));
}

TEST_F(PerfServerTest, TellsItsCpuTimeBetweenBeginAndEnd) {
  SetUpMemory();
  EXPECT_TRUE(FlagField(Do(perf_request::kBegin), "ready"));
  const auto seconds = RealField(Do(perf_request::kEnd), "cpu_seconds");
  ASSERT_TRUE(seconds);
  EXPECT_GE(*seconds, 0);
}

TEST_F(PerfServerTest, ReceivesNeedACountADepthAndMarksInOrder) {
  SetUpMemory();
  struct {
    Json fields;
    const char* about;
  } const kCases[] = {
      {Json::object(), "\"count\""},
      {{{"count", 1}}, "\"depth\""},
      {{{"count", 1}, {"depth", 0}, {"marks", Json::array()}}, "depth 0 is out of range"},
      {{{"count", 1}, {"depth", kMaxDepth + 1}, {"marks", Json::array()}}, "out of range"},
      {{{"count", 1}, {"depth", 1}}, "\"marks\""},
      {{{"count", 1}, {"depth", 1}, {"marks", {1}}}, "\"marks\""},
      {{{"count", 9}, {"depth", 1}, {"marks", {3, 2}}}, "\"marks\""},
      {{{"count", 9}, {"depth", 1}, {"marks", {1, 2, 3}}}, "\"marks\""},
  };
  for (const auto& [fields, about] : kCases) {
    EXPECT_THAT(ErrorText(Do(perf_request::kReceive, fields)), HasSubstr(about)) << fields.dump();
  }
}

TEST_F(PerfServerTest, NothingToReceiveOrToAnswerEndsAtOnce) {
  SetUpMemory();
  EXPECT_TRUE(FlagField(
      Do(perf_request::kReceive, {{"count", 0}, {"depth", 1}, {"marks", Json::array()}}), "ready"));
  EXPECT_TRUE(RealField(client_->Hear(), "cpu_seconds"));
}

TEST_F(PerfServerTest, APingComesBackWithTheSameBytes) {
  SetUpMemory();
  constexpr std::uint64_t kPings = 3;
  EXPECT_TRUE(FlagField(Do(perf_request::kPong, {{"count", kPings}}), "ready"));
  for (std::uint64_t ping = 100; ping < 100 + kPings; ++ping) {
    std::uint64_t pong = 0;
    InFlight operations;
    auto receive = client_->connection().Recv(kPongTag, kWholeTag,
                                              std::as_writable_bytes(std::span(&pong, 1)));
    auto send = client_->connection().Send(kPingTag, std::as_bytes(std::span(&ping, 1)));
    ASSERT_TRUE(receive && send);
    operations.Add(*std::move(receive));
    operations.Add(*std::move(send));
    ASSERT_TRUE(operations.FinishOldest(PeerDeadline()));
    ASSERT_TRUE(operations.FinishOldest(PeerDeadline()));
    EXPECT_EQ(pong, ping);
  }
  EXPECT_TRUE(FlagField(client_->Hear(), "done"));
}

// ---- the floor ----------------------------------------------------------------------------------

TEST_F(PerfServerTest, AFloorThatIsNotOpenIsRefused) {
  SetUpMemory();
  EXPECT_THAT(ErrorText(Do(perf_request::kFloorRun)), HasSubstr("sockets are not open"));
  EXPECT_THAT(ErrorText(Do(perf_request::kFloorPong)), HasSubstr("sockets are not open"));
}

TEST_F(PerfServerTest, AFloorOfNoOrTooManySocketsIsRefused) {
  for (const std::uint64_t sockets : {0U, 65U}) {
    EXPECT_THAT(ErrorText(Do(perf_request::kFloorOpen,
                             {{"sockets", sockets}, {"congestion_control", "cubic"}})),
                HasSubstr("allowed is 1..64"));
  }
  EXPECT_THAT(ErrorText(Do(perf_request::kFloorOpen, {{"sockets", 1}})),
              HasSubstr("\"congestion_control\""));
}

TEST_F(PerfServerTest, TheFloorMovesTheCaseBothWays) {
  SetUpMemory({{"block_size", 0}});
  const Json opened =
      Do(perf_request::kFloorOpen, {{"sockets", 1}, {"congestion_control", "reno"}});
  const auto port = NumberField(opened, "port");
  const auto token_bytes = BytesField(opened, "token");
  ASSERT_TRUE(port && token_bytes && token_bytes->size() == 16U) << opened.dump();
  Uuid token;
  std::copy(token_bytes->begin(), token_bytes->end(), token.bytes.begin());
  Config config = LoopbackConfig();
  config.congestion_control = CongestionControl::Named("reno");
  auto floor = FloorSockets::Connect(config, {"127.0.0.1", static_cast<std::uint16_t>(*port)},
                                     token, 1, PeerDeadline());
  ASSERT_TRUE(floor) << floor.error().ToString();
  EXPECT_TRUE(FlagField(client_->Hear(), "ready"));
  std::vector<std::byte> memory(1000);
  for (const bool to_server : {true, false}) {
    const FloorRun run{.asked_for = !to_server, .count = 2, .depth = 1, .chunk = 512};
    ASSERT_TRUE(FlagField(Do(perf_request::kFloorRun, {{"to_server", to_server},
                                                       {"count", run.count},
                                                       {"depth", run.depth},
                                                       {"chunk", run.chunk}}),
                          "ready"));
    ASSERT_TRUE(to_server ? floor->Produce(memory, run) : floor->Consume(memory, run));
    EXPECT_TRUE(RealField(client_->Hear(), "cpu_seconds"));
  }
  for (const Json& fields :
       {Json{{"count", 1}, {"depth", 0}, {"chunk", 1}},
        Json{{"count", 1}, {"depth", 1}, {"chunk", 0}}, Json{{"depth", 1}, {"chunk", 1}}}) {
    EXPECT_NE(ErrorText(Do(perf_request::kFloorRun, fields)), "") << fields.dump();
  }
}

// ---- more clients -------------------------------------------------------------------------------

TEST_F(PerfServerTest, ServesTheNextClientWhenOneHasLeft) {
  for (int i = 0; i < 3; ++i) {
    SetUpMemory();
    client_->connection().Close();
    client_.emplace(shared_server->address());
  }
  SetUpMemory();
}

}  // namespace
}  // namespace ferry::tools
