// The plugin's parts that need no network.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bindings/nccl_net/library_search.h"
#include "bindings/nccl_net/nccl_request.h"
#include "bindings/nccl_net/nccl_tuner.h"
#include "bindings/nccl_net/rank.h"
#include "bindings/nccl_net/report.h"
#include "bindings/nccl_net/settings.h"
#include "bindings/nccl_net/wire.h"

namespace ferry::nccl_net {
namespace {

using ::testing::HasSubstr;
using HandleBytes = std::array<std::byte, abi::kHandleBytes>;

Config::Getter Environment(const std::map<std::string, std::string>& variables) {
  return [variables](const char* name) {
    const auto it = variables.find(name);
    return it == variables.end() ? nullptr : it->second.c_str();
  };
}

TEST(NcclSettings, ReadInterfacesAsNcclMeansThem) {
  EXPECT_EQ(InterfacesOf(""), "");
  EXPECT_EQ(InterfacesOf("eth"), "eth*");
  EXPECT_EQ(InterfacesOf("eth0,ib1"), "eth0*,ib1*");
  EXPECT_EQ(InterfacesOf("=eth0,eth1"), "eth0,eth1");
  EXPECT_EQ(InterfacesOf("^docker,lo"), "^docker*,lo*");
  EXPECT_EQ(InterfacesOf("^=docker0"), "^docker0");
  EXPECT_EQ(InterfacesOf("eth0:1234,,eth1"), "eth0*,eth1*");
  EXPECT_EQ(InterfacesOf("^"), "");
}

TEST(NcclSettings, HearOursBeforeThoseOfNccl) {
  const auto theirs = LoadSettings(Environment({{"NCCL_SOCKET_IFNAME", "=ens1"}}));
  ASSERT_TRUE(theirs);
  EXPECT_EQ(theirs->config.interfaces, "ens1");
  const auto ours =
      LoadSettings(Environment({{"NCCL_SOCKET_IFNAME", "=ens1"}, {"FERRY_INTERFACES", "ens2"}}));
  ASSERT_TRUE(ours);
  EXPECT_EQ(ours->config.interfaces, "ens2");
}

using Variables = std::vector<std::pair<std::string, std::string>>;

struct Asked {
  std::vector<std::pair<std::string, std::string>> variables;
  int tuned_channels = 0;
  std::size_t devices = 1;
  bool operator==(const Asked&) const = default;
};

Asked AskedWith(const std::map<std::string, std::string>& variables) {
  const auto settings = LoadSettings(Environment(variables));
  if (!settings) return {{{"error", settings.error().message()}}};
  const auto get = Environment(variables);
  const NcclRequest request = RequestOf(settings->config, get, FindNcclTuner(get, nullptr));
  return {request.variables, request.tuned_channels, request.devices};
}

TEST(NcclRequest, IsForMoreChannelsAndLargerPiecesUnlessSomebodyHasSpoken) {
  const std::pair<std::string, std::string> channels{"NCCL_MIN_NCHANNELS", "8"};
  const std::pair<std::string, std::string> pieces{"NCCL_P2P_NET_CHUNKSIZE", "524288"};
  EXPECT_EQ(AskedWith({}), (Asked{{pieces, channels}, 8, 1}));
  EXPECT_EQ(AskedWith({{"FERRY_NCCL_CHANNELS", ""}, {"NCCL_MIN_NCHANNELS", ""}}),
            (Asked{{pieces, channels}, 8, 1}));
  EXPECT_EQ(AskedWith({{"NCCL_P2P_NET_CHUNKSIZE", "131072"}}), (Asked{{channels}, 8, 1}));
  EXPECT_EQ(AskedWith({{"FERRY_NCCL_CHANNELS", "1"}}),
            (Asked{{pieces, {"NCCL_MIN_NCHANNELS", "1"}}}));
  EXPECT_EQ(AskedWith({{"FERRY_NCCL_CHANNELS", "4"}}),
            (Asked{{pieces, {"NCCL_MIN_NCHANNELS", "4"}}, 4, 1}));
  EXPECT_EQ(AskedWith({{"FERRY_NCCL_CHANNELS", "0"}}), Asked{});
  EXPECT_EQ(AskedWith({{"NCCL_NET", "Socket"}}), Asked{});
  EXPECT_EQ(AskedWith({{"NCCL_NET", "ferry"}}), (Asked{{pieces, channels}, 8, 1}));
}

// As a process has it whose parent has asked.
TEST(NcclRequest, LimitsShortCollectivesByTheNumberOfChannelsWhoeverSetIt) {
  EXPECT_EQ(AskedWith({{"NCCL_MIN_NCHANNELS", "8"}, {"NCCL_P2P_NET_CHUNKSIZE", "524288"}}),
            (Asked{{}, 8, 1}));
  EXPECT_EQ(AskedWith({{"NCCL_MIN_NCHANNELS", "16"}, {"NCCL_P2P_NET_CHUNKSIZE", "524288"}}),
            (Asked{}));
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
  const auto settings = LoadSettings(Environment({}));
  ASSERT_TRUE(settings);
  EXPECT_EQ(settings->piece_bytes, 128U << 10);
  EXPECT_EQ(settings->small_bytes, 64U << 10);
  EXPECT_EQ(LoadSettings(Environment({{"FERRY_EAGER_BYTES", "4KiB"}}))->small_bytes, 4096U);
  EXPECT_GE(settings->workers, 2U);
  EXPECT_GE(settings->bulk_lanes, 2U);
  EXPECT_GE(settings->config.max_pending_handshakes, 256U);
  EXPECT_LE(settings->config.max_pending_handshakes, 4096U);
  EXPECT_EQ(settings->config.spin.count() > 0, std::thread::hardware_concurrency() >= 16);
  EXPECT_EQ(LoadSettings(Environment({{"FERRY_SPIN", "0"}}))->config.spin.count(), 0);
  EXPECT_EQ(LoadSettings(Environment({{"FERRY_MAX_PENDING_HANDSHAKES", "300"}}))
                ->config.max_pending_handshakes,
            300U);
  const auto set = LoadSettings(
      Environment({{"FERRY_LANES", "7"}, {"FERRY_WORKERS", "3"}, {"FERRY_SLICE_BYTES", "1MiB"}}));
  ASSERT_TRUE(set);
  EXPECT_EQ(set->bulk_lanes, 7U);
  EXPECT_EQ(set->workers, 3U);
  EXPECT_EQ(set->piece_bytes, 1U << 20);
  const auto wrong = LoadSettings(Environment({{"FERRY_LANES", "many"}}));
  ASSERT_FALSE(wrong);
  EXPECT_THAT(wrong.error().message(), HasSubstr("FERRY_LANES"));
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
  const auto settings = LoadSettings(get);
  const NcclTuner tuner = FindNcclTuner(get, nullptr);
  return RankOf(RequestOf(settings->config, get, tuner), tuner, get);
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
      {"FERRY_NCCL_DEVICES", "FERRY_NCCL_DEVICES is 1 here and 3 at 10.0.0.2:77"},
      {"NCCL_TUNER_PLUGIN", "is this plugin's here and named and not found at 10.0.0.2:77"},
  };
  for (const auto& [name, said] : settings) {
    EXPECT_THAT(DifferenceText(usual, RankWith({{name, "3"}})), HasSubstr(said)) << name;
  }
  RankWire older = usual;
  older.build = 0x1234;
  EXPECT_THAT(DifferenceText(usual, older), HasSubstr("and 00001234 at 10.0.0.2:77"));
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
  const auto get = Environment({{"NCCL_TUNER_PLUGIN", "libmissing.so"}});
  const auto settings = LoadSettings(get);
  ASSERT_TRUE(settings);
  EXPECT_THAT(RequestOf(settings->config, get, FindNcclTuner(get, nullptr)).warning,
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

}  // namespace
}  // namespace ferry::nccl_net
