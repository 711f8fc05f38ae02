// Tests of `ferry transfer`: its command line, and both sides against peers that follow no
// protocol.

#include "tools/transfer/cmd_transfer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "tools/support/json.h"
#include "tools/testing/command_line.h"
#include "tools/testing/peer_pair.h"
#include "tools/transfer/files.h"
#include "tools/transfer/messages.h"

namespace ferry::tools {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A folder that goes with the test.
class TransferFolder {
 public:
  TransferFolder() {
    std::string path = (std::filesystem::temp_directory_path() / "ferry-transfer-XXXXXX").string();
    EXPECT_NE(::mkdtemp(path.data()), nullptr);
    path_ = path;
  }
  ~TransferFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TransferFolder(const TransferFolder&) = delete;
  TransferFolder& operator=(const TransferFolder&) = delete;

  std::string text() const { return path_.string(); }
  std::string Write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
    return (path_ / name).string();
  }
  std::string Read(const std::string& name) const {
    std::ifstream file(path_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void Remove(const std::string& name) const { std::filesystem::remove(path_ / name); }
  bool Holds(const std::string& name) const { return std::filesystem::exists(path_ / name); }
  bool empty() const { return std::filesystem::is_empty(path_); }

 private:
  std::filesystem::path path_;
};

std::string TextOfSize(std::size_t size) {
  std::string text(size, '\0');
  for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>('a' + i % 23);
  return text;
}

// ---- arguments ----------------------------------------------------------------------------------

TEST(TransferArguments, MistakesAreFoundBeforeAnythingConnects) {
  const TransferFolder folder;
  const std::string file = folder.Write("file", "text");
  const struct {
    CommandLine arguments;
    const char* about;
  } kCases[] = {
      {{"transfer"}, "ubcommand"},
      {{"transfer", "client", "127.0.0.1:1"}, "--file"},
      {{"transfer", "client", "127.0.0.1:1", "--file", file, "--message", "x"}, "--file"},
      {{"transfer", "client", "--message", "x"}, "host"},
      {{"transfer", "client", "127.0.0.1:1", "--message", "x", "--memory", "gpu"}, "host, cuda"},
      {{"transfer", "client", "127.0.0.1:1", "--file", folder.text()}, "not a regular file"},
      {{"transfer", "client", "127.0.0.1:1", "--file", folder.text() + "/none"}, "/none"},
      {{"transfer", "client", "[::1", "--message", "x"}, "[::1"},
      {{"transfer", "client", "127.0.0.1:1", "--message", "x", "--set", "warp=9"}, "'warp'"},
      {{"transfer", "client", "127.0.0.1:1", "--message", "x", "--provider", "smoke"},
       "plugin:PATH"},
      {{"transfer", "client", "127.0.0.1:1", "--message", "x", "--memory", "cuda:9", "--set",
        "devices=simulated:1:401"},
       "GPU 9 does not exist"},
      {{"transfer", "server", "--memory", "wood"}, "host, cuda"},
      {{"transfer", "server", "--dir", folder.text() + "/none"}, "cannot be used"},
      {{"transfer", "server", "--dir", file}, "cannot be used"},
      {{"transfer", "server", "--memory", "cuda", "--set", "devices=none"}, "devices=none"},
      {{"transfer", "server", "--file", file}, "--file"},
      {{"transfer", "server", "--port", "65536"}, "--port"},
  };
  for (const auto& [arguments, about] : kCases) {
    const Ended ended = RunHere(arguments);
    EXPECT_EQ(ended.exit_code, kExitUsage) << about << ": " << ended.message();
    EXPECT_THAT(ended.message(), HasSubstr(about));
    EXPECT_EQ(ended.out, "");
  }
  EXPECT_TRUE(folder.Holds("file"));
}

TEST(TransferArguments, APeerThatIsNotThereIsLost) {
  const Ended ended = RunHere({"transfer", "client", "127.0.0.1:1", "--message", "x"});
  EXPECT_EQ(ended.exit_code, kExitPeer);
  EXPECT_EQ(ended.out, "connecting to 127.0.0.1:1\n");
}

TEST(TransferMessages, NameTheirMemoryOrAreOfTheHost) {
  EXPECT_EQ(*MemoryField(Json{{"memory", "cuda:1"}}), "cuda:1");
  EXPECT_EQ(*MemoryField(Json::object()), "host") << "as older releases leave it out";
  EXPECT_EQ(MemoryField(Json{{"memory", 1}}).error().code(), Code::kCorrupt);
}

// ---- whole transfers ----------------------------------------------------------------------------

class TransferRun : public testing::TestWithParam<const char*> {
 protected:
  Ended Send(const TestServer& server, const CommandLine& what) {
    CommandLine arguments{"transfer", "client", server.address(), "--json", "--memory", GetParam()};
    arguments.insert(arguments.end(), what.begin(), what.end());
    arguments.insert(arguments.end(), {"--set", "devices=simulated:2:402", "--set", "lanes=1"});
    return RunHere(arguments);
  }
  static CommandLine ServerOf(const TransferFolder& folder) {
    return {"--dir",
            folder.text(),
            "--overwrite",
            "--memory",
            GetParam(),
            "--set",
            "devices=simulated:2:402"};
  }
};

TEST_P(TransferRun, FilesAndMessagesOfAnySizeArrive) {
  const TransferFolder here;
  const TransferFolder there;
  const TestServer server("transfer", ServerOf(there));
  ASSERT_TRUE(server.started());
  for (const std::size_t size : {0U, 1U, 4096U, 100'001U}) {
    const std::string text = TextOfSize(size);
    const Ended file = Send(server, {"--file", here.Write("model", text)});
    ASSERT_TRUE(file.status) << file.message();
    const Json sent = Json::parse(file.out, nullptr, false);
    EXPECT_EQ(sent["kind"], "file");
    EXPECT_EQ(sent["name"], "model");
    EXPECT_EQ(sent["bytes"], size);
    EXPECT_EQ(sent["identical"], true);
    EXPECT_EQ(sent["memory"], MemoryChoice::Parse(GetParam())->ToString());
    EXPECT_EQ(sent["peer_memory"], sent["memory"]);
    EXPECT_EQ(sent["sha256"], Sha256(std::as_bytes(std::span(text))));
    EXPECT_EQ(there.Read("model"), text) << size;
    const Ended message = Send(server, {"--message", text});
    ASSERT_TRUE(message.status) << message.message();
    EXPECT_EQ(Json::parse(message.out, nullptr, false)["kind"], "message");
  }
}

INSTANTIATE_TEST_SUITE_P(Memories, TransferRun, testing::Values("host", "cuda"),
                         [](const auto& memory) { return std::string(memory.param); });

TEST(TransferText, TellsEachStep) {
  const TransferFolder here;
  const TransferFolder there;
  const TestServer server("transfer", {"--dir", there.text()});
  ASSERT_TRUE(server.started());
  const Ended file =
      RunHere({"transfer", "client", server.address(), "--file", here.Write("f\x1b[2J", "text")});
  ASSERT_TRUE(file.status) << file.message();
  EXPECT_THAT(file.out, AllOf(HasSubstr("file f\\x1b[2J, 4 bytes: asking the server for room"),
                              HasSubstr("transport tcp: "), HasSubstr("lane 0: 127.0.0.1:"),
                              HasSubstr("writing through 4 B on host into 4 B on the server's "
                                        "host, one-sided"),
                              HasSubstr("moved 4 bytes from host to host memory"),
                              HasSubstr("done: identical")));
  const Ended empty =
      RunHere({"transfer", "client", server.address(), "--file", here.Write("empty", "")});
  EXPECT_THAT(empty.out, HasSubstr("there are no bytes to move"));
  EXPECT_TRUE(there.Holds("empty"));
}

// ---- servers that answer wrongly ----------------------------------------------------------------

TEST(TransferClient, AnswersThatDoNotFitAreErrors) {
  const TransferFolder folder;
  const std::string file = folder.Write("file", "text");
  const struct {
    const char* answer;
    int exit_code;
    const char* about;
  } kCases[] = {
      {R"({"ready": true})", 1, "\"key\""},
      {R"({"key": "xx"})", 1, "hexadecimal"},
      {R"({"key": "00"})", 2, "key"},
      {R"({"memory": 7, "key": "00"})", 1, "\"memory\""},
      {R"({"error": {"code": "Unavailable", "message": "the disk is full"}})", 1,
       "the server says: the disk is full"},
      {R"({"error": {"code": "Refused", "message": "no"}})", 1, "the server says: no"},
  };
  for (const auto& [answer, exit_code, about] : kCases) {
    ScriptedServer server(ScriptedServer::Answers{Json::parse(answer)});
    const Ended ended = RunHere({"transfer", "client", server.address(), "--file", file, "--json"});
    EXPECT_EQ(ended.exit_code, exit_code) << ended.message();
    EXPECT_THAT(ended.message(), HasSubstr(about));
    const auto heard = server.Heard();
    ASSERT_EQ(heard.size(), 1U);
    EXPECT_EQ(DumpJson(heard[0]), R"({"kind":"file","name":"file","size":4,"memory":"host"})");
  }
}

// An empty file needs no key: after its end has been said comes the digest.
TEST(TransferClient, ADigestThatDiffersIsAFailure) {
  const TransferFolder folder;
  const std::string empty = folder.Write("empty", "");
  ScriptedServer server(
      ScriptedServer::Answers{Json{{"ready", true}}, Json{{"sha256", "00"}}, Json::object()});
  const Ended ended = RunHere({"transfer", "client", server.address(), "--file", empty, "--json"});
  EXPECT_EQ(ended.exit_code, kExitFailed);
  EXPECT_THAT(ended.message(), HasSubstr("the bytes at the receiver differ from those sent"));
  const auto heard = server.Heard();
  ASSERT_EQ(heard.size(), 3U);
  EXPECT_TRUE(FlagField(heard[1], "landed"));
}

TEST(TransferClient, AServerThatLeavesBeforeTheEndIsLost) {
  const TransferFolder folder;
  ScriptedServer server(ScriptedServer::Answers{Json{{"ready", true}}});
  const Ended ended = RunHere(
      {"transfer", "client", server.address(), "--file", folder.Write("empty", ""), "--json"});
  EXPECT_EQ(ended.exit_code, kExitPeer) << ended.message();
}

// ---- clients that ask wrongly -------------------------------------------------------------------

class TransferServerTest : public testing::Test {
 protected:
  struct Shared {
    const TransferFolder folder;
    const TestServer server{"transfer", {"--dir", folder.text(), "--set", "workers=1"}};
  };
  // One server for all tests, which leave nothing in its folder.
  static void SetUpTestSuite() { shared = std::make_unique<Shared>(); }
  static void TearDownTestSuite() { shared.reset(); }
  void SetUp() override { ASSERT_TRUE(server_.started()); }
  // What a new client is answered.
  std::string ErrorOf(const Json& request) {
    ScriptedClient client(server_.address());
    return ErrorText(client.Ask(request));
  }

  static std::unique_ptr<Shared> shared;
  const TransferFolder& folder_ = shared->folder;
  const TestServer& server_ = shared->server;
};
std::unique_ptr<TransferServerTest::Shared> TransferServerTest::shared;

TEST_F(TransferServerTest, RequestsThatDoNotFitAreRefusedAndItGoesOn) {
  const struct {
    Json request;
    const char* about;
  } kCases[] = {
      {Json::object(), "\"kind\""},
      {{{"kind", 1}}, "\"kind\""},
      {{{"kind", "file"}}, "\"size\""},
      {{{"kind", "file"}, {"size", -1}}, "\"size\""},
      {{{"kind", "file"}, {"size", 1}}, "\"name\""},
      {{{"kind", "file"}, {"size", 1}, {"name", ".."}}, "not a valid file name"},
      {{{"kind", "file"}, {"size", 1}, {"name", "a/"}}, "not a valid file name"},
      {{{"kind", "file"}, {"size", 1}, {"name", ""}}, "not a valid file name"},
      {{{"kind", "file"}, {"size", std::uint64_t{1} << 62}, {"name", "x"}}, "x"},
      {{{"kind", "file"}, {"size", ~std::uint64_t{0}}, {"name", "x"}}, "x"},
      {{{"kind", "message"}, {"size", (16 << 20) + 1}}, "more than the 16 MiB that are taken"},
      {{{"kind", "message"}, {"size", 1}, {"memory", 1}}, "\"memory\""},
      {{{"kind", "tape"}, {"size", 1}}, "takes files and messages, not \"tape\""},
      {{{"do", "set up"}}, "not a perf server"},
  };
  for (const auto& [request, about] : kCases) {
    EXPECT_THAT(ErrorOf(request), HasSubstr(about)) << request.dump();
  }
  EXPECT_TRUE(folder_.empty());
}

TEST_F(TransferServerTest, BytesThatAreSaidToBeWrittenAreCheckedAgainstTheFile) {
  const struct {
    Json said;
    const char* about;
  } kCases[] = {
      {{{"written", 5}}, "says that 5 of 4 bytes are written, of which 0 have been taken out"},
      {{{"written", ~std::uint64_t{0}}}, "use the same version"},
      {{{"written", -1}}, "\"written\""},
      {{{"landed", false}}, "\"written\""},
      {Json::object(), "\"written\""},
  };
  for (const auto& [said, about] : kCases) {
    ScriptedClient client(server_.address());
    const Json offered = client.Ask({{"kind", "file"}, {"name", "file"}, {"size", 4}});
    EXPECT_EQ(offered.value("window", 0), 4) << offered.dump();
    EXPECT_THAT(ErrorText(client.Ask(said)), HasSubstr(about));
  }
  EXPECT_TRUE(folder_.empty()) << "nothing is kept";
}

TEST_F(TransferServerTest, WhatWasWrittenIsTakenOutStepByStepAndNeverBack) {
  ScriptedClient client(server_.address());
  (void)client.Ask({{"kind", "file"}, {"name", "file"}, {"size", 4}});
  EXPECT_TRUE(FlagField(client.Ask({{"written", 2}}), "ready"));
  EXPECT_THAT(ErrorText(client.Ask({{"written", 1}})), HasSubstr("of which 2 have been taken"));
}

// It would hold its place for ever.
TEST_F(TransferServerTest, AStepWithoutProgressEndsTheTransfer) {
  ScriptedClient client(server_.address());
  (void)client.Ask({{"kind", "file"}, {"name", "file"}, {"size", 4}});
  EXPECT_TRUE(FlagField(client.Ask({{"written", 2}}), "ready"));
  EXPECT_THAT(ErrorText(client.Ask({{"written", 2}})), HasSubstr("of which 2 have been taken"));
}

TEST_F(TransferServerTest, AFileWhoseDigestDiffersIsNotKept) {
  for (const char* digest : {"00", ""}) {
    ScriptedClient client(server_.address());
    (void)client.Ask({{"kind", "file"}, {"name", "file"}, {"size", 4}});
    client.Say({{"landed", true}});
    EXPECT_THAT(ErrorText(client.Ask({{"sha256", digest}})),
                HasSubstr("the bytes that arrived have SHA-256 "));
  }
  ScriptedClient client(server_.address());
  (void)client.Ask({{"kind", "file"}, {"name", "file"}, {"size", 4}});
  client.Say({{"landed", true}});
  EXPECT_THAT(ErrorText(client.Ask({{"digest", "00"}})), HasSubstr("\"sha256\""));
  EXPECT_TRUE(folder_.empty());
}

TEST_F(TransferServerTest, AFileIsKeptWhenTheDigestIsRight) {
  ScriptedClient client(server_.address());
  (void)client.Ask({{"kind", "file"}, {"name", "some/where/file"}, {"size", 4}});
  client.Say({{"landed", true}});
  const std::vector<std::byte> zeros(4);
  const Json answer = client.Ask({{"sha256", Sha256(zeros)}});
  EXPECT_EQ(answer.value("sha256", ""), Sha256(zeros)) << answer.dump();
  EXPECT_EQ(folder_.Read("file"), std::string(4, '\0'));
  client.Say({{"bye", true}});
  folder_.Remove("file");
}

// The place is the only one here, as --once has no other.
TEST(TransferServer, ASilentClientLosesItsPlaceAndItsDisk) {
  const TransferFolder folder;
  const TestServer server("transfer", {"--dir", folder.text(), "--once", "--timeout", "300ms"});
  ASSERT_TRUE(server.started());
  ScriptedClient client(server.address());
  const Json offered = client.Ask({{"kind", "file"}, {"name", "file"}, {"size", 4}});
  EXPECT_EQ(offered.value("window", 0), 4) << offered.dump();
  EXPECT_THAT(ErrorText(client.Hear()), HasSubstr("has sent nothing for 0.3 s"));
  EXPECT_TRUE(folder.empty());
}

TEST(TransferServer, ASilentSenderOfAMessageLosesItsPlace) {
  const TestServer server("transfer", {"--once", "--timeout", "300ms"});
  ASSERT_TRUE(server.started());
  ScriptedClient client(server.address());
  EXPECT_TRUE(FlagField(client.Ask({{"kind", "message"}, {"size", 4}}), "ready"));
  EXPECT_THAT(ErrorText(client.Hear()), HasSubstr("has sent nothing for 0.3 s"));
}

TEST(TransferServer, TheTransferOfOnceHoldsNobodyUp) {
  const TransferFolder folder;
  const TestServer server("transfer", {"--dir", folder.text(), "--once"});
  ASSERT_TRUE(server.started());
  ScriptedClient first(server.address());
  EXPECT_TRUE(FlagField(first.Ask({{"kind", "file"}, {"name", "file"}, {"size", 4}}), "ready"));
  ScriptedClient second(server.address());
  EXPECT_THAT(ErrorText(second.Ask({{"kind", "message"}, {"size", 0}})), HasSubstr("(--once)"));
}

TEST(TransferServer, ClientsThatDoNothingKeepOthersWaitingNeitherAloneNorTogether) {
  const TransferFolder folder;
  const TestServer server("transfer", {"--dir", folder.text(), "--set", "workers=1"});
  ASSERT_TRUE(server.started());
  std::list<ScriptedClient> silent;
  for (int i = 0; i < 16; ++i) {
    ScriptedClient& client = silent.emplace_back(server.address());
    EXPECT_TRUE(FlagField(client.Ask({{"kind", "file"}, {"name", "file"}, {"size", 4}}), "ready"));
  }
  const auto error_of_next = [&] {
    ScriptedClient client(server.address());
    return ErrorText(client.Ask({{"kind", "message"}, {"size", 0}}));
  };
  EXPECT_THAT(error_of_next(), HasSubstr("serves 16 clients at a time"));
  silent.pop_back();
  // Its place is free when the server has seen that it has left.
  std::string error = error_of_next();
  for (const Deadline deadline = PeerDeadline(); !error.empty() && !deadline.expired();) {
    error = error_of_next();
  }
  EXPECT_EQ(error, "");
}

TEST_F(TransferServerTest, AClientThatLeavesInTheMiddleLeavesNothing) {
  {
    ScriptedClient client(server_.address());
    (void)client.Ask({{"kind", "file"}, {"name", "file"}, {"size", 4}});
  }
  ScriptedClient next(server_.address());
  EXPECT_TRUE(FlagField(next.Ask({{"kind", "message"}, {"size", 0}}), "ready"));
  // Where files need names, that of the one before goes when its end is seen.
  for (const Deadline deadline = PeerDeadline(); !folder_.empty() && !deadline.expired();) {
    ::sched_yield();
  }
  EXPECT_TRUE(folder_.empty());
}

}  // namespace
}  // namespace ferry::tools
