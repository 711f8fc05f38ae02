// Tests of the interface cache in a network namespace.
#include "ferry/net/machine/interface_table.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "ferry/core/testing/forked_child.h"

namespace ferry::net {
namespace {

TEST(InterfaceTableTest, SaysWhatTheSystemSaysAndAsksItOnce) {
  InterfaceTable table;
  EXPECT_EQ(table.InterfaceOf({"127.0.0.1", 0}), "lo");
  EXPECT_EQ(table.InterfaceOf({"127.9.8.7", 0}), "lo");
  EXPECT_EQ(table.reads(), 0u);
  const auto all = ReadInterfaces();
  ASSERT_TRUE(all);
  for (const InterfaceAddress& local : *all) {
    EXPECT_EQ(table.InterfaceOf({local.host, 0}), InterfaceOf({local.host, 0})) << local.host;
  }
  EXPECT_EQ(table.InterfaceOf({"192.0.2.1", 0}), "");
  EXPECT_EQ(table.Told(""), ChooseAddresses(*all, "").told);
  EXPECT_EQ(table.reads(), 1u);
}

TEST(InterfaceTableTest, IsSharedInANetworkNamespace) {
  EXPECT_EQ(InterfaceTable::OfThisNamespace(), InterfaceTable::OfThisNamespace());
}

TEST(InterfaceTableTest, AForkedChildMakesItsOwn) {
  FERRY_SKIP_FORK_TEST();
  const auto parents = InterfaceTable::OfThisNamespace();
  (void)parents->Told("");
  EXPECT_EQ(StatusOfChild([&] {
              const auto own = InterfaceTable::OfThisNamespace();
              return own != parents && own->reads() == 0 ? 7 : 0;
            }),
            7);
  EXPECT_EQ(InterfaceTable::OfThisNamespace(), parents);
}

TEST(InterfaceTableTest, AsksAgainWhenTheSystemCouldNotAnswer) {
  const auto all = ReadInterfaces();
  ASSERT_TRUE(all);
  InterfaceTable table;  // has its descriptor
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const bool failed = !ReadInterfaces();
  const auto nothing = table.Choose("no list", "");
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(failed);
  ASSERT_FALSE(nothing);
  EXPECT_EQ(nothing.error().code(), Code::kUnavailable);
  EXPECT_EQ(table.reads(), 0u);
  for (const InterfaceAddress& local : *all) {
    EXPECT_EQ(table.InterfaceOf({local.host, 0}), InterfaceOf({local.host, 0})) << local.host;
  }
  EXPECT_EQ(table.Told(""), ChooseAddresses(*all, "").told);
  EXPECT_EQ(table.reads(), 1u);
}

bool Shell(const std::string& command) {
  return std::system((command + " 2>/dev/null").c_str()) == 0;
}

// Runs `body` on a thread in its own network namespace, which `commands` of ip(8) set up. Returns
// why it did not.
template <class Body>
std::string InOwnNetwork(const std::vector<std::string>& commands, Body body) {
  if (::geteuid() != 0) return "network namespaces need root";
  std::string missing;
  std::thread([&] {
    if (::unshare(CLONE_NEWNET) != 0) missing = "no network namespaces here";
    for (const std::string& command : commands) {
      if (missing.empty() && !Shell("ip " + command)) missing = "ip " + command + " fails here";
    }
    if (missing.empty()) body();
  }).join();
  return missing;
}

TEST(InterfaceTableTest, KnowsBridgesAndTheirPorts) {
  const auto missing = InOwnNetwork(
      {"link add br0 type bridge", "link add docker0 type bridge",
       "link add p0 type veth peer name p1", "link set p0 master br0", "link set p0 up",
       "link set p1 up", "link set br0 up", "addr add 172.17.0.1/16 dev docker0",
       "link set docker0 up", "addr add 10.1.0.1/24 dev br0", "addr add 10.2.0.1/24 dev p0"},
      [] {
        const auto table = InterfaceTable::OfThisNamespace();
        using Locals = std::vector<LocalAddress>;
        EXPECT_EQ(table->Told(""), (Locals{{"br0", "10.1.0.1"}}));
        EXPECT_EQ(table->Told("^br0"), (Locals{{"docker0", "172.17.0.1"}}));
        EXPECT_EQ(table->Told("^br0,docker0"), (Locals{{"p0", "10.2.0.1"}}));
        EXPECT_TRUE(Shell("ip addr add 10.3.0.1/24 dev p1"));
        EXPECT_EQ(table->Told(""), (Locals{{"p1", "10.3.0.1"}}));
        EXPECT_EQ(table->Told("br0,docker0,p0").size(), 3U);
      });
  if (!missing.empty()) GTEST_SKIP() << missing;
}

TEST(InterfaceTableTest, FindsTheOtherInterfacesOfASubnet) {
  const auto missing = InOwnNetwork(
      {"link set lo up", "link add v0 type veth peer name w0", "link add v1 type veth peer name w1",
       "link set w0 up", "link set w1 up", "addr add 10.9.0.1/24 dev v0", "link set v0 up",
       "addr add 10.9.0.11/24 dev v1", "link set v1 up"},
      [] {
        const auto table = InterfaceTable::OfThisNamespace();
        const auto by = [&table](const char* host, const char* list) {
          return table->WaysTo({host, 1}, list).usable;
        };
        using Names = std::vector<std::string>;
        EXPECT_EQ(table->WaysTo({"10.9.0.77", 1}, "v1").route, "v0");
        EXPECT_EQ(by("10.9.0.77", ""), (Names{"v0", "v1"}));
        EXPECT_EQ(by("10.9.0.77", "v1"), Names{"v1"});
        EXPECT_EQ(by("10.9.0.77", "^v0"), Names{"v1"});
        EXPECT_EQ(by("10.50.0.1", "v1"), Names{});  // no route
        EXPECT_EQ(by("127.0.0.1", "v1"), Names{"lo"});
        EXPECT_EQ(by("10.9.0.11", "v0"), Names{"v1"});  // of this machine
        using Locals = std::vector<LocalAddress>;
        const Locals both{{"v0", "10.9.0.1"}, {"v1", "10.9.0.11"}};
        EXPECT_EQ(table->InSharedSubnets("", /*excluded=*/false), both);
        EXPECT_EQ(table->InSharedSubnets("", /*excluded=*/true), Locals{});
        EXPECT_EQ(table->InSharedSubnets("v1", /*excluded=*/true), Locals{both.back()});
        // By a route that is not the best one.
        EXPECT_TRUE(
            Shell("ip route add default dev v0 metric 1 && "
                  "ip route add default dev v1 metric 2"));
        EXPECT_EQ(by("10.50.0.1", ""), Names{"v0"});
        EXPECT_EQ(by("10.50.0.1", "v1"), Names{"v1"});
      });
  if (!missing.empty()) GTEST_SKIP() << missing;
}

// Runs on a thread in its own network namespace.
TEST(InterfaceTableTest, HearsOfAddressesThatComeAndGo) {
  if (::geteuid() != 0) GTEST_SKIP() << "network namespaces need root";
  const auto outer = InterfaceTable::OfThisNamespace();
  std::string missing;
  std::thread([&] {
    const auto run = [](const char* command) { return std::system(command) == 0; };
    if (::unshare(CLONE_NEWNET) != 0 ||
        !run("ip link add d0 type dummy 2>/dev/null || ip link add d0 type ifb 2>/dev/null")) {
      missing = "no network namespaces, or neither dummy nor ifb interfaces here";
      return;
    }
    const auto table = InterfaceTable::OfThisNamespace();
    EXPECT_NE(table, outer);
    EXPECT_EQ(table->InterfaceOf({"10.9.8.7", 0}), "");
    EXPECT_TRUE(run("ip addr add 10.9.8.7/24 dev d0 && ip link set d0 up"));
    EXPECT_EQ(table->InterfaceOf({"10.9.8.7", 0}), "d0");
    EXPECT_EQ(table->Told(""), (std::vector<LocalAddress>{{"d0", "10.9.8.7"}}));
    const std::uint64_t reads = table->reads();
    for (int i = 0; i < 1000; ++i) (void)table->InterfaceOf({"10.9.8.7", 0});
    // Link-local IPv6 addresses become ready meanwhile.
    EXPECT_LE(table->reads(), reads + 4);
    EXPECT_TRUE(run("ip addr del 10.9.8.7/24 dev d0"));
    EXPECT_EQ(table->InterfaceOf({"10.9.8.7", 0}), "");
  }).join();
  if (!missing.empty()) GTEST_SKIP() << missing;
}

}  // namespace
}  // namespace ferry::net
