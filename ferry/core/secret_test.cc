// Tests of reading the shared secret.
#include "ferry/core/secret.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>

namespace ferry {
namespace {

using ::testing::HasSubstr;

const std::string kText = "sixteen letters!";

class SecretFileTest : public ::testing::Test {
 protected:
  SecretFileTest() {
    ::close(::mkstemp(path_.data()));
    std::ofstream(path_, std::ios::binary) << kText << "\n";
    config_.secret_file = path_;
  }
  ~SecretFileTest() override { std::remove(path_.c_str()); }

  std::string WarningFor(mode_t mode) {
    EXPECT_EQ(::chmod(path_.c_str(), mode), 0);
    ::testing::internal::CaptureStderr();
    WarnIfOthersMayRead("secret_file", path_);
    return ::testing::internal::GetCapturedStderr();
  }

  std::string path_ = ::testing::TempDir() + "ferry_secret_XXXXXX";
  Config config_;
};

TEST_F(SecretFileTest, GivesItsTextWithoutTheNewline) {
  const auto secret = LoadSecret(config_);
  ASSERT_TRUE(secret) << secret.error().ToString();
  EXPECT_EQ(*secret, kText);
}

TEST_F(SecretFileTest, IsNotReadBesideASecretThatIsSet) {
  config_.secret = kText;
  EXPECT_FALSE(LoadSecret(config_));
  config_.secret_file.clear();
  EXPECT_EQ(*LoadSecret(config_), kText);
  config_.secret.clear();
  EXPECT_EQ(*LoadSecret(config_), "");
}

TEST_F(SecretFileTest, ThatOthersMayReadIsWarnedOf) {
  EXPECT_EQ(WarningFor(0600), "");
  EXPECT_THAT(WarningFor(0640), HasSubstr("secret_file " + path_ + " may be read by others"));
  EXPECT_THAT(WarningFor(0604), HasSubstr("chmod 600"));
}

}  // namespace
}  // namespace ferry
