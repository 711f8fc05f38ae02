#include "ferry/core/log.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <thread>

namespace ferry {
namespace {

class Logging : public testing::Test {
 protected:
  ~Logging() override { SetLogLevel(LogLevel::kWarn); }

  template <class Fn>
  static std::string Captured(Fn&& fn) {
    testing::internal::CaptureStderr();
    fn();
    return testing::internal::GetCapturedStderr();
  }
};

// With every digit as 0, so that times can be compared.
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
  for (const char* name : {"trace", "debug", "info", "warn", "error"}) {
    const auto level = ParseLogLevel(name);
    ASSERT_TRUE(level);
    EXPECT_STREQ(LogLevelName(*level), name);
    const std::string out = Captured([&] { Log(*level, "core", "text"); });
    EXPECT_NE(out.find(fmt::format(" [{}] core: text\n", name)), std::string::npos) << out;
  }
}

TEST_F(Logging, UnknownLevelNamesAreRefused) {
  const auto level = ParseLogLevel("loud");
  ASSERT_FALSE(level);
  EXPECT_EQ(level.error().message(),
            "'loud' is not a log level; write trace, debug, info, warn, error or off");
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

TEST_F(Logging, LinesOfManyThreadsDoNotInterleave) {
  const std::string out = Captured([] {
    const auto log50 = [](int thread) {
      for (int i = 0; i < 50; ++i) Log(LogLevel::kWarn, "t", "thread {} line {} end", thread, i);
    };
    const std::jthread threads[] = {std::jthread(log50, 0), std::jthread(log50, 1),
                                    std::jthread(log50, 2), std::jthread(log50, 3)};
  });
  std::istringstream lines(out);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const std::string shape = ShapeOf(line);
    EXPECT_TRUE(shape == std::string(kTimeShape) + " [warn] t: thread 0 line 0 end" ||
                shape == std::string(kTimeShape) + " [warn] t: thread 0 line 00 end")
        << line;
  }
  EXPECT_EQ(count, 200);
}

}  // namespace
}  // namespace ferry
