// Implements the parent's handle of a peer process with an endpoint.

#include "tests/support/engine_peer.h"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <sstream>
#include <utility>

#include "ferry/core/crc32c.h"
#include "tests/links/load_meter.h"

namespace ferry::tests {
namespace {

constexpr milliseconds kJudgedSlack{100};
constexpr milliseconds kMinSlack{kSanitized ? 1500 : 250};
// An end is several steps, of this process and of another, each of which may be that late.
constexpr int kSlackForLateness = 10;

}  // namespace

Settings FastSettings(const Settings& more) {
  Settings settings = {"listen_host=127.0.0.1",
                       fmt::format("peer_timeout={}", kPeerTimeout.count()),
                       fmt::format("heartbeat_interval={}", kHeartbeat.count()),
                       fmt::format("drain_grace={}", kDrainGrace.count())};
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

Settings PacedSettings(const Settings& more) {
  Settings settings = FastSettings(more);
  settings.insert(settings.begin(), {"lanes=2", "lane_rate_bytes=64MiB"});
  return settings;
}

std::string LastingPorts() {
  constexpr int kFirst = 10000;  // below ip_local_port_range
  constexpr int kEach = 64;
  const int first = kFirst + kEach * (::getpid() % 300);
  return fmt::format("port_range={}-{}", first, first + kEach - 1);
}

Config ConfigOf(const Settings& settings) {
  Config config;
  for (const std::string& setting : settings) {
    const auto equals = setting.find('=');
    Must(config.Set(setting.substr(0, equals), setting.substr(equals + 1)));
  }
  return config;
}

bool RatesAreJudged() {
  const char* const asked = std::getenv("FERRY_TEST_RATES");
  return !kSanitized && asked != nullptr && std::string_view(asked) == "1";
}

milliseconds SlackFor(milliseconds late) {
  if (RatesAreJudged()) return kJudgedSlack;
  return kMinSlack + std::min(kSlackForLateness * late, kSlack);
}

void ExpectWithin(milliseconds took, milliseconds bound, std::string_view what) {
  fmt::print("{}: {} ms; the bound is {} ms\n", what, took.count(), bound.count());
  (void)std::fflush(stdout);
  const milliseconds late = WorstLateness();
  const milliseconds slack = SlackFor(late);
  EXPECT_LE(took.count(), (bound + slack).count())
      << what << " (" << slack.count() << " ms are added; the machine was up to " << late.count()
      << " ms late)";
}

// ---- PatternRegion ------------------------------------------------------------------------------

namespace {

GuardedMemory Patterned(std::size_t bytes, std::uint64_t seed) {
  GuardedMemory memory(bytes);
  Fill(memory.bytes(), seed);
  return memory;
}

}  // namespace

PatternRegion::PatternRegion(transfer::Endpoint& endpoint, GuardedMemory content,
                             transfer::Rights rights)
    : memory(std::move(content)), region(Must(endpoint.Register(memory.bytes(), rights))) {}

PatternRegion::PatternRegion(transfer::Endpoint& endpoint, std::size_t size, std::uint64_t seed,
                             transfer::Rights rights)
    : PatternRegion(endpoint, Patterned(size, seed), rights) {}

std::uint32_t PatternRegion::Digest() const { return Crc32c(memory.bytes()); }

// ---- EnginePeer ---------------------------------------------------------------------------------

EnginePeer::EnginePeer(const Settings& settings) : EnginePeer("", settings) {}

EnginePeer::EnginePeer(const std::string& network, const Settings& settings)
    : process_(Must(PeerProcess::Start("engine"))) {
  if (!network.empty()) Ask("namespace " + network);
  std::string command = "endpoint";
  for (const std::string& setting : settings) command += " " + setting;
  address_ = Must(transfer::EndpointAddress::Parse(FromHex(Ask(command))));
}

std::string EnginePeer::host_and_port() const { return address_.at.front().ToString(); }

std::string EnginePeer::Ask(const std::string& command) {
  Say(command);
  return Answer();
}

void EnginePeer::Accept() { Ask("accept"); }

void EnginePeer::AcceptAll() { Ask("accept_all"); }

int EnginePeer::Accepted() { return std::stoi(Ask("accepted")); }

transfer::Connection EnginePeer::AcceptedBy(transfer::Endpoint& endpoint) {
  Say("connect " + ToHex(endpoint.address().Serialize()));
  transfer::Connection connection = Must(endpoint.Accept(TestDeadline()));
  Answer();
  return connection;
}

std::vector<std::byte> EnginePeer::Region(const std::string& name, std::uint64_t bytes,
                                          std::uint64_t seed, const std::string& rights) {
  return FromHex(Ask(fmt::format("region {} {} {} {}", name, bytes, seed, rights)));
}

std::vector<std::byte> EnginePeer::RepeatedRegion(const std::string& name, std::uint64_t bytes) {
  return FromHex(Ask(fmt::format("repeated_region {} {}", name, bytes)));
}

void EnginePeer::Deregister(const std::string& name) { Ask("deregister " + name); }

void EnginePeer::Fill(const std::string& name, std::uint64_t seed) {
  Ask(fmt::format("fill {} {}", name, seed));
}

void EnginePeer::AwaitChange(const std::string& name, std::uint64_t word, std::uint64_t seed) {
  Ask(fmt::format("await_change {} {} {}", name, word, seed));
}

std::uint32_t EnginePeer::Digest(const std::string& name) {
  return static_cast<std::uint32_t>(std::stoul(Ask("digest " + name)));
}

Census EnginePeer::TakeCensus(const std::string& name, std::uint64_t before, std::uint64_t after) {
  std::istringstream answer(Ask(fmt::format("census {} {} {}", name, before, after)));
  Census census;
  answer >> census.before >> census.after >> census.foreign;
  return census;
}

void EnginePeer::PostWrite(const std::string& local, const transfer::Region& remote) {
  Ask(fmt::format("write {} {}", local, ToHex(remote.key())));
}

void EnginePeer::PostRead(const std::string& local, const transfer::Region& remote) {
  Ask(fmt::format("read {} {}", local, ToHex(remote.key())));
}

std::string EnginePeer::Outcome() { return Ask("outcome"); }

std::string EnginePeer::TakeNotification(milliseconds wait) {
  return Ask(fmt::format("notification {}", wait.count()));
}

std::uint64_t EnginePeer::Refusals() { return std::stoull(Ask("refusals")); }

EnginePeer::MemoryUse EnginePeer::Memory() {
  std::istringstream words(Ask("memory"));
  MemoryUse use;
  words >> use.held >> use.resident >> use.connections;
  return use;
}

void EnginePeer::ConnectTo(const std::string& where) { Ask("connect " + where); }

void EnginePeer::Use(int connection) { Ask(fmt::format("use {}", connection)); }

std::vector<std::string> EnginePeer::Interfaces() {
  std::istringstream words(Ask("interfaces"));
  return {std::istream_iterator<std::string>(words), {}};
}

void EnginePeer::Pump(const std::string& local, const std::vector<std::byte>& key, bool reads) {
  Ask(fmt::format("pump {} {} {}", local, ToHex(key), reads ? "reads" : "writes"));
}

std::uint64_t EnginePeer::Pumped() { return std::stoull(Ask("pumped")); }

std::string EnginePeer::StopPump() { return Ask("stop_pump"); }

void EnginePeer::Vanish() {
  Say("vanish");
  (void)Must(process_->WaitExit(TestDeadline()));
}

int EnginePeer::Quit() {
  Say("quit");
  return Must(process_->WaitExit(TestDeadline()));
}

LinkedPeer::LinkedPeer(const Settings& settings)
    : peer(settings),
      endpoint(Must(transfer::Endpoint::Create(ConfigOf(settings)))),
      connection(Must(endpoint.Connect(peer.address(), TestDeadline()))) {
  peer.Accept();
}

}  // namespace ferry::tests
