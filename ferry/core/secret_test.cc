// Tests of reading the shared secret, and of its copies in memory.
#include "ferry/core/secret.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "ferry/core/testing/masked_secret.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

const std::string kText = "sixteen letters!";

// The flags of the mapping at the address (proc(5), /proc/PID/smaps).
std::string MappingFlags(const void* address) {
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream smaps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(smaps, line);) {
    std::uintptr_t first = 0;
    std::uintptr_t last = 0;
    if (std::sscanf(line.c_str(), "%zx-%zx", &first, &last) == 2) {
      inside = first <= wanted && wanted < last;
    } else if (inside && line.starts_with("VmFlags:")) {
      return line;
    }
  }
  return "no such mapping";
}

TEST(SecretText, IsTheTextThatItWasMadeFrom) {
  const std::string bytes("\0\n\xFF 0123456789abcdef", 20);
  SecretText secret = bytes;
  EXPECT_EQ(secret.view(), bytes);
  EXPECT_EQ(secret.size(), 20u);
  EXPECT_EQ(secret, SecretText(bytes));
  EXPECT_FALSE(secret == SecretText("sixteen letters!"));
  secret = "sixteen letters!";
  EXPECT_EQ(secret.view(), kText);
  const SecretText moved = std::move(secret);
  EXPECT_EQ(moved.view(), kText);
  for (const SecretText& empty : {SecretText(), SecretText(""), SecretText(std::string())}) {
    EXPECT_TRUE(empty.empty());
    EXPECT_EQ(empty.view(), "");
    EXPECT_EQ(empty, SecretText());
  }
}

TEST(SecretText, IsOneCopyThatCoreDumpsLeaveOutAndNoneInTheEnd) {
  const MaskedSecret secret;
  EXPECT_EQ(secret.Copies(), 0u);
  std::vector<Config> configs(1);
  secret.Reveal([&](std::string_view text) { configs[0].secret = text; });
  configs.resize(5, configs[0]);
  EXPECT_EQ(secret.Copies(), 1u);
  EXPECT_THAT(MappingFlags(configs[4].secret.view().data()), HasSubstr(" dd"));
  configs.erase(configs.begin(), configs.end() - 1);
  EXPECT_EQ(secret.Copies(), 1u);
  configs.clear();
  EXPECT_EQ(secret.Copies(), 0u);
}

TEST(SecretText, IsOneCopyInAConfigThatParsesChecksAndDescribesIt) {
  const MaskedSecret secret;
  Config config;
  secret.Reveal([&](std::string_view text) { EXPECT_TRUE(config.Set("secret", text)); });
  EXPECT_TRUE(config.Validate());
  EXPECT_EQ(config.Describe().size(), Config().Describe().size());
  const Config copy = config;
  EXPECT_EQ(secret.Copies(), 1u);
}

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
  EXPECT_EQ(secret->view(), kText);
}

TEST_F(SecretFileTest, IsNotReadBesideASecretThatIsSet) {
  config_.secret = kText;
  EXPECT_FALSE(LoadSecret(config_));
  config_.secret_file.clear();
  EXPECT_EQ(*LoadSecret(config_), kText);
  config_.secret.clear();
  EXPECT_EQ(*LoadSecret(config_), "");
}

TEST_F(SecretFileTest, IsOneCopyInMemory) {
  const MaskedSecret secret;
  secret.WriteTo(path_);
  auto loaded = LoadSecret(config_);
  ASSERT_TRUE(loaded) << loaded.error().ToString();
  EXPECT_EQ(secret.Copies(), 1u);
  loaded->clear();
  EXPECT_EQ(secret.Copies(), 0u);
}

TEST_F(SecretFileTest, ThatIsTooLongLeavesNoCopy) {
  const MaskedSecret secret;
  secret.WriteTo(path_);
  std::ofstream(path_, std::ios::binary | std::ios::app) << std::string(kMaxSecretBytes, 'x');
  EXPECT_FALSE(LoadSecret(config_));
  EXPECT_EQ(secret.Copies(), 0u);
}

TEST_F(SecretFileTest, ThatOthersMayReadIsWarnedOf) {
  EXPECT_EQ(WarningFor(0600), "");
  EXPECT_THAT(WarningFor(0640), HasSubstr("secret_file " + path_ + " may be read by others"));
  EXPECT_THAT(WarningFor(0604), HasSubstr("chmod 600"));
}

}  // namespace
}  // namespace ferry
