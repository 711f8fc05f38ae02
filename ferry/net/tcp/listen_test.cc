// Tests of listeners: the addresses of host names and the interfaces of a list. Each runs on a
// thread in namespaces of its own, with one bridge br0 and a hosts file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ferry/core/fd.h"
#include "ferry/net/machine/local_addresses.h"
#include "ferry/net/tcp/factory.h"
#include "ferry/net/testing/lane_end.h"

namespace ferry::net::tcp {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

constexpr const char* kHosts =
    "127.0.0.1 localhost\n"
    "127.0.1.1 node7\n"
    "10.9.8.7 node8\n"
    "fd09::7 node8\n"
    "127.0.1.1 node8\n"
    "203.0.113.77 node8\n"
    "203.0.113.77 node9\n";

bool SetUpMachine() {
  if (::unshare(CLONE_NEWNET | CLONE_NEWNS) != 0 ||
      ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
    return false;
  }
  const std::string hosts = ::testing::TempDir() + "/hosts_" + std::to_string(::getpid());
  std::ofstream(hosts) << kHosts;
  const bool bound = ::mount(hosts.c_str(), "/etc/hosts", nullptr, MS_BIND, nullptr) == 0;
  (void)::unlink(hosts.c_str());
  const auto run = [](const std::string& command) {
    return std::system(("ip " + command + " 2>/dev/null").c_str()) == 0;
  };
  return bound && run("link set lo up") && run("link add br0 type bridge") &&
         run("addr add 10.9.8.7/24 dev br0") && run("addr add fd09::7/64 dev br0 nodad") &&
         run("link set br0 up") && run("link add empty0 type bridge") && run("link set empty0 up");
}

class ListenTest : public ::testing::Test {
 protected:
  template <class Body>
  void OnMachine(Body body) {
    if (::geteuid() != 0) GTEST_SKIP() << "namespaces need root";
    bool is_up = false;
    std::thread([&] {
      is_up = SetUpMachine();
      if (is_up) body();
    }).join();
    if (!is_up) GTEST_SKIP() << "no namespaces or bridges here";
  }
};

// A listener, its loop, and the lanes that it has accepted.
struct Open {
  explicit Open(const std::string& host, const Config& config = {}) {
    auto made = provider->Listen({host, 0}, config, loop.get(), [this](std::unique_ptr<Lane> lane) {
      lanes.push_back(std::move(lane));
    });
    if (made) {
      listener = *std::move(made);
    } else {
      error = made.error();
    }
  }
  ~Open() { loop->Stop(); }
  Open(const Open&) = delete;
  Open& operator=(const Open&) = delete;

  std::vector<std::string> Hosts() const {
    std::vector<std::string> hosts;
    for (const Address& address : listener->addresses()) {
      EXPECT_EQ(address.port, listener->address().port);
      hosts.push_back(address.host);
    }
    return hosts;
  }
  // Connects to the address, which is accepted.
  bool Accepts(const std::string& host) {
    const RawAddress raw = *ToRaw({host, listener->address().port});
    const UniqueFd fd(::socket(raw.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(fd.get(), raw.get(), raw.length) != 0) return false;
    const std::size_t before = lanes.size();
    return loop->DriveUntil([&] { return lanes.size() > before; }, Deadline::After(kTimeout),
                            microseconds(0));
  }

  std::unique_ptr<Provider> provider = CreateProvider();
  std::unique_ptr<EventLoop> loop = *EventLoop::Create();
  std::vector<std::unique_ptr<Lane>> lanes;
  std::unique_ptr<Listener> listener;
  std::optional<Error> error;
};

TEST_F(ListenTest, ANameMeansAllItsAddressesOfThisMachine) {
  OnMachine([] {
    Open open("node8");
    ASSERT_FALSE(open.error) << open.error->message();
    EXPECT_THAT(open.Hosts(), UnorderedElementsAre("10.9.8.7", "fd09::7", "127.0.1.1"));
    for (const std::string& host : open.Hosts()) EXPECT_TRUE(open.Accepts(host)) << host;
    EXPECT_FALSE(open.Accepts("127.0.0.1"));
    std::vector<std::string> told;
    for (const Address& at : ToldAddresses({}, open.listener->addresses())) told.push_back(at.host);
    EXPECT_THAT(told, UnorderedElementsAre("10.9.8.7", "fd09::7"));
  });
}

TEST_F(ListenTest, ANameKeepsToTheRangeOfPorts) {
  OnMachine([] {
    Config config;
    config.port_first = 20'000;
    config.port_last = 20'001;
    const Open taken("10.9.8.7", config);
    ASSERT_FALSE(taken.error) << taken.error->message();
    EXPECT_EQ(taken.listener->address().port, 20'000);
    const Open open("node8", config);
    ASSERT_FALSE(open.error) << open.error->message();
    EXPECT_EQ(open.Hosts().size(), 3U);
    EXPECT_EQ(open.listener->address().port, 20'001);
    const Open none("node8", config);
    ASSERT_TRUE(none.error);
    EXPECT_EQ(none.error->code(), Code::kUnavailable);
  });
}

TEST_F(ListenTest, ANameOfLoopbackAloneIsWarnedOf) {
  OnMachine([] {
    ::testing::internal::CaptureStderr();
    Open open("node7");
    EXPECT_THAT(::testing::internal::GetCapturedStderr(),
                AllOf(HasSubstr("listening on 127.0.1.1 only"), HasSubstr("the name node7")));
    ASSERT_FALSE(open.error) << open.error->message();
    EXPECT_THAT(open.Hosts(), ElementsAre("127.0.1.1"));
    EXPECT_TRUE(open.Accepts("127.0.1.1"));
    ::testing::internal::CaptureStderr();
    const Open local("localhost");
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
    EXPECT_FALSE(local.error);
  });
}

TEST_F(ListenTest, ANameOfAnotherMachineIsInvalid) {
  OnMachine([] {
    const Open open("node9");
    ASSERT_TRUE(open.error);
    EXPECT_EQ(open.error->code(), Code::kInvalidArgument);
    EXPECT_THAT(open.error->message(), HasSubstr("203.0.113.77"));
  });
}

TEST_F(ListenTest, AListThatSelectsNothingIsInvalid) {
  OnMachine([] {
    for (const std::string list : {"nosuch0", "10.9.8.7", "=br0", "^br0,empty0", "empty0"}) {
      Config config;
      config.interfaces = list;
      const Open open("", config);
      ASSERT_TRUE(open.error) << list;
      EXPECT_EQ(open.error->code(), Code::kInvalidArgument);
      EXPECT_THAT(open.error->message(),
                  AllOf(HasSubstr("interfaces=" + list + " (FERRY_INTERFACES)"),
                        HasSubstr("br0 10.9.8.7")));
    }
  });
}

TEST_F(ListenTest, ABridgeIsToldWithAWarningUnlessItIsNamed) {
  OnMachine([] {
    const std::vector<LocalAddress> bridge{{"br0", "10.9.8.7"}, {"br0", "fd09::7"}};
    for (const std::string list : {"", "br0"}) {
      Config config;
      config.interfaces = list;
      ::testing::internal::CaptureStderr();
      const Open open("", config);
      const std::string log = ::testing::internal::GetCapturedStderr();
      ASSERT_FALSE(open.error) << open.error->message();
      EXPECT_EQ(open.provider->Addresses(config), bridge);
      EXPECT_EQ(log.find("br0 10.9.8.7") != std::string::npos, list.empty()) << log;
    }
  });
}

}  // namespace
}  // namespace ferry::net::tcp
