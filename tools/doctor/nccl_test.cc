// Tests of the doctor's checks for the NCCL plugin.

#include "tools/doctor/nccl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <string>

#include "tools/doctor/machine.h"
#include "tools/testing/fake_system.h"

namespace ferry::tools {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kPlugin = "/opt/ferry/libnccl-net-ferry.so";

// A machine on which all is as it should be.
FakeSystem NcclMachine() {
  FakeSystem system;
  system.environment = {{"NCCL_NET_PLUGIN", kPlugin}};
  system.states[kPlugin] = {.kind = PathState::Kind::kFile, .readable = true};
  system.files[kPlugin] = std::string("\x7f") + "ELF GLIBC_2.14 GLIBC_2.4 GLIBC_2.35 GLIBC_PRIVATE";
  system.links[kPlugin] = kPlugin;
  system.Answer("ldd", CommandEnd{0, "\tlibc.so.6 => /lib/libc.so.6 (0x7f00)\n", ""});
  system.Answer("getconf", CommandEnd{0, "glibc 2.36\n", ""});
  system.Answer("ldconfig",
                CommandEnd{0, "\tlibnccl.so.2 (libc6,x86-64) => /usr/lib/libnccl.so.2\n", ""});
  system.links["/usr/lib/libnccl.so.2"] = "/usr/lib/libnccl.so.2.28.9";
  system.limits[RLIMIT_NOFILE] = {1024, 65536};
  return system;
}

PluginSetup NcclSetupOf(FakeSystem* system) {
  return {system, Config(), system->Environment(), Soon()};
}

TEST(DoctorNccl, IsOneLineUnlessAPluginIsNamedOrItIsAskedFor) {
  FakeSystem system;
  auto checks = CheckNccl(&system, Config(), /*asked=*/false, Soon());
  ASSERT_EQ(checks.size(), 1U);
  EXPECT_EQ(checks[0].verdict, Verdict::kSkipped);
  EXPECT_EQ(CheckNccl(&system, Config(), /*asked=*/true, Soon()).size(), 6U);
  system.environment["NCCL_NET_PLUGIN"] = kPlugin;
  EXPECT_EQ(CheckNccl(&system, Config(), /*asked=*/false, Soon()).size(), 6U);
}

TEST(DoctorNccl, NothingIsWrongWithAHealthyMachine) {
  FakeSystem system = NcclMachine();
  for (const Check& check : CheckNccl(&system, Config(), /*asked=*/false, Soon())) {
    EXPECT_EQ(check.verdict, Verdict::kOk) << check.id << ": " << check.evidence;
    EXPECT_EQ(check.fix, "") << check.id;
  }
}

TEST(DoctorNccl, APluginThatIsNotThereIsAProblem) {
  FakeSystem system = NcclMachine();
  system.environment["NCCL_NET_PLUGIN"] = "/nowhere/p.so";
  const Check check = CheckNcclPlugin(NcclSetupOf(&system));
  EXPECT_EQ(check.verdict, Verdict::kProblem);
  EXPECT_THAT(check.evidence, HasSubstr("/nowhere/p.so does not exist"));
  system.environment["NCCL_NET_PLUGIN"] = "None";
  EXPECT_EQ(CheckNcclPlugin(NcclSetupOf(&system)).verdict, Verdict::kProblem);
}

TEST(DoctorNccl, APluginIsFoundByItsSuffixInTheLoadersFolders) {
  FakeSystem system = NcclMachine();
  system.environment["NCCL_NET_PLUGIN"] = "ferry";
  EXPECT_EQ(CheckNcclPlugin(NcclSetupOf(&system)).verdict, Verdict::kProblem);
  system.environment["LD_LIBRARY_PATH"] = "/elsewhere:/opt/ferry";
  system.Answer("env", CommandEnd{0, "", ""});
  const Check check = CheckNcclPlugin(NcclSetupOf(&system));
  EXPECT_EQ(check.verdict, Verdict::kOk) << check.evidence;
  EXPECT_EQ(check.evidence, kPlugin);
}

TEST(DoctorNccl, APluginThatTheLoaderCannotLoadIsAProblem) {
  FakeSystem system = NcclMachine();
  system.Answer("ldd", CommandEnd{0, "\tlibssl.so.3 => not found\n", ""});
  Check check = CheckNcclPlugin(NcclSetupOf(&system));
  EXPECT_EQ(check.verdict, Verdict::kProblem);
  EXPECT_THAT(check.evidence, HasSubstr("libssl.so.3 => not found"));
  system.Answer("ldd", CommandEnd{1, "\tnot a dynamic executable\n", ""});
  EXPECT_EQ(CheckNcclPlugin(NcclSetupOf(&system)).verdict, Verdict::kProblem);
  system = NcclMachine();
  system.states[kPlugin].noexec = true;
  check = CheckNcclPlugin(NcclSetupOf(&system));
  EXPECT_EQ(check.verdict, Verdict::kProblem);
  EXPECT_THAT(check.evidence, HasSubstr("noexec"));
}

TEST(DoctorNccl, TheLoaderIsAskedWithTheFoldersThatTheUserHas) {
  FakeSystem system = NcclMachine();
  system.Answer("ldd", CommandEnd{0, "\tlibcustom.so => not found\n", ""});
  system.Answer("env", CommandEnd{0, "\tlibcustom.so => /opt/custom/libcustom.so (0x7f00)\n", ""});
  EXPECT_EQ(CheckNcclPlugin(NcclSetupOf(&system)).verdict, Verdict::kProblem);
  system.environment["LD_LIBRARY_PATH"] = "/opt/custom";
  EXPECT_EQ(CheckNcclPlugin(NcclSetupOf(&system)).verdict, Verdict::kOk);
}

// By real programs.
TEST(DoctorNccl, AProgramThatEnvStartsHasTheVariable) {
  const auto said = RunCommand({"env", "LD_LIBRARY_PATH=/no/such", "printenv", "LD_LIBRARY_PATH"},
                               Deadline::After(std::chrono::seconds(60)));
  ASSERT_TRUE(said) << said.error().ToString();
  EXPECT_EQ(said->out, "/no/such\n");
}

TEST(DoctorNccl, AnOlderGlibcThanThePluginNeedsIsAProblem) {
  FakeSystem system = NcclMachine();
  system.Answer("getconf", CommandEnd{0, "glibc 2.31\n", ""});
  const Check check = CheckNcclGlibc(NcclSetupOf(&system));
  EXPECT_EQ(check.verdict, Verdict::kProblem);
  EXPECT_THAT(check.evidence, HasSubstr("needs 2.35 or later, here is 2.31"));
}

TEST(DoctorNccl, TellsTheVersionOfNccl) {
  FakeSystem system = NcclMachine();
  EXPECT_THAT(CheckNcclLibrary(NcclSetupOf(&system)).evidence, HasSubstr("version 2.28.9"));
  system.Answer("ldconfig", CommandEnd{0, "", ""});
  EXPECT_EQ(CheckNcclLibrary(NcclSetupOf(&system)).verdict, Verdict::kSkipped);
  const std::string packages = "/venv/lib/python3.11/site-packages/";
  system.environment["VIRTUAL_ENV"] = "/venv";
  system.states[packages + "nvidia/nccl/lib/libnccl.so.2"] = {.kind = PathState::Kind::kFile,
                                                              .readable = true};
  system.files[packages + "nvidia_nccl_cu12-2.27.5.dist-info/METADATA"] = "";
  const Check check = CheckNcclLibrary(NcclSetupOf(&system));
  EXPECT_EQ(check.verdict, Verdict::kOk);
  EXPECT_THAT(check.evidence, AllOf(HasSubstr("/venv/lib"), HasSubstr("version 2.27.5")));
}

TEST(DoctorNccl, VariablesThatKeepThePluginFromBeingUsedAreProblems) {
  FakeSystem system = NcclMachine();
  system.environment["NCCL_NET"] = "Socket";
  Check check = CheckNcclVariables(NcclSetupOf(&system));
  EXPECT_EQ(check.verdict, Verdict::kProblem);
  EXPECT_EQ(check.fix, "unset NCCL_NET");
  system.environment["NCCL_NET"] = "FERRY";
  EXPECT_EQ(CheckNcclVariables(NcclSetupOf(&system)).verdict, Verdict::kOk);
  for (const char* list : {"eth", "=eth0", "^docker", "eth0:99"}) {
    system.environment["NCCL_SOCKET_IFNAME"] = list;
    EXPECT_EQ(CheckNcclVariables(NcclSetupOf(&system)).verdict, Verdict::kOk) << list;
  }
  for (const char* list : {"ib", "=eth", "^eth"}) {
    system.environment["NCCL_SOCKET_IFNAME"] = list;
    check = CheckNcclVariables(NcclSetupOf(&system));
    EXPECT_EQ(check.verdict, Verdict::kProblem) << list;
    EXPECT_THAT(check.evidence, HasSubstr("takes no interface"));
  }
  system.environment.erase("NCCL_SOCKET_IFNAME");
  system.environment["NCCL_SOCKET_FAMILY"] = "AF_INET6";
  check = CheckNcclVariables(NcclSetupOf(&system));
  EXPECT_EQ(check.verdict, Verdict::kProblem);
  EXPECT_THAT(check.evidence, HasSubstr("NCCL_SOCKET_FAMILY=AF_INET6 takes no interface"));
  EXPECT_EQ(check.fix, "unset NCCL_SOCKET_FAMILY");
}

TEST(DoctorNccl, BoundsOfChannelsAreNoted) {
  FakeSystem system = NcclMachine();
  system.environment["NCCL_MAX_NCHANNELS"] = "4";
  const Check check = CheckNcclVariables(NcclSetupOf(&system));
  EXPECT_EQ(check.verdict, Verdict::kNote);
  EXPECT_THAT(check.evidence, HasSubstr("NCCL_MAX_NCHANNELS=4"));
}

TEST(DoctorNccl, AnotherTunerThatIsInstalledIsAWarning) {
  FakeSystem system = NcclMachine();
  system.Answer("ldconfig",
                CommandEnd{0, "\tlibnccl-tuner.so (libc6) => /usr/lib/libnccl-tuner.so\n", ""});
  Check check = CheckNcclTuner(NcclSetupOf(&system));
  EXPECT_EQ(check.verdict, Verdict::kWarning);
  EXPECT_THAT(check.evidence, HasSubstr("/usr/lib/libnccl-tuner.so, in place of"));
  EXPECT_EQ(check.fix, std::string("export NCCL_TUNER_PLUGIN=") + kPlugin);
  system.environment["NCCL_TUNER_PLUGIN"] = kPlugin;
  EXPECT_EQ(CheckNcclTuner(NcclSetupOf(&system)).verdict, Verdict::kOk);
  system.environment["NCCL_TUNER_PLUGIN"] = "none";
  EXPECT_EQ(CheckNcclTuner(NcclSetupOf(&system)).verdict, Verdict::kNote);
}

// The plugin takes it for another one's, and does not work with ranks that have found it.
TEST(DoctorNccl, ATunerThatIsNamedAndNotFoundIsAWarning) {
  FakeSystem system = NcclMachine();
  system.environment["NCCL_TUNER_PLUGIN"] = "libfoo.so";
  const Check check = CheckNcclTuner(NcclSetupOf(&system));
  EXPECT_EQ(check.verdict, Verdict::kWarning);
  EXPECT_THAT(check.evidence, AllOf(HasSubstr("libfoo.so, which was not found"),
                                    HasSubstr("FERRY_NCCL_CHANNELS is not asked for")));
  EXPECT_EQ(check.fix, std::string("export NCCL_TUNER_PLUGIN=") + kPlugin);
}

TEST(DoctorNccl, FewDescriptorsAreAWarning) {
  FakeSystem system = NcclMachine();
  system.limits[RLIMIT_NOFILE] = {1024, 2048};
  const Check check = CheckNcclFiles(NcclSetupOf(&system));
  EXPECT_EQ(check.verdict, Verdict::kWarning);
  EXPECT_THAT(check.evidence, HasSubstr("2048 descriptors at most"));
}

}  // namespace
}  // namespace ferry::tools
