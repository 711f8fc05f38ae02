// Tests of the doctor's checks of routes, reachability, peer and links.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "tools/testing/fake_system.h"

namespace ferry::tools {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Context Unresolved(FakeSystem* system) {
  Context context = RunTo(system);
  context.resolved.clear();
  context.interfaces.clear();
  return context;
}

const Check& Of(const std::vector<Check>& checks, const std::string& id) {
  static const Check none;
  for (const Check& check : checks) {
    if (check.id == id) return check;
  }
  ADD_FAILURE() << "no check " << id;
  return none;
}

Dialed Failed(int error) { return Dialed{.at = {}, .error = error}; }

// ---- name and route -----------------------------------------------------------------------------

TEST(DoctorRoute, TellsInterfaceSourceAndGateway) {
  FakeSystem system;
  system.routes["10.0.0.2"].gateway = "10.0.0.254";
  Context context = Unresolved(&system);
  const auto checks = CheckRoute(&context, Soon());
  EXPECT_EQ(Of(checks, "name").evidence, "node7 is 10.0.0.2");
  EXPECT_EQ(Of(checks, "route_ipv4").verdict, Verdict::kOk);
  EXPECT_EQ(Of(checks, "route_ipv4").evidence, "eth0 from 10.0.0.1, via 10.0.0.254, MTU 9000");
  EXPECT_THAT(context.interfaces, ElementsAre("eth0"));
  EXPECT_FALSE(context.loopback);
}

TEST(DoctorRoute, AnUnknownNameIsAProblem) {
  FakeSystem system;
  system.resolved = Error(Code::kInvalidArgument, "cannot resolve host \"node7\"");
  Context context = Unresolved(&system);
  const auto checks = CheckRoute(&context, Soon());
  ASSERT_EQ(checks.size(), 1U);
  EXPECT_EQ(checks[0].verdict, Verdict::kProblem);
  EXPECT_EQ(checks[0].fix, "getent ahosts node7");
  EXPECT_EQ(Of(CheckReach(&context, Soon()), "reach").verdict, Verdict::kSkipped);
  EXPECT_EQ(CheckPeer(context, Soon()).verdict, Verdict::kSkipped);
}

TEST(DoctorRoute, AHostileNameIsQuotedInTheCommand) {
  FakeSystem system;
  system.resolved = Error(Code::kInvalidArgument, "no");
  Context context = Unresolved(&system);
  context.peer->host = "$(reboot)'";
  EXPECT_EQ(CheckRoute(&context, Soon())[0].fix, "getent ahosts '$(reboot)'\\'''");
}

TEST(DoctorRoute, NoRouteIsAProblem) {
  FakeSystem system;
  system.routes.clear();
  Context context = Unresolved(&system);
  const Check check = Of(CheckRoute(&context, Soon()), "route_ipv4");
  EXPECT_EQ(check.verdict, Verdict::kProblem);
  EXPECT_THAT(check.evidence, HasSubstr("Network is unreachable"));
  EXPECT_EQ(check.fix, "ip route get 10.0.0.2");
}

TEST(DoctorRoute, NoRouteOfOneFamilyIsANoteWhereTheOtherHasOne) {
  FakeSystem system;
  system.resolved = std::vector<net::Address>{{"fd00::2", 7471}, {"10.0.0.2", 7471}};
  Context context = Unresolved(&system);
  auto checks = CheckRoute(&context, Soon());
  EXPECT_EQ(Of(checks, "route_ipv4").verdict, Verdict::kOk);
  EXPECT_EQ(Of(checks, "route_ipv6").verdict, Verdict::kNote);
  system.routes.clear();
  context = Unresolved(&system);
  checks = CheckRoute(&context, Soon());
  EXPECT_EQ(Of(checks, "route_ipv4").verdict, Verdict::kProblem);
  EXPECT_EQ(Of(checks, "route_ipv6").verdict, Verdict::kProblem);
}

TEST(DoctorRoute, AnInterfaceThatIsDownIsAProblem) {
  FakeSystem system;
  system.files["/sys/class/net/eth0/operstate"] = "lowerlayerdown";
  Context context = Unresolved(&system);
  const Check check = Of(CheckRoute(&context, Soon()), "route_ipv4");
  EXPECT_EQ(check.verdict, Verdict::kProblem);
  EXPECT_EQ(check.fix, "ip link set dev eth0 up");
}

TEST(DoctorRoute, BridgesAndWirelessAreNotes) {
  for (const char* kind : {"bridge", "wlan"}) {
    FakeSystem system;
    system.files["/sys/class/net/eth0/uevent"] = std::string("IFINDEX=2\nDEVTYPE=") + kind;
    Context context = Unresolved(&system);
    const Check check = Of(CheckRoute(&context, Soon()), "route_ipv4");
    EXPECT_EQ(check.verdict, Verdict::kNote);
    EXPECT_THAT(check.evidence, HasSubstr(std::string("a ") + kind));
  }
}

TEST(DoctorRoute, AnAddressOfThisMachineIsTold) {
  FakeSystem system;
  system.routes["10.0.0.2"] =
      Route{.interface = "lo", .source = "10.0.0.2", .gateway = "", .local = true};
  Context context = Unresolved(&system);
  EXPECT_THAT(Of(CheckRoute(&context, Soon()), "route_ipv4").evidence, HasSubstr("this machine"));
  EXPECT_TRUE(context.loopback);
}

TEST(DoctorRoute, WithoutAPeerTheAddressesThatPeersAreToldAreLookedAt) {
  FakeSystem system;
  Context context;
  context.system = &system;
  EXPECT_EQ(Of(CheckRoute(&context, Soon()), "interfaces").evidence,
            "peers are told: eth0 10.0.0.1");
  EXPECT_THAT(context.interfaces, ElementsAre("eth0"));
  system.addresses.clear();
  EXPECT_EQ(Of(CheckRoute(&context, Soon()), "interfaces").verdict, Verdict::kWarning);
  EXPECT_EQ(Of(CheckReach(&context, Soon()), "reach").verdict, Verdict::kSkipped);
}

TEST(DoctorRoute, WithoutAPeerTheAddressesThatPeersAreNotToldHaveTheirReasons) {
  FakeSystem system;
  system.addresses = {{"lo", "127.0.0.1", net::InterfaceKind::kLoopback},
                      {"eth0", "10.0.0.1"},
                      {"docker0", "172.17.0.1", net::InterfaceKind::kContainerBridge},
                      {"eth1", ""}};
  Context context;
  context.system = &system;
  EXPECT_EQ(Of(CheckRoute(&context, Soon()), "interfaces").evidence,
            "peers are told: eth0 10.0.0.1; not: lo 127.0.0.1 (reaches this machine only), docker0 "
            "172.17.0.1 (a bridge of a container engine), eth1 (no address)");
  context.config.interfaces = "docker0";
  Check check = Of(CheckRoute(&context, Soon()), "interfaces");
  EXPECT_EQ(check.verdict, Verdict::kOk);
  EXPECT_THAT(check.evidence, HasSubstr("peers are told: docker0 172.17.0.1; not: "));
  context.config.interfaces = "eth1";
  check = Of(CheckRoute(&context, Soon()), "interfaces");
  EXPECT_EQ(check.verdict, Verdict::kProblem);
  EXPECT_THAT(check.evidence, HasSubstr("FERRY_INTERFACES=eth1 selects no address"));
  EXPECT_THAT(check.evidence, HasSubstr("eth0 10.0.0.1"));
}

// ---- reach --------------------------------------------------------------------------------------

TEST(DoctorReach, AnOpenPortIsFine) {
  FakeSystem system;
  Context context = RunTo(&system);
  EXPECT_EQ(Of(CheckReach(&context, Soon()), "reach").evidence, "10.0.0.2:7471 answers in 100 us");
  EXPECT_TRUE(context.reached);
  EXPECT_EQ(context.rtt_us, 100);
}

TEST(DoctorReach, EachFailureIsToldApart) {
  struct Row {
    int error;
    const char* about;
    const char* fix;
  };
  for (const Row& row :
       {Row{ECONNREFUSED, "nothing listens", "ferry perf server --port 7471  # on node7"},
        Row{ETIMEDOUT, "timed out: a firewall", "node7: which rule drops TCP port 7471"},
        Row{EHOSTUNREACH, "unreachable", "ip route get 10.0.0.2"},
        Row{ENETUNREACH, "unreachable", "ip route get 10.0.0.2"},
        Row{EPERM, "firewall of this machine", "nft list ruleset"},
        Row{EMFILE, "failed: Too many open files", "ip route get"}}) {
    FakeSystem system;
    system.dialed = {{"10.0.0.2:7471", Failed(row.error)}};
    Context context = RunTo(&system);
    const auto checks = CheckReach(&context, Soon());
    EXPECT_EQ(Of(checks, "reach").verdict, Verdict::kProblem);
    EXPECT_THAT(Of(checks, "reach").evidence, HasSubstr(row.about));
    EXPECT_THAT(Of(checks, "reach").fix, HasSubstr(row.fix));
    EXPECT_EQ(Of(checks, "mtu").verdict, Verdict::kSkipped);
    EXPECT_FALSE(context.reached);
  }
}

TEST(DoctorReach, OneAddressOfTwoIsAWarning) {
  FakeSystem system;
  Context context = RunTo(&system);
  context.resolved.insert(context.resolved.begin(), {"fd00::2", 7471});
  const Check check = Of(CheckReach(&context, Soon()), "reach");
  EXPECT_EQ(check.verdict, Verdict::kWarning);
  EXPECT_THAT(check.evidence, HasSubstr("[fd00::2]:7471 timed out"));
}

TEST(DoctorReach, PortsOfARangeAreToldByTheirOutcomes) {
  FakeSystem system;
  Context context = RunTo(&system);
  context.config.port_first = 7000;
  context.config.port_last = 7005;
  for (const char* port : {"7000", "7001", "7004"}) {
    system.dialed[std::string("10.0.0.2:") + port] = Failed(ECONNREFUSED);
  }
  system.dialed["10.0.0.2:7005"] = Failed(EHOSTUNREACH);
  auto checks = CheckReach(&context, Soon());
  const Check refused = Of(checks, "port_range_refused");
  EXPECT_EQ(refused.verdict, Verdict::kNote);
  EXPECT_EQ(refused.evidence, "7000-7001, 7004 refused: nothing listens, or a filter rejects it");
  EXPECT_EQ(refused.fix, "ferry perf server --port 7000  # on node7");
  const Check timed_out = Of(checks, "port_range_timed_out");
  EXPECT_EQ(timed_out.verdict, Verdict::kWarning);
  EXPECT_EQ(timed_out.evidence, "7002-7003 timed out: a filter drops the packets");
  EXPECT_EQ(timed_out.fix, "nft list ruleset  # as root on node7: which rule drops TCP port 7002");
  EXPECT_EQ(Of(checks, "port_range_failed").evidence, "7005 failed: No route to host");
  for (const auto& [address, outcome] : system.dialed) system.dialed[address] = Failed(0);
  system.dialed["10.0.0.2:7002"] = system.dialed["10.0.0.2:7003"] = Failed(0);
  checks = CheckReach(&context, Soon());
  EXPECT_EQ(Of(checks, "port_range").verdict, Verdict::kOk);
  EXPECT_EQ(Of(checks, "port_range").evidence, "7000-7005 answered");
}

TEST(DoctorReach, OfALongRangePortsAtEvenDistancesAreDialed) {
  FakeSystem system;
  Context context = RunTo(&system);
  context.config.port_first = 1;
  context.config.port_last = 65535;
  system.dialed["10.0.0.2:65535"] = Failed(0);
  const auto checks = CheckReach(&context, Soon());
  EXPECT_THAT(Of(checks, "port_range_timed_out").evidence, HasSubstr("1-64494 timed out"));
  EXPECT_EQ(Of(checks, "port_range").evidence, "65535 answered; 64 ports of 65535 were dialed");
}

// ---- packet sizes -------------------------------------------------------------------------------

TEST(DoctorMtu, TheSameOnTheWholeWayIsFine) {
  FakeSystem system;
  Context context = RunTo(&system);
  EXPECT_EQ(Of(CheckReach(&context, Soon()), "mtu").verdict, Verdict::kOk);
}

TEST(DoctorMtu, LessOnTheWayOrAtThePeerIsAWarning) {
  FakeSystem system;
  system.dialed["10.0.0.2:7471"] = Dialed{.at = {}, .path_mtu = 1500, .peer_segment = 1448};
  Context context = RunTo(&system);
  Check check = Of(CheckReach(&context, Soon()), "mtu");
  EXPECT_EQ(check.verdict, Verdict::kWarning);
  EXPECT_EQ(check.fix, "tracepath -n 10.0.0.2");
  system.dialed["10.0.0.2:7471"] = Dialed{.at = {}, .path_mtu = 9000, .peer_segment = 1448};
  check = Of(CheckReach(&context, Soon()), "mtu");
  EXPECT_EQ(check.verdict, Verdict::kWarning);
  EXPECT_THAT(check.evidence, HasSubstr("the peer takes packets of about 1500 only"));
}

TEST(DoctorMtu, SmallPacketsOnAFastLinkAreANote) {
  FakeSystem system;
  system.files["/sys/class/net/eth0/mtu"] = "1500";
  system.dialed["10.0.0.2:7471"] = Dialed{.at = {}, .path_mtu = 1500, .peer_segment = 1448};
  Context context = RunTo(&system);
  const Check check = Of(CheckReach(&context, Soon()), "mtu");
  EXPECT_EQ(check.verdict, Verdict::kNote);
  EXPECT_EQ(check.fix, "ip link set dev eth0 mtu 9000");
  system.files["/sys/class/net/eth0/speed"] = "1000";
  EXPECT_EQ(Of(CheckReach(&context, Soon()), "mtu").verdict, Verdict::kOk);
}

TEST(DoctorMtu, GarbageIsPassedOver) {
  FakeSystem system;
  system.files["/sys/class/net/eth0/mtu"] = "999999999999";
  system.files["/sys/class/net/eth0/speed"] = "";
  Context context = RunTo(&system);
  EXPECT_EQ(Of(CheckReach(&context, Soon()), "mtu").verdict, Verdict::kOk);
}

// ---- the peer itself ----------------------------------------------------------------------------

TEST(DoctorPeer, TellsLanesWithInterfaceAndCongestionControl) {
  FakeSystem system;
  transfer::ConnectionInfo info;
  info.provider = "tcp";
  info.endpoint = "abc";
  info.lanes.resize(2);
  for (auto& lane : info.lanes) {
    lane.interface = "eth0";
    lane.congestion_control = "cubic (as set)";
  }
  system.met = info;
  Context context = RunTo(&system);
  context.reached = true;
  EXPECT_EQ(CheckPeer(context, Soon()).evidence,
            "endpoint abc over tcp, 2 lanes; eth0 cubic (as set)");
}

TEST(DoctorPeer, AFailureIsTheLibrarysSentence) {
  FakeSystem system;
  Context context = RunTo(&system);
  context.reached = true;
  system.met = Error(Code::kCorrupt, "no endpoint listens there");
  Check check = CheckPeer(context, Soon());
  EXPECT_EQ(check.verdict, Verdict::kProblem);
  EXPECT_EQ(check.evidence, "no endpoint listens there");
  EXPECT_THAT(check.fix, HasSubstr("ss -ltnp 'sport = :7471'"));
  system.met = Error(Code::kRefused, "no secret");
  check = CheckPeer(context, Soon());
  EXPECT_EQ(check.verdict, Verdict::kProblem);
  EXPECT_THAT(check.fix, HasSubstr("FERRY_SECRET_FILE"));
  system.met = Error(Code::kTimedOut, "silence");
  EXPECT_EQ(CheckPeer(context, Soon()).fix, "");
}

TEST(DoctorPeer, IsNotCalledOnWhereNothingAnswers) {
  FakeSystem system;
  EXPECT_EQ(CheckPeer(RunTo(&system), Soon()).verdict, Verdict::kSkipped);
  EXPECT_EQ(CheckPeer(RunAlone(&system), Soon()).verdict, Verdict::kSkipped);
}

}  // namespace
}  // namespace ferry::tools
