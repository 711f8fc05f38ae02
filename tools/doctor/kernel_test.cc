// Tests of the doctor's checks of TCP and kernel settings.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ferry/core/units.h"
#include "tools/testing/fake_system.h"

namespace ferry::tools {
namespace {

using testing::HasSubstr;

// ---- congestion control -------------------------------------------------------------------------

TEST(DoctorCongestionControl, CubicIsFine) {
  FakeSystem system;
  const Check check = CheckCongestionControl(RunAlone(&system));
  EXPECT_EQ(check.verdict, Verdict::kOk);
  EXPECT_THAT(check.evidence, HasSubstr("default cubic"));
  EXPECT_EQ(check.fix, "");
}

class DoctorBbr : public testing::Test {
 protected:
  DoctorBbr() {
    system_.Sysctl("net.ipv4.tcp_congestion_control", "bbr");
    system_.Sysctl("net.ipv4.tcp_allowed_congestion_control", "reno bbr");
    system_.Sysctl("net.ipv4.tcp_available_congestion_control", "reno bbr cubic");
  }
  FakeSystem system_;
};

TEST_F(DoctorBbr, IsANoteWhereAutoReplacesItByCubic) {
  const Check check = CheckCongestionControl(RunAlone(&system_));
  EXPECT_EQ(check.verdict, Verdict::kNote);
  EXPECT_THAT(check.evidence, HasSubstr("puts cubic in its place"));
  EXPECT_EQ(check.fix, "sysctl -w net.ipv4.tcp_congestion_control=cubic");
}

TEST_F(DoctorBbr, NamesTheCommandThatAllowsCubicWhereOnlyRenoIs) {
  system_.usable = {"reno"};
  const Check check = CheckCongestionControl(RunAlone(&system_));
  EXPECT_EQ(check.verdict, Verdict::kNote);
  EXPECT_THAT(check.evidence, HasSubstr("reno (cubic is not allowed)"));
  EXPECT_EQ(check.fix, "sysctl -w net.ipv4.tcp_allowed_congestion_control='reno bbr cubic'");
}

TEST_F(DoctorBbr, IsAWarningWhereNothingMayReplaceIt) {
  system_.usable = {};
  system_.Sysctl("net.ipv4.tcp_available_congestion_control", "bbr");
  const Check check = CheckCongestionControl(RunAlone(&system_));
  EXPECT_EQ(check.verdict, Verdict::kWarning);
  EXPECT_EQ(check.fix,
            "modprobe tcp_cubic && sysctl -w "
            "net.ipv4.tcp_allowed_congestion_control='reno bbr cubic'");
}

TEST_F(DoctorBbr, IsAWarningWhereTheSettingKeepsIt) {
  Context context = RunAlone(&system_);
  context.config.congestion_control = CongestionControl::System();
  const Check check = CheckCongestionControl(context);
  EXPECT_EQ(check.verdict, Verdict::kWarning);
  EXPECT_EQ(check.fix, "sysctl -w net.ipv4.tcp_congestion_control=cubic");
}

TEST_F(DoctorBbr, IsOnlyANoteWithManyCores) {
  system_.cores.resize(32);
  Context context = RunAlone(&system_);
  context.config.congestion_control = CongestionControl::System();
  EXPECT_EQ(CheckCongestionControl(context).verdict, Verdict::kNote);
}

TEST(DoctorCongestionControl, AChosenOneMustBeLoadedAndAllowed) {
  FakeSystem system;
  Context context = RunAlone(&system);
  context.config.congestion_control = CongestionControl::Named("cubic");
  EXPECT_EQ(CheckCongestionControl(context).verdict, Verdict::kOk);
  context.config.congestion_control = CongestionControl::Named("bbr");
  const Check absent = CheckCongestionControl(context);
  EXPECT_EQ(absent.verdict, Verdict::kProblem);
  EXPECT_THAT(absent.fix, HasSubstr("modprobe tcp_bbr"));
  context.config.congestion_control = CongestionControl::Named("cubic");
  system.usable = {"reno"};
  EXPECT_EQ(CheckCongestionControl(context).verdict, Verdict::kProblem);
}

// Asking the kernel for an algorithm that is not loaded makes root's process load it.
TEST(DoctorCongestionControl, WhatIsNotLoadedIsNotAskedFor) {
  FakeSystem system;
  system.usable = {"dctcp"};
  Context context = RunAlone(&system);
  context.config.congestion_control = CongestionControl::Named("dctcp");
  EXPECT_EQ(CheckCongestionControl(context).verdict, Verdict::kProblem);
}

TEST(DoctorCongestionControl, GarbageOrNoFileIsSkipped) {
  FakeSystem system;
  system.Sysctl("net.ipv4.tcp_congestion_control", "two words");
  EXPECT_EQ(CheckCongestionControl(RunAlone(&system)).verdict, Verdict::kSkipped);
  system.files.clear();
  const Check check = CheckCongestionControl(RunAlone(&system));
  EXPECT_EQ(check.verdict, Verdict::kSkipped);
  EXPECT_THAT(check.evidence, HasSubstr("tcp_congestion_control: No such file"));
}

// ---- buffers ------------------------------------------------------------------------------------

TEST(DoctorSocketBuffers, LargeOnesAreFine) {
  FakeSystem system;
  EXPECT_EQ(CheckSocketBuffers(RunAlone(&system)).verdict, Verdict::kOk);
}

TEST(DoctorSocketBuffers, SmallOnesAreLifted) {
  FakeSystem system;
  system.Sysctl("net.ipv4.tcp_rmem", "4096 87380 1048576");
  const Check check = CheckSocketBuffers(RunAlone(&system));
  EXPECT_EQ(check.verdict, Verdict::kWarning);
  EXPECT_THAT(check.evidence, HasSubstr("1 MiB for receiving"));
  EXPECT_EQ(check.fix, "sysctl -w net.ipv4.tcp_rmem='4096 131072 67108864'");
  system.Sysctl("net.ipv4.tcp_wmem", "4096 87380 1048576");
  EXPECT_EQ(CheckSocketBuffers(RunAlone(&system)).fix,
            "sysctl -w net.ipv4.tcp_rmem='4096 131072 67108864' "
            "net.ipv4.tcp_wmem='4096 65536 67108864'");
}

// 100 Gbit/s and 10 ms: 125 MB are in flight.
TEST(DoctorSocketBuffers, MoreIsWantedFarAway) {
  FakeSystem system;
  Context context = RunAlone(&system);
  context.rtt_us = 10'000;
  const Check check = CheckSocketBuffers(context);
  EXPECT_EQ(check.verdict, Verdict::kWarning);
  EXPECT_THAT(check.fix, HasSubstr("net.ipv4.tcp_rmem='4096 131072 250000000'"));
}

TEST(DoctorSocketBuffers, FixedSizesThatTheKernelCutsDownAreTold) {
  FakeSystem system;
  Context context = RunAlone(&system);
  context.config.recv_buffer_bytes = 8 * kMiB;
  const Check check = CheckSocketBuffers(context);
  EXPECT_EQ(check.verdict, Verdict::kWarning);
  EXPECT_THAT(check.evidence, HasSubstr("FERRY_RECV_BUFFER_BYTES asks for 8 MiB"));
  EXPECT_EQ(check.fix, "sysctl -w net.core.rmem_max=8388608");
}

TEST(DoctorSocketBuffers, GarbageOrNoFileIsSkipped) {
  for (const char* text : {"", "1 2", "1 2 three", "1 2 -3", "1 2 99999999999999999999999"}) {
    FakeSystem system;
    system.Sysctl("net.ipv4.tcp_wmem", text);
    EXPECT_EQ(CheckSocketBuffers(RunAlone(&system)).verdict, Verdict::kSkipped) << text;
  }
  FakeSystem system;
  system.files.clear();
  EXPECT_EQ(CheckSocketBuffers(RunAlone(&system)).verdict, Verdict::kSkipped);
}

// ---- options ------------------------------------------------------------------------------------

TEST(DoctorTcpOptions, EachHasItsVerdictWhenOff) {
  FakeSystem healthy;
  EXPECT_EQ(CheckTcpOptions(RunAlone(&healthy)).verdict, Verdict::kOk);
  for (const auto& [name, verdict] : {std::pair{"net.ipv4.tcp_window_scaling", Verdict::kWarning},
                                      std::pair{"net.ipv4.tcp_sack", Verdict::kWarning},
                                      std::pair{"net.ipv4.tcp_timestamps", Verdict::kNote}}) {
    FakeSystem system;
    system.Sysctl(name, "0");
    const Check check = CheckTcpOptions(RunAlone(&system));
    EXPECT_EQ(check.verdict, verdict) << name;
    EXPECT_EQ(check.fix, std::string("sysctl -w ") + name + "=1");
    system.Sysctl(name, "off");
    EXPECT_EQ(CheckTcpOptions(RunAlone(&system)).verdict, Verdict::kSkipped) << name;
  }
}

TEST(DoctorSlowStart, IsANoteWhereItIsOn) {
  FakeSystem system;
  EXPECT_EQ(CheckSlowStart(RunAlone(&system)).verdict, Verdict::kOk);
  system.Sysctl("net.ipv4.tcp_slow_start_after_idle", "1");
  const Check check = CheckSlowStart(RunAlone(&system));
  EXPECT_EQ(check.verdict, Verdict::kNote);
  EXPECT_EQ(check.fix, "sysctl -w net.ipv4.tcp_slow_start_after_idle=0");
  system.files.clear();
  EXPECT_EQ(CheckSlowStart(RunAlone(&system)).verdict, Verdict::kSkipped);
}

TEST(DoctorVmsplice, SmallPipesHaveAFix) {
  FakeSystem system;
  EXPECT_EQ(CheckVmsplice(RunAlone(&system)).verdict, Verdict::kOk);
  system.vmsplice = Error(Code::kUnsupported, "no pipe");
  system.Sysctl("fs.pipe-max-size", "65536");
  Context context = RunAlone(&system);
  const Check check = CheckVmsplice(context);
  EXPECT_EQ(check.verdict, Verdict::kNote);
  EXPECT_EQ(check.fix, "sysctl -w fs.pipe-max-size=1048576");
  context.config.zero_copy_send = AutoOnOff::kOn;
  EXPECT_EQ(CheckVmsplice(context).verdict, Verdict::kWarning);
  context.config.zero_copy_send = AutoOnOff::kOff;
  EXPECT_EQ(CheckVmsplice(context).verdict, Verdict::kOk);
}

TEST(DoctorVmsplice, AKernelWithoutVmspliceIsANote) {
  FakeSystem system;
  system.files.clear();
  system.vmsplice = Error(Code::kUnsupported, "vmsplice: Function not implemented");
  const Check check = CheckVmsplice(RunAlone(&system));
  EXPECT_EQ(check.verdict, Verdict::kNote);
  EXPECT_THAT(check.evidence, HasSubstr("vmsplice: Function not implemented"));
  EXPECT_EQ(check.fix, "");
}

}  // namespace
}  // namespace ferry::tools
