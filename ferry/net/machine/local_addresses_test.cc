// Tests of the choice of addresses that peers are told.
#include "ferry/net/machine/local_addresses.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ferry::net {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using Machine = std::vector<InterfaceAddress>;

const InterfaceAddress kLo{"lo", "127.0.0.1", InterfaceKind::kLoopback, true, true, 8};
const InterfaceAddress kLoV6{"lo", "::1", InterfaceKind::kLoopback, true, true, 128};
const InterfaceAddress kEth0{"eth0", "10.0.0.5"};
const InterfaceAddress kEth0V6{"eth0", "2001:db8::5"};
const InterfaceAddress kEth0LinkLocal{"eth0", "fe80::5%eth0"};
const InterfaceAddress kEth1{"eth1", "10.1.0.5"};
const InterfaceAddress kEmpty{"eth2", ""};
const InterfaceAddress kDown{"eth3", "10.3.0.5", InterfaceKind::kOrdinary, /*up=*/false};
const InterfaceAddress kZeroConf{"eth4", "169.254.7.7"};
const InterfaceAddress kTunnel{"tun0", "10.8.0.2"};
const InterfaceAddress kBridge{"br0", "192.168.1.5", InterfaceKind::kBridge};
const InterfaceAddress kDocker{"docker0", "172.17.0.1", InterfaceKind::kContainerBridge};
const InterfaceAddress kPort{"veth7", "10.9.0.1", InterfaceKind::kBridgePort};
const InterfaceAddress kRoutedLo{"lo", "10.255.0.5", InterfaceKind::kLoopback, true, true, 32};

std::vector<std::string> Told(const Machine& machine, const std::string& list,
                              IpFamily family = IpFamily::kAny) {
  std::vector<std::string> hosts;
  for (const LocalAddress& local : ChooseAddresses(machine, list, family).told) {
    hosts.push_back(local.interface + " " + local.host);
  }
  return hosts;
}

std::string Reason(const InterfaceAddress& address, const std::string& list = "") {
  const Machine machine{kLo, kEth0, address};
  return WhyLeftOut(ChooseAddresses(machine, list).left_out.back(), address.kind, list);
}

struct Case {
  const char* what;
  Machine machine;
  const char* list;
  std::vector<std::string> told;
  bool warns = false;
};

TEST(ChooseAddresses, IsByListKindAndState) {
  const Case cases[] = {
      {"ordinary ones alone",
       {kLo, kEth0, kEth0LinkLocal, kEmpty, kDown, kZeroConf, kBridge, kDocker, kPort},
       "",
       {"eth0 10.0.0.5"}},
      {"a tunnel is ordinary", {kLo, kTunnel}, "", {"tun0 10.8.0.2"}},
      {"a bridge where there is nothing else",
       {kLo, kBridge, kDocker, kPort},
       "",
       {"br0 192.168.1.5"},
       true},
      {"a container engine's bridge after others",
       {kLo, kDocker, kPort},
       "",
       {"docker0 172.17.0.1"},
       true},
      {"then a port", {kLo, kPort, kZeroConf, kRoutedLo}, "", {"veth7 10.9.0.1"}, true},
      {"then a routed address of lo", {kLo, kZeroConf, kRoutedLo}, "", {"lo 10.255.0.5"}, true},
      {"then 169.254/16", {kLo, kZeroConf}, "", {"eth4 169.254.7.7"}, true},
      {"then loopback", {kLo, kLoV6, kDown}, "", {"lo 127.0.0.1", "lo ::1"}, true},
      {"loopback without any interface", {}, "", {"lo 127.0.0.1"}, true},
      {"a named bridge", {kLo, kEth0, kBridge}, "br0", {"br0 192.168.1.5"}},
      {"named, whatever their kinds",
       {kLo, kEth0, kBridge, kDocker, kPort, kTunnel},
       "br*,docker0,veth*,tun0",
       {"br0 192.168.1.5", "docker0 172.17.0.1", "veth7 10.9.0.1", "tun0 10.8.0.2"}},
      {"named loopback", {kLo, kLoV6, kEth0}, "lo", {"lo 127.0.0.1", "lo ::1"}},
      {"loopback is never told with others", {kLo, kEth0}, "lo,eth0", {"eth0 10.0.0.5"}},
      {"a named 169.254/16", {kLo, kEth0, kZeroConf}, "eth4", {"eth4 169.254.7.7"}},
      {"all but some", {kLo, kEth0, kEth1, kDocker}, "^eth0", {"eth1 10.1.0.5"}},
      {"all but the ordinary ones", {kLo, kEth0, kBridge}, "^eth*", {"br0 192.168.1.5"}, true},
      {"all but everything", {kLo, kLoV6, kEth0}, "^eth0", {}},
      {"none of this name", {kLo, kEth0}, "nosuch0", {}},
      {"an address", {kLo, kEth0}, "10.0.0.5", {}},
      {"one without an address", {kLo, kEth0, kEmpty}, "eth2", {}},
      {"one that is down", {kLo, kEth0, kDown}, "eth3", {}},
      {"only link-local IPv6", {kLo, kEth0LinkLocal}, "eth0", {}},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.what);
    EXPECT_EQ(Told(each.machine, each.list), each.told);
    EXPECT_EQ(!ChooseAddresses(each.machine, each.list).warning.empty(), each.warns);
  }
}

TEST(ChooseAddresses, PutsTheFirstOfEachFamilyAndInterfaceFirst) {
  const Machine machine{kLo, kEth0, {"eth0", "10.0.1.5"}, kEth1, kEth0V6, {"eth0", "2001:db8::6"}};
  EXPECT_THAT(Told(machine, ""), ElementsAre("eth0 10.0.0.5", "eth1 10.1.0.5", "eth0 2001:db8::5",
                                             "eth0 10.0.1.5", "eth0 2001:db8::6"));
}

TEST(ChooseAddresses, HonorsTheFamily) {
  const Machine machine{kLo, kLoV6, kEth0, kEth1, kEth0V6};
  EXPECT_THAT(Told(machine, "", IpFamily::kIpv4), ElementsAre("eth0 10.0.0.5", "eth1 10.1.0.5"));
  EXPECT_THAT(Told(machine, "", IpFamily::kIpv6), ElementsAre("eth0 2001:db8::5"));
  EXPECT_THAT(Told(machine, "eth1", IpFamily::kIpv6), IsEmpty());
  EXPECT_THAT(Told({kLo}, "", IpFamily::kIpv6), IsEmpty());
  EXPECT_THAT(Told({}, "", IpFamily::kIpv4), ElementsAre("lo 127.0.0.1"));
}

TEST(ChooseAddresses, NamesWhatItWarnsOf) {
  EXPECT_THAT(ChooseAddresses(Machine{kLo, kBridge}, "").warning,
              AllOf(HasSubstr("br0 192.168.1.5 (a bridge)"), HasSubstr("FERRY_INTERFACES")));
  EXPECT_THAT(ChooseAddresses(Machine{kLo}, "").warning,
              HasSubstr("lo 127.0.0.1 (reaches this machine only)"));
}

TEST(ChooseAddresses, SaysWhyAnAddressIsLeftOut) {
  EXPECT_EQ(Reason(kEth1), "");
  EXPECT_EQ(Reason(kEth1, "eth0"), "left out by FERRY_INTERFACES=eth0");
  EXPECT_EQ(Reason(kDown), "it is down");
  EXPECT_EQ(Reason(kEmpty), "no address");
  EXPECT_EQ(Reason(kEth0LinkLocal), "link-local");
  EXPECT_EQ(Reason(kZeroConf), "link-local");
  EXPECT_EQ(Reason(kLoV6), "reaches this machine only");
  EXPECT_EQ(Reason(kRoutedLo), "of the loopback interface");
  EXPECT_EQ(Reason(kBridge), "a bridge");
  EXPECT_EQ(Reason(kDocker), "a bridge of a container engine");
  EXPECT_EQ(Reason(kPort), "a port of a bridge");
}

TEST(NothingSelected, NamesTheSettingAndTheInterfacesThatExist) {
  const Machine machine{kLo, kEth0, kEth0LinkLocal, kEmpty, kDown};
  const Error error =
      NothingSelected("FERRY_INTERFACES=eth2", machine, ChooseAddresses(machine, "eth2"));
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_THAT(error.message(),
              AllOf(HasSubstr("FERRY_INTERFACES=eth2 selects no address"),
                    HasSubstr("lo 127.0.0.1, eth0 10.0.0.5, eth2 (no address), eth3 10.3.0.5;"),
                    Not(HasSubstr("fe80"))));
  EXPECT_THAT(NothingSelected("a", {}, {}).message(), HasSubstr("this machine has none"));
}

TEST(ToldAddresses, AreTheChosenOnesOfAListenerAtAllAddresses) {
  const std::vector<LocalAddress> chosen{{"eth0", "10.0.0.5"}, {"eth0", "2001:db8::5"}};
  for (const char* any : {"", "::"}) {
    EXPECT_THAT(ToldAddresses(chosen, {{any, 7}}),
                ElementsAre(Address{"10.0.0.5", 7}, Address{"2001:db8::5", 7}));
  }
  EXPECT_THAT(ToldAddresses(chosen, {{"0.0.0.0", 7}}), ElementsAre(Address{"10.0.0.5", 7}));
}

TEST(ToldAddresses, AreThoseOfAHostThatOtherMachinesReach) {
  const std::vector<LocalAddress> chosen{{"eth0", "10.0.0.5"}};
  EXPECT_THAT(ToldAddresses(chosen, {{"127.0.1.1", 7}, {"10.2.0.5", 7}}),
              ElementsAre(Address{"10.2.0.5", 7}));
  EXPECT_THAT(ToldAddresses(chosen, {{"::1", 7}, {"127.0.0.1", 7}}),
              ElementsAre(Address{"::1", 7}, Address{"127.0.0.1", 7}));
  EXPECT_THAT(ToldAddresses(chosen, {{"not numeric", 7}}), ElementsAre(Address{"not numeric", 7}));
}

std::vector<std::string> Shared(const Machine& machine) {
  std::vector<std::string> hosts;
  for (const InterfaceAddress& address : SharedSubnets(machine)) hosts.push_back(address.host);
  return hosts;
}

InterfaceAddress In(const char* interface, const char* host, int prefix, bool up = true) {
  return {interface, host, InterfaceKind::kOrdinary, up, true, prefix};
}

TEST(SharedSubnets, HaveAddressesOfSeveralInterfaces) {
  const Machine machine{kLo,
                        In("v0", "10.0.0.1", 24),
                        In("v1", "10.0.0.11", 24),
                        In("v1", "10.0.1.1", 24),
                        In("v2", "10.0.0.21", 25),
                        In("v0", "fd00::1", 64),
                        In("v1", "fd00::11", 64),
                        In("v0", "fe80::1", 64),
                        In("v1", "fe80::2", 64)};
  EXPECT_THAT(Shared(machine), ElementsAre("10.0.0.1", "10.0.0.11", "fd00::1", "fd00::11"));
  EXPECT_THAT(Shared({In("v0", "10.0.0.1", 24), In("v0", "10.0.0.2", 24)}), IsEmpty());
  EXPECT_THAT(Shared({In("v0", "10.0.0.1", 24), In("v1", "10.0.0.2", 24, /*up=*/false)}),
              IsEmpty());
  EXPECT_THAT(Shared({In("v0", "10.0.0.1", 32), In("v1", "10.0.0.1", 32)}), IsEmpty());
  EXPECT_THAT(Shared({In("v0", "10.0.0.1", 0), In("v1", "10.0.0.2", 0)}), IsEmpty());
}

TEST(SharedSubnets, CoverAddressesByTheirFirstBits) {
  EXPECT_TRUE(IsInSubnet({"10.0.0.200", 1}, In("v0", "10.0.0.1", 24)));
  EXPECT_FALSE(IsInSubnet({"10.0.1.1", 1}, In("v0", "10.0.0.1", 24)));
  EXPECT_TRUE(IsInSubnet({"10.0.0.126", 1}, In("v0", "10.0.0.1", 25)));
  EXPECT_FALSE(IsInSubnet({"10.0.0.129", 1}, In("v0", "10.0.0.1", 25)));
  EXPECT_TRUE(IsInSubnet({"fd00::ffff", 1}, In("v0", "fd00::1", 64)));
  EXPECT_FALSE(IsInSubnet({"10.0.0.1", 1}, In("v0", "fd00::1", 64)));
  EXPECT_FALSE(IsInSubnet({"node7", 1}, In("v0", "10.0.0.1", 24)));
}

TEST(InterfacesOfNccl, AreReadAsNcclMeansThem) {
  EXPECT_EQ(InterfacesOfNccl(""), "");
  EXPECT_EQ(InterfacesOfNccl("eth"), "eth*");
  EXPECT_EQ(InterfacesOfNccl("eth0,ib1"), "eth0*,ib1*");
  EXPECT_EQ(InterfacesOfNccl("=eth0,eth1"), "eth0,eth1");
  EXPECT_EQ(InterfacesOfNccl("^docker,lo"), "^docker*,lo*");
  EXPECT_EQ(InterfacesOfNccl("^=docker0"), "^docker0");
  EXPECT_EQ(InterfacesOfNccl("eth0:1234,,eth1"), "eth0*,eth1*");
  EXPECT_EQ(InterfacesOfNccl("^"), "");
  EXPECT_EQ(InterfacesOfNccl("==eth9"), "=eth9");
}

TEST(InterfacesOfNccl, HaveAFamilyOnlyWhereItIsNamed) {
  EXPECT_EQ(FamilyOfNccl(nullptr), IpFamily::kAny);
  EXPECT_EQ(FamilyOfNccl("AF_INET"), IpFamily::kIpv4);
  EXPECT_EQ(FamilyOfNccl("AF_INET6"), IpFamily::kIpv6);
  EXPECT_EQ(FamilyOfNccl("inet6"), IpFamily::kAny);
}

TEST(ReadInterfaces, ReadsAddressesWithTheirInterfaces) {
  const auto all = ReadInterfaces();
  ASSERT_TRUE(all);
  bool loopback = false;
  for (const InterfaceAddress& address : *all) {
    EXPECT_NE(address.interface, "");
    if (address.host.empty()) continue;
    EXPECT_EQ(InterfaceOf({address.host, 0}), address.interface);
    if (address.host != "127.0.0.1") continue;
    loopback = true;
    EXPECT_EQ(address.kind, InterfaceKind::kLoopback);
    EXPECT_EQ(address.prefix, 8);
  }
  EXPECT_TRUE(loopback);
}

}  // namespace
}  // namespace ferry::net
