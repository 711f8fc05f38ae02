// Ranks that cannot work together, and those that are turned away before they are connected.
#include <dlfcn.h>
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ferry/net/tcp/frame_prefix.h"
#include "ferry/net/testing/bad_address.h"
#include "ferry/net/testing/fault_proxy.h"
#include "ferry/net/testing/raw_peer.h"
#include "ferry/session/testing/conformance.h"
#include "plugins/nccl/tests/nccl_peer.h"
#include "plugins/nccl/tests/testing/nccl_host.h"
#include "plugins/nccl/tests/testing/raw_sender.h"
#include "plugins/nccl/wire.h"
#include "tests/links/load_meter.h"
#include "tests/support/engine_peer.h"
#include "tests/support/peer_process.h"

namespace ferry::nccl_net {
namespace {

using ::testing::HasSubstr;
using testing::Logged;
using testing::LoggedText;
using testing::NcclConnect;
using testing::NcclHost;
using testing::NcclListen;
using ::testing::Not;
using testing::PatternOf;
using testing::RawSender;
using testing::Require;
using testing::ScopedVariable;
using testing::WaitFor;
using tests::ExpectWithin;
using tests::PeerProcess;

Deadline RanksDeadline() { return Deadline::After(std::chrono::seconds(60)); }

testing::AskedPeer PeerWith(const char* name, const std::string& value) {
  // The variables that the plugin has set in this process.
  const ScopedVariable channels("NCCL_MIN_NCHANNELS", "");
  const ScopedVariable chunk("NCCL_P2P_NET_CHUNKSIZE", "");
  const ScopedVariable peer_channels("NCCL_NCHANNELS_PER_NET_PEER", "");
  const ScopedVariable channel_speed("NCCL_P2P_PER_CHANNEL_NET_BW", "");
  const ScopedVariable variable(name, value);
  return tests::Must(PeerProcess::Start(testing::kNcclRole));
}

int OutcomeOfConnect(NcclHost* host, const testing::Handle& handle) {
  NcclConnect connect(host, handle);
  const Deadline deadline = RanksDeadline();
  void* send = nullptr;
  int outcome = abi::kSuccess;
  while (outcome == abi::kSuccess && send == nullptr && !deadline.expired()) {
    outcome = connect.TryConnect(&send);
  }
  if (send != nullptr) Require((*host)->CloseSend(send), "closeSend");
  return outcome;
}

int OutcomeOfAccept(NcclHost* host, NcclListen* listen) {
  const Deadline deadline = RanksDeadline();
  void* recv = nullptr;
  int outcome = abi::kSuccess;
  while (outcome == abi::kSuccess && recv == nullptr && !deadline.expired()) {
    outcome = listen->TryAccept(&recv);
  }
  if (recv != nullptr) Require((*host)->CloseReceive(recv), "closeRecv");
  return outcome;
}

// Why the peer could not carry out its last command; "" where it could.
std::string FailureOf(testing::AskedPeer& peer) {
  try {
    peer.Answer();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

struct Setting {
  const char* name;      // of the test
  const char* variable;  // of the other rank, which has the default of all else
  std::string value;
  const char* what;  // that the errors name
  const char* ours;
  const char* theirs;
};

// Far below FERRY_CONNECT_TIMEOUT and FERRY_PEER_TIMEOUT, by which it would end otherwise.
constexpr std::chrono::seconds kRefusalTime{5};

class RanksThatDiffer : public ::testing::TestWithParam<Setting> {
 protected:
  std::string Said(const char* here, const char* there) const {
    return fmt::format("{} is {} here and {} at ", GetParam().what, here, there);
  }

  void SetUp() override {
    tests::RestartLoadMeter();
    since_ = {};
  }

  tests::Stopwatch since_;
  testing::AskedPeer peer_ = PeerWith(GetParam().variable, GetParam().value);
  NcclHost host_{FERRY_NCCL_PLUGIN, 12};
};

TEST_P(RanksThatDiffer, AreRefusedWithBothValuesAtBothEnds) {
  const testing::Handle handle = testing::HandleOf(peer_->Ask("listen"));
  peer_->Command("accept");
  EXPECT_EQ(OutcomeOfConnect(&host_, handle), abi::kInvalidUsage);
  EXPECT_THAT(FailureOf(peer_), HasSubstr(Said(GetParam().theirs, GetParam().ours)));
  EXPECT_TRUE(Logged(Said(GetParam().ours, GetParam().theirs))) << LoggedText();
  ExpectWithin(since_.elapsed(), kRefusalTime, "the refusal");
}

TEST_P(RanksThatDiffer, AreRefusedTheOtherWayToo) {
  NcclListen listen(&host_);
  peer_->Command("connect " + tests::ToHex(listen.handle()));
  EXPECT_EQ(OutcomeOfAccept(&host_, &listen), abi::kInvalidUsage);
  EXPECT_THAT(FailureOf(peer_), HasSubstr(Said(GetParam().theirs, GetParam().ours)));
  EXPECT_TRUE(Logged(Said(GetParam().ours, GetParam().theirs))) << LoggedText();
  ExpectWithin(since_.elapsed(), kRefusalTime, "the refusal");
}

constexpr const char* kTunerSetting = "NCCL's tuner (NCCL_TUNER_PLUGIN, libnccl-tuner.so)";
INSTANTIATE_TEST_SUITE_P(
    Nccl, RanksThatDiffer,
    ::testing::Values(
        Setting{"Channels", "FERRY_NCCL_CHANNELS", "4",
                "NCCL_MIN_NCHANNELS (which FERRY_NCCL_CHANNELS sets)", "8", "4"},
        Setting{"Devices", "FERRY_NCCL_DEVICES", "5",
                "the number of devices (set FERRY_NCCL_DEVICES=1 on all ranks)", "1", "5"},
        Setting{"Chunk", "NCCL_P2P_NET_CHUNKSIZE", "131072", "NCCL_P2P_NET_CHUNKSIZE", "524288",
                "131072"},
        Setting{"PeerChannels", "NCCL_NCHANNELS_PER_NET_PEER", "4", "NCCL_NCHANNELS_PER_NET_PEER",
                "not set", "4"},
        Setting{"ChannelSpeed", "NCCL_P2P_PER_CHANNEL_NET_BW", "14", "NCCL_P2P_PER_CHANNEL_NET_BW",
                "2", "14"},
        Setting{"NcclBefore228", testing::kNcclVersion, "22707", "NCCL_NCHANNELS_PER_NET_PEER",
                "not set", "8"},
        Setting{"NoTuner", "NCCL_TUNER_PLUGIN", "none", kTunerSetting, "this plugin's", "none"},
        Setting{"MissingTuner", "NCCL_TUNER_PLUGIN", "libno-such-tuner.so", kTunerSetting,
                "this plugin's", "named and not found"},
        Setting{"InstalledTuner", "LD_LIBRARY_PATH", FERRY_OTHER_TUNER_FOLDER, kTunerSetting,
                "this plugin's", "another library's"}),
    [](const auto& parameter) { return parameter.param.name; });

TEST(OtherTuner, ThatIsInstalledIsFoundWithoutLoadingItAndLeavesNcclAlone) {
  testing::AskedPeer peer = PeerWith("LD_LIBRARY_PATH", FERRY_OTHER_TUNER_FOLDER);
  EXPECT_EQ(peer->Ask("variable NCCL_MIN_NCHANNELS"), "");
  EXPECT_EQ(peer->Ask("variable FERRY_TEST_TUNER_LOADED"), "");
  peer->ExpectLogged(
      fmt::format("NCCL takes its tuner from {}/libnccl-tuner.so", FERRY_OTHER_TUNER_FOLDER));
  peer->ExpectLogged("FERRY_NCCL_CHANNELS is not asked for");
}

TEST(OtherTuner, IsNoneWhereTheVariableNamesThisPlugin) {
  const ScopedVariable folder("LD_LIBRARY_PATH", FERRY_OTHER_TUNER_FOLDER);
  testing::AskedPeer peer = PeerWith("NCCL_TUNER_PLUGIN", FERRY_NCCL_PLUGIN);
  EXPECT_EQ(peer->Ask("variable NCCL_MIN_NCHANNELS"), "8");
}

TEST(Version, OfNcclChoosesHowChannelsAreAskedFor) {
  testing::AskedPeer older = PeerWith(testing::kNcclVersion, "22707");
  EXPECT_EQ(older->Ask("variable NCCL_NCHANNELS_PER_NET_PEER"), "8");
  EXPECT_EQ(older->Ask("variable NCCL_P2P_PER_CHANNEL_NET_BW"), "");
  testing::AskedPeer newer = PeerWith(testing::kNcclVersion, "23007");
  EXPECT_EQ(newer->Ask("variable NCCL_NCHANNELS_PER_NET_PEER"), "");
  EXPECT_EQ(newer->Ask("variable NCCL_P2P_PER_CHANNEL_NET_BW"), "2");
  // No GPU of this machine is known to be connected directly.
  const ScopedVariable ranks("LOCAL_WORLD_SIZE", "2");
  testing::AskedPeer middle = PeerWith(testing::kNcclVersion, "22809");
  EXPECT_EQ(middle->Ask("devices"), "1");
  middle->ExpectLogged("set NCCL_NCHANNELS_PER_NET_PEER=8");
}

// Both ends have what a container with little to give allows.
class RanksWithLittle : public ::testing::Test {
 protected:
  static void Exchange(testing::AskedPeer& peer) {
    NcclHost host(FERRY_NCCL_PLUGIN, 12);
    NcclConnect connect(&host, testing::HandleOf(peer->Ask("listen")));
    peer->Command("accept");
    void* const send = connect.Connect(RanksDeadline());
    ASSERT_EQ(FailureOf(peer), "");
    constexpr std::size_t kBytes = 3 << 20;
    auto message = PatternOf(kBytes, 0);
    peer->Command(fmt::format("compare {} 1", kBytes));
    void* request = nullptr;
    Require(host->Send(send, {message.data(), message.size(), 1, nullptr}, &request), "isend");
    EXPECT_EQ(WaitFor(host, request, nullptr, RanksDeadline()), abi::kSuccess);
    EXPECT_EQ(FailureOf(peer), "");
    Require(host->CloseSend(send), "closeSend");
  }
};

TEST_F(RanksWithLittle, WithAMaskOfOneCoreExchangeMessages) {
  cpu_set_t before;
  ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++core) {
    if (CPU_ISSET(core, &before)) CPU_SET(core, &one);
  }
  ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  testing::AskedPeer peer = PeerWith("FERRY_SPIN", "");
  Exchange(peer);
  peer->ExpectLogged("this rank may use 1 cores");
  ASSERT_EQ(::sched_setaffinity(0, sizeof before, &before), 0);
}

TEST_F(RanksWithLittle, With256DescriptorsExchangeMessagesAndAreWarned) {
  testing::AskedPeer peer = PeerWith(testing::kDescriptors, "256");
  Exchange(peer);
  peer->ExpectLogged("this process may have only 256 descriptors");
}

TEST_F(RanksWithLittle, ThatHaveNoDescriptorLeftAreToldSoByConnect) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer makes a pipe to look at an object";
#endif
  NcclHost host(FERRY_NCCL_PLUGIN, 12);
  NcclListen listen(&host);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 3;
  const std::size_t logged_before = LoggedText().size();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const int outcome = OutcomeOfConnect(&host, listen.handle());
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(outcome, abi::kRemoteError);
  EXPECT_TRUE(Logged("Too many open files", logged_before)) << LoggedText();
}

// What NCCL gets of nonsense is an error of init with one sentence.
TEST(Nonsense, InAVariableOfOursIsRefusedByInitWithItsNameAndRange) {
  for (const char* name :
       {"FERRY_NCCL_CHANNELS", "FERRY_NCCL_DEVICES", "FERRY_LANES", "FERRY_WORKERS"}) {
    for (const char* value : {"-1", "999999", " ", "0x8", "8 ", "99999999999999999999"}) {
      const ScopedVariable variable(name, value);
      const std::size_t logged_before = LoggedText().size();
      EXPECT_THROW(NcclHost(FERRY_NCCL_PLUGIN, 12), std::runtime_error) << name << value;
      EXPECT_TRUE(Logged(fmt::format("{} cannot be used: '{}' is", name, value), logged_before))
          << LoggedText();
    }
  }
}

TEST(Environment, OfNcclIsCompletedByThePluginForIt) {
  struct Table {
    const char* name;
    int (*init)(std::uint8_t, std::uint8_t, std::uint8_t, const char*, abi::Logger);
    int (*finalize)();
    const char* (*get)(const char*);
  };
  void* const library = ::dlopen(FERRY_NCCL_PLUGIN, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr);
  EXPECT_NE(::dlsym(library, "ncclEnvPlugin_v1"), nullptr);
  const auto* const table = static_cast<Table*>(::dlsym(library, "ncclEnvPlugin_v2"));
  ASSERT_NE(table, nullptr);
  const char* const channels = "NCCL_NCHANNELS_PER_NET_PEER";
  const auto with = [&](const char* name, const char* value) {
    const ScopedVariable plugin("NCCL_NET_PLUGIN", "");
    const ScopedVariable peer_channels(channels, "");
    const ScopedVariable variable(name, value);
    EXPECT_EQ(table->init(2, 28, 9, "", nullptr), abi::kSuccess);
    const auto text = [&](const char* each) {
      const char* const set = table->get(each);
      return std::string(set == nullptr ? "" : set);
    };
    return std::pair(text("NCCL_NET_PLUGIN"), text(channels));
  };
  const std::string own = FERRY_NCCL_PLUGIN;
  EXPECT_EQ(with("FERRY_NCCL_CHANNELS", ""), std::pair(own, std::string("8")));
  EXPECT_EQ(with("FERRY_NCCL_CHANNELS", "4"), std::pair(own, std::string("4")));
  EXPECT_EQ(with("FERRY_NCCL_CHANNELS", "0"), std::pair(own, std::string()));
  EXPECT_EQ(with("FERRY_NCCL_CHANNELS", "nonsense"), std::pair(own, std::string()));
  EXPECT_EQ(with("NCCL_MAX_NCHANNELS", "1"), std::pair(own, std::string()));
  EXPECT_EQ(with(channels, "2"), std::pair(own, std::string("2")));
  EXPECT_EQ(with("NCCL_NET", "Ferry"), std::pair(own, std::string("8")));
  EXPECT_EQ(with("NCCL_NET", "Socket"), std::pair(std::string(), std::string()));
  EXPECT_EQ(with("NCCL_NET_PLUGIN", "aws"), std::pair(std::string("aws"), std::string()));
  EXPECT_EQ(table->finalize(), abi::kSuccess);
}

std::string OtherBuild(std::uint32_t ours, std::uint32_t theirs) {
  return fmt::format("the build of libnccl-net-ferry.so is {:08x} here and {:08x} at", ours,
                     theirs);
}

TEST(Ranks, OfAnotherBuildAreRefused) {
  NcclHost host(FERRY_NCCL_PLUGIN, 12);
  NcclListen listen(&host);
  RawSender sender(listen.handle());
  HelloWire hello = sender.Hello();
  hello.rank.build ^= 1;
  EXPECT_EQ(sender.Enter(hello), session::wire::Type::kRefuse);
  EXPECT_EQ(OutcomeOfAccept(&host, &listen), abi::kInvalidUsage);
  EXPECT_EQ(sender.End(), "closed");
  const auto address = *ReadHandle(listen.handle().data());
  EXPECT_TRUE(Logged(OtherBuild(address.rank.build, hello.rank.build))) << LoggedText();
  const std::size_t logged_before = LoggedText().size();
  ListenAddress other = address;
  other.rank.build ^= 2;
  testing::Handle handle{};
  tests::MustDo(WriteHandle(other, handle.data()));
  EXPECT_EQ(OutcomeOfConnect(&host, handle), abi::kInvalidUsage);
  EXPECT_TRUE(Logged(OtherBuild(address.rank.build, other.rank.build), logged_before))
      << LoggedText();
}

// As two builds of one commit are that have different changes.
TEST(Ranks, WhoseFilesHaveOtherBuildIdsAreRefused) {
  NcclHost host(FERRY_NCCL_PLUGIN, 12);
  NcclListen listen(&host);
  const std::uint32_t build = ReadHandle(listen.handle().data())->rank.build;
  // As the note in the file has it: the name "GNU", and the first bytes of the ID.
  std::string note("GNU\0", 4);
  for (const int shift : {24, 16, 8, 0}) note += static_cast<char>(build >> shift);
  std::ifstream in(FERRY_NCCL_PLUGIN, std::ios::binary);
  std::string file{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  const std::size_t at = file.find(note);
  ASSERT_NE(at, std::string::npos);
  file[at + 4] = static_cast<char>(file[at + 4] ^ 1);
  const auto path = fmt::format("{}/other_build_{}.so", ::testing::TempDir(), ::getpid());
  std::ofstream(path, std::ios::binary) << file;
  NcclHost other(path, 12);
  (void)::unlink(path.c_str());
  EXPECT_EQ(OutcomeOfConnect(&other, listen.handle()), abi::kInvalidUsage);
  EXPECT_TRUE(Logged(OtherBuild(build ^ 0x01000000U, build))) << LoggedText();
  EXPECT_EQ(OutcomeOfAccept(&host, &listen), abi::kInvalidUsage);
}

TEST(Ranks, WhoseListenCommWasClosedAreNotDialledAgain) {
  NcclHost host(FERRY_NCCL_PLUGIN, 12);
  NcclListen listen(&host);
  const testing::Handle handle = listen.handle();
  listen.Close();
  const std::size_t logged_before = LoggedText().size();
  EXPECT_EQ(OutcomeOfConnect(&host, handle), abi::kRemoteError);
  EXPECT_TRUE(Logged("closed the listen comm of this handle", logged_before)) << LoggedText();
  EXPECT_THAT(LoggedText().substr(logged_before), Not(HasSubstr("attempt 2")));
}

// A hello frame of another version: what all versions begin with, and a length of its own.
template <std::size_t kBytes>
std::array<std::byte, kBytes> HeadOf(const HelloWire& hello) {
  std::array<std::byte, kBytes> frame{};
  std::memcpy(frame.data(), &hello, offsetof(HelloWire, comm));
  return frame;
}

class RanksOfVersion : public ::testing::TestWithParam<std::uint16_t> {};

TEST_P(RanksOfVersion, AreRefused) {
  const std::uint16_t version = GetParam();
  NcclHost host(FERRY_NCCL_PLUGIN, 12);
  NcclListen listen(&host);
  testing::Handle handle = listen.handle();
  handle[4] = static_cast<std::byte>(version);
  EXPECT_EQ(OutcomeOfConnect(&host, handle), abi::kInvalidUsage);
  NcclListen again(&host);
  RawSender sender(again.handle());
  HelloWire hello = sender.Hello();
  hello.version = version;
  const auto answer =
      version < kWireVersion ? sender.Enter(HeadOf<40>(hello)) : sender.Enter(HeadOf<100>(hello));
  EXPECT_EQ(answer, session::wire::Type::kRefuse);
  EXPECT_EQ(OutcomeOfAccept(&host, &again), abi::kInvalidUsage);
  EXPECT_TRUE(
      Logged(fmt::format("is version {} here and another version, {}, at", kWireVersion, version)))
      << LoggedText();
}

INSTANTIATE_TEST_SUITE_P(Nccl, RanksOfVersion,
                         ::testing::Values(kFirstAlike, std::uint16_t{kWireVersion + 1}),
                         ::testing::PrintToStringParamName());

TEST(Ranks, ThatHaveNoKeyCannotMakeAcceptFail) {
  NcclHost host(FERRY_NCCL_PLUGIN, 12);
  NcclListen listen(&host);
  RawSender sender(listen.handle());
  HelloWire hello = sender.Hello();
  hello.rank.build ^= 1;
  Key key = ReadHandle(listen.handle().data())->key;
  key[0] ^= std::byte{1};
  EXPECT_EQ(sender.Enter(hello, key), session::wire::Type::kRefuse);
  EXPECT_EQ(sender.End(), "closed");
  void* recv = nullptr;
  Require(listen.TryAccept(&recv), "accept");
}

// ---- lanes that are closed while they are pending -----------------------------------------------

// Both ends in this process. The listener has 127.0.0.1 only, and handles name what a test says.
class RanksOfLoopback : public ::testing::Test {
 protected:
  // Connects by a handle with these addresses.
  void ConnectBy(const std::vector<net::Address>& addresses) {
    ListenAddress address = *ReadHandle(listen_.handle().data());
    address.at = addresses;
    testing::Handle handle{};
    tests::MustDo(WriteHandle(address, handle.data()));
    NcclConnect connect(&host_, handle);
    send_ = connect.Connect(RanksDeadline());
    recv_ = listen_.Accept(RanksDeadline());
  }
  ~RanksOfLoopback() override {
    if (send_ != nullptr) Require(host_->CloseSend(send_), "closeSend");
    if (recv_ != nullptr) Require(host_->CloseReceive(recv_), "closeRecv");
  }
  std::uint16_t port() const { return ReadHandle(listen_.handle().data())->at.front().port; }
  void Exchange(std::size_t bytes) {
    auto from = PatternOf(bytes, bytes);
    std::vector<std::byte> into(bytes);
    void* send = nullptr;
    void* receive = nullptr;
    Require(host_->Receive(recv_, {into.data(), bytes, 1, nullptr}, &receive), "irecv");
    Require(host_->Send(send_, {from.data(), bytes, 1, nullptr}, &send), "isend");
    Require(WaitFor(host_, send, nullptr, RanksDeadline()), "isend");
    Require(WaitFor(host_, receive, nullptr, RanksDeadline()), "irecv");
    EXPECT_EQ(into, from);
  }

  const ScopedVariable host_address_{"FERRY_LISTEN_HOST", "127.0.0.1"};
  NcclHost host_{FERRY_NCCL_PLUGIN, 12};
  NcclListen listen_{&host_};
  void* send_ = nullptr;
  void* recv_ = nullptr;
};

// A proxy is between the two.
class TurnedAway : public RanksOfLoopback, public ::testing::WithParamInterface<net::ProxyCut> {
 protected:
  void Connect(std::uint64_t cut_at) {
    proxy_ = tests::Must(net::FaultProxy::Start({"127.0.0.1", port()}));
    proxy_->CutAt(net::ProxyDirection::kToTarget, cut_at, GetParam());
    ConnectBy({proxy_->address()});
  }

  std::unique_ptr<net::FaultProxy> proxy_;
};

TEST_P(TurnedAway, DialsAgainWhereALaneIsClosedBeforeItsHello) {
  Connect(10);
  Exchange(9);
  Exchange(3 << 20);
}

// The listener has some of the lanes then, and has to forget them.
TEST_P(TurnedAway, DialsAgainWhereSomeLanesHaveComeIn) {
  // In the hello frame of the second lane.
  Connect(2 * sizeof(net::tcp::FramePrefix) + 2 * sizeof(session::wire::Header) +
          sizeof(HelloWire) + sizeof(session::wire::ProofBody) + 10);
  Exchange(9);
  Exchange(3 << 20);
}

INSTANTIATE_TEST_SUITE_P(Nccl, TurnedAway,
                         ::testing::Values(net::ProxyCut::kClose, net::ProxyCut::kReset),
                         [](const auto& parameter) {
                           return parameter.param == net::ProxyCut::kClose ? "ByAnEnd" : "ByAReset";
                         });

// ---- addresses at which somebody else answers, or nobody ----------------------------------------

// Routes to both addresses leave by the same interface.
constexpr const char* kWrongHost = "127.0.0.2";
// A rank may take so much longer to connect because of an address that does not lead to it.
constexpr milliseconds kMaxDetour{1500};

// Somebody who has one of a rank's addresses, but not the key, answers that the rank is there.
TEST_F(RanksOfLoopback, AnswerOnlyByTheKeyWhichNobodyElseIsTold) {
  net::RawListener impostor({kWrongHost, port()});
  std::optional<net::RawPeer> peer;  // held until the end
  std::thread answering([&] {
    peer.emplace(impostor.Accept());
    const auto frame = peer->Read(RawSender::HelloBytes(HelloWire{}).size());
    const Key key = ReadHandle(listen_.handle().data())->key;
    EXPECT_EQ(std::search(frame.begin(), frame.end(), key.begin(), key.end()), frame.end());
    const session::wire::Header welcome{.type = session::wire::Type::kWelcome,
                                        .role = session::wire::Role::kNccl};
    (void)peer->Write(RawSender::BytesOf(welcome, 0));
  });
  ConnectBy({impostor.address(), {"127.0.0.1", port()}});
  answering.join();
  Exchange(9);
}

class WrongAddress : public RanksOfLoopback, public ::testing::WithParamInterface<net::Bad> {};

TEST_P(WrongAddress, BeforeTheRightOneHardlyDelaysARank) {
  tests::RestartLoadMeter();
  const net::BadAddress bad(GetParam(), {kWrongHost, port()});
  const tests::Stopwatch since;
  ConnectBy({bad.address(), {"127.0.0.1", port()}});
  ExpectWithin(since.elapsed(), kMaxDetour, net::BadName(GetParam()));
  Exchange(9);
  Exchange(3 << 20);
}

INSTANTIATE_TEST_SUITE_P(Nccl, WrongAddress, ::testing::ValuesIn(net::kAllBad),
                         [](const auto& parameter) { return net::BadName(parameter.param); });

TEST_F(RanksOfLoopback, AreFoundBehindTheAddressOfAnotherProcessThatUsesThePlugin) {
  testing::AskedPeer other;
  {
    const ScopedVariable host("FERRY_LISTEN_HOST", kWrongHost);
    const ScopedVariable ports("FERRY_PORT_RANGE", fmt::format("{0}-{0}", port()));
    other = tests::Must(PeerProcess::Start(testing::kNcclRole));
    (void)other->Ask("listen");
  }
  ConnectBy({{kWrongHost, port()}, {"127.0.0.1", port()}});
  Exchange(9);
  Exchange(3 << 20);
}

// Regression: every refusal was said to be one of a closed listen comm.
TEST_F(RanksOfLoopback, WhomAnotherServiceRefusesTellItsReason) {
  net::RawListener other({kWrongHost, port()});
  std::thread answering([&] {
    net::RawPeer peer(other.Accept());
    (void)peer.Read(RawSender::HelloBytes(HelloWire{}).size());
    std::vector<std::byte> body;
    session::wire::Append(
        &body, session::wire::RefuseBody{.code = static_cast<std::uint8_t>(Code::kRefused)});
    session::wire::AppendText(&body, "this side is an endpoint");
    session::testing::RawSession session(std::move(peer), session::wire::Role::kNccl);
    (void)session.Say(session::wire::Type::kRefuse, body);
    (void)session.peer().ReadToEnd();
  });
  const std::size_t logged_before = LoggedText().size();
  EXPECT_THROW(ConnectBy({other.address()}), std::runtime_error);
  answering.join();
  EXPECT_THAT(LoggedText().substr(logged_before),
              AllOf(HasSubstr("refused the connection: this side is an endpoint"),
                    Not(HasSubstr("closed the listen comm"))));
}

TEST_F(RanksOfLoopback, ThatNoAddressLeadsToAreAnErrorThatNamesEach) {
  const std::uint16_t wrong = port();
  const net::BadAddress http(net::Bad::kHttp, {kWrongHost, wrong});
  EXPECT_THROW(ConnectBy({{kWrongHost, wrong}, {"127.0.0.3", wrong}}), std::runtime_error);
  EXPECT_THAT(LoggedText(),
              AllOf(HasSubstr(fmt::format("(1) 127.0.0.2:{} sent bytes", wrong)),
                    HasSubstr(fmt::format("(2) cannot connect to 127.0.0.3:{}", wrong))));
}

TEST(Ranks, ThatGoAndDoNotComeBackAreAnErrorOfAccept) {
  const ScopedVariable timeout("FERRY_CONNECT_TIMEOUT", "2s");
  NcclHost host(FERRY_NCCL_PLUGIN, 12);
  NcclListen listen(&host);
  RawSender sender(listen.handle());
  HelloWire hello = sender.Hello();
  hello.lanes = 2;
  const std::size_t logged_before = LoggedText().size();
  EXPECT_EQ(sender.Enter(hello), session::wire::Type::kWelcome);
  ASSERT_TRUE(Logged("irecv comm with", logged_before));
  sender.Go();
  EXPECT_EQ(OutcomeOfAccept(&host, &listen), abi::kRemoteError);
}

}  // namespace
}  // namespace ferry::nccl_net
