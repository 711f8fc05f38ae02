// Tests the outside view of running programs: metrics over HTTP, and `ferry info --peer`.
#include <dirent.h>
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "ferry/core/fd.h"
#include "ferry/net/address.h"
#include "tests/links/network_pair.h"
#include "tests/support/engine_peer.h"

namespace ferry::tests {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// The answer of an HTTP server to "GET <path>", head and body.
std::string Get(std::uint16_t port, const std::string& path) {
  const net::RawAddress raw = Must(net::ToRaw({"127.0.0.1", port}));
  const UniqueFd socket(::socket(raw.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(socket.get(), raw.get(), raw.length) != 0) return "";
  const std::string request =
      fmt::format("GET {} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", path);
  EXPECT_EQ(::write(socket.get(), request.data(), request.size()),
            static_cast<ssize_t>(request.size()));
  std::string answer;
  const Deadline deadline = TestDeadline();
  for (std::array<char, 4096> part;;) {
    pollfd entry{.fd = socket.get(), .events = POLLIN, .revents = 0};
    if (::poll(&entry, 1, deadline.PollMillis()) <= 0) break;
    const ssize_t got = ::read(socket.get(), part.data(), part.size());
    if (got <= 0) break;
    answer.append(part.data(), static_cast<std::size_t>(got));
  }
  return answer;
}

// Parsed Prometheus text format: the type of each metric, and the value of each series by its name
// with labels.
struct Exposition {
  std::map<std::string, std::string> types;
  std::map<std::string, double> values;
  std::set<std::string> helped;

  // The sum of all series of a metric, or of those with these labels.
  double Sum(const std::string& name, const std::string& labels = "") const {
    double sum = 0;
    for (const auto& [series, value] : values) {
      const bool same = series == name || series.rfind(name + "{", 0) == 0;
      if (same && series.find(labels) != std::string::npos) sum += value;
    }
    return sum;
  }
};

Exposition Scrape(std::uint16_t port) {
  const std::string answer = Get(port, "/metrics");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(answer, HasSubstr("text/plain"));
  Exposition exposition;
  std::istringstream lines(answer.substr(std::min(answer.find("\r\n\r\n"), answer.size())));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string first;
    std::string second;
    std::string third;
    words >> first >> second >> third;
    if (first == "#" && second == "TYPE") words >> exposition.types[third];
    if (first == "#" && second == "HELP") exposition.helped.insert(third);
    if (!first.empty() && first != "#") {
      const auto space = line.rfind(' ');
      exposition.values[line.substr(0, space)] = std::stod(line.substr(space));
    }
  }
  return exposition;
}

// TCP ports that a process listens at, counted.
std::size_t ListeningSockets(pid_t pid) {
  const std::string proc = fmt::format("/proc/{}/", pid);
  std::set<std::string> own;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir((proc + "fd").c_str()), ::closedir);
  for (const dirent* entry = ::readdir(folder.get()); entry != nullptr;
       entry = ::readdir(folder.get())) {
    std::array<char, 64> target{};
    const auto length = ::readlink((proc + "fd/" + entry->d_name).c_str(), target.data(), 63);
    if (length > 0) own.insert(target.data());
  }
  std::size_t count = 0;
  for (const char* table : {"net/tcp", "net/tcp6"}) {
    std::ifstream file(proc + table);
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::array<std::string, 10> word;
      for (std::string& each : word) words >> each;
      if (word[3] == "0A" && own.count("socket:[" + word[9] + "]") > 0) ++count;
    }
  }
  return count;
}

using Words = std::vector<std::string>;

// The program, in a network namespace where one is named.
std::unique_ptr<PeerProcess> StartFerry(const Words& words, const std::string& network = "") {
  Words command;
  if (!network.empty()) command = {"/usr/bin/env", "ip", "netns", "exec", network};
  command.emplace_back(FERRY_BINARY);
  command.insert(command.end(), words.begin(), words.end());
  return Must(PeerProcess::StartProgram(command));
}

struct Finished {
  int exit_code = -1;
  json first;  // line of its output
};
Finished Finish(PeerProcess* program) {
  Finished finished;
  if (auto line = program->Hear(TestDeadline()))
    finished.first = json::parse(*line, nullptr, false);
  while (program->Hear(TestDeadline())) {
  }
  finished.exit_code = Must(program->WaitExit(TestDeadline()));
  return finished;
}

struct Server {
  explicit Server(const Words& more = {}, const std::string& network = "") {
    Words words{"perf", "server", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    process = StartFerry(words, network);
    const json line = json::parse(Must(process->Hear(TestDeadline())), nullptr, false);
    port = line.value("port", std::uint16_t{0});
    metrics = line.value("metrics_port", std::uint16_t{0});
  }
  std::unique_ptr<PeerProcess> process;
  std::uint16_t port = 0;
  std::uint16_t metrics = 0;
};
const Words kLoopback{"--listen", "127.0.0.1", "--port", "0"};
Words With(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(Metrics, ATransferMovesTheCountersThatAreServed) {
  Server server(With(kLoopback, {"--set", "metrics_address=:0"}));
  ASSERT_NE(server.metrics, 0);
  const Exposition before = Scrape(server.metrics);
  EXPECT_EQ(before.Sum("ferry_connections"), 0);
  EXPECT_EQ(before.Sum("ferry_bytes_received_total"), 0);
  const auto client =
      StartFerry({"perf", "client", fmt::format("127.0.0.1:{}", server.port), "--json", "--op",
                  "write", "--size", "1MiB", "--iters", "5", "--rounds", "1", "--no-floor"});
  const Finished done = Finish(client.get());
  EXPECT_EQ(done.exit_code, 0);
  EXPECT_EQ(done.first["transport"].value("retries", -1), 0);
  EXPECT_EQ(done.first["transport"]["lanes"].value("lo", 0), done.first.value("lanes", -1));

  const Exposition after = Scrape(server.metrics);
  EXPECT_GE(after.Sum("ferry_payload_bytes_received_total", "peer=\"127.0.0.1\""), 5 << 20);
  EXPECT_GE(after.Sum("ferry_bytes_received_total", "lane=\"0\""), 1);
  EXPECT_GE(after.Sum("ferry_frames_received_total"), 5);
  EXPECT_EQ(after.Sum("ferry_connections_accepted_total"), 1);
  EXPECT_GE(after.Sum("ferry_operations_ended_total", "outcome=\"ok\""), 1);
  EXPECT_EQ(after.Sum("ferry_checksum_mismatches_total"), 0);
}

TEST(Metrics, EverySeriesHasANameATypeAndHelpAsPrometheusAsksFor) {
  Server server(With(kLoopback, {"--set", "metrics_address=127.0.0.1:0"}));
  EnginePeer peer(FastSettings());
  peer.ConnectTo(fmt::format("127.0.0.1:{}", server.port));
  Exposition exposition = Scrape(server.metrics);
  // The server may have yet to bring its side up.
  const Deadline timeout = TestDeadline();
  while (exposition.Sum("ferry_connections") != 1 && !timeout.expired()) {
    exposition = Scrape(server.metrics);
  }
  EXPECT_GE(exposition.types.size(), 20U);
  for (const auto& [name, type] : exposition.types) {
    if (name.rfind("exposer_", 0) == 0) continue;  // the library's own
    const bool total = name.size() > 6 && name.substr(name.size() - 6) == "_total";
    EXPECT_THAT(name, StartsWith("ferry_"));
    EXPECT_EQ(type, total ? "counter" : "gauge") << name;
    EXPECT_EQ(exposition.helped.count(name), 1U) << name;
  }
  EXPECT_EQ(exposition.Sum("ferry_connections"), 1);
  EXPECT_GE(exposition.Sum("ferry_lanes", "interface=\"lo\""), 1);
  EXPECT_EQ(exposition.types.at("ferry_tcp_round_trip_seconds"), "gauge");
}

TEST(Metrics, NothingListensUnlessAsked) {
  Server plain(kLoopback);
  EXPECT_EQ(plain.metrics, 0);
  EXPECT_EQ(ListeningSockets(plain.process->pid()), 1U);
  Server measured(With(kLoopback, {"--set", "metrics_address=:0"}));
  EXPECT_EQ(ListeningSockets(measured.process->pid()), 2U);
}

// Regression: the second process of a host had no endpoint.
TEST(Metrics, ProcessesThatShareASettingTakeOnePortAfterTheOther) {
  Config config = ConfigOf(FastSettings());
  config.metrics_address = "127.0.0.1:0";
  const auto first = transfer::Endpoint::Create(config);
  ASSERT_TRUE(first) << first.error().ToString();
  const std::string shared = fmt::format("metrics_address=:{}", first->metrics_port());
  Server second(With(kLoopback, {"--set", shared}));
  Server third(With(kLoopback, {"--set", shared}));
  EXPECT_GT(second.metrics, first->metrics_port());
  EXPECT_GT(third.metrics, second.metrics);
  for (const std::uint16_t port : {first->metrics_port(), second.metrics, third.metrics}) {
    EXPECT_THAT(Get(port, "/metrics"), HasSubstr("ferry_connections 0"));
  }
}

TEST(Metrics, WhichPortIsServedIsSaidWhereItIsNotTheOneOfTheSetting) {
  Config config = ConfigOf(FastSettings());
  config.metrics_address = "127.0.0.1:0";
  const auto first = Must(transfer::Endpoint::Create(config));
  config.metrics_address = fmt::format(":{}", first.metrics_port());
  testing::internal::CaptureStderr();
  const auto second = Must(transfer::Endpoint::Create(config));
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr(fmt::format("metrics of this endpoint are at 127.0.0.1:{}: the ports from "
                                    "{} on are in use",
                                    second.metrics_port(), first.metrics_port())));
}

TEST(Metrics, AnAddressOfAnotherMachineIsAnError) {
  Config config = ConfigOf(FastSettings());
  config.metrics_address = "192.0.2.1:9100";
  const auto endpoint = transfer::Endpoint::Create(config);
  ASSERT_FALSE(endpoint);
  EXPECT_THAT(endpoint.error().message(), HasSubstr("cannot serve metrics at 192.0.2.1:9100"));
}

// Regression: prometheus-cpp's server ignored the signal for the whole program.
TEST(Metrics, TheProgramKeepsItsDispositionOfSigpipe) {
  Config config = ConfigOf(FastSettings());
  config.metrics_address = ":0";
  struct sigaction before {};
  struct sigaction after {};
  (void)::sigaction(SIGPIPE, nullptr, &before);
  {
    const auto endpoint = Must(transfer::Endpoint::Create(config));
    (void)::sigaction(SIGPIPE, nullptr, &after);
    EXPECT_EQ(after.sa_handler, before.sa_handler);
  }
  // Not by a thread of the server that began later, either; with its end all of them have.
  (void)::sigaction(SIGPIPE, nullptr, &after);
  EXPECT_EQ(after.sa_handler, before.sa_handler);
}

TEST(Metrics, TheServerEndsWithItsEndpoint) {
  Config config = ConfigOf(FastSettings());
  config.metrics_address = ":0";
  std::uint16_t port = 0;
  {
    const auto endpoint = Must(transfer::Endpoint::Create(config));
    port = endpoint.metrics_port();
    EXPECT_THAT(Get(port, "/metrics"), HasSubstr("ferry_connections 0"));
  }
  EXPECT_EQ(Get(port, "/metrics"), "");
}

TEST(InfoPeer, ShowsRouteAndLanesOfAServerOnThisMachine) {
  Server server(kLoopback);
  const auto program =
      StartFerry({"info", "--json", "--peer", fmt::format("127.0.0.1:{}", server.port)});
  const Finished info = Finish(program.get());
  EXPECT_EQ(info.exit_code, 0);
  const json peer = info.first.value("peer", json::object());
  ASSERT_EQ(peer.value("routes", json::array()).size(), 1U) << info.first;
  EXPECT_EQ(peer["routes"][0].value("interface", ""), "lo");
  EXPECT_TRUE(peer["routes"][0].value("used", false));
  const json lanes = peer.value("connection", json::object()).value("lanes", json::array());
  ASSERT_GE(lanes.size(), 1U) << info.first;
  for (const json& lane : lanes) {
    EXPECT_TRUE(lane.value("up", false));
    EXPECT_EQ(lane.value("interface", ""), "lo");
    EXPECT_EQ(lane.value("remote", ""), fmt::format("127.0.0.1:{}", server.port));
    EXPECT_NE(lane.value("congestion_control", ""), "");
    EXPECT_GT(lane.value("frames_sent", 0), 0);
  }
}

TEST(InfoPeer, APeerThatDoesNotAnswerIsCode3WithItsRoute) {
  const auto program = StartFerry({"info", "--json", "--peer", "127.0.0.1:1"});
  const Finished info = Finish(program.get());
  EXPECT_EQ(info.exit_code, 3);
  const json peer = info.first.value("peer", json::object());
  EXPECT_EQ(peer["routes"][0].value("source", ""), "127.0.0.1");
  EXPECT_EQ(peer["error"].value("code", ""), "PeerLost") << info.first;
}

TEST(InfoPeer, ShowsEveryLinkThatLanesUse) {
  if (const auto missing = NetworkPair::Missing()) GTEST_SKIP() << *missing;
  PairOptions options;
  options.links = {{1000}, {1000}};
  const NetworkPair network(options);
  const Server server({"--insecure"}, network.far());
  const std::string address = fmt::format("{}:{}", network.FarAddress(0), server.port);
  const auto both = StartFerry({"info", "--json", "--insecure", "--peer", address}, network.near());
  const Finished shown = Finish(both.get());
  EXPECT_EQ(shown.exit_code, 0);
  std::set<std::string> interfaces;
  for (const json& lane : shown.first["peer"]["connection"]["lanes"]) {
    interfaces.insert(lane.value("interface", ""));
  }
  EXPECT_EQ(interfaces, (std::set<std::string>{"l0", "l1"})) << shown.first["peer"];
  for (const json& one : shown.first["interfaces"]) {
    if (one.value("interface", "").front() != 'l' || one.value("interface", "") == "lo") continue;
    EXPECT_EQ(one.value("mtu", 0), options.mtu);
    EXPECT_EQ(one.value("state", ""), "up");
  }

  const auto one =
      StartFerry({"info", "--json", "--insecure", "--set", "interfaces=l0", "--peer", address},
                 network.near());
  const Finished limited = Finish(one.get());
  for (const json& lane : limited.first["peer"]["connection"]["lanes"]) {
    EXPECT_EQ(lane.value("interface", ""), "l0");
  }
  bool left_out = false;
  for (const json& each : limited.first["interfaces"]) {
    if (each.value("interface", "") == "l1" && each["address"].get<std::string>()[0] == '1') {
      left_out = each.value("why_not", "") == "left out by FERRY_INTERFACES=l0";
    }
  }
  EXPECT_TRUE(left_out) << limited.first["interfaces"];
}

}  // namespace
}  // namespace ferry::tests
