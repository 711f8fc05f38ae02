// Tests of the doctor's checks for the NIXL back end.

#include "tools/doctor/nixl.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "plugins/nixl/abi.h"
#include "tools/testing/fake_system.h"

namespace ferry::tools {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const std::string kSite = "/venv/lib/python3.11/site-packages";
const std::string kWheelPlugins = kSite + "/.nixl_cu12.mesonpy.libs/plugins";
const std::string kFolder = "/opt/plugins";
const std::string kBackEnd = kFolder + "/libplugin_FERRY.so";
const std::string kInstalled = "/usr/lib/nixl/libplugin_FERRY.so";
constexpr PathState kReadable{.kind = PathState::Kind::kFile, .readable = true};

// A machine on which all is as it should be: links to the wheel's plug-ins beside one to ours.
FakeSystem NixlMachine() {
  FakeSystem system;
  system.environment = {{"VIRTUAL_ENV", "/venv"}, {"NIXL_PLUGIN_DIR", kFolder}};
  system.files[kSite + "/nixl_cu12-1.5.1.dist-info/METADATA"] = "";
  for (const char* name : {"libplugin_UCX.so", "libplugin_POSIX.so"}) {
    system.states[kWheelPlugins + "/" + name] = kReadable;
    system.states[kFolder + "/" + name] = kReadable;
    system.links[kFolder + "/" + name] = kWheelPlugins + "/" + name;
    system.files[kFolder + "/" + name] = name;
  }
  system.states[kBackEnd] = kReadable;
  system.states[kInstalled] = kReadable;
  system.links[kBackEnd] = kInstalled;
  system.files[kBackEnd] = "ours";
  system.links["/proc/self/exe"] = "/usr/bin/ferry";
  system.Answer("ldd", CommandEnd{0, "\tlibc.so.6 => /lib/libc.so.6 (0x7f00)\n", ""});
  system.Sysctl("net.ipv4.ip_local_port_range", "32768\t60999");
  return system;
}

Config Ports(int first, int last) {
  Config config;
  EXPECT_TRUE(config.Set("port_range", fmt::format("{}-{}", first, last)));
  return config;
}

PluginSetup SetupOf(FakeSystem* system, const Config& config = Ports(20000, 20099)) {
  return {system, config, system->Environment(), Soon()};
}

TEST(DoctorNixl, IsOneLineUnlessAFolderIsNamedOrItIsAskedFor) {
  FakeSystem system;
  const auto checks = CheckNixl(&system, Config(), /*asked=*/false, Soon());
  ASSERT_EQ(checks.size(), 1U);
  EXPECT_EQ(checks[0].verdict, Verdict::kSkipped);
  EXPECT_THAT(checks[0].evidence, HasSubstr("--nixl"));
  EXPECT_EQ(CheckNixl(&system, Config(), /*asked=*/true, Soon()).size(), 6U);
  system.environment["NIXL_PLUGIN_DIR"] = kFolder;
  EXPECT_EQ(CheckNixl(&system, Config(), /*asked=*/false, Soon()).size(), 6U);
}

TEST(DoctorNixl, NothingIsWrongWithAHealthyMachine) {
  FakeSystem system = NixlMachine();
  for (const Check& check : CheckNixl(&system, Ports(20000, 20099), /*asked=*/false, Soon())) {
    EXPECT_EQ(check.verdict, Verdict::kOk) << check.id << ": " << check.evidence;
    EXPECT_EQ(check.fix, "") << check.id;
    EXPECT_NE(check.evidence, "") << check.id;
  }
}

TEST(DoctorNixl, TellsTheWheelAndItsVersion) {
  FakeSystem system = NixlMachine();
  EXPECT_THAT(CheckNixlWheel(SetupOf(&system)).evidence,
              AllOf(HasSubstr("nixl_cu12 1.5.1"), HasSubstr(kSite)));
  system.files[kSite + "/nixl_cu13-1.5.0.dist-info/METADATA"] = "";
  EXPECT_THAT(CheckNixlWheel(SetupOf(&system)).evidence, HasSubstr("nixl_cu13 1.5.0"));
}

TEST(DoctorNixl, AWheelIsFoundBesideAPythonOfPathAndInTheUsersPackages) {
  FakeSystem system;
  system.environment = {{"PATH", "/bin:/opt/python/bin"}, {"HOME", "/home/me"}};
  EXPECT_EQ(CheckNixlWheel(SetupOf(&system)).verdict, Verdict::kSkipped);
  system.files["/home/me/.local/lib/python3.11/site-packages/nixl_cu12-1.3.0.dist-info/METADATA"] =
      "";
  EXPECT_THAT(CheckNixlWheel(SetupOf(&system)).evidence, HasSubstr("nixl_cu12 1.3.0"));
  system.states["/opt/python/bin/python3"] = kReadable;
  system.files["/opt/python/lib/python3/dist-packages/nixl_cu13-1.4.0.dist-info/METADATA"] = "";
  EXPECT_THAT(CheckNixlWheel(SetupOf(&system)).evidence, HasSubstr("nixl_cu13 1.4.0"));
}

TEST(DoctorNixl, AVersionThatThePluginDoesNotKnowIsTold) {
  for (const auto& [version, verdict] :
       {std::pair("2.0.0", Verdict::kProblem), std::pair("0.10.1", Verdict::kProblem),
        std::pair("1.6.0.dev1", Verdict::kWarning), std::pair("1.5.9", Verdict::kOk),
        std::pair("unknown", Verdict::kNote)}) {
    FakeSystem system;
    system.environment["VIRTUAL_ENV"] = "/venv";
    system.files[fmt::format("{}/nixl_cu12-{}.dist-info/METADATA", kSite, version)] = "";
    const Check check = CheckNixlWheel(SetupOf(&system));
    EXPECT_EQ(check.verdict, verdict) << check.evidence;
    EXPECT_THAT(check.evidence, HasSubstr(version));
    if (verdict == Verdict::kWarning) {
      EXPECT_THAT(check.evidence,
                  HasSubstr(fmt::format("{0}.0 to {0}.{1}", nixl::abi::kMajorVersion,
                                        nixl::abi::kNewestMinorVersion)));
    }
  }
}

TEST(DoctorNixl, APluginThatIsNotInTheFolderIsAProblemWithTheOneThatIsInstalled) {
  FakeSystem system = NixlMachine();
  system.states.erase(kBackEnd);  // a link to nothing
  Check check = CheckNixlPlugin(SetupOf(&system));
  EXPECT_EQ(check.verdict, Verdict::kProblem);
  EXPECT_THAT(check.evidence, AllOf(HasSubstr("no libplugin_FERRY.so in " + kFolder),
                                    HasSubstr("there is " + kInstalled)));
  EXPECT_EQ(check.fix,
            "export NIXL_PLUGIN_DIR=$(python -m tensorferry.nixl --plugin " + kInstalled + ")");
  system.environment.erase("NIXL_PLUGIN_DIR");
  EXPECT_THAT(CheckNixlPlugin(SetupOf(&system)).evidence,
              AllOf(HasSubstr(kWheelPlugins), HasSubstr("by default")));
  system.environment.clear();
  system.states.erase(kInstalled);
  check = CheckNixlPlugin(SetupOf(&system));
  EXPECT_EQ(check.verdict, Verdict::kProblem);
  EXPECT_THAT(check.evidence, HasSubstr("NIXL_PLUGIN_DIR is not set"));
  EXPECT_THAT(check.fix, HasSubstr("/path/to/libplugin_FERRY.so"));
}

TEST(DoctorNixl, AnEmptyNameOfTheFolderIsAProblem) {
  FakeSystem system = NixlMachine();
  system.environment["NIXL_PLUGIN_DIR"] = "";
  EXPECT_EQ(CheckNixl(&system, Config(), /*asked=*/false, Soon()).size(), 6U);
  const Check check = CheckNixlFolder(SetupOf(&system));
  EXPECT_EQ(check.verdict, Verdict::kProblem);
  EXPECT_THAT(check.evidence, HasSubstr("NIXL_PLUGIN_DIR is set, but empty"));
  EXPECT_EQ(check.fix, "unset NIXL_PLUGIN_DIR");
  const Check plugin = CheckNixlPlugin(SetupOf(&system));
  EXPECT_EQ(plugin.verdict, Verdict::kProblem);
  EXPECT_THAT(plugin.evidence, HasSubstr("NIXL_PLUGIN_DIR is empty"));
}

TEST(DoctorNixl, APluginBesideTheProgramOrInThePythonPackageIsFound) {
  for (const std::string& path : {std::string("/build/nixl/libplugin_FERRY.so"),
                                  kSite + "/tensorferry/nixl_plugin/libplugin_FERRY.so"}) {
    FakeSystem system = NixlMachine();
    system.links["/proc/self/exe"] = "/build/ferry";
    system.states.erase(kBackEnd);
    system.states[path] = kReadable;
    EXPECT_THAT(CheckNixlPlugin(SetupOf(&system)).fix, HasSubstr("--plugin " + path + ")"));
  }
}

TEST(DoctorNixl, ALibraryOrASymbolThatTheLoaderMissesIsAProblem) {
  FakeSystem system = NixlMachine();
  system.Answer("ldd", CommandEnd{0, "\tlibcuda.so.1 => not found\n", ""});
  EXPECT_THAT(CheckNixlPlugin(SetupOf(&system)).evidence, HasSubstr("libcuda.so.1 => not found"));
  system.Answer("ldd", CommandEnd{0, "undefined symbol: absl_log\t(./lib.so)\n", ""});
  const Check check = CheckNixlPlugin(SetupOf(&system));
  EXPECT_EQ(check.verdict, Verdict::kProblem);
  EXPECT_THAT(check.evidence, HasSubstr("undefined symbol: absl_log"));
  EXPECT_EQ(check.fix, "ldd -r " + kBackEnd + "  # then install what is not found");
}

TEST(DoctorNixl, AFolderWithoutTheWheelsOtherPluginsIsAWarning) {
  FakeSystem system = NixlMachine();
  system.states.erase(kFolder + "/libplugin_POSIX.so");
  const Check check = CheckNixlFolder(SetupOf(&system));
  EXPECT_EQ(check.verdict, Verdict::kWarning);
  EXPECT_THAT(check.evidence, AllOf(HasSubstr("lacks 1 of the wheel's 2 plug-ins"),
                                    HasSubstr("libplugin_POSIX.so"), Not(HasSubstr("UCX"))));
  EXPECT_THAT(check.fix, HasSubstr("python -m tensorferry.nixl"));
  system.environment["NIXL_PLUGIN_DIR"] = "/nowhere";
  EXPECT_EQ(CheckNixlFolder(SetupOf(&system)).verdict, Verdict::kProblem);
  system.environment.erase("NIXL_PLUGIN_DIR");
  EXPECT_EQ(CheckNixlFolder(SetupOf(&system)).verdict, Verdict::kOk);
}

TEST(DoctorNixl, OurPluginInThePlaceOfUcxIsAWarningAsALinkAndAsACopy) {
  const std::string ucx = kFolder + "/libplugin_UCX.so";
  for (const bool is_link : {true, false}) {
    FakeSystem system = NixlMachine();
    if (is_link) system.links[ucx] = kInstalled;
    if (!is_link) system.files[ucx] = system.files[kBackEnd];
    const Check check = CheckNixlDropIn(SetupOf(&system));
    EXPECT_EQ(check.verdict, Verdict::kWarning);
    EXPECT_THAT(check.evidence, AllOf(HasSubstr(ucx), HasSubstr("get Ferry instead")));
    EXPECT_THAT(check.fix, HasSubstr("without --as-ucx"));
  }
}

TEST(DoctorNixl, PortsThatAreTakenOrGivenToOthersAreTold) {
  FakeSystem system = NixlMachine();
  // 20000 listens; 20001 is connected.
  system.files["/proc/net/tcp"] =
      "  sl  local_address rem_address   st\n"
      "   0: 0100007F:4E20 00000000:0000 0A 00000000\n"
      "   1: 0100007F:4E21 0100007F:1234 01 00000000\n";
  Check check = CheckNixlPorts(SetupOf(&system));
  EXPECT_EQ(check.verdict, Verdict::kOk) << check.evidence;
  EXPECT_THAT(check.evidence, HasSubstr("99 of 100 ports are free"));
  EXPECT_EQ(CheckNixlPorts(SetupOf(&system, Ports(20000, 20001))).verdict, Verdict::kNote);
  check = CheckNixlPorts(SetupOf(&system, Ports(20000, 20000)));
  EXPECT_EQ(check.verdict, Verdict::kProblem);
  EXPECT_THAT(check.evidence, HasSubstr("0 of 1 ports are free"));
  check = CheckNixlPorts(SetupOf(&system, Ports(40000, 40099)));
  EXPECT_EQ(check.verdict, Verdict::kNote);
  EXPECT_EQ(check.fix, "sysctl -w net.ipv4.ip_local_reserved_ports=40000-40099");
  system.Sysctl("net.ipv4.ip_local_reserved_ports", "8080,40000-40099");
  EXPECT_EQ(CheckNixlPorts(SetupOf(&system, Ports(40000, 40099))).verdict, Verdict::kOk);
  check = CheckNixlPorts(SetupOf(&system, Config()));
  EXPECT_EQ(check.verdict, Verdict::kNote);
  EXPECT_THAT(check.evidence, HasSubstr("FERRY_PORT_RANGE is not set"));
}

TEST(DoctorNixl, AgentsOfOtherMachinesNeedNoSecretInTheSettings) {
  FakeSystem system = NixlMachine();
  system.environment["NIXL_LOG_LEVEL"] = "DEBUG";
  EXPECT_THAT(CheckNixlSettings(SetupOf(&system)).evidence,
              AllOf(HasSubstr("NIXL_LOG_LEVEL=DEBUG"), HasSubstr("without FERRY_SECRET_FILE")));
  Config config;
  ASSERT_TRUE(config.Set("secret", "0123456789abcdef0123456789abcdef"));
  const Check check = CheckNixlSettings(SetupOf(&system, config));
  EXPECT_EQ(check.verdict, Verdict::kOk);
  EXPECT_THAT(check.evidence, ::testing::Not(HasSubstr("FERRY_SECRET_FILE")));
}

}  // namespace
}  // namespace ferry::tools
