// Tests of the options of transfers through a plugin, and of the handles that both sides exchange.

#include "ferry/tools/support/plugin_carrier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstdlib>
#include <string>
#include <vector>

#include "ferry/net/plugin/plugin_path.h"
#include "ferry/tools/support/json.h"

namespace ferry::tools {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::array kCarrierVariables = {kUcclUnpack, kUcclChannels, kUcclChunk,
                                          net::plugin::kUcclPluginVariable};

// Without the variables that the options fall back to, before each test and after it.
class CarrierOptionsTest : public testing::Test {
 protected:
  CarrierOptionsTest() { Unset(); }
  ~CarrierOptionsTest() override { Unset(); }

  static void Unset() {
    for (const char* name : kCarrierVariables) (void)::unsetenv(name);
  }
  static void Set(const char* name, const char* value) { ASSERT_EQ(::setenv(name, value, 1), 0); }
  static Result<std::optional<CarrierOptions>> Parse(const CarrierFlags& flags) {
    return CarrierOptionsOf(flags, Config());
  }
  static CarrierFlags Through(const char* unpack, const char* channels, const char* chunk) {
    return {.provider = "plugin:/x.so", .unpack = unpack, .channels = channels, .chunk = chunk};
  }
};

TEST_F(CarrierOptionsTest, AreNoneWithoutAPlugin) {
  for (const char* provider : {"", "tcp"}) {
    const auto options =
        Parse({.provider = provider, .unpack = "wood", .channels = "x", .chunk = {}});
    ASSERT_TRUE(options) << provider;
    EXPECT_FALSE(*options) << "what only a plugin uses is not read";
  }
}

TEST_F(CarrierOptionsTest, HaveDefaults) {
  const auto options =
      Parse({.provider = "plugin:/x/y.so", .unpack = {}, .channels = {}, .chunk = {}});
  ASSERT_TRUE(options && *options);
  EXPECT_EQ((*options)->plugin, "/x/y.so");
  EXPECT_FALSE((*options)->unpack);
  EXPECT_EQ((*options)->stripe.channels, net::plugin::StripeOptions().channels);
  EXPECT_EQ((*options)->stripe.chunk_bytes, net::plugin::StripeOptions().chunk_bytes);
}

TEST_F(CarrierOptionsTest, FindThePluginByOptionSettingVariableOrItsUsualPath) {
  const CarrierFlags unnamed{.provider = "plugin", .unpack = {}, .channels = {}, .chunk = {}};
  const auto plugin_of = [&](const Config& config) {
    const auto options = CarrierOptionsOf(unnamed, config);
    return options && *options ? (*options)->plugin : std::string();
  };
  EXPECT_EQ(plugin_of(Config()), net::plugin::kUsualPluginPath);
  Set(net::plugin::kUcclPluginVariable, "/by/variable.so");
  EXPECT_EQ(plugin_of(Config()), "/by/variable.so");
  Config config;
  config.net_plugin = "/by/setting.so";
  EXPECT_EQ(plugin_of(config), "/by/setting.so");
}

TEST_F(CarrierOptionsTest, TakeEveryWayToUnpack) {
  struct {
    const char* text;
    UnpackBy by;
  } const kCases[] = {{"kernel", UnpackBy::kKernel},
                      {"dma", UnpackBy::kDma},
                      {"d2d", UnpackBy::kDma},
                      {"host", UnpackBy::kHost}};
  for (const auto& [text, by] : kCases) {
    const auto options = Parse(Through(text, "", ""));
    ASSERT_TRUE(options && *options) << text;
    EXPECT_EQ((*options)->unpack, by) << text;
  }
  for (const UnpackBy by : {UnpackBy::kKernel, UnpackBy::kDma, UnpackBy::kHost}) {
    EXPECT_EQ((*Parse(Through(UnpackName(by), "", "")))->unpack, by) << "a name is parsed back";
  }
}

TEST_F(CarrierOptionsTest, AnOptionGoesBeforeItsVariable) {
  Set(kUcclUnpack, "d2d");
  Set(kUcclChannels, "3");
  Set(kUcclChunk, "4096");
  const auto by_variable = Parse(Through("", "", ""));
  ASSERT_TRUE(by_variable && *by_variable);
  EXPECT_EQ((*by_variable)->unpack, UnpackBy::kDma);
  EXPECT_EQ((*by_variable)->stripe.channels, 3U);
  EXPECT_EQ((*by_variable)->stripe.chunk_bytes, 4096U);
  const auto by_option = Parse(Through("host", "5", "64KiB"));
  ASSERT_TRUE(by_option && *by_option);
  EXPECT_EQ((*by_option)->unpack, UnpackBy::kHost);
  EXPECT_EQ((*by_option)->stripe.channels, 5U);
  EXPECT_EQ((*by_option)->stripe.chunk_bytes, 65536U);
}

TEST_F(CarrierOptionsTest, MistakesNameTheOptionOrTheVariable) {
  struct {
    CarrierFlags flags;
    const char* about;
  } const kCases[] = {
      {{.provider = "smoke", .unpack = {}, .channels = {}, .chunk = {}}, "--provider smoke"},
      {{.provider = "plugin:", .unpack = {}, .channels = {}, .chunk = {}}, "tcp or plugin:PATH"},
      {{.provider = "plugins", .unpack = {}, .channels = {}, .chunk = {}}, "tcp or plugin:PATH"},
      {{.provider = "TCP", .unpack = {}, .channels = {}, .chunk = {}}, "tcp or plugin:PATH"},
      {Through("Kernel", "", ""), "--unpack Kernel cannot be used; choose kernel, dma or host"},
      {Through("", "many", ""), "--channels many cannot be used; give a number"},
      {Through("", "-1", ""), "--channels -1 cannot be used"},
      {Through("", "0", ""), "give 1 to"},
      {Through("", "65", ""), "give 1 to"},
      {Through("", "", "wide"), "--chunk wide cannot be used"},
      {Through("", "", "0"), "give 1 to"},
      {Through("", "", "1TiB"), "give 1 to"},
  };
  for (const auto& [flags, about] : kCases) {
    const auto options = Parse(flags);
    ASSERT_FALSE(options) << about;
    EXPECT_EQ(options.error().code(), Code::kInvalidArgument) << about;
    EXPECT_THAT(options.error().message(), HasSubstr(about));
  }
  for (const char* variable : {kUcclUnpack, kUcclChannels, kUcclChunk}) {
    Unset();
    Set(variable, "wood");
    const auto options = Parse(Through("", "", ""));
    ASSERT_FALSE(options) << variable;
    EXPECT_THAT(options.error().message(), HasSubstr(std::string(variable) + " wood"));
  }
}

TEST_F(CarrierOptionsTest, AreDeclaredAsOptionsOfACommand) {
  CLI::App app("", "test");
  CarrierFlags flags;
  DeclareCarrier(&app, &flags);
  app.parse(std::vector<std::string>{"4KiB", "--chunk", "2", "--channels", "dma", "--unpack",
                                     "plugin:/x.so", "--provider"});
  EXPECT_EQ(flags.provider, "plugin:/x.so");
  EXPECT_EQ(flags.unpack, "dma");
  EXPECT_EQ(flags.channels, "2");
  EXPECT_EQ(flags.chunk, "4KiB");
}

TEST_F(CarrierOptionsTest, AFileThatIsNoPluginCannotBeOpened) {
  std::array<std::byte, 4096> memory{};
  CarrierOptions options;
  options.plugin = "/no/such/plugin.so";
  const auto missing = Carrier::Open(options, memory, {}, Config());
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(missing.error().message(), HasSubstr("/no/such/plugin.so"));
  options.plugin = "/proc/self/maps";
  EXPECT_FALSE(Carrier::Open(options, memory, {}, Config())) << "a file that is no library";
  Config config;
  config.devices = DeviceChoice::None();
  const auto no_gpu = Carrier::Open(options, memory, MemoryChoice{0}, config);
  ASSERT_FALSE(no_gpu);
  EXPECT_EQ(no_gpu.error().code(), Code::kUnsupported) << "asked for before the plugin is loaded";
}

// ---- handles ------------------------------------------------------------------------------------

std::vector<net::plugin::Handle> SomeHandles(std::size_t count) {
  std::vector<net::plugin::Handle> handles(count);
  unsigned next = 0;
  for (auto& handle : handles) {
    for (std::byte& one : handle) one = static_cast<std::byte>(next++ * 37 & 0xff);
  }
  return handles;
}

TEST(PluginHandles, CrossToTheOtherSide) {
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, net::plugin::kMaxChannels}) {
    const auto handles = SomeHandles(count);
    const auto heard = HandlesField(Json{{"handles", HandlesToHex(handles)}});
    ASSERT_TRUE(heard) << count;
    EXPECT_EQ(*heard, handles);
  }
}

TEST(PluginHandles, ThatAreNotWholeOrTooManyAreCorrupt) {
  const std::string one = HandlesToHex(SomeHandles(1));
  for (const std::string& wrong : {one.substr(2), one + "00", std::string("00"), std::string("xx"),
                                   HandlesToHex(SomeHandles(net::plugin::kMaxChannels + 1))}) {
    const auto heard = HandlesField(Json{{"handles", wrong}});
    ASSERT_FALSE(heard) << wrong.size();
    EXPECT_EQ(heard.error().code(), Code::kCorrupt);
  }
  EXPECT_EQ(HandlesField(Json::object()).error().code(), Code::kCorrupt);
  EXPECT_THAT(HandlesField(Json{{"handles", "00"}}).error().message(),
              AllOf(HasSubstr("1 bytes"), HasSubstr("bytes each")));
}

// ---- variables ----------------------------------------------------------------------------------

TEST_F(CarrierOptionsTest, AVariableIsSwitchedOnByAnythingBut0) {
  EXPECT_FALSE(IsSwitchedOn(kUcclUnpack));
  struct {
    const char* value;
    bool on;
  } const kCases[] = {{"", false}, {"0", false}, {"1", true}, {"00", true}, {"off", true}};
  for (const auto& [value, on] : kCases) {
    Set(kUcclUnpack, value);
    EXPECT_EQ(IsSwitchedOn(kUcclUnpack), on) << value;
  }
}

TEST_F(CarrierOptionsTest, EveryVariableIsListedWithItsOption) {
  Set(kUcclChannels, "7");
  const Json all = UcclVariables();
  ASSERT_EQ(all.size(), 8U);
  for (const Json& one : all) {
    EXPECT_THAT(one["name"].get<std::string>(), HasSubstr("UCCL_TCPX_"));
    EXPECT_FALSE(one["as"].get<std::string>().empty());
    EXPECT_EQ(one["value"], one["name"] == kUcclChannels ? Json("7") : Json(nullptr)) << one.dump();
  }
}

}  // namespace
}  // namespace ferry::tools
