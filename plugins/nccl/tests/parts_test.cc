// The plugin's parts that need no network.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "plugins/nccl/nccl_request.h"
#include "plugins/nccl/nic.h"
#include "plugins/nccl/rank.h"
#include "plugins/nccl/report.h"
#include "plugins/nccl/setup/cores.h"
#include "plugins/nccl/setup/gpus.h"
#include "plugins/nccl/setup/library_search.h"
#include "plugins/nccl/setup/nccl_tuner.h"
#include "plugins/nccl/setup/set_variables.h"
#include "plugins/nccl/setup/settings.h"
#include "plugins/nccl/tests/testing/nccl_host.h"
#include "plugins/nccl/wire.h"

namespace ferry::nccl_net {
namespace {

using ::testing::HasSubstr;
using testing::HeldLog;
using testing::Logged;
using testing::LoggedText;
using HandleBytes = std::array<std::byte, abi::kHandleBytes>;

Config::Getter Environment(const std::map<std::string, std::string>& variables) {
  return [variables](const char* name) {
    const auto it = variables.find(name);
    return it == variables.end() ? nullptr : it->second.c_str();
  };
}

constexpr unsigned kManyCores = 32;

Result<Settings> SettingsWith(const std::map<std::string, std::string>& variables) {
  return LoadSettings(Environment(variables), kManyCores);
}

TEST(NcclSettings, HearOursBeforeThoseOfNccl) {
  const auto theirs = SettingsWith({{"NCCL_SOCKET_IFNAME", "=ens1"}});
  ASSERT_TRUE(theirs);
  EXPECT_EQ(theirs->config.interfaces, "ens1");
  EXPECT_EQ(theirs->selection, "NCCL_SOCKET_IFNAME==ens1");
  const auto ours = SettingsWith({{"NCCL_SOCKET_IFNAME", "=ens1"}, {"FERRY_INTERFACES", "ens2"}});
  ASSERT_TRUE(ours);
  EXPECT_EQ(ours->config.interfaces, "ens2");
  EXPECT_EQ(ours->selection, "FERRY_INTERFACES=ens2");
  const auto family =
      SettingsWith({{"NCCL_SOCKET_IFNAME", "ens"}, {"NCCL_SOCKET_FAMILY", "AF_INET6"}});
  ASSERT_TRUE(family);
  EXPECT_EQ(family->family, net::IpFamily::kIpv6);
  EXPECT_EQ(family->selection, "NCCL_SOCKET_IFNAME=ens with NCCL_SOCKET_FAMILY=AF_INET6");
  EXPECT_EQ(SettingsWith({{"NCCL_SOCKET_FAMILY", "AF_INET"}})->selection,
            "NCCL_SOCKET_FAMILY=AF_INET");
  const auto wrong = SettingsWith({{"NCCL_SOCKET_IFNAME", " "}});
  ASSERT_FALSE(wrong);
  EXPECT_THAT(wrong.error().message(), HasSubstr("NCCL_SOCKET_IFNAME= : "));
}

using Variables = std::vector<std::pair<std::string, std::string>>;

struct Asked {
  std::vector<std::pair<std::string, std::string>> variables;
  int tuned_channels = 0;
  std::size_t devices = 1;
  bool operator==(const Asked&) const = default;
};

// The newest NCCL, and a network of unknown speed.
NcclFacts FactsOf(int version) {
  return {.version = version, .megabits = 100'000, .gpus = {}, .local_ranks = 0};
}

NcclRequest RequestWith(const std::map<std::string, std::string>& variables,
                        const NcclFacts& facts) {
  const auto settings = SettingsWith(variables);
  NcclRequest refused;
  if (!settings) {
    refused.variables = {{"error", settings.error().message()}};
    return refused;
  }
  const auto get = Environment(variables);
  return RequestOf(settings->config, get, FindNcclTuner(get, nullptr), facts);
}

Asked AskedWith(const std::map<std::string, std::string>& variables, int version = 23000) {
  const NcclRequest request = RequestWith(variables, FactsOf(version));
  return {request.variables, request.tuned_channels, request.devices};
}

TEST(NcclRequest, IsForMoreChannelsAndLargerPiecesUnlessSomebodyHasSpoken) {
  const std::pair<std::string, std::string> channels{"NCCL_MIN_NCHANNELS", "8"};
  const std::pair<std::string, std::string> pieces{"NCCL_P2P_NET_CHUNKSIZE", "524288"};
  const std::pair<std::string, std::string> speed{"NCCL_P2P_PER_CHANNEL_NET_BW", "2"};
  EXPECT_EQ(AskedWith({}), (Asked{{pieces, channels, speed}, 8, 1}));
  EXPECT_EQ(AskedWith({{"FERRY_NCCL_CHANNELS", ""}, {"NCCL_MIN_NCHANNELS", ""}}),
            (Asked{{pieces, channels, speed}, 8, 1}));
  EXPECT_EQ(AskedWith({{"NCCL_P2P_NET_CHUNKSIZE", "131072"}}), (Asked{{channels, speed}, 8, 1}));
  EXPECT_EQ(AskedWith({{"NCCL_P2P_PER_CHANNEL_NET_BW", "14"}}), (Asked{{pieces, channels}, 8, 1}));
  EXPECT_EQ(AskedWith({{"FERRY_NCCL_CHANNELS", "1"}}),
            (Asked{{pieces, {"NCCL_MIN_NCHANNELS", "1"}, speed}}));
  EXPECT_EQ(AskedWith({{"FERRY_NCCL_CHANNELS", "4"}}),
            (Asked{{pieces, {"NCCL_MIN_NCHANNELS", "4"}, speed}, 4, 1}));
  EXPECT_EQ(AskedWith({{"FERRY_NCCL_CHANNELS", "0"}}), Asked{});
  EXPECT_EQ(AskedWith({{"NCCL_NET", "Socket"}}), Asked{});
  EXPECT_EQ(AskedWith({{"NCCL_NET", "ferry"}}), (Asked{{pieces, channels, speed}, 8, 1}));
}

std::string VariableIn(const NcclRequest& request, const std::string& name) {
  for (const auto& [each, value] : request.variables) {
    if (each == name) return value;
  }
  return "";
}

TEST(NcclRequest, ForChannelsBetweenTwoRanksDependsOnTheVersionOfNccl) {
  constexpr const char* kPeer = "NCCL_NCHANNELS_PER_NET_PEER";
  constexpr const char* kSpeed = "NCCL_P2P_PER_CHANNEL_NET_BW";
  for (const int version : {22403, 22707, 22809, 22902, 23007, 23200}) {
    const NcclRequest request = RequestWith({}, FactsOf(version));
    EXPECT_EQ(VariableIn(request, kPeer), version < 22800 ? "8" : "") << version;
    EXPECT_EQ(VariableIn(request, kSpeed), version >= 22900 ? "2" : "") << version;
    EXPECT_EQ(request.devices, 1U) << version;
    EXPECT_EQ(request.peer_channels, version / 100 == 228 ? 2 : 8) << version;
    const NcclRequest set = RequestWith({{kPeer, "4"}}, FactsOf(version));
    EXPECT_EQ(VariableIn(set, kPeer) + VariableIn(set, kSpeed), "") << version;
    EXPECT_EQ(set.peer_channels, 4) << version;
  }
  EXPECT_EQ(VariableIn(RequestWith({{"FERRY_NCCL_CHANNELS", "4"}}, FactsOf(22707)), kPeer), "4");
  // Slow networks need no more channels, and get more lanes for each.
  NcclFacts slow = FactsOf(23007);
  slow.megabits = 10'000;
  EXPECT_EQ(RequestWith({}, slow).peer_channels, 1);
  slow.megabits = 25'000;
  EXPECT_EQ(RequestWith({}, slow).peer_channels, 2);
  // A user's own speed, or NCCL's where nothing is asked for.
  for (const auto& [speed, channels] : std::map<std::string, int>{
           {"14", 1}, {"0xC", 1}, {"6", 2}, {"1", 8}, {"0", 1}, {"-1", 1}, {"many", 1}}) {
    EXPECT_EQ(RequestWith({{kSpeed, speed}}, FactsOf(23007)).peer_channels, channels) << speed;
  }
  EXPECT_EQ(RequestWith({{"FERRY_NCCL_CHANNELS", "0"}}, FactsOf(23007)).peer_channels, 1);
}

TEST(NcclRequest, BearsAnyNumberInTheVariablesOfNccl) {
  for (const char* name :
       {"NCCL_MIN_NCHANNELS", "NCCL_MIN_NRINGS", "NCCL_MAX_NCHANNELS", "NCCL_MAX_NRINGS",
        "NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_NCHANNELS_PER_NET_PEER",
        "NCCL_P2P_PER_CHANNEL_NET_BW", "NCCL_P2P_NET_CHUNKSIZE"}) {
    for (const char* value : {"0", "-1", "-2", "999999", " ", "0x8", "many", "-9223372036854775808",
                              "99999999999999999999"}) {
      for (const int version : {22403, 22707, 22809, 23007}) {
        const NcclRequest request = RequestWith({{name, value}}, FactsOf(version));
        EXPECT_GE(request.peer_channels, 1) << name << value << version;
        EXPECT_LE(request.peer_channels, 64) << name << value << version;
        EXPECT_EQ(request.devices, 1U) << name << value << version;
        EXPECT_EQ(VariableIn(request, name), "") << name << value << version;
      }
    }
  }
}

TEST(NcclRequest, ShowsSeveralDevicesToNccl228WhereEveryNodeComputesTheSame) {
  const Gpus direct{.count = 8, .link = GpuLink::kDirect};
  const Gpus behind_switch{.count = 1, .link = GpuLink::kSwitch};
  const auto with = [](const Gpus& gpus, unsigned local_ranks) {
    NcclFacts facts = FactsOf(22809);
    facts.gpus = gpus;
    facts.local_ranks = local_ranks;
    return RequestWith({}, facts);
  };
  const NcclRequest alone = with(direct, 1);
  EXPECT_EQ(alone.devices, 5U);
  EXPECT_EQ(alone.peer_channels, 8);
  EXPECT_EQ(alone.gpu_link, GpuLink::kDirect);
  EXPECT_EQ(alone.hint, "");
  // Five devices must not fill a link of 12 GB/s, or nodes could count differently.
  EXPECT_LT(4 * alone.max_megabits, 96'000);
  EXPECT_EQ(with({.count = 1, .link = GpuLink::kDirect}, 0).devices, 5U);
  for (const NcclRequest& unsafe :
       {with(direct, 8), with(direct, 0), with(behind_switch, 1), with({}, 1)}) {
    EXPECT_EQ(unsafe.devices, 1U);
    EXPECT_EQ(unsafe.peer_channels, 2);
    EXPECT_EQ(unsafe.gpu_link, GpuLink::kUnknown);
    EXPECT_THAT(unsafe.hint, HasSubstr("set NCCL_NCHANNELS_PER_NET_PEER=8"));
  }
  NcclFacts facts = FactsOf(22809);
  facts.gpus = direct;
  facts.local_ranks = 1;
  EXPECT_EQ(RequestWith({{"FERRY_NCCL_DEVICES", "1"}}, facts).devices, 1U);
  EXPECT_EQ(RequestWith({{"NCCL_NCHANNELS_PER_NET_PEER", "8"}}, facts).devices, 1U);
  for (const int few : {1, 2}) {
    const NcclRequest request = RequestWith({{"FERRY_NCCL_CHANNELS", std::to_string(few)}}, facts);
    EXPECT_EQ(request.devices, 1U) << few;
    EXPECT_EQ(request.hint, "") << few;
  }
  for (int channels = 3; channels <= 64; ++channels) {
    const NcclRequest request =
        RequestWith({{"FERRY_NCCL_CHANNELS", std::to_string(channels)}}, facts);
    const auto others = static_cast<int>(request.devices) - 1;
    const unsigned rounded = std::bit_ceil(static_cast<unsigned>(channels));
    EXPECT_EQ(std::bit_ceil(request.devices), std::min(rounded, 32U)) << channels;
    EXPECT_LT(others * request.max_megabits, 96'000) << channels;
    EXPECT_GE(request.max_megabits, 1000) << channels;
  }
  const NcclRequest set = RequestWith({{"FERRY_NCCL_DEVICES", "3"}}, facts);
  EXPECT_LT(2 * set.max_megabits, 96'000);
  EXPECT_EQ(set.gpu_link, GpuLink::kDirect);
}

TEST(NcclRequest, LeavesOneChannelToAUserWhoWantsOne) {
  for (const int version : {22707, 22809, 23007}) {
    const NcclRequest request = RequestWith({{"NCCL_MAX_NCHANNELS", "1"}}, FactsOf(version));
    EXPECT_EQ(request.variables, (Variables{{"NCCL_P2P_NET_CHUNKSIZE", "524288"}})) << version;
    EXPECT_EQ(request.peer_channels, 1) << version;
    EXPECT_EQ(request.devices, 1U) << version;
  }
  // As NCCL reads it.
  for (const char* less : {"many", "0", "-1"}) {
    EXPECT_EQ(RequestWith({{"NCCL_MAX_NCHANNELS", less}}, FactsOf(22809)).peer_channels, 1) << less;
  }
}

// As a process has it whose parent has asked.
TEST(NcclRequest, LimitsShortCollectivesByTheNumberOfChannelsWhoeverSetIt) {
  std::map<std::string, std::string> inherited{{"NCCL_MIN_NCHANNELS", "8"},
                                               {"NCCL_P2P_NET_CHUNKSIZE", "524288"},
                                               {"NCCL_P2P_PER_CHANNEL_NET_BW", "2"}};
  EXPECT_EQ(AskedWith(inherited), (Asked{{}, 8, 1}));
  inherited["NCCL_MIN_NCHANNELS"] = "0x8";
  EXPECT_EQ(AskedWith(inherited), (Asked{{}, 8, 1}));
  inherited["NCCL_MIN_NCHANNELS"] = "16";
  EXPECT_EQ(AskedWith(inherited), (Asked{}));
}

TEST(NcclRequest, GoesBeyondNoBoundAndLeavesOtherTunersAlone) {
  for (const char* bound : {"NCCL_MAX_NCHANNELS", "NCCL_MAX_NRINGS", "NCCL_MIN_NRINGS",
                            "NCCL_MAX_CTAS", "NCCL_MIN_CTAS", "NCCL_TUNER_PLUGIN"}) {
    EXPECT_EQ(AskedWith({{bound, "2"}}), (Asked{{{"NCCL_P2P_NET_CHUNKSIZE", "524288"}}})) << bound;
  }
}

// Ranks that show NCCL different numbers of them may hang, so nothing else that one of them has set
// takes it back.
TEST(NcclRequest, IsForAsManyDevicesAsAreAskedForWhateverElseIsSet) {
  EXPECT_EQ(AskedWith({{"FERRY_NCCL_DEVICES", "5"}}).devices, 5U);
  EXPECT_EQ(AskedWith({{"FERRY_NCCL_DEVICES", "5"}}).tuned_channels, 8);
  EXPECT_EQ(AskedWith({{"FERRY_NCCL_DEVICES", ""}}).devices, 1U);
  for (const char* other :
       {"NCCL_MAX_NCHANNELS", "NCCL_MIN_NCHANNELS", "NCCL_TUNER_PLUGIN", "FERRY_NCCL_CHANNELS"}) {
    EXPECT_EQ(AskedWith({{"FERRY_NCCL_DEVICES", "5"}, {other, "1"}}).devices, 5U) << other;
  }
  EXPECT_EQ(AskedWith({{"FERRY_NCCL_DEVICES", "5"}, {"FERRY_NCCL_CHANNELS", "0"}}),
            (Asked{{}, 0, 5}));
}

TEST(NcclRequest, OutOfRangeIsRefused) {
  EXPECT_EQ(AskedWith({{"FERRY_NCCL_CHANNELS", "65"}}),
            (Asked{{{"error",
                     "FERRY_NCCL_CHANNELS cannot be used: '65' is out of range; allowed is 0..64 "
                     "(0: NCCL decides)"}}}));
  EXPECT_EQ(
      AskedWith({{"FERRY_NCCL_DEVICES", "33"}}),
      (Asked{{{"error",
               "FERRY_NCCL_DEVICES cannot be used: '33' is out of range; allowed is 1..32"}}}));
}

TEST(SmallFrames, AreLongEnoughAndSayTheSame) {
  DataWire data;
  data.tag = 7;
  data.sequence = 3;
  for (const std::uint64_t payload : {0U, 1U, 511U, 512U, 513U, 65536U}) {
    data.total = payload;
    std::vector<std::byte> meta(1000, std::byte{0xE5});
    StorePadded(data, payload, &meta);
    EXPECT_EQ(meta.size() + payload, std::max<std::uint64_t>(kMinFrame, sizeof data + payload));
    const auto loaded = LoadPadded(meta);
    ASSERT_TRUE(loaded);
    EXPECT_EQ(std::memcmp(&*loaded, &data, sizeof data), 0);
    EXPECT_EQ(std::count(meta.begin() + sizeof data, meta.end(), std::byte{0}),
              static_cast<std::ptrdiff_t>(meta.size() - sizeof data));
  }
  const std::vector<std::byte> bytes(kMinFrame + 1);
  const std::span all(bytes);
  EXPECT_FALSE(LoadPadded(all));
  EXPECT_TRUE(LoadPadded(all.first(kMinFrame)));
  EXPECT_FALSE(LoadPadded(all.first(sizeof data - 1)));
}

TEST(NcclSettings, HaveRoomForManyDescriptors) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = std::min<rlim_t>(before.rlim_cur, 1000);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  EXPECT_EQ(RaiseDescriptorLimit(),
            std::max<rlim_t>(low.rlim_cur, std::min<rlim_t>(before.rlim_max, 65536)));
  rlimit now{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &now), 0);
  EXPECT_EQ(RaiseDescriptorLimit(), now.rlim_cur);
  EXPECT_EQ(now.rlim_max, before.rlim_max);
  (void)::setrlimit(RLIMIT_NOFILE, &before);
}

TEST(NcclSettings, HaveDefaultsOfTheirOwn) {
  const auto settings = SettingsWith({});
  ASSERT_TRUE(settings);
  EXPECT_EQ(settings->piece_bytes, 128U << 10);
  EXPECT_EQ(settings->small_bytes, 64U << 10);
  EXPECT_EQ(SettingsWith({{"FERRY_EAGER_BYTES", "4KiB"}})->small_bytes, 4096U);
  EXPECT_GE(settings->config.max_pending_handshakes, 256U);
  EXPECT_LE(settings->config.max_pending_handshakes, 4096U);
  EXPECT_EQ(SettingsWith({{"FERRY_SPIN", "0"}})->config.spin.count(), 0);
  EXPECT_EQ(SettingsWith({{"FERRY_MAX_PENDING_HANDSHAKES", "300"}})->config.max_pending_handshakes,
            300U);
  const auto set =
      SettingsWith({{"FERRY_LANES", "7"}, {"FERRY_WORKERS", "3"}, {"FERRY_SLICE_BYTES", "1MiB"}});
  ASSERT_TRUE(set);
  EXPECT_EQ(set->bulk_lanes, 7U);
  EXPECT_EQ(set->workers, 3U);
  EXPECT_EQ(set->piece_bytes, 1U << 20);
  const auto wrong = SettingsWith({{"FERRY_LANES", "many"}});
  ASSERT_FALSE(wrong);
  EXPECT_THAT(wrong.error().message(), HasSubstr("FERRY_LANES"));
}

TEST(NcclSettings, HaveAsManyWorkersAsMayPollOnManyCores) {
  struct Sizes {
    unsigned cores;
    std::size_t workers;
    int spinners;
  };
  for (const Sizes& sizes : {Sizes{1, 2, 1}, Sizes{4, 2, 1}, Sizes{8, 4, 2}, Sizes{15, 7, 3},
                             Sizes{16, 12, 12}, Sizes{32, 16, 16}, Sizes{256, 16, 16}}) {
    const auto settings = LoadSettings(Environment({}), sizes.cores);
    ASSERT_TRUE(settings);
    EXPECT_EQ(settings->workers, sizes.workers) << sizes.cores;
    EXPECT_EQ(settings->spinners, sizes.spinners) << sizes.cores;
    EXPECT_EQ(settings->config.spin.count() > 0, sizes.cores >= 16) << sizes.cores;
  }
  const auto set = LoadSettings(Environment({{"FERRY_WORKERS", "5"}}), 32);
  EXPECT_EQ(set->spinners, 5);
}

TEST(NcclSettings, GiveAPeerSixteenToTwentyFourSocketsOverAllChannelsInEachDirection) {
  for (int channels = 1; channels <= 8; ++channels) {
    const auto lanes = BulkLanes(channels, 12);
    const auto sockets = static_cast<std::size_t>(channels) * (1 + lanes);
    EXPECT_GE(sockets, channels == 1 ? 13U : 16U) << channels;  // no more lanes than workers
    EXPECT_LE(sockets, 24U) << channels;
  }
  EXPECT_EQ(BulkLanes(64, 12), 1U);
  EXPECT_EQ(BulkLanes(1, 2), 2U);  // no more than workers
}

// A folder in place of /, removed at the end.
class FakeRoot {
 public:
  FakeRoot() : path_(fmt::format("{}/root_{}", ::testing::TempDir(), ::getpid())) {
    std::filesystem::remove_all(path_);
  }
  ~FakeRoot() { std::filesystem::remove_all(path_); }
  FakeRoot(const FakeRoot&) = delete;
  FakeRoot& operator=(const FakeRoot&) = delete;

  const std::string& path() const noexcept { return path_; }
  void Write(const std::string& file, const std::string& text) const {
    const std::filesystem::path path = path_ + file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << std::endl;
  }
  // A PCI device below the folders `above` of its root complex.
  void AddDevice(const std::string& above, const std::string& address, const char* vendor,
                 const char* kind) const {
    const std::string folder = "/sys/devices/pci0000:00/" + above + address;
    Write(folder + "/vendor", vendor);
    Write(folder + "/class", kind);
    std::filesystem::create_directories(path_ + "/sys/bus/pci/devices");
    std::filesystem::create_symlink(path_ + folder, path_ + "/sys/bus/pci/devices/" + address);
  }

 private:
  const std::string path_;
};

TEST(NcclCores, AreThoseOfTheTightestQuotaAboveThisProcess) {
  const auto cores = [](const std::string& groups,
                        const std::vector<std::pair<std::string, std::string>>& files) {
    const FakeRoot root;
    root.Write("/proc/self/cgroup", groups);
    for (const auto& [file, text] : files) root.Write("/sys/fs/cgroup" + file, text);
    return UsableCores(Environment({}), root.path());
  };
  const unsigned all = cores("", {});
  EXPECT_GE(all, 1U);
  EXPECT_EQ(cores("0::/a/b", {{"/a/b/cpu.max", "max 100000"}}), all);
  EXPECT_EQ(cores("0::/a/b", {{"/a/b/cpu.max", "max 100000"}, {"/a/cpu.max", "100000 100000"}}),
            1U);
  EXPECT_EQ(cores("0::/", {{"/cpu.max", "50000 100000"}}), 1U);  // half a core
  // The host's path in a container, where only the root exists.
  EXPECT_EQ(cores("0::/kubepods/pod7", {{"/cpu.max", "100000 100000"}}), 1U);
  EXPECT_EQ(cores("3:cpuset:/x\n2:cpu,cpuacct:/a",
                  {{"/cpu/a/cpu.cfs_quota_us", "100000"}, {"/cpu/a/cpu.cfs_period_us", "100000"}}),
            1U);
  EXPECT_EQ(cores("2:cpu:/a",
                  {{"/cpu/a/cpu.cfs_quota_us", "-1"}, {"/cpu/a/cpu.cfs_period_us", "100000"}}),
            all);
  for (const char* nonsense : {"", ":", "::", "0::", "0::a", "0::/..", "x:cpu"}) {
    EXPECT_EQ(cores(nonsense, {{"/cpu.max", "nonsense"}}), all) << nonsense;
  }
  for (const char* nonsense : {"", "max", "1000", "0 100000", "-1 100000", "100000 0", "100000 -1",
                               "nan nan", "1e999 1", "999999999999 1"}) {
    EXPECT_EQ(cores("0::/", {{"/cpu.max", nonsense}}), all) << nonsense;
  }
}

// A container's set of CPUs, where the ranks in it are not bound to cores.
TEST(NcclCores, OfTheSetOfCpusOfThisCgroupAreSharedByTheRanks) {
  const auto cores = [](const std::string& groups, const std::string& file, const std::string& cpus,
                        const std::string& ranks) {
    const FakeRoot root;
    root.Write("/proc/self/cgroup", groups);
    root.Write("/sys/fs/cgroup" + file, cpus);
    return UsableCores(Environment({{"LOCAL_WORLD_SIZE", ranks}}), root.path());
  };
  const unsigned all = cores("0::/", "/none", "", "1");
  EXPECT_EQ(cores("0::/a", "/cpuset.cpus.effective", "1", "1"), 1U);
  EXPECT_EQ(cores("0::/", "/cpuset.cpus.effective", "0-1,8", "3"), 1U);
  EXPECT_EQ(cores("7:cpuset:/a", "/cpuset/a/cpuset.effective_cpus", "5,7", "2"), 1U);
  EXPECT_EQ(cores("0::/a", "/cpuset.cpus.effective", "0-4294967295", "1"), all);
  for (const char* nonsense : {"", ",", "-", "0-", "3-1", "a-b", "0-x", "99999999999"}) {
    EXPECT_EQ(cores("0::/", "/cpuset.cpus.effective", nonsense, "1"), all) << nonsense;
  }
}

TEST(NcclCores, AreSharedByTheRanksOfTheMachine) {
  EXPECT_EQ(LocalRanks(Environment({})), 0U);
  EXPECT_EQ(LocalRanks(Environment({{"LOCAL_WORLD_SIZE", "8"}, {"SLURM_NTASKS_PER_NODE", "1"}})),
            8U);
  EXPECT_EQ(LocalRanks(Environment({{"SLURM_NTASKS_PER_NODE", "4"}})), 4U);
  for (const char* nonsense : {"", "0", "-1", "8x", "many", " 8", "0x8", "4294967296"}) {
    EXPECT_EQ(LocalRanks(Environment({{"LOCAL_WORLD_SIZE", nonsense}})), 0U) << nonsense;
  }
  EXPECT_EQ(UsableCores(Environment({{"LOCAL_WORLD_SIZE", "100000"}})), 1U);
}

TEST(NcclCores, AreNoMoreThanTheMaskOfTheThreadAllows) {
  cpu_set_t before;
  ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++core) {
    if (CPU_ISSET(core, &before)) CPU_SET(core, &one);
  }
  ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(UsableCores(Environment({})), 1U);
  ASSERT_EQ(::sched_setaffinity(0, sizeof before, &before), 0);
}

TEST(NcclGpus, AreDirectUnderARootPortAndNotUnderASwitch) {
  const FakeRoot root;
  EXPECT_EQ(FindGpus(root.path()).link, GpuLink::kUnknown);
  root.AddDevice("0000:00:01.0/0000:01:00.0/0000:02:01.0/", "0000:03:00.0", "0x8086", "0x020000");
  EXPECT_EQ(FindGpus(root.path()).count, 0U);
  root.AddDevice("", "0000:00:05.0", "0x10de", "0x030200");
  root.AddDevice("0000:00:02.0/", "0000:04:00.0", "0x10de", "0x030200");
  // Not a GPU: an NVSwitch.
  root.AddDevice("0000:00:01.0/0000:01:00.0/0000:02:02.0/", "0000:07:00.0", "0x10de", "0x068000");
  EXPECT_EQ(FindGpus(root.path()).count, 2U);
  EXPECT_EQ(FindGpus(root.path()).link, GpuLink::kDirect);
  root.AddDevice("0000:00:01.0/0000:01:00.0/0000:02:03.0/", "0000:05:00.0", "0x10de", "0x030200");
  EXPECT_EQ(FindGpus(root.path()).count, 3U);
  EXPECT_EQ(FindGpus(root.path()).link, GpuLink::kSwitch);
}

TEST(NcclNic, HasTheSpeedOfInterfacesWithADeviceOrOneThatIsAssumed) {
  const FakeRoot root;
  const auto add = [&](const std::string& name, const std::string& speed, bool device) {
    root.Write("/sys/class/net/" + name + "/speed", speed);
    if (device) root.Write("/sys/class/net/" + name + "/device/vendor", "0x8086");
  };
  const auto megabits = [&](const std::vector<std::string>& names) {
    std::vector<net::LocalAddress> addresses;
    for (const std::string& name : names) addresses.push_back({name, "10.0.0.1"});
    return FindNic(addresses, root.path()).megabits;
  };
  add("eth0", "25000", true);
  add("eth1", "40000", true);
  add("veth0", "10000", false);
  EXPECT_EQ(megabits({"eth0", "eth0"}), 25'000);  // two addresses
  EXPECT_EQ(megabits({"eth0", "eth1"}), 65'000);
  EXPECT_EQ(megabits({"veth0"}), 100'000);
  EXPECT_EQ(megabits({"veth0", "eth0"}), 25'000);
  EXPECT_EQ(megabits({"absent"}), 100'000);
  for (const char* nonsense : {"", "-1", "0", "fast", "4294967295"}) {
    add("odd", nonsense, true);
    EXPECT_EQ(megabits({"odd"}), 100'000) << nonsense;
  }
}

TEST(NcclVariables, AreSetWhileAnotherThreadReadsTheEnvironment) {
  (void)::setenv("FERRY_TEST_SET", "", 1);
  (void)::setenv("FERRY_TEST_LIKE", "kept", 1);
  std::atomic<bool> done{false};
  std::thread reader([&] {
    while (!done.load()) EXPECT_STREQ(std::getenv("FERRY_TEST_LIKE"), "kept");
  });
  for (int i = 0; i < 200; ++i) {
    SetVariables({{"FERRY_TEST_SET", std::to_string(i)}, {fmt::format("FERRY_TEST_{}", i), "new"}});
    EXPECT_EQ(std::getenv("FERRY_TEST_SET"), std::to_string(i));
  }
  done.store(true);
  reader.join();
  EXPECT_STREQ(std::getenv("FERRY_TEST_0"), "new");
  EXPECT_EQ(std::getenv("FERRY_TEST"), nullptr);
  ASSERT_EQ(::setenv("FERRY_TEST_SET", "other", 1), 0);
  EXPECT_STREQ(std::getenv("FERRY_TEST_SET"), "other");
  for (int i = 0; i < 200; ++i) (void)::unsetenv(fmt::format("FERRY_TEST_{}", i).c_str());
  (void)::unsetenv("FERRY_TEST_SET");
  (void)::unsetenv("FERRY_TEST_LIKE");
  EXPECT_EQ(std::getenv("FERRY_TEST_SET"), nullptr);
}

TEST(NcclWire, HandlesSayWhereToConnect) {
  ListenAddress address{.listen = 9, .key = {}, .at = {{"10.1.2.3", 77}, {"fd00::5", 77}}};
  address.key[3] = std::byte{5};
  HandleBytes handle{};
  ASSERT_TRUE(WriteHandle(address, handle.data()));
  EXPECT_EQ(AttemptOf(handle.data()), 0U);
  SetAttempt(handle.data(), 12);
  EXPECT_EQ(AttemptOf(handle.data()), 12U);
  const auto read = ReadHandle(handle.data());
  ASSERT_TRUE(read);
  EXPECT_EQ(read->listen, 9U);
  EXPECT_EQ(read->key, address.key);
  EXPECT_EQ(read->at, address.at);
}

TEST(NcclWire, HandlesHoldAsManyAddressesAsTheyCan) {
  ListenAddress address{.listen = 1, .key = {}, .at = {}};
  for (int i = 0; i < 6; ++i) address.at.push_back({"10.0.0." + std::to_string(i), 1});
  HandleBytes handle{};
  ASSERT_TRUE(WriteHandle(address, handle.data()));
  EXPECT_EQ(ReadHandle(handle.data())->at.size(), kMaxAddresses);
  EXPECT_FALSE(WriteHandle({.listen = 1, .key = {}, .at = {{"node7", 1}}}, handle.data()));
}

TEST(NcclWire, BytesThatAreNoHandleAreRefused) {
  HandleBytes handle{};
  EXPECT_THAT(ReadHandle(handle.data()).error().message(), HasSubstr("not made by this plugin"));
  ASSERT_TRUE(WriteHandle({.listen = 1, .key = {}, .at = {{"10.0.0.1", 1}}}, handle.data()));
  HandleBytes other = handle;
  other[4] = std::byte{kFirstAlike - 1};
  EXPECT_THAT(
      ReadHandle(other.data()).error().message(),
      HasSubstr(fmt::format("of version {} of the protocol, before {}; this side has version {}",
                            kFirstAlike - 1, kFirstAlike, kWireVersion)));
  for (const int count : {0, 5, 255}) {
    other = handle;
    other[32] = static_cast<std::byte>(count);
    EXPECT_FALSE(ReadHandle(other.data()));
  }
}

TEST(NcclWire, HandlesOfLaterVersionsSayWhereToConnectAndNothingOfTheRank) {
  ListenAddress address{.listen = 3, .key = {}, .at = {{"10.0.0.1", 1}}};
  address.rank.devices = 5;
  HandleBytes handle{};
  ASSERT_TRUE(WriteHandle(address, handle.data()));
  EXPECT_EQ(ReadHandle(handle.data())->rank.devices, 5);
  handle[4] = std::byte{99};
  const auto read = ReadHandle(handle.data());
  ASSERT_TRUE(read);
  EXPECT_EQ(read->version, 99);
  EXPECT_EQ(read->at, address.at);
  EXPECT_EQ(read->rank.devices, 0);
}

RankWire RankWith(const std::map<std::string, std::string>& variables) {
  const auto get = Environment(variables);
  return RankOf(RequestWith(variables, FactsOf(23000)), FindNcclTuner(get, nullptr), get);
}

std::string DifferenceText(const RankWire& own, const RankWire& others) {
  const auto different = FindDifference(own, others, "10.0.0.2:77");
  return different ? different->message() : "";
}

TEST(NcclRank, TellsEachSettingThatDiffersWithBothValues) {
  const RankWire usual = RankWith({});
  EXPECT_EQ(DifferenceText(usual, RankWith({{"NCCL_MIN_NCHANNELS", "8"}})), "");
  const std::pair<const char*, const char*> settings[] = {
      {"NCCL_MAX_NCHANNELS", "NCCL_MAX_NCHANNELS is not set here and 3 at 10.0.0.2:77"},
      {"NCCL_MIN_CTAS", "NCCL_MIN_CTAS is not set here and 3 at 10.0.0.2:77"},
      {"NCCL_MAX_CTAS", "NCCL_MAX_CTAS is not set here and 3 at 10.0.0.2:77"},
      {"NCCL_MIN_NRINGS", "(which FERRY_NCCL_CHANNELS sets) is 8 here and 3 at 10.0.0.2:77"},
      {"NCCL_P2P_NET_CHUNKSIZE", "NCCL_P2P_NET_CHUNKSIZE is 524288 here and 3 at 10.0.0.2:77"},
      {"FERRY_NCCL_DEVICES", "FERRY_NCCL_DEVICES=1 on all ranks) is 1 here and 3 at 10.0.0.2:77"},
      {"NCCL_NCHANNELS_PER_NET_PEER", "NET_PEER is not set here and 3 at 10.0.0.2:77"},
      {"NCCL_P2P_PER_CHANNEL_NET_BW", "CHANNEL_NET_BW is 2 here and 3 at 10.0.0.2:77"},
      {"NCCL_TUNER_PLUGIN", "is this plugin's here and named and not found at 10.0.0.2:77"},
  };
  for (const auto& [name, said] : settings) {
    EXPECT_THAT(DifferenceText(usual, RankWith({{name, "3"}})), HasSubstr(said)) << name;
  }
  const auto bounded = [](const char* most) {
    return RankWith({{"FERRY_NCCL_CHANNELS", "0"}, {"NCCL_MAX_NCHANNELS", most}});
  };
  for (const char* one : {"0", "-1", "many"}) {
    EXPECT_EQ(DifferenceText(bounded("1"), bounded(one)), "") << one;
    EXPECT_THAT(DifferenceText(bounded(""), bounded(one)),
                HasSubstr("NCCL_MAX_NCHANNELS is not set here and 1 at 10.0.0.2:77"));
  }
  RankWire older = usual;
  older.build = 0x1234;
  EXPECT_THAT(DifferenceText(usual, older), HasSubstr("and 00001234 at 10.0.0.2:77"));
  RankWire behind_switch = usual;
  behind_switch.gpu_link = GpuLink::kSwitch;
  RankWire direct = usual;
  direct.gpu_link = GpuLink::kDirect;
  EXPECT_THAT(DifferenceText(direct, behind_switch),
              HasSubstr("is direct here and through a PCIe switch at 10.0.0.2:77"));
}

TEST(NcclTuner, IsTheOneThatTheVariableNamesOrOurs) {
  const auto named = [](const std::string& name) {
    return FindNcclTuner(Environment({{"NCCL_TUNER_PLUGIN", name}}), nullptr).whose;
  };
  EXPECT_EQ(named(""), RankTuner::kThisLibrary);
  EXPECT_EQ(named("None"), RankTuner::kNone);
  EXPECT_EQ(named("/no/such.so"), RankTuner::kNotFound);
  EXPECT_EQ(named("libc.so.6"), RankTuner::kOther);
  EXPECT_EQ(named("/proc/self/exe"), RankTuner::kThisLibrary);
}

// Files with another name, or of another length, behind links and in any folder.
TEST(NcclTuner, OtherLibrariesAreComparedByTheirFileAndNotByTheirPath) {
  const auto folder = ::testing::TempDir() + fmt::format("/tuners_{}", ::getpid());
  const auto file = [&](const char* place, const char* name, std::size_t more) {
    std::filesystem::create_directories(folder + "/" + place);
    std::string path = fmt::format("{}/{}/{}", folder, place, name);
    std::filesystem::copy_file(FERRY_NCCL_PLUGIN, path);
    std::filesystem::resize_file(path, std::filesystem::file_size(path) + more);
    return path;
  };
  const auto rank = [](const std::string& tuner) {
    return RankWith({{"NCCL_TUNER_PLUGIN", tuner}});
  };
  const RankWire one = rank(file("a", "libone.so", 0));
  EXPECT_EQ(one.tuner, RankTuner::kOther);
  EXPECT_EQ(DifferenceText(one, rank(file("b", "libone.so", 0))), "");
  std::filesystem::create_symlink(folder + "/b/libone.so", folder + "/liblink.so");
  EXPECT_EQ(DifferenceText(one, rank(folder + "/liblink.so")), "");
  const auto said = fmt::format("(a hash of its name and size) is {:02x} here", one.tuner_hash);
  EXPECT_THAT(DifferenceText(one, rank(file("a", "libtwo.so", 0))), HasSubstr(said));
  EXPECT_THAT(DifferenceText(one, rank(file("c", "libone.so", 1))), HasSubstr(said));
  const RankWire missing = rank("libmissing.so");
  EXPECT_EQ(DifferenceText(missing, rank("libmissing.so")), "");
  EXPECT_THAT(DifferenceText(missing, rank("libother.so")), HasSubstr("that tuner's file"));
  EXPECT_THAT(DifferenceText(one, missing),
              HasSubstr("is another library's here and named and not found at"));
  std::filesystem::remove_all(folder);
}

TEST(NcclRequest, WarnsOfATunerThatIsNamedAndNotFound) {
  EXPECT_THAT(RequestWith({{"NCCL_TUNER_PLUGIN", "libmissing.so"}}, FactsOf(23000)).warning,
              HasSubstr("NCCL_TUNER_PLUGIN names libmissing.so, which was not found"));
}

TEST(LibrarySearch, FindsWhatIsLoadedByItsName) {
  const auto found = FindLibrary("libc.so.6", nullptr);
  ASSERT_TRUE(found);
  EXPECT_THAT(*found, HasSubstr("/libc.so.6"));
  EXPECT_EQ(FindLibrary(*found, nullptr), found);
  EXPECT_FALSE(FindLibrary("libferry-no-such.so", nullptr));
  EXPECT_FALSE(FindLibrary("/etc/hostname", nullptr));
}

// As ldconfig(8) writes it, with texts behind the entries.
std::string LoaderCacheOf(const std::string& name, const std::string& path) {
  const auto number = [](std::uint32_t value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof value);
  };
  std::string cache("glibc-ld.so.cache1.1");
  cache += number(1) + number(static_cast<std::uint32_t>(name.size() + path.size() + 2));
  cache += std::string(20, '\0');
  const std::uint32_t texts = 48 + 24;
  cache += number(1) + number(texts) + number(texts + static_cast<std::uint32_t>(name.size()) + 1);
  cache += std::string(12, '\0');
  return cache + name + '\0' + path + '\0';
}

TEST(LibrarySearch, ReadsTheLoadersCacheAndOnlyThat) {
  const std::string cache = LoaderCacheOf("libsome.so", "/proc/self/exe");
  EXPECT_EQ(FindInLoaderCache(cache, "libsome.so"), "/proc/self/exe");
  EXPECT_EQ(FindInLoaderCache("an older form" + cache, "libsome.so"), "/proc/self/exe");
  EXPECT_FALSE(FindInLoaderCache(cache, "libother.so"));
  EXPECT_FALSE(FindInLoaderCache(LoaderCacheOf("libsome.so", "/etc/hostname"), "libsome.so"));
  for (std::size_t bytes = 0; bytes < cache.size(); ++bytes) {
    EXPECT_FALSE(FindInLoaderCache(cache.substr(0, bytes), "libsome.so")) << bytes;
  }
  std::string many = cache;
  many[23] = '\x7F';  // entries
  EXPECT_FALSE(FindInLoaderCache(many, "libsome.so"));
}

TEST(NcclWire, CountsAreAsManyAsTheirFrameSays) {
  const std::vector<CountWire> counts{{.tag = 1, .receives = 2}, {.tag = -3, .receives = 4}};
  std::vector<std::byte> meta;
  StoreCounts(FrameType::kCredit, counts, &meta);
  const auto read = LoadCounts(FrameType::kCredit, meta);
  ASSERT_TRUE(read);
  ASSERT_EQ(read->size(), 2U);
  EXPECT_EQ((*read)[1].tag, -3);
  EXPECT_EQ((*read)[1].receives, 4U);
  EXPECT_FALSE(LoadCounts(FrameType::kAsk, meta));
  meta.pop_back();
  EXPECT_FALSE(LoadCounts(FrameType::kCredit, meta));
  // Many, and none of them there.
  meta.resize(sizeof(CountsWire));
  meta[7] = std::byte{0xFF};
  EXPECT_FALSE(LoadCounts(FrameType::kCredit, meta));
  EXPECT_FALSE(LoadCounts(FrameType::kCredit, {}));
  EXPECT_FALSE(LoadWire<DataWire>(meta));
}

TEST(NcclReport, OutcomesTellWhatACallerCanDo) {
  EXPECT_EQ(OutcomeOf(Code::kInvalidArgument), abi::kInvalidUsage);
  EXPECT_EQ(OutcomeOf(Code::kPeerLost), abi::kRemoteError);
  EXPECT_EQ(OutcomeOf(Code::kUnavailable), abi::kSystemError);
  EXPECT_EQ(OutcomeOf(Code::kInternal), abi::kInternalError);
}

TEST(NcclReport, KeepsSomeLinesForALogThatBlocksAndTellsHowManyWereLost) {
  constexpr std::size_t kLost = 44;
  SetLogger(testing::LoggerOfTests());
  const std::size_t before = LoggedText().size();
  {
    const HeldLog held;
    for (std::size_t i = 0; i < kMaxLogLines + kLost; ++i) Warn(fmt::format("line {},", i));
    ASSERT_TRUE(HeldLog::Blocks());
    FlushLog();
  }
  ASSERT_TRUE(Logged(fmt::format("line {},", kMaxLogLines - 1), before));
  Warn("later");
  EXPECT_TRUE(Logged(fmt::format("later ({} lines before this one were lost", kLost), before));
  EXPECT_EQ(LoggedText().find(fmt::format("line {},", kMaxLogLines), before), std::string::npos);
}

}  // namespace
}  // namespace ferry::nccl_net
