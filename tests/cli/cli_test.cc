// The program as its users see it: exit codes, sentences, JSON, and two processes of it at work.
#include <arpa/inet.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/fd.h"
#include "ferry/net/testing/certificates.h"
#include "tests/cli/ferry_program.h"

namespace ferry::tests {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::Not;
using testing::StartsWith;

// Operations in flight at once write the same bytes to the same place, as `perf` means them to;
// ThreadSanitizer rightly calls that a race.
#ifdef __SANITIZE_THREAD__
constexpr const char* kDepth = "1";
#else
constexpr const char* kDepth = "3";
#endif

bool HasIpv6Loopback() {
  const UniqueFd fd(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_loopback;
  return fd && ::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
}

// ---- usage --------------------------------------------------------------------------------------

TEST(Help, ListsSubcommandsAndExitCodes) {
  const ProgramEnd help = Ferry({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  for (const char* name : {"perf", "transfer", "info", "doctor", "kernel-bench"})
    EXPECT_THAT(help.out, HasSubstr(name));
  EXPECT_THAT(help.out, HasSubstr("Exit codes:\n"
                                  "  0  ok\n"
                                  "  1  failed: the transfer, its verification, or a resource\n"
                                  "  2  wrong usage or setting\n"
                                  "  3  the peer could not be reached, or was lost\n"
                                  "  4  timed out\n"
                                  "  5  doctor: at worst a warning\n"
                                  "  6  doctor: a problem\n"
                                  "  130  interrupted by Ctrl-C (SIGINT); 143: by SIGTERM. "
                                  "Servers end with 0 then\n"));
}

// The names of the list in a help text.
Arguments SubcommandsIn(const ProgramEnd& help) {
  Arguments names;
  bool in_list = false;
  for (const std::string& line : help.out_lines()) {
    if (in_list && line.rfind("  ", 0) != 0) break;
    if (in_list) names.push_back(line.substr(2, line.find(' ', 2) - 2));
    in_list = in_list || line == "Subcommands:";
  }
  return names;
}

TEST(Help, EverySubcommandHasTheSameJsonFlag) {
  Arguments seen;
  for (std::vector<Arguments> left = {{}}; !left.empty();) {
    const Arguments command = left.back();
    left.pop_back();
    Arguments arguments = command;
    arguments.emplace_back("--help");
    const ProgramEnd help = Ferry(arguments);
    seen.push_back(fmt::format("{}", fmt::join(command, " ")));
    EXPECT_EQ(help.exit_code, 0) << seen.back();
    const Arguments below = SubcommandsIn(help);
    for (const std::string& name : below) left.emplace_back(command).push_back(name);
    if (!below.empty()) continue;
    EXPECT_THAT(help.out, ContainsRegex("--json +Print JSON, one object per line")) << seen.back();
  }
  EXPECT_THAT(seen, IsSupersetOf({"perf server", "transfer client", "info", "kernel-bench"}));
}

TEST(Perf, GpuMemoryOfTwoProcessesIsCopiedUnlessToldOtherwise) {
  for (const bool off : {false, true}) {
    const ProgramEnd ended =
        Ferry({"perf", "loopback", "--memory", "cuda", "--op", "write,read", "--size", "1000001",
               "--rounds", "1", "--iters", "3", "--no-floor", "--json", "--set",
               off ? "cuda_ipc=off" : "cuda_ipc=auto"},
              {"FERRY_DEVICES=simulated:2"});
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_THAT(ended.out, HasSubstr(off ? "\"path\":\"network\"" : "\"path\":\"gpu-copy\""));
    EXPECT_THAT(ended.out, HasSubstr("\"verified\":true"));
    EXPECT_THAT(ended.out, Not(HasSubstr("\"verified\":false")));
  }
}

TEST(Usage, MistakesEndWithCode2AndASentence) {
  struct Mistake {
    Arguments arguments;
    std::string command;
    std::string about;
  };
  const std::vector<Mistake> mistakes = {
      {{}, "ferry", "subcommand"},
      {{"teleport"}, "ferry", "\"teleport\""},
      {{"perf", "loopback", "--warp"}, "ferry perf loopback", "--warp"},
      {{"perf", "loopback", "--size", "0"}, "ferry perf loopback", "--size 0"},
      {{"perf", "loopback", "--size", "1XB"}, "ferry perf loopback", "'1XB'"},
      {{"perf", "loopback", "--op", "throw"}, "ferry perf loopback", "\"throw\""},
      {{"perf", "loopback", "--depth", "0"}, "ferry perf loopback", "--depth 0"},
      {{"perf", "loopback", "--rounds", "0"}, "ferry perf loopback", "--rounds 0"},
      {{"perf", "loopback", "--memory", "cuda", "--set", "devices=none"},
       "ferry perf loopback",
       "devices=none"},
      {{"perf", "loopback", "--memory", "gpu"},
       "ferry perf loopback",
       "choose host, cuda or cuda:N"},
      {{"perf", "loopback", "--set", "lanes=99"}, "ferry perf loopback", "lanes"},
      {{"perf", "loopback", "--set", "warp=9"}, "ferry perf loopback", "'warp'"},
      {{"perf", "client"}, "ferry perf client", "host"},
      {{"transfer", "client", "localhost"}, "ferry transfer client", "--file"},
      {{"transfer", "client", "localhost", "--file", "/"}, "ferry transfer client", "regular"},
  };
  for (const Mistake& mistake : mistakes) {
    const ProgramEnd ended = Ferry(mistake.arguments);
    EXPECT_EQ(ended.exit_code, 2) << mistake.about;
    EXPECT_THAT(ended.err, Sentence(mistake.command, mistake.about));
    EXPECT_EQ(ended.out, "");
  }
}

TEST(Usage, ABadVariableIsNamed) {
  const ProgramEnd ended = Ferry({"info"}, {"FERRY_LANES=many"});
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_THAT(ended.err, Sentence("ferry info", "FERRY_LANES"));
}

TEST(Usage, WithJsonAnErrorIsAnObjectToo) {
  for (const Arguments& arguments : {Arguments{"perf", "loopback", "--size", "0", "--json"},
                                     Arguments{"perf", "loopback", "--warp", "--json"}}) {
    const ProgramEnd ended = Ferry(arguments);
    EXPECT_EQ(ended.exit_code, 2);
    const json error = json::parse(ended.out, nullptr, false).value("error", json());
    EXPECT_EQ(error.value("code", ""), "InvalidArgument");
    EXPECT_THAT(ended.err, HasSubstr(error.value("message", "nothing")));
  }
}

// ---- peers --------------------------------------------------------------------------------------

TEST(Peer, AnUnknownHostIsCode3) {
  const ProgramEnd ended = Ferry({"perf", "client", "no-such-host.invalid"});
  EXPECT_EQ(ended.exit_code, 3);
  EXPECT_THAT(ended.err, Sentence("ferry perf client", "no-such-host.invalid"));
}

TEST(Peer, AClosedPortIsCode3) {
  const ClosedPort closed;
  const std::string& address = closed.address();
  for (const Arguments& arguments :
       {Arguments{"perf", "client", address},
        Arguments{"transfer", "client", address, "--message", "hello", "--json"}}) {
    const ProgramEnd ended = Ferry(arguments);
    EXPECT_EQ(ended.exit_code, 3);
    EXPECT_THAT(ended.err, Sentence("ferry " + arguments[0] + " client", address));
  }
}

TEST(Peer, AServerOfAnotherKindSaysSo) {
  Program server({"transfer", "server", "--listen", "127.0.0.1", "--port", "0", "--json"});
  const ProgramEnd ended = Ferry({"perf", "client", AddressOf(&server)});
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_THAT(ended.err, Sentence("ferry perf client", "ferry transfer server"));
}

// ---- perf ---------------------------------------------------------------------------------------

void ExpectWholeRow(const json& row) {
  for (const char* key : {"op",
                          "memory",
                          "provider",
                          "size",
                          "block_size",
                          "lanes",
                          "iterations",
                          "seconds_avg",
                          "seconds_p50",
                          "seconds_p99",
                          "gbps",
                          "floor_gbps",
                          "floor_ratio",
                          "cpu_seconds_per_gb",
                          "floor_cpu_seconds_per_gb",
                          "cpu_ratio",
                          "ops_per_second",
                          "verified",
                          "wait",
                          "rounds",
                          "congestion_control",
                          "security"}) {
    EXPECT_TRUE(row.contains(key)) << key;
    EXPECT_NE(row.value(key, json()), json()) << key;
  }
  EXPECT_EQ(row.value("memory", ""), "host");
  EXPECT_EQ(row.value("provider", ""), "tcp");
  EXPECT_EQ(row.value("verified", false), true);
  EXPECT_GT(row.value("gbps", 0.0), 0);
  EXPECT_GT(row.value("floor_gbps", 0.0), 0);
  EXPECT_LE(row.value("seconds_p50", 1.0), row.value("seconds_p99", 0.0));
  EXPECT_EQ(row.value("rounds", json()).size(), 1U);
}

TEST(Perf, OverTlsSaysHowItIsSecured) {
  const std::vector<std::string> measure = {"perf", "loopback", "--size", "1MiB",   "--iters",
                                            "5",    "--rounds", "1",      "--json", "--tls"};
  const auto row_of = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = measure;
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProgramEnd ended = Ferry(arguments);
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    json row = json::parse(ended.out, nullptr, false);
    ExpectWholeRow(row);
    return row;
  };
  EXPECT_EQ(row_of({"off"}).value("security", ""), "none");
  EXPECT_EQ(row_of({"psk", "--set", "secret=sixteen letters!"}).value("security", ""),
            "TLSv1.3 TLS_AES_128_GCM_SHA256, pre-shared key");
  net::TestAuthority authority;
  const auto issued = authority.Issue("node7");
  EXPECT_THAT(row_of({"cert", "--tls-cert", issued.cert, "--tls-key", issued.key, "--tls-ca",
                      authority.file()})
                  .value("security", ""),
              HasSubstr("certificate CN=node7"));
}

TEST(Perf, WritesReadsAndSendsAreMeasuredAndVerified) {
  const ProgramEnd ended =
      Ferry({"perf", "loopback", "--op", "write,read", "--op", "send", "--size", "1MiB,3001",
             "--iters", "5", "--rounds", "1", "--json"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const auto lines = ended.out_lines();
  ASSERT_EQ(lines.size(), 6U);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const json row = json::parse(lines[i], nullptr, false);
    ExpectWholeRow(row);
    EXPECT_EQ(row.value("op", ""), (std::array{"write", "read", "send"})[i / 2]);
    EXPECT_EQ(row.value("size", 0U), i % 2 == 0 ? 1U << 20 : 3001U);
    EXPECT_EQ(row.value("iterations", 0), 5);
    EXPECT_EQ(row.contains("half_rtt_us_p50"), i / 2 == 2);
    EXPECT_EQ(row.contains("floor_half_rtt_us_p50"), i / 2 == 2);
  }
}

TEST(Perf, ScatteredBlocksAreVerified) {
  const ProgramEnd ended =
      Ferry({"perf", "loopback", "--op", "write,read", "--size", "1000001", "--block-size", "4096",
             "--iters", "5", "--rounds", "1", "--depth", kDepth, "--json"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  ASSERT_EQ(ended.out_lines().size(), 2U);
  for (const std::string& line : ended.out_lines()) {
    const json row = json::parse(line, nullptr, false);
    ExpectWholeRow(row);
    EXPECT_EQ(row.value("block_size", 0), 4096);
  }
}

TEST(Perf, WorksOverIpv6AndByPolling) {
  if (!HasIpv6Loopback()) GTEST_SKIP() << "no ::1 here";
  const ProgramEnd ended =
      Ferry({"perf", "loopback", "--host", "::1", "--op", "send", "--size", "8", "--iters", "5",
             "--rounds", "1", "--lanes", "1", "--wait", "spin", "--json"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const json row = json::parse(ended.out, nullptr, false);
  ExpectWholeRow(row);
  EXPECT_EQ(row.value("lanes", 0), 1);
  EXPECT_EQ(row.value("wait", ""), "spin");
}

TEST(Perf, TheTableHasAColumnForEachFigure) {
  const ProgramEnd ended = Ferry({"perf", "loopback", "--size", "64KiB", "--iters", "5", "--rounds",
                                  "1", "--no-floor", "--no-verify"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const auto lines = ended.out_lines();
  ASSERT_EQ(lines.size(), 6U) << ended.out;
  EXPECT_THAT(lines[0], HasSubstr("over tcp, "));
  EXPECT_THAT(lines[0], HasSubstr("host to host memory"));
  EXPECT_THAT(lines[3], HasSubstr("p50 ms   p99 ms    GB/s    ops/s   floor share CPU s/GB"));
  EXPECT_THAT(lines[4], StartsWith("write    64 KiB       - "));
  EXPECT_LE(lines[3].size(), 100U);
  EXPECT_LE(lines[4].size(), 100U);
  EXPECT_THAT(lines[5], StartsWith("  Avg: "));
  EXPECT_EQ(ended.err, "");
}

TEST(Perf, ADeadlineThatPassesIsCode4) {
  const ProgramEnd ended = Ferry({"perf", "loopback", "--size", "256MiB", "--deadline", "1ms"});
  EXPECT_EQ(ended.exit_code, 4);
  EXPECT_THAT(ended.err, Sentence("ferry perf loopback", "256 MiB did not end within 1 ms"));
}

TEST(Perf, TheServerSurvivesAKilledClientAndServesTheNext) {
  Program server({"perf", "server", "--listen", "127.0.0.1", "--port", "0", "--json"});
  const std::string address = AddressOf(&server);
  Program client({"perf", "client", address, "--rounds", "1000", "--size", "16MiB"});
  EXPECT_THAT(client.ReadLine(), HasSubstr(address));  // it has begun
  client.Signal(SIGKILL);
  EXPECT_EQ(client.Finish().exit_code, -SIGKILL);
  const ProgramEnd next = Ferry(
      {"perf", "client", address, "--size", "64KiB", "--iters", "5", "--rounds", "1", "--json"});
  ASSERT_EQ(next.exit_code, 0) << next.err;
  ExpectWholeRow(json::parse(next.out, nullptr, false));
  server.Signal(SIGINT);
  EXPECT_EQ(server.Finish().exit_code, 0);
}

TEST(Perf, AClientWhoseServerDiesEndsWithCode3) {
  Program server({"perf", "server", "--listen", "127.0.0.1", "--port", "0", "--json"});
  const std::string address = AddressOf(&server);
  Program client({"perf", "client", address, "--rounds", "1000", "--no-floor"});
  EXPECT_THAT(client.ReadLine(), HasSubstr(address));
  server.Signal(SIGKILL);
  EXPECT_EQ(client.Finish().exit_code, 3);
}

// One of its threads is named so.
bool HasThread(pid_t pid, const std::string& name) {
  std::error_code ignored;
  const fs::path tasks = fmt::format("/proc/{}/task", pid);
  for (const auto& task : fs::directory_iterator(tasks, ignored)) {
    std::string found;
    if (std::ifstream(task.path() / "comm") >> found && found == name) return true;
  }
  return false;
}

TEST(Perf, AServerThatIsFrozenWhileTheFloorIsMeasuredIsNamedWithItsSilence) {
  Program server({"perf", "server", "--listen", "127.0.0.1", "--port", "0", "--json", "--set",
                  "peer_timeout=2s"});
  const std::string address = AddressOf(&server);
  // The first that it does at length is to choose the floor's chunk.
  Program client({"perf", "client", address, "--size", "1MiB", "--iters", "1000000", "--set",
                  "peer_timeout=2s", "--lanes", "2"});
  EXPECT_THAT(client.ReadLine(), HasSubstr(address));
  const Deadline deadline = Deadline::After(kProgramTimeout);
  while (!HasThread(client.pid(), "ferry-floor") && !deadline.expired()) ::sched_yield();
  server.Signal(SIGSTOP);
  const ProgramEnd ended = client.Finish();
  server.Signal(SIGCONT);
  EXPECT_EQ(ended.exit_code, 3);
  EXPECT_THAT(ended.err, AllOf(HasSubstr("127.0.0.1:"), HasSubstr("has been silent for 2 s"),
                               HasSubstr("while the plain-socket floor was measured"),
                               Not(HasSubstr("--deadline"))));
}

pid_t ChildOf(const Program& program) {
  const std::string pid = std::to_string(program.pid());
  std::ifstream children("/proc/" + pid + "/task/" + pid + "/children");
  pid_t child = 0;
  children >> child;
  return child;
}

TEST(Perf, CtrlCEndsBothSidesOfALoopbackWithTheShellsCode) {
  struct {
    int signal;
    bool to_both;  // as a terminal sends it
    int exit_code;
  } const kCases[] = {{SIGINT, false, 130}, {SIGINT, true, 130}, {SIGTERM, false, 143}};
  for (const auto& one : kCases) {
    Program loopback({"perf", "loopback", "--rounds", "1000", "--deadline", "1000s"});
    EXPECT_THAT(loopback.ReadLine(), HasSubstr("127.0.0.1"));
    const pid_t server = ChildOf(loopback);
    if (one.to_both && server > 0) (void)::kill(server, one.signal);
    loopback.Signal(one.signal);
    const ProgramEnd ended = loopback.Finish();
    EXPECT_EQ(ended.exit_code, one.exit_code);
    EXPECT_THAT(ended.err, HasSubstr("interrupted by SIG"));
  }
}

TEST(Perf, TheServerOfALoopbackDiesWithItsParent) {
  Program loopback({"perf", "loopback", "--rounds", "1000", "--deadline", "1000s"});
  EXPECT_THAT(loopback.ReadLine(), HasSubstr("127.0.0.1"));
  const pid_t server = ChildOf(loopback);
  if (server == 0) GTEST_SKIP() << "this kernel does not list children";
  const UniqueFd gone = OpenProcess(server);
  ASSERT_TRUE(gone);
  loopback.Signal(SIGKILL);
  EXPECT_TRUE(WaitReadable(gone.get(), Deadline::After(kProgramTimeout)));
}

// ---- transfer -----------------------------------------------------------------------------------

TEST(Transfer, FilesOfAnySizeArriveIdentical) {
  const Folder here;
  const Folder there;
  Program server({"transfer", "server", "--dir", there.text(), "--listen", "127.0.0.1", "--port",
                  "0", "--json"});
  const std::string address = AddressOf(&server);
  for (const std::size_t size : {0U, 1U, 4097U, (3U << 20) + 1}) {
    const std::string name = "file-" + std::to_string(size);
    WriteFile(here / name, SomeBytes(size));
    const ProgramEnd client =
        Ferry({"transfer", "client", address, "--file", (here / name).string(), "--json"});
    ASSERT_EQ(client.exit_code, 0) << client.err;
    const json sent = json::parse(client.out, nullptr, false);
    EXPECT_EQ(sent.value("bytes", std::size_t{99}), size);
    EXPECT_EQ(sent.value("identical", false), true);
    const json received = json::parse(server.ReadLine(), nullptr, false);
    EXPECT_EQ(received.value("name", ""), name);
    EXPECT_EQ(received.value("sha256", "none"), sent.value("sha256", ""));
    EXPECT_TRUE(ReadFile(there / name) == SomeBytes(size)) << size;
  }
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Finish().exit_code, 0);
}

TEST(Transfer, WithOverwriteAnExistingFileIsReplacedAndNothingElseIsLeft) {
  const Folder here;
  const Folder there;
  WriteFile(here / "model", "new");
  WriteFile(there / "model", "old and longer");
  Program server({"transfer", "server", "--dir", there.text(), "--listen", "127.0.0.1", "--port",
                  "0", "--once", "--json", "--overwrite"});
  const ProgramEnd client =
      Ferry({"transfer", "client", AddressOf(&server), "--file", (here / "model").string()});
  ASSERT_EQ(client.exit_code, 0) << client.err;
  EXPECT_THAT(client.out, AllOf(HasSubstr("transport tcp"), HasSubstr("congestion control"),
                                HasSubstr("done: identical")));
  EXPECT_EQ(server.Finish().exit_code, 0);
  EXPECT_EQ(ReadFile(there / "model"), "new");
  EXPECT_EQ(std::distance(fs::directory_iterator(there.text()), {}), 1);
}

TEST(Perf, TheServerPrintsTheAverageAsWell) {
  Program server({"perf", "server", "--listen", "127.0.0.1", "--port", "0"});
  const std::string listening = server.ReadLine();
  const std::string address = listening.substr(sizeof "listening on " - 1,
                                               listening.find(';') - sizeof "listening on " + 1);
  const ProgramEnd client = Ferry({"perf", "client", address, "--size", "64KiB", "--rounds", "1",
                                   "--iters", "2", "--no-floor"});
  ASSERT_EQ(client.exit_code, 0) << client.err;
  server.Signal(SIGTERM);
  EXPECT_THAT(server.Finish().out, ContainsRegex("write of 64 KiB: Avg: [0-9.]+ ms, BW: [0-9.]+ "
                                                 "GB/s"));
}

TEST(Transfer, AMessageArrivesPrintable) {
  Program server({"transfer", "server", "--listen", "127.0.0.1", "--port", "0", "--once"});
  const std::string listening = server.ReadLine();
  const std::string address = listening.substr(sizeof "listening on " - 1,
                                               listening.find(',') - sizeof "listening on " + 1);
  const ProgramEnd client = Ferry({"transfer", "client", address, "--message", "Grüße\x1b[2J"});
  EXPECT_EQ(client.exit_code, 0) << client.err;
  const ProgramEnd ended = server.Finish();
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("message: Grüße\\x1b[2J\n"));
}

TEST(Transfer, AServerThatCannotStoreTheFileSaysSo) {
  const Folder here;
  WriteFile(here / "file", "text");
  fs::create_directory(here / "missing");
  Program server({"transfer", "server", "--dir", (here / "missing").string(), "--listen",
                  "127.0.0.1", "--port", "0", "--once", "--json"});
  const std::string address = AddressOf(&server);
  fs::remove(here / "missing");  // now it is
  const ProgramEnd client =
      Ferry({"transfer", "client", address, "--file", (here / "file").string(), "--json"});
  EXPECT_NE(client.exit_code, 0);
  EXPECT_THAT(client.err, Sentence("ferry transfer client", "missing"));
  EXPECT_NE(server.Finish().exit_code, 0);
}

// ---- info ---------------------------------------------------------------------------------------

TEST(Info, JsonHasEverySettingWithItsSource) {
  const ProgramEnd ended =
      Ferry({"info", "--json", "--set", "window_bytes=32MiB"}, {"FERRY_LANES=3", "FERRY_LANE=3"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const json info = json::parse(ended.out, nullptr, false);
  for (const char* key : {"build", "machine", "kernel", "devices", "interfaces", "providers"}) {
    EXPECT_FALSE(info.value(key, json()).empty()) << key;
  }
  std::map<std::string, json> settings;
  for (const json& setting : info.value("settings", json::array())) {
    settings[setting.value("name", "")] = setting;
  }
  EXPECT_EQ(settings["lanes"].value("value", ""), "3");
  EXPECT_EQ(settings["lanes"].value("source", ""), "environment");
  EXPECT_EQ(settings["window_bytes"].value("source", ""), "--set");
  EXPECT_EQ(settings["slice_bytes"].value("source", ""), "default");
  EXPECT_EQ(settings["slice_bytes"].value("variable", ""), "FERRY_SLICE_BYTES");
  ASSERT_EQ(info.value("warnings", json()).size(), 1U);
  EXPECT_THAT(info["warnings"][0].get<std::string>(), HasSubstr("FERRY_LANE "));
}

TEST(Info, TextHasEverySection) {
  const ProgramEnd ended = Ferry({"info"});
  EXPECT_EQ(ended.exit_code, 0);
  for (const char* title : {"Build\n", "Machine\n", "Kernel\n", "Devices\n", "Addresses\n",
                            "Providers\n  tcp\n", "Settings\n"}) {
    EXPECT_THAT(ended.out, HasSubstr(title));
  }
}

TEST(Info, DescribesEachDevice) {
  const ProgramEnd text = Ferry({"info"}, {"FERRY_DEVICES=simulated:2"});
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_THAT(text.out,
              HasSubstr("\n  1  simulated device, compute capability 9.0, 4 SMs, 1.0 GiB, "
                        "PCI 0000:02:00.0, NUMA node unknown, reaches GPUs [0]\n"));
  EXPECT_THAT(text.out, HasSubstr("between GPUs of processes of this machine: gpu-copy"));
  const ProgramEnd ended = Ferry({"info", "--json"}, {"FERRY_DEVICES=simulated:2"});
  const json devices = json::parse(ended.out, nullptr, false).value("devices", json());
  ASSERT_EQ(devices.value("found", json()).size(), 2U) << ended.out;
  EXPECT_EQ(devices["found"][1].value("pci_bus_id", ""), "0000:02:00.0");
  EXPECT_EQ(devices["found"][1].value("memory_bytes", 0), 1 << 30);
  EXPECT_EQ(devices.value("why_none", "-"), "");
  EXPECT_EQ(devices["found"][1].value("reaches", json()), json::array({0}));
  EXPECT_EQ(devices.value("path_within_machine", ""), "gpu-copy");
}

TEST(Info, TellsWhatAPluginIsOrWhyItCannotBeUsed) {
#ifdef FERRY_WITHOUT_TCPX
  GTEST_SKIP() << "this build has no host of plugins";
#endif
  const ProgramEnd none = Ferry({"info"});
  EXPECT_THAT(none.out, HasSubstr("Network plugin\n  none (FERRY_NET_PLUGIN names one)\n"));
  const ProgramEnd missing = Ferry({"info"}, {"UCCL_TCPX_PLUGIN_PATH=/x/y.so"});
  EXPECT_EQ(missing.exit_code, 0);
  EXPECT_THAT(missing.out, HasSubstr("/x/y.so (UCCL_TCPX_PLUGIN_PATH)\n  there is no network "
                                     "plugin /x/y.so; set FERRY_NET_PLUGIN to its file\n"));
  const ProgramEnd ended =
      Ferry({"info", "--json"}, {std::string("FERRY_NET_PLUGIN=") + FERRY_STANDIN_LIBRARY,
                                 "NCCL_DYNAMIC_CHUNK_SIZE=524288", "FERRY_STANDIN_NICS=3"});
  const json plugin = json::parse(ended.out, nullptr, false).value("plugin", json());
  EXPECT_EQ(plugin.value("name", ""), "GPUDirectTCPX_v7") << ended.out;
  EXPECT_EQ(plugin.value("version", 0), 7);
  ASSERT_EQ(plugin.value("devices", json()).size(), 3U);
  EXPECT_EQ(plugin["devices"][2].value("name", ""), "standin2");
  EXPECT_TRUE(plugin["devices"][2].value("unpacks", false));
}

TEST(Info, SaysWhyThereAreNoDevices) {
  const ProgramEnd text = Ferry({"info"}, {"FERRY_DEVICES=none"});
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_THAT(text.out, HasSubstr("Devices\n  none: GPUs are turned off"));
  const ProgramEnd ended = Ferry({"info", "--json"}, {"FERRY_DEVICES=none"});
  const json devices = json::parse(ended.out, nullptr, false).value("devices", json());
  EXPECT_TRUE(devices.value("found", json(1)).empty()) << ended.out;
  EXPECT_THAT(devices.value("why_none", ""), HasSubstr("FERRY_DEVICES"));
}

// ---- copy-bench ---------------------------------------------------------------------------------

TEST(CopyBench, PipelinesAreMeasuredVerifiedAndTraced) {
  const Folder folder;
  const std::string trace = (folder / "trace.json").string();
  const ProgramEnd ended = Ferry({"copy-bench", "--pipeline", "--size", "1000003", "--chunk",
                                  "64KiB", "--rounds", "1", "--json", "--trace", trace},
                                 {"FERRY_DEVICES=simulated:1"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const auto lines = ended.out_lines();
  ASSERT_EQ(lines.size(), 10U) << ended.out;  // both kinds of memory in five forms
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const json row = json::parse(lines[i], nullptr, false);
    EXPECT_TRUE(row.value("verified", false)) << lines[i];
    EXPECT_EQ(row.value("memory", ""), i < 5 ? "pageable" : "pinned");
    EXPECT_EQ(row.value("form", ""), i % 5 == 0 ? "blocking" : "pipeline");
    EXPECT_GT(row.value("seconds", 0.0), 0);
    EXPECT_GE(row.value("overlap_percent", -1.0), 0);
  }
  const json events = json::parse(ReadFile(trace), nullptr, false).value("traceEvents", json());
  const auto copies = std::count_if(events.begin(), events.end(), [](const json& event) {
    return event.value("ph", "") == "X" && event.value("name", "") == "chunk 15";
  });
  EXPECT_EQ(copies, 10 * 3);
}

TEST(CopyBench, ATimelineNeedsPipelines) {
  EXPECT_EQ(Ferry({"copy-bench", "--trace", "trace.json"}).exit_code, 2);
}

}  // namespace
}  // namespace ferry::tests
