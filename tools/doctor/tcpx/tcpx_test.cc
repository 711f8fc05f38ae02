// Tests of the doctor's checks of plugin, daemon and settings for GPUDirect-TCPX.

#include "tools/doctor/tcpx/tcpx.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <string>

#include "ferry/tcpx/host/plugin.h"
#include "ferry/tcpx/host/plugin_path.h"
#include "tools/testing/a3_machine.h"

namespace ferry::tools {
namespace {

using tcpx::kUcclPluginVariable;
using tcpx::kUsualPluginPath;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

TcpxSetup SetupOf(A3Machine* machine) { return TcpxSetupOf(&machine->system); }

// ---- the group ----------------------------------------------------------------------------------

TEST(DoctorTcpx, IsOneQuietLineWhereNothingHintsAtIt) {
  FakeSystem system;
  const auto checks = CheckTcpx(&system, false, {}, Soon());
  ASSERT_EQ(checks.size(), 1U);
  EXPECT_EQ(checks[0].id, "tcpx");
  EXPECT_EQ(checks[0].verdict, Verdict::kSkipped);
  EXPECT_EQ(checks[0].fix, "");
  EXPECT_THAT(checks[0].evidence, AllOf(HasSubstr(kUsualPluginPath), HasSubstr("--tcpx")));
}

TEST(DoctorTcpx, IsLookedAtWhereThereIsAPluginAVariableOrAWish) {
  A3Machine with_plugin;
  EXPECT_GT(CheckTcpx(&with_plugin.system, false, {}, Soon()).size(), 1U);
  for (const char* variable : {kPluginVariable, kUcclPluginVariable}) {
    FakeSystem named;
    named.environment[variable] = "/opt/libnccl-net.so";
    EXPECT_GT(CheckTcpx(&named, false, {}, Soon()).size(), 1U) << variable;
  }
  FakeSystem nothing;
  EXPECT_GT(CheckTcpx(&nothing, true, {}, Soon()).size(), 1U);
}

TEST(DoctorTcpx, FindsNothingWrongWithAMachineThatIsMadeForIt) {
  A3Machine machine;
  const auto checks = CheckTcpx(&machine.system, false, {}, Soon());
  for (const Check& check : checks) {
    EXPECT_EQ(check.verdict, Verdict::kOk) << check.id << ": " << check.evidence;
    EXPECT_EQ(check.fix, "") << check.id;
  }
}

TEST(DoctorTcpx, NamesWhatIsMissingOnAnyOtherMachine) {
  FakeSystem system;
  const auto checks = CheckTcpx(&system, true, {}, Soon());
  EXPECT_EQ(WorstOf(checks), Verdict::kProblem);
  for (const char* id : {"tcpx_plugin", "tcpx_kernel", "tcpx_daemon", "tcpx_chunk_size"}) {
    const auto found = std::find_if(checks.begin(), checks.end(),
                                    [id](const Check& check) { return check.id == id; });
    ASSERT_NE(found, checks.end()) << id;
    EXPECT_EQ(found->verdict, Verdict::kProblem) << id;
    EXPECT_NE(found->fix, "") << id;
  }
}

TEST(DoctorTcpxDriver, MustExportGpuMemory) {
  struct {
    const char* line;
    Verdict verdict;
    const char* about;
  } const kCases[] = {
      {"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build",
       Verdict::kOk, "550.54.15, open kernel module"},
      {"NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023",
       Verdict::kWarning, "535.104.05, not the open kernel module; only the open one"},
      {"NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.57.02  Tue Jul 13 16:14:05 UTC 2021",
       Verdict::kProblem, "before 515 no driver"},
      {"NVRM version: unknown", Verdict::kSkipped, "tells no version"},
  };
  for (const auto& [line, verdict, about] : kCases) {
    A3Machine machine;
    machine.system.files["/proc/driver/nvidia/version"] = line;
    const Check check = CheckTcpxDriver(SetupOf(&machine));
    EXPECT_EQ(check.verdict, verdict) << line;
    EXPECT_THAT(check.evidence, HasSubstr(about));
  }
  FakeSystem without;
  EXPECT_EQ(CheckTcpxDriver(TcpxSetupOf(&without)).verdict, Verdict::kProblem);
}

// ---- the peer -----------------------------------------------------------------------------------

TEST(DoctorTcpxPeer, IsDialedByAnInterfaceOfTheData) {
  A3Machine machine;
  Context context = RunTo(&machine.system);
  struct {
    Route route;
    Verdict verdict;
    const char* about;
  } const kCases[] = {
      {{.interface = "eth2", .source = "10.0.2.1", .gateway = ""},
       Verdict::kOk,
       "10.0.0.2 by eth2"},
      {{.interface = "eth0", .source = "10.0.0.1", .gateway = ""},
       Verdict::kNote,
       "by eth0, which carries control connections; data goes by eth1, eth2, eth3, eth4"},
      {{.interface = "eth9", .source = "10.0.9.1", .gateway = ""},
       Verdict::kWarning,
       "by eth9, which is not an interface of the data (eth1, eth2, eth3, eth4)"},
      {{.interface = "lo", .source = "10.0.0.2", .gateway = "", .local = true},
       Verdict::kWarning,
       "10.0.0.2 is an address of this machine"},
  };
  for (const auto& [route, verdict, about] : kCases) {
    machine.system.routes["10.0.0.2"] = route;
    const auto check = CheckTcpxPeer(context);
    ASSERT_TRUE(check);
    EXPECT_EQ(check->verdict, verdict) << check->evidence;
    EXPECT_THAT(check->evidence, HasSubstr(about));
    EXPECT_EQ(check->fix.empty(), verdict < Verdict::kWarning);
  }
}

TEST(DoctorTcpxPeer, IsNotLookedAtWithoutAPeerOrWithoutAPlugin) {
  A3Machine machine;
  EXPECT_FALSE(CheckTcpxPeer(RunAlone(&machine.system)));
  FakeSystem without;
  EXPECT_FALSE(CheckTcpxPeer(RunTo(&without)));
  Context asked = RunTo(&without);
  asked.tcpx = true;
  EXPECT_TRUE(CheckTcpxPeer(asked));
}

// ---- the plugin ---------------------------------------------------------------------------------

TEST(DoctorTcpxPlugin, IsFoundWhereItUsuallyIsAndByVariable) {
  A3Machine machine;
  EXPECT_EQ(CheckTcpxPlugin(SetupOf(&machine)).evidence, kUsualPluginPath);
  machine.system.states["/opt/x.so"] = PathState{.readable = true};
  machine.system.environment[kUcclPluginVariable] = "/opt/x.so";
  EXPECT_EQ(CheckTcpxPlugin(SetupOf(&machine)).evidence, "/opt/x.so, by UCCL_TCPX_PLUGIN_PATH");
  machine.system.environment[kPluginVariable] = "/opt/y.so";
  const Check missing = CheckTcpxPlugin(SetupOf(&machine));
  EXPECT_EQ(missing.verdict, Verdict::kProblem);
  EXPECT_THAT(missing.evidence, HasSubstr("FERRY_NET_PLUGIN: /opt/y.so: No such file"));
  EXPECT_EQ(missing.fix, std::string("export FERRY_NET_PLUGIN=") + kUsualPluginPath);
}

TEST(DoctorTcpxPlugin, IsNamedWhereTheInstallerLeftIt) {
  A3Machine machine;
  machine.system.states.erase(kUsualPluginPath);
  EXPECT_THAT(CheckTcpxPlugin(SetupOf(&machine)).fix, HasSubstr("/path/to/libnccl-net.so"));
  machine.system.states["/var/lib/tcpx/lib64/libnccl-net.so"] = PathState{.readable = true};
  EXPECT_EQ(CheckTcpxPlugin(SetupOf(&machine)).fix,
            "export FERRY_NET_PLUGIN=/var/lib/tcpx/lib64/libnccl-net.so");
}

TEST(DoctorTcpxPlugin, MustBeAFileThatMayBeReadAndLoaded) {
  A3Machine machine;
  PathState& state = machine.system.states[kUsualPluginPath];
  state.noexec = true;
  const Check noexec = CheckTcpxPlugin(SetupOf(&machine));
  EXPECT_EQ(noexec.verdict, Verdict::kProblem);
  EXPECT_THAT(noexec.evidence, HasSubstr("noexec"));
  EXPECT_EQ(noexec.fix,
            "mount --bind /usr/local/tcpx/lib64 /usr/local/tcpx/lib64 && "
            "mount -o remount,bind,exec /usr/local/tcpx/lib64");
  state.readable = false;
  EXPECT_THAT(CheckTcpxPlugin(SetupOf(&machine)).fix, HasSubstr("chmod a+r"));
  state.kind = PathState::Kind::kFolder;
  const Check folder = CheckTcpxPlugin(SetupOf(&machine));
  EXPECT_EQ(folder.verdict, Verdict::kProblem);
  EXPECT_THAT(folder.evidence, HasSubstr("not a file"));
}

TEST(DoctorTcpxPlugin, IsLeftToTheLoaderWhereItsNameHasNoSlash) {
  A3Machine machine;
  machine.system.environment[kPluginVariable] = "libnccl-net.so";
  const Check check = CheckTcpxPlugin(SetupOf(&machine));
  EXPECT_EQ(check.verdict, Verdict::kSkipped);
  EXPECT_EQ(check.fix, "ldconfig -p | grep libnccl-net.so");
}

// ---- the kernel ---------------------------------------------------------------------------------

TEST(DoctorTcpxKernel, IsGooglesAndNeitherLinuxSinceNorOneBefore) {
  A3Machine machine;
  EXPECT_EQ(CheckTcpxKernel(SetupOf(&machine)).verdict, Verdict::kOk);
  machine.system.token_options = {80};
  const Check upstream = CheckTcpxKernel(SetupOf(&machine));
  EXPECT_EQ(upstream.verdict, Verdict::kProblem);
  EXPECT_THAT(upstream.evidence, AllOf(HasSubstr("option 80"), HasSubstr("where it is 97")));
  machine.system.token_options = {};
  const Check neither = CheckTcpxKernel(SetupOf(&machine));
  EXPECT_EQ(neither.verdict, Verdict::kProblem);
  EXPECT_THAT(neither.evidence, HasSubstr("no device memory for TCP"));
  EXPECT_THAT(neither.fix, HasSubstr("uname -r"));
}

TEST(DoctorTcpxKernel, IsNotGuessedAt) {
  A3Machine machine;
  machine.system.token_options = {80, 97};
  EXPECT_EQ(CheckTcpxKernel(SetupOf(&machine)).verdict, Verdict::kNote);
  machine.system.token_error = EMFILE;
  EXPECT_EQ(CheckTcpxKernel(SetupOf(&machine)).verdict, Verdict::kSkipped);
}

// ---- the daemon ---------------------------------------------------------------------------------

TEST(DoctorTcpxDaemon, IsSeenByItsSockets) {
  A3Machine machine;
  const Check check = CheckTcpxDaemon(SetupOf(&machine));
  EXPECT_EQ(check.verdict, Verdict::kOk);
  EXPECT_EQ(check.evidence, "sockets in /run/tcpx; pools in 8 GPUs");
}

TEST(DoctorTcpxDaemon, IsNamedWhereThePluginLooksElsewhere) {
  A3Machine machine;
  machine.system.environment.erase("NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX");
  const Check check = CheckTcpxDaemon(SetupOf(&machine));
  EXPECT_EQ(check.verdict, Verdict::kProblem);
  EXPECT_EQ(check.evidence, "the daemon's sockets are in /run/tcpx, and the plugin looks in /tmp");
  EXPECT_EQ(check.fix, "export NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX=/run/tcpx");
}

TEST(DoctorTcpxDaemon, IsMissedWithTheFoldersToLookIn) {
  FakeSystem system;
  const Check check = CheckTcpxDaemon(TcpxSetupOf(&system));
  EXPECT_EQ(check.verdict, Verdict::kProblem);
  EXPECT_THAT(check.evidence, HasSubstr("no rx_rule_manager in /tmp"));
  EXPECT_THAT(check.fix, HasSubstr("ls /tmp/ /run/tcpx/"));
}

TEST(DoctorTcpxDaemon, MustHaveAllSocketsAndLetThisProcessConnect) {
  A3Machine machine;
  machine.system.states.erase("/run/tcpx/queue_ids_by_gpu");
  const Check absent = CheckTcpxDaemon(SetupOf(&machine));
  EXPECT_EQ(absent.verdict, Verdict::kProblem);
  EXPECT_THAT(absent.evidence, HasSubstr("queue_ids_by_gpu: No such file"));
  EXPECT_THAT(absent.fix, HasSubstr("ls -l /run/tcpx/"));
  machine.AddSocket("/run/tcpx/queue_ids_by_gpu");
  machine.system.states["/run/tcpx/rx_rule_manager"].writable = false;
  const Check refused = CheckTcpxDaemon(SetupOf(&machine));
  EXPECT_EQ(refused.verdict, Verdict::kProblem);
  EXPECT_EQ(refused.fix, "chmod a+w /run/tcpx/rx_rule_manager");
  machine.system.states["/run/tcpx/rx_rule_manager"] = PathState{.readable = true};
  EXPECT_THAT(CheckTcpxDaemon(SetupOf(&machine)).evidence, HasSubstr("is not a socket"));
}

TEST(DoctorTcpxDaemon, IsWarnedOfWithoutAPoolInAGpuAndAProblemWithoutAny) {
  A3Machine machine;
  machine.system.states.erase("/run/tcpx/get_gpu_fd_0000:8b:00.0");
  const Check one = CheckTcpxDaemon(SetupOf(&machine));
  EXPECT_EQ(one.verdict, Verdict::kWarning);
  EXPECT_THAT(one.evidence, HasSubstr("none in GPU 0000:8b:00.0"));
  for (const std::string& gpu : A3Machine::Gpus()) {
    machine.system.states.erase("/run/tcpx/get_gpu_fd_" + gpu);
  }
  EXPECT_EQ(CheckTcpxDaemon(SetupOf(&machine)).verdict, Verdict::kProblem);
}

// ---- variables ----------------------------------------------------------------------------------

TEST(DoctorTcpxChunkSize, MustBeSetAndASize) {
  A3Machine machine;
  for (const char* value : {"", "0", "many", "-1"}) {
    machine.system.environment["NCCL_DYNAMIC_CHUNK_SIZE"] = value;
    const Check check = CheckTcpxChunkSize(SetupOf(&machine));
    EXPECT_EQ(check.verdict, Verdict::kProblem) << value;
    EXPECT_EQ(check.fix, "export NCCL_DYNAMIC_CHUNK_SIZE=524288");
  }
  machine.system.environment["NCCL_DYNAMIC_CHUNK_SIZE"] = "131072";
  EXPECT_EQ(CheckTcpxChunkSize(SetupOf(&machine)).verdict, Verdict::kOk);
  machine.system.environment["NCCL_DYNAMIC_CHUNK_SIZE"] = "8388608";
  EXPECT_EQ(CheckTcpxChunkSize(SetupOf(&machine)).verdict, Verdict::kWarning);
}

TEST(DoctorTcpxSetupWait, IsToldWhereItIsFiveSeconds) {
  A3Machine machine;
  const std::string name = "NCCL_GPUDIRECTTCPX_PROGRAM_FLOW_STEERING_WAIT_MICROS";
  EXPECT_THAT(CheckTcpxSetupWait(SetupOf(&machine)).evidence, HasSubstr("0.05 s"));
  machine.system.environment.erase(name);
  const Check check = CheckTcpxSetupWait(SetupOf(&machine));
  EXPECT_EQ(check.verdict, Verdict::kNote);
  EXPECT_THAT(check.evidence, HasSubstr("waits 5.00 s"));
  EXPECT_EQ(check.fix, "export " + name + "=50000");
}

TEST(DoctorTcpxVariables, OfAnotherKindKeepThePluginFromWorking) {
  A3Machine machine;
  EXPECT_EQ(CheckTcpxVariables(SetupOf(&machine)).evidence, "2 data sockets a connection");
  machine.system.environment["NCCL_INLINE_THRESHOLD"] = "256";
  EXPECT_EQ(CheckTcpxVariables(SetupOf(&machine)).verdict, Verdict::kWarning);
  machine.system.environment["NCCL_USE_DMA_BUF"] = "0";
  const Check check = CheckTcpxVariables(SetupOf(&machine));
  EXPECT_EQ(check.verdict, Verdict::kProblem);
  EXPECT_EQ(check.fix, "unset NCCL_USE_DMA_BUF && unset NCCL_INLINE_THRESHOLD");
}

TEST(DoctorTcpxVariables, OfMoreSocketsThanThePluginTakesAreWarnedOf) {
  A3Machine machine;
  machine.system.environment["NCCL_SOCKET_NTHREADS"] = "8";
  const Check check = CheckTcpxVariables(SetupOf(&machine));
  EXPECT_EQ(check.verdict, Verdict::kWarning);
  EXPECT_THAT(check.evidence, HasSubstr("16 data sockets"));
}

// ---- the kernel's settings -----------------------------------------------------------

TEST(DoctorTcpxSysctls, BelowTheRecipesAreRaisedAndMoreIsLeft) {
  A3Machine machine;
  machine.system.Sysctl("net.ipv4.tcp_rmem", "4096\t131072\t67108864");
  machine.system.Sysctl("net.ipv4.tcp_mtu_probing", "1");
  const Check check = CheckTcpxSysctls(SetupOf(&machine));
  EXPECT_EQ(check.verdict, Verdict::kWarning);
  EXPECT_THAT(check.evidence, AllOf(HasSubstr("tcp_rmem 4096 131072 67108864, 4096 1048576"),
                                    Not(HasSubstr("tcp_wmem 4096 1048576 67108864, "))));
  EXPECT_EQ(check.fix,
            "sysctl -w net.ipv4.tcp_rmem='4096 1048576 67108864' net.ipv4.tcp_mtu_probing=0");
}

TEST(DoctorTcpxSysctls, ThatAreNotThereAreSkipped) {
  A3Machine machine;
  machine.system.files.erase(SysctlPath("net.ipv4.tcp_mtu_probing"));
  EXPECT_EQ(CheckTcpxSysctls(SetupOf(&machine)).verdict, Verdict::kSkipped);
}

// ---- ports --------------------------------------------------------------------------------------

TEST(DoctorTcpxPorts, AreDialedAtThePeerWhereThePluginIsUsed) {
  FakeSystem without;
  EXPECT_FALSE(TcpxPortRange(&without, false));
  EXPECT_TRUE(TcpxPortRange(&without, true));
  A3Machine machine;
  machine.system.environment["NCCL_GPUDIRECTTCPX_PORT_BEGIN"] = "50000";
  machine.system.environment["NCCL_GPUDIRECTTCPX_PORT_END"] = "50001";
  machine.system.dialed["10.0.0.2:50000"] = Dialed{.at = {}, .error = 0};
  Context context = RunTo(&machine.system);
  context.ranges = {TcpxPortRange(&machine.system, false).value()};
  const auto checks = CheckReach(&context, Soon());
  ASSERT_EQ(checks.size(), 4U);
  EXPECT_EQ(checks[1].id, "tcpx_range");
  EXPECT_EQ(checks[1].evidence, "50000 answered");
  EXPECT_EQ(checks[2].id, "tcpx_range_timed_out");
  EXPECT_EQ(checks[2].evidence, "50001 timed out: a filter drops the packets");
  EXPECT_EQ(checks[2].fix, "nft list ruleset  # as root on node7: which rule drops TCP port 50001");
}

TEST(DoctorTcpxPorts, ThatTheKernelChoosesElsewhereAreNoted) {
  A3Machine machine;
  machine.system.Sysctl("net.ipv4.ip_local_port_range", "32768\t60999");
  const Check check = CheckTcpxPorts(SetupOf(&machine));
  EXPECT_EQ(check.verdict, Verdict::kNote);
  EXPECT_THAT(check.evidence, HasSubstr("the kernel chooses ports of 32768-60999, of which"));
  EXPECT_EQ(check.fix, "sysctl -w net.ipv4.ip_local_port_range='50000 60000'");
}

TEST(DoctorTcpxPorts, OfARangeThatIsFullAreWarnedOf) {
  A3Machine machine;
  machine.system.environment["NCCL_GPUDIRECTTCPX_PORT_BEGIN"] = "50000";
  machine.system.environment["NCCL_GPUDIRECTTCPX_PORT_END"] = "50127";
  machine.system.Sysctl("net.ipv4.ip_local_port_range", "50000\t50127");
  EXPECT_EQ(CheckTcpxPorts(SetupOf(&machine)).verdict, Verdict::kOk);
  machine.system.files["/proc/net/tcp"] = "   0: 00000000:C350 00000000:0000 0A 00000000:00000000";
  const Check check = CheckTcpxPorts(SetupOf(&machine));
  EXPECT_EQ(check.verdict, Verdict::kWarning);
  EXPECT_THAT(check.evidence, HasSubstr("50000-50127; the kernel chooses"));
  EXPECT_THAT(check.evidence, HasSubstr("1 of 128 ports are in use"));
}

TEST(DoctorTcpxPorts, OfVariablesThatAreNoRangeAreWarnedOf) {
  for (const auto& [begin, end] : {std::pair("60000", "50000"),
                                   {"50000", "70000"},
                                   {"x", "60000"},
                                   {"50000", ""},
                                   {"0", "60000"}}) {
    A3Machine machine;
    machine.system.environment["NCCL_GPUDIRECTTCPX_PORT_BEGIN"] = begin;
    machine.system.environment["NCCL_GPUDIRECTTCPX_PORT_END"] = end;
    const Check check = CheckTcpxPorts(SetupOf(&machine));
    EXPECT_EQ(check.verdict, Verdict::kWarning) << begin << ' ' << end;
    EXPECT_THAT(check.evidence, HasSubstr(" are no range of ports; 50000-60000; "));
    EXPECT_EQ(check.fix,
              "export NCCL_GPUDIRECTTCPX_PORT_BEGIN=50000 NCCL_GPUDIRECTTCPX_PORT_END=60000");
  }
}

// ---- limits -------------------------------------------------------------------------------------

TEST(DoctorTcpxLimits, AreWhatOtherChecksHaveFound) {
  A3Machine machine;
  const Check locked{"locked_memory", Verdict::kNote, "8 MiB", "ulimit -l unlimited"};
  const Check bbr{"congestion_control", Verdict::kOk, "cubic", ""};
  const Check check = CheckTcpxLimits(SetupOf(&machine), {locked, bbr});
  EXPECT_EQ(check.verdict, Verdict::kWarning);
  EXPECT_THAT(check.evidence, AllOf(HasSubstr("see locked_memory (note)"),
                                    HasSubstr("see congestion_control (ok)")));
  EXPECT_EQ(check.fix, "ulimit -l unlimited");
}

TEST(DoctorTcpxLimits, DoNotBindWhoMayLockMemory) {
  A3Machine machine;
  machine.system.files["/proc/self/status"] = "Name:\tferry\nCapEff:\t000001ffffffffff\nCapBnd:\t0";
  const Check locked{"locked_memory", Verdict::kNote, "8 MiB", "ulimit -l unlimited"};
  EXPECT_EQ(CheckTcpxLimits(SetupOf(&machine), {locked}).verdict, Verdict::kNote);
}

TEST(DoctorTcpxMatches, ArePrefixesWholeNamesOrAllOthers) {
  const std::vector<std::string> all = {"eth10", "eth1", "eth2", "lo"};
  EXPECT_THAT(TcpxMatches("eth1", all), ElementsAre("eth1", "eth10"));
  EXPECT_THAT(TcpxMatches("=eth1", all), ElementsAre("eth1"));
  EXPECT_THAT(TcpxMatches("^eth1,lo", all), ElementsAre("eth2"));
  EXPECT_THAT(TcpxMatches("^=eth1,lo", all), ElementsAre("eth10", "eth2"));
  EXPECT_THAT(TcpxMatches("ib", all), IsEmpty());
  EXPECT_THAT(TcpxMatches("", all), IsEmpty());
}

// ---- the choice of the provider "auto" ----------------------------------------------------------

TEST(TcpxJudge, FindsAMachineThatIsMadeForItWhole) {
  A3Machine machine;
  const auto judgement = tcpx::JudgeTcpx(&machine.system, Config());
  EXPECT_TRUE(judgement.whole) << judgement.reason;
  EXPECT_EQ(judgement.plugin, kUsualPluginPath);
  Config named;
  named.net_plugin = "/opt/x.so";
  machine.system.states["/opt/x.so"] = PathState{.readable = true};
  EXPECT_EQ(tcpx::JudgeTcpx(&machine.system, named).plugin, "/opt/x.so");
}

TEST(TcpxJudge, TellsWhatIsMissing) {
  const std::string file = kUsualPluginPath;
  struct {
    std::function<void(FakeSystem*)> spoil;
    const char* about;
  } const kCases[] = {
      {[&](FakeSystem* s) { s->states.erase(file); }, "libnccl-net-tcpx.so"},
      {[&](FakeSystem* s) { s->states[file].noexec = true; }, "cannot be loaded"},
      {[](FakeSystem* s) { s->token_options = {80}; }, "kernel"},
      {[](FakeSystem* s) {
         s->token_options = {80, 97};
       },
       "kernel"},
      {[](FakeSystem* s) { s->token_error = EPERM; }, "kernel"},
      {[](FakeSystem* s) { s->environment.erase("NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX"); },
       "no rx_rule_manager in /tmp"},
      {[](FakeSystem* s) { s->states["/run/tcpx/rx_rule_manager"].writable = false; },
       "cannot be connected to"},
      {[](FakeSystem* s) {
         for (const std::string& gpu : A3Machine::Gpus())
           s->states.erase("/run/tcpx/get_gpu_fd_" + gpu);
       },
       "no GPU's socket"},
      {[](FakeSystem* s) { s->environment.erase("NCCL_GPUDIRECTTCPX_SOCKET_IFNAME"); },
       "SOCKET_IFNAME is not set"},
      {[](FakeSystem* s) { s->environment["NCCL_GPUDIRECTTCPX_SOCKET_IFNAME"] = "mlx"; },
       "no interface of mlx"},
      {[](FakeSystem* s) { s->switches["eth3"].private_flags["enable-header-split"] = false; },
       "eth3 does not split headers"},
      {[](FakeSystem* s) { s->switches["eth4"].ntuple = false; }, "eth4 filters no flows"},
      {[](FakeSystem* s) { s->switches.erase("eth2"); }, "eth2"},
      {[](FakeSystem* s) { s->environment.erase("NCCL_DYNAMIC_CHUNK_SIZE"); }, "CHUNK_SIZE"},
      {[](FakeSystem* s) { s->environment["NCCL_DYNAMIC_CHUNK_SIZE"] = "wide"; }, "CHUNK_SIZE"},
  };
  for (const auto& [spoil, about] : kCases) {
    A3Machine machine;
    spoil(&machine.system);
    const auto judgement = tcpx::JudgeTcpx(&machine.system, Config());
    EXPECT_FALSE(judgement.whole) << about;
    EXPECT_THAT(judgement.reason, HasSubstr(about));
  }
}

}  // namespace
}  // namespace ferry::tools
