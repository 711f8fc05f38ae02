// Tests the promises about fork(2): memory and descriptors that a process has released stay
// released although a child has its descriptors, and a child can neither use nor harm its parent's
// objects and keeps none of them alive.

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ferry/core/check.h"
#include "ferry/core/log.h"
#include "ferry/core/testing/forked_child.h"
#include "ferry/core/units.h"
#include "tests/support/engine_peer.h"

namespace ferry::tests {
namespace {

using testing::HasSubstr;
using transfer::Connection;
using transfer::Endpoint;
using transfer::Operation;
using transfer::Region;
using transfer::RemoteRegion;
using transfer::Rights;
using transfer::TransferPart;
using ForkWay = PeerProcess::Way;

constexpr std::uint64_t kForkBulk = 64 * kMiB;
constexpr std::uint64_t kForkSmall = 4 * kMiB;
constexpr std::uint64_t kForkEarlyWord = kForkBulk / 8 / sizeof(std::uint64_t);

// Anonymous memory; what is shared a forked child shares with its parent.
class ForkMemory {
 public:
  ForkMemory(std::size_t bytes, bool shared) {
    void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            (shared ? MAP_SHARED : MAP_PRIVATE) | MAP_ANONYMOUS, -1, 0);
    FERRY_CHECK(at != MAP_FAILED, errno);
    bytes_ = {static_cast<std::byte*>(at), bytes};
  }
  ~ForkMemory() { (void)::munmap(bytes_.data(), bytes_.size()); }
  ForkMemory(const ForkMemory&) = delete;
  ForkMemory& operator=(const ForkMemory&) = delete;
  std::span<std::byte> bytes() const noexcept { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

// A child that keeps what it has been given until the test ends it.
std::unique_ptr<PeerProcess> Bystander(ForkWay way) {
  return Must(PeerProcess::Fork(
      [](LinePipe& /*parent*/) -> int {
        for (;;) ::pause();
      },
      way));
}

// A process with an endpoint and one region, whose memory this one sees, too. To be made before
// this process has an endpoint.
class SeenPeer {
 public:
  SeenPeer(std::uint64_t bytes, const Settings& settings) : memory_(bytes, /*shared=*/true) {
    Fill(memory_.bytes(), kPeerInSeed);
    process_ = Must(PeerProcess::Fork([&](LinePipe& parent) { return Serve(parent, settings); }));
    address_ =
        Must(transfer::EndpointAddress::Parse(FromHex(Must(process_->Hear(TestDeadline())))));
    key_ = FromHex(Must(process_->Hear(TestDeadline())));
  }

  PeerProcess& process() noexcept { return *process_; }
  std::span<std::byte> memory() const noexcept { return memory_.bytes(); }
  const transfer::EndpointAddress& address() const noexcept { return address_; }
  const std::vector<std::byte>& key() const noexcept { return key_; }
  // After it was said that the connection is lost nobody writes the memory.
  std::string AwaitLoss() { return Must(process_->Hear(TestDeadline())); }
  Census TakeCensusNow() const { return TakeCensus(memory(), kPeerInSeed, kSourceSeed); }

 private:
  int Serve(LinePipe& parent, const Settings& settings) {
    Endpoint endpoint = Must(Endpoint::Create(ConfigOf(settings)));
    Region region = Must(endpoint.Register(memory_.bytes(), Rights::kReadWrite));
    MustDo(parent.Say(ToHex(endpoint.address().Serialize()), TestDeadline()));
    MustDo(parent.Say(ToHex(region.key()), TestDeadline()));
    Connection connection = Must(endpoint.Accept(TestDeadline()));
    const auto lost = connection.TakeNotification(Deadline::After(2 * kTimeout));
    MustDo(region.Deregister(TestDeadline()));
    MustDo(parent.Say(lost ? "a notification" : Described(lost.error()), TestDeadline()));
    (void)parent.Hear(Deadline::After(2 * kTimeout));
    return 0;
  }

  ForkMemory memory_;
  std::unique_ptr<PeerProcess> process_;
  transfer::EndpointAddress address_;
  std::vector<std::byte> key_;
};

// An endpoint with a connection to such a peer, and a region to write from.
struct ForkLink {
  ForkLink(std::uint64_t bytes, const Settings& peers, const Settings& ours, bool shared = false)
      : peer(bytes, peers),
        memory(bytes, shared),
        endpoint(Must(Endpoint::Create(ConfigOf(ours)))),
        connection(Must(endpoint.Connect(peer.address(), TestDeadline()))),
        remote(Must(connection.Import(peer.key()))),
        source((Fill(memory.bytes(), kSourceSeed),
                Must(endpoint.Register(memory.bytes(), Rights::kReadWrite)))) {}
  explicit ForkLink(std::uint64_t bytes) : ForkLink(bytes, FastSettings(), FastSettings()) {}

  Operation Write(milliseconds wait) {
    std::vector<TransferPart> parts(1);
    parts[0].local = &source;
    parts[0].remote = &remote;
    parts[0].blocks.Add({.dst = 0, .src = 0, .len = memory.bytes().size()});
    return Must(connection.Write(Must(connection.PrepareWrite(std::move(parts))),
                                 {.deadline = Deadline::After(wait)}));
  }

  // A whole write, seen in the peer's memory.
  void ExpectAtWork() {
    Fill(peer.memory(), kPeerInSeed);
    const Status written = Write(kTimeout).Wait(TestDeadline());
    EXPECT_TRUE(written) << written.error().ToString();
    EXPECT_EQ(peer.TakeCensusNow().after, peer.memory().size());
    EXPECT_FALSE(connection.lost());
  }

  SeenPeer peer;
  ForkMemory memory;
  Endpoint endpoint;
  Connection connection;
  RemoteRegion remote;
  Region source;
};

// With a receive that waits for a message, on a connection that has been used.
struct ReceivingLink : ForkLink {
  ReceivingLink()
      : ForkLink(kForkSmall), receive((ExpectAtWork(), Must(connection.Recv(7, ~0ull, buffer)))) {}

  std::vector<std::byte> buffer = std::vector<std::byte>(100);
  Operation receive;
};

// ---- what a process has given up ----------------------------------------------------------------

struct HeldCase {
  std::string name;
  ForkWay way;
  bool shared;
  Settings settings;
};
void PrintTo(const HeldCase& held, std::ostream* out) { *out << held.name; }

std::vector<HeldCase> HeldCases() {
  const Settings tls = {"tls=psk", "secret=a secret of sixteen bytes or more"};
  std::vector<HeldCase> cases;
  for (const ForkWay way : {ForkWay::kFork, ForkWay::kClone}) {
    for (const bool shared : {false, true}) {
      const std::string name = fmt::format("{}_{}", way == ForkWay::kFork ? "forked" : "cloned",
                                           shared ? "shared" : "private");
      cases.push_back({name + "_copied", way, shared, {"zero_copy_send=off"}});
      cases.push_back({name + "_zero_copy", way, shared, {"zero_copy_send=on"}});
      cases.push_back({name + "_tls", way, shared, tls});
    }
  }
  return cases;
}

class HeldDescriptors : public testing::TestWithParam<HeldCase> {
 protected:
  enum class End { kCancel, kDeadline, kPeerTimeout };

  // The bytes that came into the frozen peer's memory after the write had ended.
  static std::uint64_t PlacedAfter(End end) {
    const HeldCase& held = GetParam();
    Settings ours = PacedSettings(held.settings);
    if (end != End::kPeerTimeout) ours.emplace_back("peer_timeout=30s");
    ForkLink link(kForkBulk, PacedSettings(held.settings), ours, held.shared);
    Operation write = link.Write(end == End::kDeadline ? milliseconds(1000) : kTimeout);
    EXPECT_TRUE(WaitForChange(link.peer.memory(), kForkEarlyWord, kPeerInSeed, TestDeadline()));
    const auto bystander = Bystander(held.way);
    MustDo(link.peer.process().Stop(TestDeadline()));
    if (end == End::kCancel) write.Cancel();
    EXPECT_FALSE(write.Wait(TestDeadline())) << "the write was over before the peer was stopped";
    const auto now = link.peer.memory();
    const std::vector<std::byte> at_end(now.begin(), now.end());
    Fill(link.memory.bytes(), kLaterSeed);
    link.peer.process().Continue();
    EXPECT_THAT(link.peer.AwaitLoss(), HasSubstr("PeerLost"));
    std::uint64_t placed = 0;
    for (std::size_t i = 0; i < at_end.size(); ++i) placed += at_end[i] == now[i] ? 0 : 1;
    fmt::print("{}: {} bytes were placed after the end\n", held.name, placed);
    return placed;
  }

  // The peer looks for a reset before each read. A stop right between the two lets that read go on,
  // which does not happen every time. With TLS a read is long, since it decrypts what was read
  // ahead (kTlsReadAhead) and a record, so that a stop in the middle of it is likely.
  static void ExpectNothingPlacedAfter(End end) {
    constexpr int kAttempts = 3;
    constexpr std::uint64_t kReadsOfBothLanes = 2 * (128 + 32) * kKiB;
    const std::uint64_t most = GetParam().settings.front() == "tls=psk" ? kReadsOfBothLanes : 0;
    for (int i = 0; i < kAttempts; ++i) {
      if (PlacedAfter(end) <= most || HasFailure()) return;
    }
    FAIL() << "bytes were placed after the end in each of " << kAttempts << " attempts";
  }
};
INSTANTIATE_TEST_SUITE_P(Fork, HeldDescriptors, testing::ValuesIn(HeldCases()),
                         [](const auto& held) { return held.param.name; });

TEST_P(HeldDescriptors, OfAWriteThatWasCancelledSendNothingMore) {
  FERRY_SKIP_FORK_TEST();
  ExpectNothingPlacedAfter(End::kCancel);
}

TEST_P(HeldDescriptors, OfAWriteWhoseDeadlinePassedSendNothingMore) {
  FERRY_SKIP_FORK_TEST();
  ExpectNothingPlacedAfter(End::kDeadline);
}

TEST_P(HeldDescriptors, OfAWriteWhosePeerWasLostSendNothingMore) {
  FERRY_SKIP_FORK_TEST();
  ExpectNothingPlacedAfter(End::kPeerTimeout);
}

TEST(Fork, AListeningPortIsFreeAndRefusesWhenItsEndpointHasEndedAlthoughAChildHasIt) {
  FERRY_SKIP_FORK_TEST();
  for (const ForkWay way : {ForkWay::kFork, ForkWay::kClone}) {
    std::optional<Endpoint> first =
        Must(Endpoint::Create(ConfigOf(FastSettings({LastingPorts()}))));
    const std::uint16_t port = first->port();
    const auto bystander = Bystander(way);
    first.reset();
    Endpoint other = Must(Endpoint::Create(ConfigOf(FastSettings())));
    const auto nobody = other.Connect(fmt::format("127.0.0.1:{}", port), TestDeadline());
    ASSERT_FALSE(nobody);
    EXPECT_EQ(nobody.error().code(), Code::kPeerLost) << nobody.error().ToString();
    const auto again =
        Endpoint::Create(ConfigOf(FastSettings({fmt::format("port_range={}-{}", port, port)})));
    EXPECT_TRUE(again) << again.error().ToString();
  }
}

// Only of a forked child: the socket is that of a library.
TEST(Fork, TheMetricsPortIsFreeWhenItsEndpointHasEndedAlthoughAChildLives) {
  FERRY_SKIP_FORK_TEST();
  const auto create = [](std::uint16_t port) {
    const std::string setting = fmt::format("metrics_address=127.0.0.1:{}", port);
    return Endpoint::Create(ConfigOf(FastSettings({setting})));
  };
  std::optional<Endpoint> first = Must(create(0));
  const std::uint16_t port = first->metrics_port();
  if (port == 0) GTEST_SKIP() << "a build without prometheus-cpp";
  const auto bystander = Bystander(ForkWay::kFork);
  first.reset();
  const auto again = create(port);
  ASSERT_TRUE(again) << again.error().ToString();
  EXPECT_EQ(again->metrics_port(), port);
}

TEST(Fork, APeerSeesTheOrderlyEndOfAConnectionAlthoughAChildHasIt) {
  FERRY_SKIP_FORK_TEST();
  for (const ForkWay way : {ForkWay::kFork, ForkWay::kClone}) {
    ForkLink link(kForkSmall, FastSettings({"peer_timeout=60s"}), FastSettings());
    link.ExpectAtWork();
    const auto bystander = Bystander(way);
    const Stopwatch since;
    link.connection.Close();
    EXPECT_THAT(link.peer.AwaitLoss(), HasSubstr("PeerLost"));
    ExpectWithin(since.elapsed(), milliseconds(0), "the end as the peer sees it");
  }
}

// ---- what a child holds -------------------------------------------------------------------------

// The kinds of the open descriptors of a process, except files.
std::multiset<std::string> NamesOfDescriptors() {
  std::multiset<std::string> kinds;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    const bool counts = target.rfind("socket:", 0) == 0 || target.rfind("pipe:", 0) == 0 ||
                        target.rfind("anon_inode:", 0) == 0;
    if (counts) kinds.insert(target);
  }
  return kinds;
}

TEST(Fork, AChildHasNoneOfItsParentsDescriptors) {
  FERRY_SKIP_FORK_TEST();
  SeenPeer peer(kForkBulk, PacedSettings({"zero_copy_send=on"}));
  const auto before = NamesOfDescriptors();
  Endpoint endpoint = Must(Endpoint::Create(ConfigOf(PacedSettings({"zero_copy_send=on"}))));
  Connection connection = Must(endpoint.Connect(peer.address(), TestDeadline()));
  const PatternRegion source(endpoint, kForkBulk, kSourceSeed);
  const auto remote = Must(connection.Import(peer.key()));
  Operation write = Must(connection.Write(source.region, 0, remote, 0, kForkBulk));
  (void)Must(write.CompletionFd());
  ASSERT_TRUE(WaitForChange(peer.memory(), kForkEarlyWord, kPeerInSeed, TestDeadline()));
  EXPECT_GT(NamesOfDescriptors().size(), before.size() + 6);

  const auto child = Must(PeerProcess::Fork([&](LinePipe& parent) {
    std::string more;
    for (const std::string& open : NamesOfDescriptors()) {
      if (before.count(open) == 0) more += open + " ";
    }
    return parent.Say(more, TestDeadline()) ? 0 : 1;
  }));
  const std::string more = Must(child->Hear(TestDeadline()));
  // Its end of the pipe to this test.
  EXPECT_EQ(std::count(more.begin(), more.end(), ' '), 1) << more;
  EXPECT_TRUE(write.Wait(TestDeadline()));
  EXPECT_EQ(peer.TakeCensusNow().after, kForkBulk);
}

TEST(Fork, AProgramThatIsRunHasNoneOfTheDescriptors) {
  FERRY_SKIP_FORK_TEST();
  const auto before = NamesOfDescriptors();
  ForkLink link(kForkSmall, FastSettings({"zero_copy_send=on"}),
                FastSettings({"zero_copy_send=on"}));
  link.ExpectAtWork();
  const auto run = Must(
      PeerProcess::StartProgram({"/bin/sh", "-c", "ls -l /proc/self/fd; echo; echo end of list"}));
  std::string more;
  for (std::string line; line != "end of list"; line = Must(run->Hear(TestDeadline()))) {
    const auto arrow = line.find("-> ");
    if (arrow == std::string::npos) continue;
    const std::string target = line.substr(arrow + 3);
    const bool ours = target.rfind("socket:", 0) == 0 || target.rfind("anon_inode:", 0) == 0;
    if (ours && before.count(target) == 0) more += target + " ";
  }
  // Its standard output, which this test hears.
  EXPECT_LE(std::count(more.begin(), more.end(), ' '), 1) << more;
}

TEST(Fork, APeerNoticesTheDeathOfAProcessWhoseChildLivesOn) {
  FERRY_SKIP_FORK_TEST();
  const auto dying = Must(PeerProcess::Fork([](LinePipe& parent) {
    const auto address =
        Must(transfer::EndpointAddress::Parse(FromHex(Must(parent.Hear(TestDeadline())))));
    Endpoint endpoint = Must(Endpoint::Create(ConfigOf(FastSettings({"peer_timeout=60s"}))));
    Connection connection = Must(endpoint.Connect(address, TestDeadline()));
    // Not tied to its parent's life.
    const pid_t child = ::fork();
    if (child == 0) {
      (void)parent.Hear(TestDeadline());
      ::_exit(0);
    }
    MustDo(parent.Say("ready", TestDeadline()));
    for (;;) ::pause();
    return 0;
  }));
  Endpoint endpoint = Must(Endpoint::Create(ConfigOf(FastSettings({"peer_timeout=60s"}))));
  dying->Command(ToHex(endpoint.address().Serialize()));
  Connection connection = Must(endpoint.Accept(TestDeadline()));
  ASSERT_EQ(Must(dying->Hear(TestDeadline())), "ready");
  const Stopwatch since;
  dying->Kill();
  const auto lost = connection.TakeNotification(Deadline::After(kTimeout / 3));
  ASSERT_FALSE(lost);
  EXPECT_EQ(lost.error().code(), Code::kPeerLost) << lost.error().ToString();
  ExpectWithin(since.elapsed(), milliseconds(0), "the loss of the process");
  dying->Command("end");  // to the child that is left
}

// ---- what a child may do ------------------------------------------------------------------------

// The faults of a child, one sentence each.
class Faults {
 public:
  template <class Outcome>
  void ExpectRefused(const char* call, const Outcome& outcome) {
    if (outcome) return Add(fmt::format("{} worked", call));
    const std::string said = Described(outcome.error());
    const bool clear = outcome.error().code() == Code::kInvalidArgument &&
                       said.find("made before fork()") != std::string::npos;
    if (!clear) Add(fmt::format("{} said: {}", call, said));
  }
  void Expect(const char* what, bool good) {
    if (!good) Add(what);
  }
  const std::string& text() const noexcept { return text_; }

 private:
  void Add(const std::string& fault) { text_ += fault + "; "; }
  std::string text_;
};

void CallConnection(Connection* connection, ForkLink* link, Faults* faults) {
  std::vector<std::byte> small(100);
  faults->ExpectRefused("Import", connection->Import(link->peer.key()));
  faults->ExpectRefused("PrepareWrite", connection->PrepareWrite({}));
  faults->ExpectRefused("PrepareRead", connection->PrepareRead({}));
  faults->ExpectRefused("Write", connection->Write(link->source, 0, link->remote, 0, 1));
  faults->ExpectRefused("Read", connection->Read(link->source, 0, link->remote, 0, 1));
  faults->ExpectRefused("Send", connection->Send(1, small));
  faults->ExpectRefused("Recv", connection->Recv(1, 1, small));
  faults->ExpectRefused("Notify", connection->Notify(small));
  faults->ExpectRefused("TakeNotification", connection->TakeNotification(TestDeadline()));
  faults->Expect("the connection is not lost", connection->lost());
  faults->Expect("there are lanes", connection->Info().lanes.empty());
  faults->Expect("there are counters", connection->Counters().lanes.empty());
  faults->Expect("there are events", connection->Events().empty());
  connection->Close();
}

void CallTheRest(ForkLink* link, Operation* operation, Faults* faults) {
  std::vector<std::byte> small(100);
  Endpoint& endpoint = link->endpoint;
  faults->ExpectRefused("Register", endpoint.Register(small, Rights::kRead));
  faults->ExpectRefused("Connect", endpoint.Connect(link->peer.address(), TestDeadline()));
  faults->ExpectRefused("Connect by name", endpoint.Connect("127.0.0.1:1", TestDeadline()));
  faults->ExpectRefused("Accept", endpoint.Accept(TestDeadline()));
  faults->Expect("there are connections", endpoint.Counters().connections.empty());
  (void)endpoint.address();
  endpoint.Close();
  faults->ExpectRefused("KeyFor", link->source.KeyFor(endpoint.id(), Rights::kRead));
  faults->ExpectRefused("Deregister", link->source.Deregister(TestDeadline()));
  link->source.Withdraw(endpoint.id());
  operation->Cancel();
  faults->Expect("the operation goes on", operation->Poll());
  faults->ExpectRefused("Wait", operation->Wait(TestDeadline()));
  faults->ExpectRefused("CompletionFd", operation->CompletionFd());
  faults->Expect("the operation moved bytes", operation->bytes() == 0 && operation->tag() == 0);
}

TEST(Fork, AChildIsToldThatWhatItHasIsItsParentsWhichGoesOn) {
  FERRY_SKIP_FORK_TEST();
  ReceivingLink link;
  const auto child = Must(PeerProcess::Fork([&](LinePipe& parent) {
    Faults faults;
    CallConnection(&link.connection, &link, &faults);
    CallTheRest(&link, &link.receive, &faults);
    return parent.Say(faults.text(), TestDeadline()) ? 0 : 1;
  }));
  EXPECT_EQ(Must(child->Hear(TestDeadline())), "");
  EXPECT_EQ(Must(child->WaitExit(TestDeadline())), 0);
  link.ExpectAtWork();
  EXPECT_FALSE(link.receive.Poll());
}

TEST(Fork, AChildLetsGoOfItsParentsObjectsAtOnce) {
  FERRY_SKIP_FORK_TEST();
  ReceivingLink link;
  const auto child = Must(PeerProcess::Fork([&](LinePipe& parent) {
    const auto start = Clock::now();
    {
      const Operation operation = std::move(link.receive);
      const Region region = std::move(link.source);
      const Connection connection = std::move(link.connection);
      const Endpoint endpoint = std::move(link.endpoint);
    }
    const auto took = std::chrono::duration_cast<microseconds>(Clock::now() - start);
    return parent.Say(fmt::format("{}", took.count()), TestDeadline()) ? 0 : 1;
  }));
  const double took = std::stod(Must(child->Hear(TestDeadline()))) / 1000;
  ExpectWithin(milliseconds(static_cast<int>(took)), milliseconds(100),
               "the destructors in the child");
  EXPECT_EQ(Must(child->WaitExit(TestDeadline())), 0);
  link.ExpectAtWork();
}

std::optional<Endpoint>& LastingEndpoint() {
  static std::optional<Endpoint> endpoint;
  return endpoint;
}

TEST(Fork, AChildEndsAtOnceByExitWithAnEndpointOfItsParentInStaticMemory) {
  FERRY_SKIP_FORK_TEST();
  LastingEndpoint() = Must(Endpoint::Create(ConfigOf(FastSettings({"devices=simulated:1"}))));
  std::vector<std::byte> memory(100);
  const Region region = Must(LastingEndpoint()->Register(memory, Rights::kRead));
  const Stopwatch since;
  const auto child = Must(PeerProcess::Fork([](LinePipe& /*parent*/) -> int { std::exit(7); }));
  EXPECT_EQ(Must(child->WaitExit(TestDeadline())), 7);
  ExpectWithin(since.elapsed(), milliseconds(100), "the child's end");
  LastingEndpoint().reset();
}

TEST(Fork, AChildMayHaveAnEndpointOfItsOwn) {
  FERRY_SKIP_FORK_TEST();
  const Settings settings = FastSettings({"devices=simulated:1"});
  Endpoint endpoint = Must(Endpoint::Create(ConfigOf(settings)));
  const PatternRegion target(endpoint, kForkSmall, kPeerInSeed);
  const std::string address = ToHex(endpoint.address().Serialize());
  const auto child = Must(PeerProcess::Fork([&](LinePipe& parent) {
    Endpoint own = Must(Endpoint::Create(ConfigOf(settings)));
    Connection connection =
        Must(own.Connect(Must(transfer::EndpointAddress::Parse(FromHex(address))), TestDeadline()));
    const PatternRegion source(own, kForkSmall, kSourceSeed);
    const auto remote = Must(connection.Import(FromHex(Must(parent.Hear(TestDeadline())))));
    MustDo(Must(connection.Write(source.region, 0, remote, 0, kForkSmall)).Wait(TestDeadline()));
    // The parent's region is not a place to write from.
    Faults faults;
    faults.ExpectRefused("a write from the parent's region",
                         connection.Write(target.region, 0, remote, 0, 1));
    connection.Close();
    return parent.Say(faults.text(), TestDeadline()) ? 0 : 1;
  }));
  const Connection accepted = Must(endpoint.Accept(TestDeadline()));
  child->Command(ToHex(target.region.key()));
  EXPECT_EQ(Must(child->Hear(TestDeadline())), "");
  EXPECT_EQ(Must(child->WaitExit(TestDeadline())), 0);
  EXPECT_EQ(TakeCensus(target.bytes(), kPeerInSeed, kSourceSeed).after, kForkSmall);
}

// Whatever mutex another thread has at that moment, a child does not wait for it.
TEST(Fork, ChildrenOfABusyProcessEndAtOnce) {
  FERRY_SKIP_FORK_TEST();
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "g++ 12's AddressSanitizer leaves a child its allocator's locks as other threads "
                  "of the parent held them";
#endif
  constexpr int kChildren = 15;
  ForkLink link(kForkSmall);
  std::atomic<bool> stop{false};
  std::vector<std::thread> busy;
  busy.emplace_back([&] {
    while (!stop.load()) (void)link.Write(kTimeout).Wait(TestDeadline());
  });
  busy.emplace_back([&] {
    while (!stop.load()) (void)link.endpoint.Counters();
  });
  busy.emplace_back([&] {
    while (!stop.load()) Log(LogLevel::kWarn, "test", "a line of the busy process");
  });
  // Where the lines go does not matter.
  const int kept = ::dup(STDERR_FILENO);
  FERRY_CHECK(std::freopen("/dev/null", "w", stderr) != nullptr, errno);
  for (int i = 0; i < kChildren && !HasFailure(); ++i) {
    const auto child = Must(PeerProcess::Fork([&](LinePipe& /*parent*/) {
      Log(LogLevel::kWarn, "test", "a line of the child");
      const bool refused = !link.endpoint.Register(link.memory.bytes(), Rights::kRead);
      const bool nothing = link.endpoint.Counters().connections.empty();
      Endpoint own = Must(Endpoint::Create(ConfigOf(FastSettings())));
      return refused && nothing ? 0 : 1;
    }));
    EXPECT_EQ(Must(child->WaitExit(TestDeadline())), 0);
  }
  stop.store(true);
  for (std::thread& thread : busy) thread.join();
  (void)std::fflush(stderr);
  (void)::dup2(kept, STDERR_FILENO);
  (void)::close(kept);
  link.ExpectAtWork();
}

}  // namespace
}  // namespace ferry::tests
