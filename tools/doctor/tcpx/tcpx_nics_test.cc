// Tests of the doctor's checks of network interfaces for GPUDirect-TCPX.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tools/doctor/tcpx/tcpx.h"
#include "tools/testing/a3_machine.h"

namespace ferry::tools {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kIfName = "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME";

class DoctorTcpxNics : public testing::Test {
 protected:
  TcpxSetup Found() { return TcpxSetupOf(&system_); }
  Check HeaderSplit() { return CheckTcpxHeaderSplit(Found(), Soon()); }
  void Ring(const std::string& split) {
    system_.Answer("ethtool",
                   CommandEnd{0,
                              "Ring parameters for eth1:\nPre-set maximums:\nTCP data split:\ton\n"
                              "Current hardware settings:\nRX:\t\t1024\nTCP data split:\t" +
                                  split + "\n",
                              ""});
  }

  A3Machine machine_;
  FakeSystem& system_ = machine_.system;
};

// ---- which they are -----------------------------------------------------------------------------

TEST_F(DoctorTcpxNics, AreThoseOfTheSetting) {
  const Check check = CheckTcpxInterfaces(Found());
  EXPECT_EQ(check.verdict, Verdict::kOk);
  EXPECT_EQ(check.evidence, "eth1 10.0.1.1; eth2 10.0.2.1; eth3 10.0.3.1; eth4 10.0.4.1");
}

TEST_F(DoctorTcpxNics, WithoutASettingAreAllWithAnAddress) {
  system_.environment.erase(kIfName);
  EXPECT_THAT(Found().interfaces, ElementsAre("eth0", "eth1", "eth2", "eth3", "eth4"));
  const Check check = CheckTcpxInterfaces(Found());
  EXPECT_EQ(check.verdict, Verdict::kWarning);
  EXPECT_THAT(check.evidence, HasSubstr("is not set"));
  EXPECT_THAT(check.fix, HasSubstr("=eth1,eth2,eth3,eth4"));
}

TEST_F(DoctorTcpxNics, ThatTheSettingNamesMustExist) {
  system_.environment[kIfName] = "eth1,eth7";
  const Check check = CheckTcpxInterfaces(Found());
  EXPECT_EQ(check.verdict, Verdict::kProblem);
  EXPECT_THAT(check.evidence, HasSubstr("names eth7, and there is none"));
  EXPECT_EQ(check.fix, "ip -brief address");
  system_.environment[kIfName] = "^eth";
  EXPECT_THAT(CheckTcpxInterfaces(Found()).evidence, HasSubstr("would find no interface"));
}

TEST_F(DoctorTcpxNics, MustBeUpAndHaveAnIpv4Address) {
  system_.files["/sys/class/net/eth2/operstate"] = "down";
  for (auto& local : system_.addresses) {
    if (local.interface == "eth3") local.host = "2001:db8::1";
  }
  const Check check = CheckTcpxInterfaces(Found());
  EXPECT_EQ(check.verdict, Verdict::kProblem);
  EXPECT_THAT(check.evidence,
              AllOf(HasSubstr("eth2 is down"), HasSubstr("eth3 has no IPv4 address")));
  EXPECT_EQ(check.fix, "ip link set dev eth2 up && ip address add ADDRESS/PREFIX dev eth3");
}

TEST_F(DoctorTcpxNics, ForControlAreNotThoseOfTheData) {
  EXPECT_EQ(CheckTcpxControl(Found()).verdict, Verdict::kOk);
  system_.environment["NCCL_GPUDIRECTTCPX_CTRL_DEV"] = "eth9";
  const Check absent = CheckTcpxControl(Found());
  EXPECT_EQ(absent.verdict, Verdict::kProblem);
  EXPECT_THAT(absent.evidence, HasSubstr("no such interface"));
  system_.files["/sys/class/net/eth9/operstate"] = "up";
  EXPECT_THAT(CheckTcpxControl(Found()).evidence, HasSubstr("no IPv4 address"));
  system_.files["/sys/class/net/eth9/operstate"] = "down";
  EXPECT_THAT(CheckTcpxControl(Found()).evidence, HasSubstr("which is down"));
  system_.environment.erase("NCCL_GPUDIRECTTCPX_CTRL_DEV");
  const Check unset = CheckTcpxControl(Found());
  EXPECT_EQ(unset.verdict, Verdict::kNote);
  EXPECT_EQ(unset.fix, "export NCCL_GPUDIRECTTCPX_CTRL_DEV=eth0");
}

// ---- what they can do ---------------------------------------------------------------------------

TEST_F(DoctorTcpxNics, MustSplitHeadersByTheirFlag) {
  EXPECT_EQ(HeaderSplit().verdict, Verdict::kOk);
  system_.switches["eth3"].private_flags["enable-max-rx-buffer-size"] = false;
  EXPECT_EQ(HeaderSplit().verdict, Verdict::kWarning);
  system_.switches["eth3"].private_flags["enable-header-split"] = false;
  const Check check = HeaderSplit();
  EXPECT_EQ(check.verdict, Verdict::kProblem);
  EXPECT_THAT(check.evidence, HasSubstr("eth3 enable-header-split, enable-max-rx-buffer-size off"));
  EXPECT_EQ(check.fix,
            "ethtool --set-priv-flags eth3 enable-strict-header-split on enable-header-split on "
            "enable-max-rx-buffer-size on");
}

TEST_F(DoctorTcpxNics, WithoutTheFlagMustSplitDataByTheirRings) {
  system_.environment[kIfName] = "eth1";
  system_.switches["eth1"].private_flags.clear();
  Ring("on");
  EXPECT_EQ(HeaderSplit().verdict, Verdict::kOk);
  Ring("off");
  const Check off = HeaderSplit();
  EXPECT_EQ(off.verdict, Verdict::kProblem);
  EXPECT_EQ(off.fix, "ethtool -G eth1 tcp-data-split on");
  Ring("n/a");
  EXPECT_THAT(HeaderSplit().evidence, HasSubstr("cannot receive into a GPU"));
  system_.Answer("ethtool", CommandEnd{76, "", "not supported"});
  EXPECT_EQ(HeaderSplit().verdict, Verdict::kProblem);
  system_.commands.erase("ethtool");
  const Check unknown = HeaderSplit();
  EXPECT_EQ(unknown.verdict, Verdict::kWarning);
  EXPECT_EQ(unknown.fix, "apt-get install ethtool");
}

TEST_F(DoctorTcpxNics, MustSteerFlows) {
  EXPECT_EQ(CheckTcpxSteering(Found()).verdict, Verdict::kOk);
  system_.switches["eth2"].ntuple = false;
  const Check off = CheckTcpxSteering(Found());
  EXPECT_EQ(off.verdict, Verdict::kProblem);
  EXPECT_EQ(off.fix, "ethtool -K eth2 ntuple on");
  system_.switches["eth2"].ntuple.reset();
  EXPECT_THAT(CheckTcpxSteering(Found()).evidence, HasSubstr("eth2 tells no ntuple filters"));
  system_.switches.erase("eth2");
  EXPECT_EQ(CheckTcpxSteering(Found()).verdict, Verdict::kProblem);
  EXPECT_EQ(HeaderSplit().verdict, Verdict::kProblem);
}

TEST_F(DoctorTcpxNics, NeedPacketsOfAPageAndFewerFragmentsThanThePluginHasRoomFor) {
  EXPECT_EQ(CheckTcpxMtu(Found()).verdict, Verdict::kOk);
  system_.files["/sys/class/net/eth1/mtu"] = "1460";
  const Check small = CheckTcpxMtu(Found());
  EXPECT_EQ(small.verdict, Verdict::kWarning);
  EXPECT_THAT(small.fix, HasSubstr("ip link set dev eth1 mtu 8244"));
  system_.environment["NCCL_DYNAMIC_CHUNK_SIZE"] = "4194304";
  const Check fragments = CheckTcpxMtu(Found());
  EXPECT_EQ(fragments.verdict, Verdict::kProblem);
  EXPECT_THAT(fragments.evidence, HasSubstr("in 2978 fragments"));
  system_.files.erase("/sys/class/net/eth1/mtu");
  EXPECT_EQ(CheckTcpxMtu(Found()).verdict, Verdict::kSkipped);
}

TEST_F(DoctorTcpxNics, AreSkippedWhereThereAreNone) {
  system_.environment[kIfName] = "ib";
  EXPECT_EQ(HeaderSplit().verdict, Verdict::kSkipped);
  EXPECT_EQ(CheckTcpxSteering(Found()).verdict, Verdict::kSkipped);
  EXPECT_EQ(CheckTcpxMtu(Found()).verdict, Verdict::kSkipped);
}

// ---- where they are -----------------------------------------------------------------------------

TEST_F(DoctorTcpxNics, ShareASwitchWithTwoGpusEach) {
  const Check check = CheckTcpxDistance(Found());
  EXPECT_EQ(check.verdict, Verdict::kOk);
  EXPECT_THAT(check.evidence,
              HasSubstr("eth2 shares a PCI switch with 0000:0a:00.0, 0000:0b:00.0"));
}

TEST_F(DoctorTcpxNics, AwayFromEveryGpuAreAProblemWhereTheSettingNamesThem) {
  machine_.AddNic("eth5", "10.0.5.1", "/sys/devices/pci0000:00/0000:00:04.0/virtio1");
  EXPECT_THAT(CheckTcpxDistance(Found()).evidence, Not(HasSubstr("eth5")));
  system_.environment[kIfName] = "eth1,eth5";
  const Check named = CheckTcpxDistance(Found());
  EXPECT_EQ(named.verdict, Verdict::kProblem);
  EXPECT_THAT(named.evidence, HasSubstr("eth5 shares a PCI switch with no GPU"));
  EXPECT_THAT(named.fix, HasSubstr("nvidia-smi topo -m"));
  system_.environment.erase(kIfName);
  EXPECT_EQ(CheckTcpxDistance(Found()).verdict, Verdict::kNote);
}

TEST_F(DoctorTcpxNics, WithoutADeviceAreAProblemWhereTheSettingNamesThem) {
  machine_.AddNic("eth5", "10.0.5.1", "");
  system_.environment[kIfName] = "eth1,eth5";
  const Check named = CheckTcpxDistance(Found());
  EXPECT_EQ(named.verdict, Verdict::kProblem);
  EXPECT_THAT(named.evidence, HasSubstr("eth5 without a PCI device"));
}

TEST_F(DoctorTcpxNics, OfAMachineThatShowsNoSwitchAreNearByTheirRoot) {
  for (auto& [path, target] : system_.links) {
    target = "/sys/devices/pci0000:00" + target.substr(target.rfind('/'));
  }
  const Check flat = CheckTcpxDistance(Found());
  EXPECT_EQ(flat.verdict, Verdict::kNote);
  EXPECT_THAT(flat.evidence, AllOf(HasSubstr("eth1 shares a PCI root with 0000:04:00.0"),
                                   HasSubstr("no interface shares a PCI switch with a GPU")));
  system_.links["/sys/class/net/eth4/device"] = "/sys/devices/pci0001:00/0001:00:04.0";
  EXPECT_EQ(CheckTcpxDistance(Found()).verdict, Verdict::kProblem);
}

TEST_F(DoctorTcpxNics, AreNotComparedWhereNoGpuIsShown) {
  FakeSystem without;
  EXPECT_EQ(CheckTcpxDistance(TcpxSetupOf(&without)).verdict, Verdict::kSkipped);
}

}  // namespace
}  // namespace ferry::tools
