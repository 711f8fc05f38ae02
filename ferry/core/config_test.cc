// Tests of the settings' parsing, ranges and messages.
#include "ferry/core/config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

namespace ferry {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using Environment = std::map<std::string, std::string>;

Result<Config> From(const Environment& environment) {
  return Config::FromEnvironment([&](const char* variable) -> const char* {
    const auto found = environment.find(variable);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

std::string MessageFrom(const Environment& environment) {
  const auto config = From(environment);
  return config ? "" : config.error().message();
}

ConfigEntry EntryOf(const Config& config, std::string_view name) {
  for (const ConfigEntry& entry : config.Describe()) {
    if (entry.name == name) return entry;
  }
  ADD_FAILURE() << "no entry " << name;
  return {};
}

TEST(Config, DefaultsAreValidAndSayThatTheyAreDefaults) {
  const Config config;
  ASSERT_TRUE(config.Validate());
  for (const ConfigEntry& entry : config.Describe()) {
    EXPECT_EQ(entry.value, entry.default_text) << entry.name;
    EXPECT_EQ(entry.source, "default") << entry.name;
  }
}

TEST(Config, AnEmptyEnvironmentGivesTheDefaults) {
  const auto config = From({});
  ASSERT_TRUE(config);
  EXPECT_EQ(config->window_bytes, 16u << 20);
  EXPECT_EQ(config->operation_timeout, std::chrono::seconds(300));
  for (const ConfigEntry& entry : config->Describe()) {
    EXPECT_FALSE(config->IsSet(entry.name)) << entry.name;
  }
}

TEST(Config, EveryKindOfSettingIsReadFromItsVariable) {
  const auto config = From({{"FERRY_LISTEN_HOST", "10.0.0.1"},
                            {"FERRY_PORT_RANGE", "4000-4010"},
                            {"FERRY_LANES", "8"},
                            {"FERRY_SLICE_BYTES", "512 KiB"},
                            {"FERRY_SPIN", "20us"},
                            {"FERRY_PEER_TIMEOUT", "2500"},
                            {"FERRY_MAX_OPERATIONS", "7"},
                            {"FERRY_ZERO_COPY_SEND", "off"}});
  ASSERT_TRUE(config) << config.error().message();
  EXPECT_EQ(config->listen_host, "10.0.0.1");
  EXPECT_EQ(config->port_first, 4000);
  EXPECT_EQ(config->port_last, 4010);
  EXPECT_EQ(config->lanes, 8);
  EXPECT_EQ(config->slice_bytes, 512u << 10);
  EXPECT_EQ(config->spin, microseconds(20));
  EXPECT_EQ(config->peer_timeout, milliseconds(2500));
  EXPECT_EQ(config->max_operations, 7u);
  EXPECT_EQ(config->zero_copy_send, AutoOnOff::kOff);
  EXPECT_EQ(EntryOf(*config, "spin").value, "20 us");
  EXPECT_EQ(EntryOf(*config, "spin").source, "environment");
  EXPECT_EQ(EntryOf(*config, "workers").source, "default");
}

TEST(Config, AnEmptyVariableCountsAsNotSet) {
  const auto config = From({{"FERRY_LANES", ""}, {"FERRY_LISTEN_HOST", ""}});
  ASSERT_TRUE(config);
  EXPECT_EQ(EntryOf(*config, "lanes").source, "default");
}

TEST(Config, ReadsTheEnvironmentOfTheProcess) {
  ASSERT_EQ(::setenv("FERRY_LANES", "3", 1), 0);
  const auto config = Config::FromEnvironment();
  ::unsetenv("FERRY_LANES");
  ASSERT_TRUE(config);
  EXPECT_EQ(config->lanes, 3);
}

TEST(Config, RefusalsNameVariableValueAndRange) {
  EXPECT_EQ(MessageFrom({{"FERRY_LANES", "65"}}),
            "FERRY_LANES cannot be used: '65' is out of range; allowed is 0..64 (0: automatic)");
  EXPECT_EQ(MessageFrom({{"FERRY_SLICE_BYTES", "1k"}}),
            "FERRY_SLICE_BYTES cannot be used: '1k' is out of range; allowed is 4 KiB..64 MiB");
  EXPECT_EQ(MessageFrom({{"FERRY_SLICE_BYTES", "12q"}}),
            "FERRY_SLICE_BYTES cannot be used: '12q' is not a size; write a whole number of bytes, "
            "or one with KiB, MiB, GiB, KB, MB or GB, below 2^64 bytes; allowed is 4 KiB..64 MiB");
  EXPECT_EQ(
      MessageFrom({{"FERRY_ZERO_COPY_SEND", "maybe"}}),
      "FERRY_ZERO_COPY_SEND cannot be used: 'maybe' is not recognised; allowed is auto | on | off");
  EXPECT_EQ(MessageFrom({{"FERRY_PORT_RANGE", "5-x"}}),
            "FERRY_PORT_RANGE cannot be used: '5-x' is not a range of ports; allowed is A-B or A "
            "within 1..65535; 0 for any free port");
}

// Just below, at and just above each end of every numeric setting, through Set() and Validate().
TEST(Config, AcceptsBothEndsOfEveryRangeAndNothingBeyond) {
  const struct {
    const char* name;
    std::vector<const char*> good;
    std::vector<const char*> bad;
  } kCases[] = {
      {"listen_host", {"", "::1", "node-3.example"}, {"two words"}},
      {"net_plugin", {"", "/opt/a plugin.so"}, {}},
      {"provider",
       {"tcp", "auto", "plugin", "plugin:/opt/a plugin.so"},
       {"", "plugin:", "TCP", "rdma", "/opt/plugin.so"}},
      {"plugin_chunk_bytes", {"4KiB", "8MiB"}, {"0", "4095", "8388609"}},
      {"plugin_unpack", {"auto", "kernel", "dma", "host"}, {"", "d2d", "Kernel"}},
      {"plugin_tag_base", {"0", "1000000000"}, {"-1", "1000000001"}},
      {"interfaces", {"", "eth0", "eth0,ens*", "^lo,docker*"}, {"eth0 eth1", "^", "a,^b", "../x"}},
      {"nccl_channels", {"0", "8", "64"}, {"-1", "65", "8 ", "many"}},
      {"nccl_devices", {"1", "05", "32"}, {"0", "-1", "33", " 5", "five"}},
      {"port_range",
       {"0", "1", "65535", "1-65535", "7-7"},
       {"", "-", "7-6", "0-5", "65536", "1-65536", "-5", "5-", "1-2-3", " 5"}},
      {"lanes", {"0", "1", "64"}, {"-1", "65", "", "x", "1.5", "4 ", "99999999999999999999"}},
      {"workers", {"0", "64"}, {"-1", "65"}},
      {"slice_bytes", {"4096", "4KiB", "64MiB"}, {"4095", "67108865", "0", "-1"}},
      {"window_bytes", {"64KiB", "1GiB"}, {"65535", "1073741825"}},
      {"congestion_control",
       {"auto", "system", "bbr", "cubic"},
       {"", "BBR; rm", "sixteencharacter"}},
      {"send_buffer_bytes", {"0", "1GiB"}, {"1073741825"}},
      {"recv_buffer_bytes", {"0", "1GiB"}, {"1073741825"}},
      {"lane_rate_bytes", {"0", "1TiB"}, {"1025GiB"}},
      {"spin", {"0", "1s", "1000ms"}, {"1000001us", "1001", "-1"}},
      {"zero_copy_send", {"auto", "on", "off"}, {"", "ON"}},
      {"checksum", {"on", "off"}, {"", "auto"}},
      {"devices",
       {"auto", "none", "simulated:2", "simulated:2:77", "simulated:2:no-kernels",
        "simulated:1:1:open", "simulated:1:open:no-kernels"},
       {"", "all", "simulated", "simulated:", "simulated:two", "simulated:nope", "simulated::1",
        "simulated:1:", "simulated:1:open:2", "simulated:1:2:3", "others:2"}},
      {"cuda_ipc", {"auto", "off"}, {"", "on"}},
      {"stage_slice_bytes", {"4KiB", "16MiB"}, {"4095", "16777217"}},
      {"stage_bytes", {"64KiB", "4GiB"}, {"65535", "4294967297"}},
      {"connect_timeout", {"1ms", "3600s"}, {"0", "999us", "3601s"}},
      {"handshake_timeout", {"1ms", "3600s"}, {"0", "3601s"}},
      {"operation_timeout", {"1ms", "86400s"}, {"0", "86401s"}},
      {"peer_timeout", {"1ms", "3600s"}, {"0", "3601s"}},
      {"lane_timeout", {"1ms", "3600s"}, {"0", "3601s"}},
      {"heartbeat_interval", {"1ms", "3600s"}, {"0", "3601s"}},
      {"drain_grace", {"0", "3600s"}, {"3601s"}},
      {"eager_bytes", {"0", "64KiB"}, {"65537"}},
      {"unexpected_bytes", {"64KiB", "16GiB"}, {"65535", "17179869185"}},
      {"notification_bytes", {"4KiB", "1GiB"}, {"4095", "1073741825"}},
      {"peer_memory", {"1MiB", "64GiB"}, {"1048575", "68719476737"}},
      {"peer_memory_total", {"1MiB", "1TiB"}, {"1048575", "1099511627777"}},
      {"max_operations", {"1", "16777216"}, {"0", "16777217", "4294967296"}},
      {"max_connections", {"0", "1", "1048576"}, {"-1", "1048577"}},
      {"max_pending_handshakes", {"64", "65536"}, {"0", "63", "65537"}},
      {"secret", {"", "sixteen letters!"}, {"fifteen letters"}},
      {"secret_file", {"", "/etc/ferry secret"}, {}},
      {"insecure", {"on", "off"}, {"", "yes"}},
      {"tls", {"off", "psk", "cert"}, {"", "on", "PSK"}},
      {"tls_cert", {"", "/etc/ferry/cert.pem"}, {}},
      {"tls_key", {"", "/etc/ferry/key.pem"}, {}},
      {"tls_ca", {"", "/etc/ferry/ca.pem"}, {}},
      {"tls_name", {"", "node-3.example", "10.0.0.1"}, {"two words"}},
      {"metrics_address",
       {"", ":0", ":65535", "[::1]:9100", "node-3:9100"},
       {"9100", ":", "host:", ":65536", ":-1", ":9 ", "two words:9"}},
      {"log_level", {"trace", "off"}, {"", "loud"}},
      {"log_format", {"text", "json"}, {"", "xml"}},
  };
  for (const auto& [name, good, bad] : kCases) {
    for (const char* text : good) {
      Config config;
      EXPECT_TRUE(config.Set(name, text)) << name << ' ' << text;
    }
    for (const char* text : bad) {
      Config config;
      const Status status = config.Set(name, text);
      ASSERT_FALSE(status) << name << ' ' << text;
      EXPECT_EQ(status.error().code(), Code::kInvalidArgument);
      EXPECT_EQ(EntryOf(config, name).source, "default") << name << ' ' << text;
    }
  }
  EXPECT_EQ(std::size(kCases), Config().Describe().size());
}

TEST(Config, ValuesShownCanBeSetAgain) {
  for (const ConfigEntry& entry : Config().Describe()) {
    Config config;
    EXPECT_TRUE(config.Set(entry.name, entry.default_text)) << entry.name;
    EXPECT_EQ(EntryOf(config, entry.name).value, entry.default_text);
  }
}

TEST(Config, EntriesNameVariableUnitRangeAndHelp) {
  const auto entries = Config().Describe();
  EXPECT_EQ(entries.size(), 51u);
  for (const ConfigEntry& entry : entries) {
    EXPECT_FALSE(entry.range.empty() || entry.help.empty() || entry.unit.empty()) << entry.name;
  }
  const ConfigEntry slice = EntryOf(Config(), "slice_bytes");
  EXPECT_EQ(slice.variable, "FERRY_SLICE_BYTES");
  EXPECT_EQ(slice.unit, "bytes");
  EXPECT_EQ(slice.range, "4 KiB..64 MiB");
  EXPECT_EQ(slice.default_text, "1 MiB");
  EXPECT_EQ(EntryOf(Config(), "spin").range, "0 s..1 s (0: sleep at once)");
  EXPECT_EQ(EntryOf(Config(), "lanes").unit, "count");
  EXPECT_EQ(EntryOf(Config(), "port_range").unit, "ports");
}

TEST(Config, TheSourceOfAValueIsWhateverSetItLast) {
  auto config = From({{"FERRY_LANES", "4"}, {"FERRY_WORKERS", "2"}});
  ASSERT_TRUE(config);
  ASSERT_TRUE(config->Set("workers", "3", "command line"));
  EXPECT_EQ(EntryOf(*config, "lanes").source, "environment");
  EXPECT_EQ(EntryOf(*config, "workers").source, "command line");
  config->lanes = 5;
  EXPECT_EQ(EntryOf(*config, "lanes").source, "set by caller");
  config->lanes = 0;
  EXPECT_EQ(EntryOf(*config, "lanes").source, "default");
}

TEST(Config, WordsAreStoredAsEnumsAndShownAsTheyWereSet) {
  const auto config = From({{"FERRY_INSECURE", "on"},
                            {"FERRY_TLS", "psk"},
                            {"FERRY_CUDA_IPC", "off"},
                            {"FERRY_LOG_LEVEL", "error"},
                            {"FERRY_LOG_FORMAT", "json"},
                            {"FERRY_CONGESTION_CONTROL", "cubic"},
                            {"FERRY_DEVICES", "simulated:2:77"}});
  ASSERT_TRUE(config) << config.error().message();
  EXPECT_EQ(config->insecure, OnOff::kOn);
  EXPECT_EQ(config->checksum, OnOff::kOff);
  EXPECT_EQ(config->tls, TlsMode::kPsk);
  EXPECT_EQ(config->cuda_ipc, AutoOff::kOff);
  EXPECT_EQ(config->log_level, LogLevel::kError);
  EXPECT_EQ(config->log_format, LogFormat::kJson);
  EXPECT_EQ(config->congestion_control.choice, CongestionControl::Choice::kNamed);
  EXPECT_EQ(config->congestion_control.name, "cubic");
  EXPECT_EQ(config->devices.kind, DeviceChoice::Kind::kSimulated);
  EXPECT_EQ(config->devices.simulation, "2:77");
  EXPECT_EQ(EntryOf(*config, "congestion_control").value, "cubic");
  EXPECT_EQ(EntryOf(*config, "devices").value, "simulated:2:77");
  EXPECT_EQ(EntryOf(*config, "insecure").unit, "text");
}

TEST(Config, OtherWordsAreRefusedWithThoseThatAreAllowed) {
  EXPECT_EQ(MessageFrom({{"FERRY_INSECURE", "yes"}}),
            "FERRY_INSECURE cannot be used: 'yes' is not recognised; allowed is on | off");
  EXPECT_EQ(MessageFrom({{"FERRY_TLS", "PSK"}}),
            "FERRY_TLS cannot be used: 'PSK' is not recognised; allowed is off | psk | cert");
  EXPECT_EQ(MessageFrom({{"FERRY_LOG_LEVEL", "loud"}}),
            "FERRY_LOG_LEVEL cannot be used: 'loud' is not recognised; allowed is trace | debug | "
            "info | warn | error | off");
  EXPECT_EQ(MessageFrom({{"FERRY_LOG_FORMAT", "xml"}}),
            "FERRY_LOG_FORMAT cannot be used: 'xml' is not recognised; allowed is text | json");
  EXPECT_EQ(MessageFrom({{"FERRY_DEVICES", "all"}}),
            "FERRY_DEVICES cannot be used: 'all' is not recognised; allowed is auto | none");
}

TEST(Config, SettingByNameRefusesUnknownNamesAndListsTheKnown) {
  Config config;
  const Status status = config.Set("lane", "1");
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message().substr(0, 67),
            "unknown setting 'lane'; the settings are listen_host, interfaces, p");
}

TEST(Config, ValidationFindsFieldsThatWereAssignedOutOfRange) {
  const auto message = [](auto change) {
    Config config;
    change(config);
    const Status status = config.Validate();
    return status ? std::string() : status.error().message();
  };
  EXPECT_EQ(message([](Config& c) { c.lanes = -1; }),
            "lanes cannot be used: '-1' is out of range; allowed is 0..64 (0: automatic)");
  EXPECT_EQ(message([](Config& c) { c.port_first = 9; }),
            "port_range cannot be used: '9-0' is out of range; allowed is A-B or A within "
            "1..65535; 0 for any free port");
  EXPECT_EQ(
      message([](Config& c) { c.congestion_control = CongestionControl::Named("two words"); }),
      "congestion_control cannot be used: 'two words' is not recognised; allowed is auto | "
      "system | a name listed in net.ipv4.tcp_available_congestion_control");
  EXPECT_EQ(message([](Config& c) { c.devices = DeviceChoice::Simulated("two"); }),
            "devices cannot be used: 'simulated:two' is not recognised; allowed is auto | none");
  EXPECT_NE(message([](Config& c) { c.spin = microseconds(-1); }), "");
  EXPECT_NE(message([](Config& c) { c.slice_bytes = ~std::uint64_t{0}; }), "");
}

TEST(Config, AWindowHoldsASliceAndAPeerTimeoutAHeartbeat) {
  EXPECT_EQ(MessageFrom({{"FERRY_WINDOW_BYTES", "64KiB"}}),
            "a window of 64 KiB cannot hold a slice of 1 MiB; raise window_bytes "
            "(FERRY_WINDOW_BYTES) or lower slice_bytes (FERRY_SLICE_BYTES)");
  EXPECT_EQ(MessageFrom({{"FERRY_WINDOW_BYTES", "64KiB"}, {"FERRY_SLICE_BYTES", "64KiB"}}), "");
  EXPECT_EQ(MessageFrom({{"FERRY_PEER_TIMEOUT", "1s"}}),
            "a heartbeat every 1 s loses idle peers after 1 s of silence; lower heartbeat_interval "
            "(FERRY_HEARTBEAT_INTERVAL) or raise peer_timeout (FERRY_PEER_TIMEOUT)");
}

TEST(Config, WhatIsHeldForAPeerHasRoomForItsMessagesAndNotifications) {
  EXPECT_EQ(MessageFrom({{"FERRY_PEER_MEMORY", "16MiB"}}),
            "messages of 16 MiB and notifications of 4 MiB do not fit in the 16 MiB that are held "
            "for a peer; raise peer_memory (FERRY_PEER_MEMORY) or lower unexpected_bytes "
            "(FERRY_UNEXPECTED_BYTES)");
  EXPECT_EQ(MessageFrom({{"FERRY_PEER_MEMORY", "20MiB"}}), "");
  EXPECT_NE(MessageFrom({{"FERRY_PEER_MEMORY_TOTAL", "1KiB"}}), "");
}

TEST(UnknownVariables, AreFerryVariablesThatNoSettingHas) {
  const char* const environment[] = {"HOME=/root",         "FERRY_LANES=1", "FERRY_LANE=1",
                                     "FERRY_NET_PLUGIN=p", "FERRY_",        "XFERRY_A=1",
                                     "FERRY_lanes=1",      nullptr};
  EXPECT_EQ(UnknownVariables(environment),
            (std::vector<std::string>{"FERRY_LANE", "FERRY_", "FERRY_lanes"}));
}

TEST(UnknownVariables, AreNotThoseThatOthersRead) {
  const char* const environment[] = {"FERRY_STANDIN_FAULT=short", "FERRY_TEST_SEED=1",
                                     "FERRY_SOAK_SECONDS=1", nullptr};
  EXPECT_TRUE(UnknownVariables(environment).empty());
}

TEST(UnknownVariables, AreFoundInTheEnvironmentOfTheProcess) {
  ASSERT_EQ(::setenv("FERRY_NO_SUCH_SETTING", "1", 1), 0);
  const auto unknown = UnknownVariables();
  ::unsetenv("FERRY_NO_SUCH_SETTING");
  EXPECT_EQ(std::count(unknown.begin(), unknown.end(), "FERRY_NO_SUCH_SETTING"), 1);
}

TEST(Config, NeverShowsTheSecret) {
  const std::string secret = "do not show this to anybody";
  Config config;
  ASSERT_TRUE(config.Set("secret", secret));
  EXPECT_EQ(config.secret, secret);
  for (const ConfigEntry& entry : config.Describe()) {
    EXPECT_EQ(entry.value.find(secret), std::string::npos) << entry.name;
    if (entry.name == "secret") {
      EXPECT_EQ(entry.value, "(27 bytes, not shown)");
      EXPECT_EQ(entry.source, "set by caller");
    }
  }
  const Status too_short = config.Set("secret", "let me in");
  ASSERT_FALSE(too_short);
  EXPECT_EQ(too_short.error().message().find("let me in"), std::string::npos);
  EXPECT_NE(too_short.error().message().find("9 bytes"), std::string::npos);
  config.secret = "let me in";
  EXPECT_EQ(config.Validate().error().message().find("let me in"), std::string::npos);
}

}  // namespace
}  // namespace ferry
