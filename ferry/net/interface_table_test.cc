#include "ferry/net/interface_table.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <thread>

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

// On a thread in a network namespace of its own.
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
