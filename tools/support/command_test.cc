// Tests of exit codes and of the options that several subcommands share.

#include "tools/support/command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "ferry/core/log.h"

namespace ferry::tools {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

// A variable of this process while the object lives.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const char* value) : name_(name) {
    EXPECT_EQ(::setenv(name, value, 1), 0);
  }
  ~ScopedVariable() { (void)::unsetenv(name_); }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  const char* const name_;
};

TEST(ExitCodes, AreAsTheHelpSays) {
  struct {
    Code code;
    int exit_code;
  } const kCases[] = {
      {Code::kInvalidArgument, 2}, {Code::kUnsupported, 2}, {Code::kPeerLost, 3},
      {Code::kTimedOut, 4},        {Code::kUnavailable, 1}, {Code::kRefused, 1},
      {Code::kCancelled, 1},       {Code::kDeviceLost, 1},  {Code::kCorrupt, 1},
      {Code::kInternal, 1},
  };
  for (const auto& [code, exit_code] : kCases) {
    EXPECT_EQ(ExitCodeOf(code), exit_code) << CodeName(code);
  }
}

// ---- options ------------------------------------------------------------------------------------

std::vector<std::string> AssignmentsOf(std::vector<std::string> arguments) {
  CLI::App app("", "test");
  std::vector<std::string> assignments;
  DeclarePeerSettings(&app, &assignments);
  std::reverse(arguments.begin(), arguments.end());
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::ParseError& error) {
    return {std::string("error: ") + error.what()};
  }
  return assignments;
}

TEST(PeerSettings, EachOptionIsAnAssignment) {
  EXPECT_THAT(AssignmentsOf({}), IsEmpty());
  struct {
    const char* option;
    const char* name;
  } const kCases[] = {{"--secret-file", "secret_file"},
                      {"--tls", "tls"},
                      {"--tls-cert", "tls_cert"},
                      {"--tls-key", "tls_key"},
                      {"--tls-ca", "tls_ca"}};
  for (const auto& [option, name] : kCases) {
    EXPECT_THAT(AssignmentsOf({option, "x=y"}), ElementsAre(std::string(name) + "=x=y"));
    EXPECT_THAT(AssignmentsOf({option}), ElementsAre(HasSubstr("error"))) << "without its value";
  }
  EXPECT_THAT(AssignmentsOf({"--insecure"}), ElementsAre("insecure=on"));
}

TEST(PeerSettings, SetMayBeRepeatedAndTakesOneValueEach) {
  EXPECT_THAT(AssignmentsOf({"--set", "lanes=2", "--set", "spin=1ms"}),
              ElementsAre("lanes=2", "spin=1ms"));
  EXPECT_THAT(AssignmentsOf({"--set", "lanes=2", "spin=1ms"}), ElementsAre(HasSubstr("error")));
}

TEST(ProviderSettings, EachOptionIsAnAssignment) {
  CLI::App app("", "test");
  std::vector<std::string> assignments;
  DeclarePeerSettings(&app, &assignments);
  DeclareProviderSettings(&app, &assignments);
  app.parse(std::vector<std::string>{"spin=1ms", "--set", "dma", "--unpack", "64KiB", "--chunk",
                                     "5", "--channels", "plugin:/x.so", "--provider"});
  EXPECT_THAT(assignments, UnorderedElementsAre("spin=1ms", "provider=plugin:/x.so", "lanes=5",
                                                "plugin_chunk_bytes=64KiB", "plugin_unpack=dma"));
}

// ---- settings -----------------------------------------------------------------------------------

class LoadConfigTest : public testing::Test {
 protected:
  ~LoadConfigTest() override {
    SetLogLevel(LogLevel::kWarn);
    SetLogFormat(LogFormat::kText);
  }
};

TEST_F(LoadConfigTest, AnAssignmentGoesBeforeTheEnvironment) {
  const ScopedVariable lanes("FERRY_LANES", "3");
  EXPECT_EQ(LoadConfig({})->lanes, 3);
  EXPECT_EQ(LoadConfig({"lanes=5"})->lanes, 5);
  EXPECT_EQ(LoadConfig({"lanes=5", "lanes=6"})->lanes, 6) << "the last of several";
}

TEST_F(LoadConfigTest, AValueMayHoldMoreEqualsSignsOrNothing) {
  EXPECT_EQ(LoadConfig({"interfaces=a=b"})->interfaces, "a=b");
  const ScopedVariable interfaces("FERRY_INTERFACES", "eth0");
  EXPECT_EQ(LoadConfig({"interfaces="})->interfaces, "");
}

TEST_F(LoadConfigTest, MistakesNameTheSettingAndItsSource) {
  struct {
    std::vector<std::string> assignments;
    const char* about;
  } const kCases[] = {
      {{"lanes"}, "--set lanes has no value; write --set NAME=VALUE"},
      {{""}, "has no value"},
      {{"=3"}, "''"},
      {{"warp=9"}, "'warp'"},
      {{"lanes=many"}, "many"},
      {{"lanes=2", "lanes=99"}, "lanes"},
      {{"log_level=loud"}, "loud"},
      {{"log_format=xml"}, "xml"},
      {{"slice_bytes=32MiB", "window_bytes=16MiB"}, "window_bytes"},
      {{"peer_timeout=1s", "heartbeat_interval=2s"}, "heartbeat_interval"},
  };
  for (const auto& [assignments, about] : kCases) {
    const auto config = LoadConfig(assignments);
    ASSERT_FALSE(config) << about;
    EXPECT_EQ(config.error().code(), Code::kInvalidArgument) << about;
    EXPECT_THAT(config.error().message(), HasSubstr(about));
  }
}

TEST_F(LoadConfigTest, AVariableThatDoesNotFitIsAnErrorWhateverIsAssigned) {
  const ScopedVariable lanes("FERRY_LANES", "many");
  const auto config = LoadConfig({"lanes=2"});
  ASSERT_FALSE(config);
  EXPECT_THAT(config.error().message(), HasSubstr("FERRY_LANES"));
}

TEST_F(LoadConfigTest, SetsUpTheLog) {
  ASSERT_TRUE(LoadConfig({"log_level=info"}));
  EXPECT_TRUE(LogEnabled(LogLevel::kInfo));
  ASSERT_TRUE(LoadConfig({"log_level=error", "log_format=json"}));
  EXPECT_FALSE(LogEnabled(LogLevel::kWarn));
  EXPECT_TRUE(LogEnabled(LogLevel::kError));
  ASSERT_FALSE(LoadConfig({"log_level=info", "lanes=99"}));
  EXPECT_FALSE(LogEnabled(LogLevel::kWarn)) << "a configuration that is refused changes nothing";
}

}  // namespace
}  // namespace ferry::tools
