// Tests of the variables of UCCL's TCPX library: what they set, and what they leave alone.
#include "ferry/tcpx/uccl_variables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <string>

#include "ferry/tcpx/lane/payload_out.h"

namespace ferry::tcpx {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Without any of the variables before each test and after it.
class UcclVariablesTest : public ::testing::Test {
 protected:
  UcclVariablesTest() { Unset(); }
  ~UcclVariablesTest() override { Unset(); }

  static void Unset() {
    for (const UcclVariable& one : UcclVariables()) (void)::unsetenv(one.name);
  }
  static void Set(const char* name, const char* value) { ASSERT_EQ(::setenv(name, value, 1), 0); }
  static Config Over(const char* provider) {
    Config config;
    config.provider = provider;
    return config;
  }
};

TEST_F(UcclVariablesTest, SetLanesChunksAndUnpackingOfAPlugin) {
  Set("UCCL_TCPX_NUM_CHANNELS", "3");
  Set("UCCL_TCPX_CHUNK_BYTES", "8192");
  Set("UCCL_TCPX_UNPACK_IMPL", "d2d");
  for (const char* provider : {"plugin", "plugin:/x.so"}) {
    Config config = Over(provider);
    ASSERT_TRUE(ApplyUcclVariables(&config));
    EXPECT_EQ(config.lanes, 3);
    EXPECT_EQ(config.plugin_chunk_bytes, 8192U);
    EXPECT_EQ(config.plugin_unpack, PluginUnpack::kDma);
    EXPECT_EQ(config.log_level, LogLevel::kWarn);
  }
}

TEST_F(UcclVariablesTest, DoNothingOverTcp) {
  Set("UCCL_TCPX_NUM_CHANNELS", "wood");
  Set("UCCL_TCPX_DEBUG", "1");
  Config config = Over("tcp");
  ASSERT_TRUE(ApplyUcclVariables(&config));
  EXPECT_EQ(config.lanes, 0);
  EXPECT_EQ(config.log_level, LogLevel::kWarn);
}

TEST_F(UcclVariablesTest, ASettingGoesBeforeItsVariable) {
  Set("UCCL_TCPX_NUM_CHANNELS", "3");
  Config config = Over("plugin");
  ASSERT_TRUE(config.Set("lanes", "5"));
  ASSERT_TRUE(ApplyUcclVariables(&config));
  EXPECT_EQ(config.lanes, 5);
}

TEST_F(UcclVariablesTest, AMistakeNamesTheVariableAndItsValue) {
  for (const char* name :
       {"UCCL_TCPX_NUM_CHANNELS", "UCCL_TCPX_CHUNK_BYTES", "UCCL_TCPX_UNPACK_IMPL"}) {
    Unset();
    Set(name, "wood");
    Config config = Over("plugin");
    const Status applied = ApplyUcclVariables(&config);
    ASSERT_FALSE(applied) << name;
    EXPECT_EQ(applied.error().code(), Code::kInvalidArgument);
    EXPECT_THAT(applied.error().message(),
                AllOf(HasSubstr(std::string(name) + " wood cannot be used"), HasSubstr("allowed")));
  }
}

TEST_F(UcclVariablesTest, EachDebugVariableIsSwitchedOnByAnythingBut0) {
  for (const char* name :
       {"UCCL_TCPX_DEBUG", "UCCL_TCPX_LAUNCH_DEBUG", "UCCL_TCPX_HOST_RECV_DEBUG"}) {
    struct {
      const char* value;
      bool on;
    } const kCases[] = {{"", false}, {"0", false}, {"1", true}, {"off", true}};
    Unset();
    for (const auto& [value, on] : kCases) {
      Set(name, value);
      Config config = Over("plugin");
      ASSERT_TRUE(ApplyUcclVariables(&config));
      EXPECT_EQ(config.log_level == LogLevel::kInfo, on) << name << "=" << value;
    }
  }
  const UcclLogSwitches switches = ReadUcclLogSwitches();
  EXPECT_FALSE(switches.each_chunk);
  EXPECT_TRUE(switches.each_host_payload);
}

TEST_F(UcclVariablesTest, LeaveALogThatSaysMoreAsItIs) {
  Set("UCCL_TCPX_DEBUG", "1");
  Config config = Over("plugin");
  config.log_level = LogLevel::kDebug;
  ASSERT_TRUE(ApplyUcclVariables(&config));
  EXPECT_EQ(config.log_level, LogLevel::kDebug);
}

// ---- tags ---------------------------------------------------------------------------------------

TEST(ChunkTags, AreThoseOfUsersOfGpuDirectTcpx) {
  const ChunkTerms terms{.bytes = 4096, .tag_base = 7};
  EXPECT_EQ(terms.Tag(0, 0), 7);
  EXPECT_EQ(terms.Tag(0, 12), 19);
  EXPECT_EQ(terms.Tag(3, 2), 30009);
  EXPECT_EQ(terms.Tag(100'000, 0), 7) << "from the start again";
  EXPECT_EQ(terms.Tag(0, 10'000), 7) << "a payload has 10000 tags";
}

TEST(ChunkTags, AreNotNegativeAndDifferWithinTheWindow) {
  const ChunkTerms terms{.bytes = 4096, .tag_base = 1'000'000'000};
  std::set<int> tags;
  for (std::uint64_t payload = 99'990; payload < 100'010; ++payload) {
    for (std::uint64_t chunk = 9'990; chunk < 10'000; ++chunk) {
      const int tag = terms.Tag(payload, chunk);
      EXPECT_GE(tag, 1'000'000'000);
      EXPECT_TRUE(tags.insert(tag).second);
    }
  }
}

}  // namespace
}  // namespace ferry::tcpx
