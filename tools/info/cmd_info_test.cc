// Tests of the sections of `ferry info`: devices, interfaces, plugin and peer.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <string>

#include "ferry/tcpx/host/plugin_path.h"
#include "tools/info/devices.h"
#include "tools/info/network.h"
#include "tools/info/plugin.h"
#include "tools/testing/captured_output.h"
#include "tools/testing/command_line.h"
#include "tools/testing/peer_pair.h"

namespace ferry::tools {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

template <class Value>
std::string Printed(void (*print)(const Value&), const Value& value) {
  CapturedOutput out(STDOUT_FILENO);
  print(value);
  return out.Take();
}

// ---- devices ------------------------------------------------------------------------------------

TEST(InfoDevices, AreDescribedWithThePeersThatTheyReach) {
  Config config;
  config.devices = DeviceChoice::Simulated("3:501");
  const Json info = DeviceInfo(config);
  ASSERT_EQ(info["found"].size(), 3U);
  EXPECT_EQ(info["why_none"], "");
  for (int i = 0; i < 3; ++i) {
    const Json& one = info["found"][static_cast<std::size_t>(i)];
    EXPECT_EQ(one["ordinal"], i);
    EXPECT_EQ(one["compute_capability"], "9.0");
    EXPECT_EQ(one["code"]["kind"], "emulated");
    EXPECT_TRUE(one["numa_node"].is_null());
    EXPECT_EQ(one["reaches"].size(), 2U);
    EXPECT_EQ(std::count(one["reaches"].begin(), one["reaches"].end(), i), 0) << "not itself";
  }
  EXPECT_EQ(info["driver"], "simulated");
  EXPECT_EQ(info["driver_cuda"], "13.0");
  EXPECT_EQ(info["path_within_machine"], "gpu-copy");
  config.cuda_ipc = AutoOff::kOff;
  EXPECT_EQ(DeviceInfo(config)["path_within_machine"], "network");
}

TEST(InfoDevices, ArePrintedOneALineWithTheVersions) {
  Config config;
  config.devices = DeviceChoice::Simulated("2:501");
  const std::string text = Printed(PrintDevices, DeviceInfo(config));
  EXPECT_THAT(text, AllOf(HasSubstr("  0  simulated device, compute capability 9.0, 4 SMs"),
                          HasSubstr("NUMA node unknown, reaches GPUs [1]\n     emulated code\n"),
                          HasSubstr("gpu-copy (FERRY_CUDA_IPC)\n"),
                          HasSubstr("  driver simulated, up to CUDA 13.0; runtime 13.0\n")));
  config.devices = DeviceChoice::Simulated("1:501");
  EXPECT_THAT(Printed(PrintDevices, DeviceInfo(config)), Not(HasSubstr("reaches")));
}

TEST(InfoDevices, OfWhichThereAreNoneHaveAReason) {
  Config config;
  config.devices = DeviceChoice::None();
  const Json info = DeviceInfo(config);
  EXPECT_TRUE(info["found"].empty());
  EXPECT_THAT(info["why_none"].get<std::string>(), HasSubstr("devices=none"));
  EXPECT_FALSE(info.contains("driver"));
  EXPECT_THAT(Printed(PrintDevices, info), HasSubstr("  none: GPUs are turned off"));
}

TEST(InfoDevices, ThatTheBuildHasNoCodeForSayWhatFollows) {
  Config config;
  config.devices = DeviceChoice::Simulated("1:501");
  Json info = DeviceInfo(config);
  Json& code = info["found"][0]["code"];
  code = CodeInfo("80,90a-real", 8, 6);
  EXPECT_THAT(Printed(PrintDevices, info), HasSubstr("\n     native code, 80-real\n"));
  code = CodeInfo("80,90a-real", 12, 0);
  EXPECT_THAT(Printed(PrintDevices, info), HasSubstr("\n     PTX code, 80-virtual\n"));
  code = CodeInfo("90a-real", 12, 0);
  EXPECT_EQ(code["kind"], "none");
  EXPECT_THAT(Printed(PrintDevices, info),
              HasSubstr("\n     no code for it: copies go by its copy engine and ops do not run on "
                        "it; build with -DFERRY_CUDA_ARCH=120-real\n"));
  code = CodeInfo("80,90a-real", 7, 5);
  EXPECT_THAT(Printed(PrintDevices, info),
              HasSubstr("ops do not run on it; kernels need compute capability 8.0 or later\n"));
}

TEST(InfoDevices, OneThatDoesNotAnswerIsShownWithItsError) {
  Config config;
  config.devices = DeviceChoice::Simulated("1:501");
  Json info = DeviceInfo(config);
  Json failed = ErrorToJson(Error(Code::kDeviceLost, "it fell off the bus"));
  failed["ordinal"] = 1;
  failed["reaches"] = Json::array();
  info["found"].push_back(failed);
  EXPECT_THAT(Printed(PrintDevices, info), HasSubstr("  1  it fell off the bus\n"));
}

// ---- interfaces ---------------------------------------------------------------------------------

TEST(InfoInterfaces, LoopbackReachesThisMachineOnly) {
  const Json interfaces = InterfaceInfo(Config());
  bool found = false;
  for (const Json& one : interfaces) {
    EXPECT_FALSE(one["interface"].get<std::string>().empty());
    if (one["address"].get<std::string>().empty()) {
      EXPECT_EQ(one["used"], false);
    }
    EXPECT_EQ(one["used"].get<bool>(), one["why_not"].get<std::string>().empty());
    if (one["address"] != "127.0.0.1") continue;
    found = true;
    EXPECT_EQ(one["interface"], "lo");
    EXPECT_EQ(one["why_not"], "reaches this machine only");
    EXPECT_EQ(one["advertised"], false);
    EXPECT_EQ(one["state"], "up");
    EXPECT_GT(one["mtu"].get<int>(), 0);
    EXPECT_TRUE(one["speed_mbit"].is_null());
  }
  EXPECT_TRUE(found) << interfaces.dump();
}

TEST(InfoInterfaces, ThoseThatTheSettingLeavesOutSaySo) {
  Config config;
  config.interfaces = "no-such-interface*";
  for (const Json& one : InterfaceInfo(config)) {
    EXPECT_EQ(one["why_not"], "left out by FERRY_INTERFACES=no-such-interface*");
    EXPECT_EQ(one["used"], false);
    EXPECT_EQ(one["advertised"], false);
  }
}

TEST(InfoInterfaces, LoopbackIsToldWhereItIsNamed) {
  Config config;
  config.interfaces = "lo";
  bool told = false;
  for (const Json& one : InterfaceInfo(config)) {
    EXPECT_EQ(one["advertised"].get<bool>(),
              one["interface"] == "lo" && one["why_not"].get<std::string>().empty());
    told = told || (one["address"] == "127.0.0.1" && one["advertised"].get<bool>());
  }
  EXPECT_TRUE(told);
}

TEST(InfoInterfaces, ArePrintedWithSpeedAndUse) {
  const Json fast{{"interface", "eth0"}, {"address", "10.0.0.1"}, {"state", "up"},
                  {"mtu", 9000},         {"speed_mbit", 100000},  {"why_not", ""}};
  Json down = fast;
  down.update({{"interface", "eth1"}, {"state", "down"}, {"mtu", nullptr}});
  down.update({{"speed_mbit", nullptr}, {"why_not", "it is down"}});
  Json empty = down;
  empty.update({{"interface", "eth2"}, {"address", ""}, {"why_not", "no address"}});
  const std::string text = Printed(PrintInterfaces, Json::array({fast, down, empty}));
  EXPECT_THAT(text, HasSubstr("  eth2         -  "));
  EXPECT_THAT(text, AllOf(HasSubstr("eth0"), HasSubstr("mtu 9000"), HasSubstr("100000 Mbit/s"),
                          HasSubstr("used, told to peers\n"), HasSubstr("mtu null"),
                          HasSubstr("not used: it is down\n")));
}

// ---- plugins ------------------------------------------------------------------------------------

#ifdef FERRY_WITHOUT_TCPX
TEST(InfoPlugin, CannotBeUsedForWantOfItsHost) {
  EXPECT_TRUE(PluginInfo(Config()).is_null());
  EXPECT_THAT(Printed(PrintPlugin, Json(nullptr)), HasSubstr("FERRY_TCPX=OFF"));
  Config config;
  config.net_plugin = "/x.so";
  const Json info = PluginInfo(config);
  EXPECT_EQ(info["error"]["code"], "Unsupported");
  EXPECT_THAT(Printed(PrintPlugin, info), HasSubstr("-DFERRY_TCPX=ON"));
}
#else
TEST(InfoPlugin, IsNoneOrNamedWithTheReasonWhyItCannotBeUsed) {
  ASSERT_EQ(::unsetenv(tcpx::kUcclPluginVariable), 0);
  EXPECT_TRUE(PluginInfo(Config()).is_null());
  EXPECT_THAT(Printed(PrintPlugin, Json(nullptr)), HasSubstr("none (FERRY_NET_PLUGIN names one)"));
  Config config;
  config.net_plugin = "/no/such/plugin.so";
  const Json missing = PluginInfo(config);
  EXPECT_EQ(missing["path"], "/no/such/plugin.so");
  EXPECT_EQ(missing["error"]["code"], "InvalidArgument");
  EXPECT_FALSE(missing.contains("devices"));
  EXPECT_THAT(Printed(PrintPlugin, missing), HasSubstr("there is no network plugin"));
}

TEST(InfoPlugin, IsPrintedWithItsDevices) {
  const Json nic{{"name", "standin0"},
                 {"megabits_per_second", 200000},
                 {"host_memory", true},
                 {"cuda_memory", false},
                 {"unpacks", true}};
  const Json plugin{{"path", "/x.so"},
                    {"source", "FERRY_NET_PLUGIN"},
                    {"name", "Some_v7"},
                    {"version", 7},
                    {"devices", Json::array({nic})}};
  EXPECT_THAT(Printed(PrintPlugin, plugin),
              AllOf(HasSubstr("/x.so (FERRY_NET_PLUGIN)"),
                    HasSubstr("Some_v7, version 7 of NCCL's interface"), HasSubstr("standin0"),
                    HasSubstr("200 Gbit/s, host memory (in pieces")));
}
#endif

// ---- peers --------------------------------------------------------------------------------------

TEST(InfoPeer, ThatAnswersIsShownWithItsLanes) {
  PeerPair pair;  // whose far endpoint takes one more connection
  const Config config = LoopbackConfig();
  const std::string address = "127.0.0.1:" + std::to_string(pair.far_endpoint().port());
  const auto report = PeerInfo(config, address);
  ASSERT_TRUE(report) << report.error().ToString();
  EXPECT_TRUE(report->reached);
  const Json& info = report->info;
  ASSERT_EQ(info["routes"].size(), 1U);
  EXPECT_EQ(info["routes"][0]["interface"], "lo");
  EXPECT_EQ(info["routes"][0]["why"], "on this machine");
  EXPECT_EQ(info["connection"]["secret"], false);
  ASSERT_EQ(info["connection"]["lanes"].size(), 1U);
  for (const Json& lane : info["connection"]["lanes"]) {
    EXPECT_EQ(lane["up"], true);
    EXPECT_EQ(lane["interface"], "lo");
    EXPECT_EQ(lane["remote"], address);
  }
  EXPECT_THAT(Printed(PrintPeer, info),
              AllOf(HasSubstr("Peer " + address), HasSubstr("answers; no secret was asked for"),
                    HasSubstr("  lane 0  127.0.0.1:"), HasSubstr(" by lo, up, ")));
}

TEST(InfoPeer, ThatDoesNotAnswerIsShownWithItsRoutes) {
  const auto report = PeerInfo(Config(), "127.0.0.1:1");
  ASSERT_TRUE(report) << report.error().ToString();
  ASSERT_FALSE(report->reached);
  EXPECT_EQ(report->reached.error().code(), Code::kPeerLost);
  EXPECT_EQ(report->info["error"]["code"], "PeerLost");
  EXPECT_FALSE(report->info.contains("connection"));
  EXPECT_THAT(Printed(PrintPeer, report->info), HasSubstr("  127.0.0.1:1  "));
}

TEST(InfoPeer, ThatHasNoNameIsWrongUsage) {
  EXPECT_EQ(PeerInfo(Config(), "[::1").error().code(), Code::kInvalidArgument);
  EXPECT_FALSE(PeerInfo(Config(), "no such host"));
}

TEST(InfoPeer, EscapesWhatThePeerHasSaid) {
  const Json lane{{"local", "a"},
                  {"remote", "b"},
                  {"interface", "lo"},
                  {"congestion_control", "cubic"},
                  {"up", false},
                  {"bytes_sent", 1},
                  {"bytes_received", 2},
                  {"frames_sent", 3},
                  {"frames_received", 4},
                  {"round_trip_us", nullptr},
                  {"congestion_window_bytes", 5},
                  {"retransmitted_segments", 6}};
  const Json peer{
      {"peer", "node7"},
      {"routes",
       Json::array({Json{{"address", "10.0.0.2"}, {"used", false}, {"why", "no route"}}})},
      {"connection",
       {{"endpoint", "e\x1b[2J"},
        {"secret", true},
        {"lanes", Json::array({lane})},
        {"events", Json::array({"lane 0\nlost"})}}}};
  EXPECT_THAT(
      Printed(PrintPeer, peer),
      AllOf(HasSubstr("not used: no route"), HasSubstr("endpoint e\\x1b[2J answers"),
            HasSubstr("both sides know the secret"), HasSubstr("by lo, down, cubic"),
            HasSubstr("1 B sent, 2 B received, 3 frames each way at least; round trip null"),
            HasSubstr("event: lane 0\\x0alost")));
}

// ---- the subcommand -----------------------------------------------------------------------------

TEST(InfoCommand, HasEverySectionAsTextAndAsJson) {
  const CommandLine devices = {"--set", "devices=simulated:1:501"};
  CommandLine text{"info"};
  text.insert(text.end(), devices.begin(), devices.end());
  const Ended shown = RunHere(text);
  ASSERT_TRUE(shown.status) << shown.message();
  for (const char* title : {"Build\n", "Machine\n", "Kernel\n", "Devices\n", "Addresses\n",
                            "Providers\n  tcp\n", "Network plugin\n", "Settings\n"}) {
    EXPECT_THAT(shown.out, HasSubstr(title));
  }
  text.emplace_back("--json");
  const Json info = Json::parse(RunHere(text).out, nullptr, false);
  ASSERT_TRUE(info.is_object());
  EXPECT_GT(info["machine"]["usable_cores"].get<int>(), 0);
  EXPECT_LE(info["machine"]["usable_cores"].get<int>(), info["machine"]["cores"].get<int>());
  std::set<std::string> names;
  for (const Json& setting : info["settings"]) {
    EXPECT_TRUE(names.insert(setting["name"].get<std::string>()).second) << setting.dump();
    EXPECT_FALSE(setting["help"].get<std::string>().empty()) << setting.dump();
    EXPECT_EQ(setting["name"] == "devices", setting["source"] == "--set") << setting.dump();
  }
  EXPECT_TRUE(names.count("lanes"));
}

TEST(InfoCommand, APeerThatIsNotReachedDecidesTheExitCode) {
  const Ended ended = RunHere({"info", "--peer", "127.0.0.1:1", "--json"});
  EXPECT_EQ(ended.exit_code, kExitPeer);
  EXPECT_EQ(Json::parse(ended.out, nullptr, false)["peer"]["error"]["code"], "PeerLost");
  EXPECT_EQ(RunHere({"info", "--peer", "[::1"}).exit_code, kExitUsage);
  EXPECT_EQ(RunHere({"info", "more"}).exit_code, kExitUsage);
}

TEST(DoctorCommandLine, WrongOptionsAreWrongUsage) {
  for (const CommandLine& wrong :
       {CommandLine{"doctor", "--peer", ":7471"}, CommandLine{"doctor", "--peer", "node7:0"},
        CommandLine{"doctor", "--peer", "[::1"}, CommandLine{"doctor", "--set", "lanes=99"},
        CommandLine{"doctor", "--fix"}}) {
    const Ended ended = RunHere(wrong);
    EXPECT_EQ(ended.exit_code, kExitUsage) << wrong.back() << ": " << ended.message();
    EXPECT_EQ(ended.out, "");
  }
}

}  // namespace
}  // namespace ferry::tools
