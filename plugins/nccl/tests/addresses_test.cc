// A rank with several addresses, of which some cannot be reached: peers in a network namespace.
#include <fcntl.h>
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <cstdlib>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ferry/core/fd.h"
#include "ferry/core/function_ref.h"
#include "ferry/net/testing/bad_address.h"
#include "plugins/nccl/tests/nccl_peer.h"
#include "plugins/nccl/wire.h"
#include "tests/links/load_meter.h"
#include "tests/links/network_pair.h"
#include "tests/support/engine_peer.h"
#include "tests/support/peer_process.h"

namespace ferry::nccl_net {
namespace {

using net::Bad;
using net::BadAddress;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kFirstHost = "10.79.0.1";
constexpr const char* kSecondHost = "10.79.0.2";
constexpr std::chrono::seconds kConnectTimeout{4};
// For the comm's first lane, and once for its others together.
constexpr milliseconds kDetour{1500};

// This thread is in a network, and back in its own when this goes.
class NetworkVisit {
 public:
  explicit NetworkVisit(const std::string& network)
      : home_(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC)) {
    tests::EnterNetwork(network);
  }
  ~NetworkVisit() { (void)::setns(home_.get(), CLONE_NEWNET); }
  NetworkVisit(const NetworkVisit&) = delete;
  NetworkVisit& operator=(const NetworkVisit&) = delete;

 private:
  UniqueFd home_;
};

class Addresses : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto missing = tests::OneNetwork::Missing()) GTEST_SKIP() << *missing;
    network_.emplace();
    network_->AddInterfaces(2);
    tests::RestartLoadMeter();
  }

  // By a thread that is in the network.
  void Inside(FunctionRef<void()> body) {
    std::exception_ptr failure;
    std::thread([&] {
      try {
        tests::EnterNetwork(network_->name());
        body();
      } catch (...) {
        failure = std::current_exception();
      }
    }).join();
    if (failure != nullptr) std::rethrow_exception(failure);
  }
  testing::AskedPeer PeerInside(const std::vector<std::pair<const char*, std::string>>& variables) {
    for (const auto& [name, value] : variables) (void)::setenv(name, value.c_str(), 1);
    testing::AskedPeer peer;
    {
      // By this thread: a peer is killed when the thread that started it ends.
      const NetworkVisit visit(network_->name());
      peer = tests::Must(tests::PeerProcess::Start(testing::kNcclRole));
    }
    for (const auto& [name, value] : variables) (void)::unsetenv(name);
    return peer;
  }
  // A rank that listens at the second address only.
  void Listen() {
    listening_ = PeerInside({{"FERRY_LISTEN_HOST", kSecondHost}});
    address_ = tests::Must(ReadHandle(testing::HandleOf(listening_->Ask("listen")).data()));
    port_ = address_.at.front().port;
    address_.at = {{kFirstHost, port_}, {kSecondHost, port_}};
  }
  std::string ConnectCommand() const {
    testing::Handle handle{};
    tests::MustDo(WriteHandle(address_, handle.data()));
    return "connect " + tests::ToHex(handle);
  }
  static std::string FailureIn(testing::AskedPeer& peer) {
    try {
      peer.Answer();
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  }

  std::optional<tests::OneNetwork> network_;
  testing::AskedPeer listening_;
  ListenAddress address_;
  std::uint16_t port_ = 0;
};

TEST_F(Addresses, ARankThatIsRefusedIsToldByTheOneThatIsReached) {
  Listen();
  listening_->Command("accept");
  testing::AskedPeer connecting = PeerInside({{"FERRY_NCCL_DEVICES", "5"}});
  connecting->Command(ConnectCommand());
  EXPECT_THAT(FailureIn(connecting),
              HasSubstr("FERRY_NCCL_DEVICES=1 on all ranks) is 5 here and 1 at"));
  EXPECT_THAT(FailureIn(listening_),
              HasSubstr("FERRY_NCCL_DEVICES=1 on all ranks) is 1 here and 5 at"));
}

TEST_F(Addresses, OneThatDoesNotAnswerHardlyDelaysTheNext) {
  Listen();
  std::optional<BadAddress> silent;
  Inside([&] { silent.emplace(Bad::kDrops, net::Address{kFirstHost, port_}); });
  testing::AskedPeer connecting = PeerInside({});
  const tests::Stopwatch since;
  connecting->Command(ConnectCommand());
  listening_->Ask("accept");
  EXPECT_EQ(FailureIn(connecting), "");
  tests::ExpectWithin(since.elapsed(), kDetour, "connect by the second address");
}

TEST_F(Addresses, AllTogetherHaveTheTimeOfOneConnect) {
  Listen();
  listening_->Kill();
  (void)tests::Must(listening_->WaitExit(tests::TestDeadline()));
  std::optional<BadAddress> first;
  std::optional<BadAddress> second;
  Inside([&] {
    first.emplace(Bad::kDrops, net::Address{kFirstHost, port_});
    second.emplace(Bad::kDrops, net::Address{kSecondHost, port_});
  });
  testing::AskedPeer connecting =
      PeerInside({{"FERRY_CONNECT_TIMEOUT", fmt::format("{}s", kConnectTimeout.count())}});
  const tests::Stopwatch since;
  connecting->Command(ConnectCommand());
  EXPECT_NE(FailureIn(connecting), "");
  tests::ExpectWithin(since.elapsed(), kConnectTimeout, "the end of connect");
}

// ---- which addresses are told -------------------------------------------------------------------

TEST_F(Addresses, AListThatSelectsNothingFailsInit) {
  const std::pair<const char*, const char*> lists[] = {
      {"NCCL_SOCKET_IFNAME", "nosuch0"},   {"NCCL_SOCKET_IFNAME", "==eth9"},
      {"NCCL_SOCKET_IFNAME", "192.0.2.9"}, {"NCCL_SOCKET_IFNAME", "^held,d,lo"},
      {"FERRY_INTERFACES", "nosuch0"},     {"FERRY_INTERFACES", "^held,d?"}};
  for (const auto& [name, list] : lists) {
    testing::AskedPeer peer = PeerInside({{name, list}});
    peer->Command("devices");
    EXPECT_THAT(FailureIn(peer), AllOf(HasSubstr("ncclInvalidUsage"), HasSubstr("d0 10.79.0.1"),
                                       HasSubstr(fmt::format("{}={} selects", name, list))));
  }
  testing::AskedPeer peer =
      PeerInside({{"NCCL_SOCKET_IFNAME", "d"}, {"NCCL_SOCKET_FAMILY", "AF_INET6"}});
  peer->Command("devices");
  EXPECT_THAT(FailureIn(peer),
              AllOf(HasSubstr("ncclInvalidUsage"),
                    HasSubstr("NCCL_SOCKET_IFNAME=d with NCCL_SOCKET_FAMILY=AF_INET6 selects"),
                    HasSubstr("d0 10.79.0.1 (left out by NCCL_SOCKET_FAMILY)")));
}

std::vector<std::string> HostsIn(const std::string& handle) {
  std::vector<std::string> hosts;
  const ListenAddress address = tests::Must(ReadHandle(testing::HandleOf(handle).data()));
  for (const net::Address& at : address.at) hosts.push_back(at.host);
  return hosts;
}

TEST_F(Addresses, AreThoseThatTheListAndTheFamilySelect) {
  using ::testing::ElementsAre;
  EXPECT_THAT(HostsIn(PeerInside({{"NCCL_SOCKET_IFNAME", "d"}})->Ask("listen")),
              ElementsAre(kFirstHost, kSecondHost));
  EXPECT_THAT(HostsIn(PeerInside({{"NCCL_SOCKET_IFNAME", "^=d0,held"}})->Ask("listen")),
              ElementsAre(kSecondHost));
  EXPECT_THAT(HostsIn(PeerInside({{"FERRY_INTERFACES", "d1"}, {"NCCL_SOCKET_IFNAME", "nosuch0"}})
                          ->Ask("listen")),
              ElementsAre(kSecondHost));
  EXPECT_THAT(HostsIn(PeerInside({{"NCCL_SOCKET_IFNAME", "lo"}, {"NCCL_SOCKET_FAMILY", "AF_INET"}})
                          ->Ask("listen")),
              ElementsAre("127.0.0.1"));
}

TEST_F(Addresses, OfANameAreNumericOrInitFails) {
  EXPECT_THAT(HostsIn(PeerInside({{"FERRY_LISTEN_HOST", "localhost"}})->Ask("listen")),
              ::testing::Contains("127.0.0.1"));
  testing::AskedPeer peer = PeerInside({{"FERRY_LISTEN_HOST", "nosuch.invalid"}});
  peer->Command("devices");
  EXPECT_THAT(FailureIn(peer), AllOf(HasSubstr("init failed"), HasSubstr("nosuch.invalid")));
}

}  // namespace
}  // namespace ferry::nccl_net
