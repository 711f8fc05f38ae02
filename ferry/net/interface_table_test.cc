// Tests of the interface cache in a network namespace.
#include "ferry/net/interface_table.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <thread>

#include "ferry/core/testing/forked_child.h"

namespace ferry::net {
namespace {

TEST(InterfaceTableTest, SaysWhatTheSystemSaysAndAsksItOnce) {
  InterfaceTable table;
  EXPECT_EQ(table.InterfaceOf({"127.0.0.1", 0}), "lo");
  EXPECT_EQ(table.InterfaceOf({"127.9.8.7", 0}), "lo");
  EXPECT_EQ(table.reads(), 0u);
  const auto addresses = ReadLocalAddresses();
  ASSERT_TRUE(addresses);
  for (const LocalAddress& local : addresses->all) {
    EXPECT_EQ(table.InterfaceOf({local.host, 0}), InterfaceOf({local.host, 0})) << local.host;
  }
  EXPECT_EQ(table.InterfaceOf({"192.0.2.1", 0}), "");
  EXPECT_EQ(table.Advertisable().size(), AdvertisableAddresses().size());
  EXPECT_EQ(table.reads(), 1u);
}

TEST(InterfaceTableTest, IsSharedInANetworkNamespace) {
  EXPECT_EQ(InterfaceTable::OfThisNamespace(), InterfaceTable::OfThisNamespace());
}

TEST(InterfaceTableTest, AForkedChildMakesItsOwn) {
  FERRY_SKIP_FORK_TEST();
  const auto parents = InterfaceTable::OfThisNamespace();
  (void)parents->Advertisable();
  EXPECT_EQ(StatusOfChild([&] {
              const auto own = InterfaceTable::OfThisNamespace();
              return own != parents && own->reads() == 0 ? 7 : 0;
            }),
            7);
  EXPECT_EQ(InterfaceTable::OfThisNamespace(), parents);
}

TEST(InterfaceTableTest, AsksAgainWhenTheSystemCouldNotAnswer) {
  const auto addresses = ReadLocalAddresses();
  ASSERT_TRUE(addresses);
  InterfaceTable table;  // has its descriptor
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const bool failed = !ReadLocalAddresses();
  const auto nothing = table.Advertisable();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(failed);
  EXPECT_TRUE(nothing.empty());
  EXPECT_EQ(table.reads(), 0u);
  for (const LocalAddress& local : addresses->all) {
    EXPECT_EQ(table.InterfaceOf({local.host, 0}), InterfaceOf({local.host, 0})) << local.host;
  }
  EXPECT_EQ(table.Advertisable().size(), addresses->advertisable.size());
  EXPECT_EQ(table.reads(), 1u);
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
    ASSERT_EQ(table->Advertisable().size(), 1u);
    EXPECT_EQ(table->Advertisable().front().interface, "d0");
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
