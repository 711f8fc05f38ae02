// Tests of log levels, line formats and escaping.
#include "ferry/core/log.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace ferry {
namespace {

class Logging : public testing::Test {
 protected:
  ~Logging() override {
    SetLogLevel(LogLevel::kWarn);
    SetLogFormat(LogFormat::kText);
  }

  template <class Fn>
  static std::string Captured(Fn&& fn) {
    testing::internal::CaptureStderr();
    fn();
    return testing::internal::GetCapturedStderr();
  }
};

// The line with every digit replaced by 0, so that times can be compared.
std::string ShapeOf(std::string line) {
  std::replace_if(
      line.begin(), line.end(), [](char c) { return c >= '0' && c <= '9'; }, '0');
  return line;
}
constexpr const char* kTimeShape = "0000-00-00T00:00:00.000000Z";

TEST_F(Logging, WritesTimeLevelSubsystemAndText) {
  const std::string out =
      Captured([] { Log(LogLevel::kWarn, "tcp", "lane {} to {} is down", 3, "10.0.0.1"); });
  EXPECT_EQ(ShapeOf(out), std::string(kTimeShape) + " [warn] tcp: lane 0 to 00.0.0.0 is down\n");
  EXPECT_NE(out.find("lane 3 to 10.0.0.1"), std::string::npos);
}

TEST_F(Logging, WarnIsTheDefaultLevel) {
  EXPECT_TRUE(LogEnabled(LogLevel::kError));
  EXPECT_TRUE(LogEnabled(LogLevel::kWarn));
  EXPECT_FALSE(LogEnabled(LogLevel::kInfo));
  EXPECT_EQ(Captured([] { Log(LogLevel::kInfo, "tcp", "quiet"); }), "");
}

TEST_F(Logging, OffSilencesErrorsAndIsNeverEnabledItself) {
  SetLogLevel(LogLevel::kOff);
  EXPECT_FALSE(LogEnabled(LogLevel::kError));
  EXPECT_FALSE(LogEnabled(LogLevel::kOff));
}

TEST_F(Logging, EveryLevelIsWrittenUnderItsOwnName) {
  SetLogLevel(LogLevel::kTrace);
  for (const auto& [each, name] :
       {std::pair(LogLevel::kTrace, "trace"), std::pair(LogLevel::kDebug, "debug"),
        std::pair(LogLevel::kInfo, "info"), std::pair(LogLevel::kWarn, "warn"),
        std::pair(LogLevel::kError, "error")}) {
    EXPECT_STREQ(LogLevelName(each), name);
    const std::string out = Captured([level = each] { Log(level, "core", "text"); });
    EXPECT_NE(out.find(fmt::format(" [{}] core: text\n", name)), std::string::npos) << out;
  }
}

TEST_F(Logging, AMessageStaysOneLineWhateverItHolds) {
  const std::string out =
      Captured([] { Log(LogLevel::kError, "wire", "peer said {}", "a\nb\x1b"); });
  EXPECT_NE(out.find("peer said a\\x0ab\\x1b\n"), std::string::npos) << out;
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 1);
}

TEST_F(Logging, BracesInAnArgumentAreNotAFormat) {
  const std::string out = Captured([] { Log(LogLevel::kError, "wire", "{}", "{} {0} }{"); });
  EXPECT_NE(out.find("wire: {} {0} }{\n"), std::string::npos) << out;
}

TEST_F(Logging, AsJsonALineIsAnObjectWithTheFieldsOfItsCall) {
  SetLogFormat(LogFormat::kJson);
  const std::string out = Captured([] {
    LogWith(LogLevel::kWarn, "tcp", {{"peer", "10.0.0.1:7"}, {"lane", "3"}}, "lane {} is down", 3);
  });
  EXPECT_EQ(ShapeOf(out).find("{\"time\":\"" + std::string(kTimeShape) + "\","), 0U) << out;
  const auto line = nlohmann::json::parse(out);
  EXPECT_EQ(line.size(), 6U);
  EXPECT_EQ(line["level"], "warn");
  EXPECT_EQ(line["subsystem"], "tcp");
  EXPECT_EQ(line["message"], "lane 3 is down");
  EXPECT_EQ(line["peer"], "10.0.0.1:7");
  EXPECT_EQ(line["lane"], "3");
}

TEST_F(Logging, AsJsonALineParsesWhateverBytesItHolds) {
  SetLogFormat(LogFormat::kJson);
  std::string all;
  for (int byte = 1; byte < 256; ++byte) all += static_cast<char>(byte);
  const std::vector<std::pair<std::string, std::string>> odd = {
      {"a \"quoted\" \\ name", "a \"quoted\" \\ name"},
      {"two\nlines\r\t\x1b", "two\nlines\r\t\x1b"},
      {std::string("zero\0byte", 9), std::string("zero\0byte", 9)},
      {"cut short \xe2\x82", "cut short \xef\xbf\xbd"},
      {"\xff\xfe{}", "\xef\xbf\xbd\xef\xbf\xbd{}"},
      {"%v {} %Y \xc3\xa9", "%v {} %Y \xc3\xa9"},
      {all, ""}};
  for (const auto& [given, shown] : odd) {
    const std::string& text = given;
    const std::string out = Captured([&] {
      LogWith(LogLevel::kError, "wire", {{"peer", text}}, "peer said {}", text);
    });
    EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 1) << out;
    const auto line = nlohmann::json::parse(out, nullptr, /*allow_exceptions=*/false);
    ASSERT_TRUE(line.is_object()) << out;
    if (shown.empty()) continue;
    EXPECT_EQ(line["peer"], shown);
    EXPECT_EQ(line["message"], "peer said " + shown);
  }
}

TEST_F(Logging, LinesOfManyThreadsDoNotInterleave) {
  SetLogLevel(LogLevel::kInfo);  // without the limit of warnings
  const std::string out = Captured([] {
    const auto log50 = [](int thread) {
      for (int i = 0; i < 50; ++i) Log(LogLevel::kInfo, "t", "thread {} line {} end", thread, i);
    };
    const std::jthread threads[] = {std::jthread(log50, 0), std::jthread(log50, 1),
                                    std::jthread(log50, 2), std::jthread(log50, 3)};
  });
  std::istringstream lines(out);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const std::string shape = ShapeOf(line);
    EXPECT_TRUE(shape == std::string(kTimeShape) + " [info] t: thread 0 line 0 end" ||
                shape == std::string(kTimeShape) + " [info] t: thread 0 line 00 end")
        << line;
  }
  EXPECT_EQ(count, 200);
}

}  // namespace
}  // namespace ferry
