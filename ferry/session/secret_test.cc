// Tests reading of the shared secret, and the proofs made with it.
#include "ferry/core/secret.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>

namespace ferry::session {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kText = "sixteen letters!";

std::span<const std::byte> Bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

class SecretTest : public ::testing::Test {
 protected:
  SecretTest() { close(mkstemp(path_.data())); }
  ~SecretTest() override { std::remove(path_.c_str()); }

  Config WithFile(const std::string& content) {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << content;
    Config config;
    config.secret_file = path_;
    return config;
  }
  static Config WithText(const std::string& text) {
    Config config;
    config.secret = text;
    return config;
  }
  static Mac Signed(const Config& config) {
    return (*Secret::FromConfig(config))->Sign("role", {Bytes("what")});
  }
  static void ExpectError(const Config& config, const std::string& words) {
    const auto secret = Secret::FromConfig(config);
    ASSERT_FALSE(secret);
    EXPECT_EQ(secret.error().code(), Code::kInvalidArgument);
    EXPECT_THAT(secret.error().message(), AllOf(HasSubstr(words), Not(HasSubstr(kText))));
  }

  std::string path_ = ::testing::TempDir() + "ferry_secret_XXXXXX";
};

TEST_F(SecretTest, IsNoneWhereNoneIsSet) {
  const auto secret = Secret::FromConfig(Config());
  ASSERT_TRUE(secret);
  EXPECT_FALSE(*secret);
}

TEST_F(SecretTest, IsTheSameFromTextAndFileWithOrWithoutANewline) {
  EXPECT_EQ(Signed(WithText(kText)), Signed(WithFile(kText)));
  EXPECT_EQ(Signed(WithText(kText)), Signed(WithFile(kText + "\n")));
  EXPECT_NE(Signed(WithText(kText)), Signed(WithFile(kText + "\n\n")));
}

TEST_F(SecretTest, MayBeOfAnyBytes) {
  const std::string bytes("\0\n\xFF 0123456789abcdef", 20);
  EXPECT_EQ(Signed(WithText(bytes)), Signed(WithFile(bytes)));
}

TEST_F(SecretTest, OfAWrongLengthIsRefusedWithTheLengthAndNotTheSecret) {
  ExpectError(WithFile(""), "holds 0 bytes");
  ExpectError(WithFile(kText.substr(1)), "holds 15 bytes");
  ExpectError(WithFile(std::string(kMaxSecretBytes + 1, 'x')), "holds more than 1024 bytes");
  EXPECT_TRUE(Secret::FromConfig(WithFile(std::string(kMaxSecretBytes, 'x') + "\n")));
}

TEST_F(SecretTest, InAFileThatIsNotThereIsAnErrorThatNamesIt) {
  Config config;
  config.secret_file = path_ + ".not-there";
  ExpectError(config, path_ + ".not-there cannot be read");
  config.secret_file = "/";
  ExpectError(config, "secret_file /");
}

TEST_F(SecretTest, IsNotTakenFromTwoPlaces) {
  Config config = WithFile(kText);
  config.secret = kText;
  ExpectError(config, "give one of them");
}

TEST_F(SecretTest, SignsDifferentlyForEachRoleSecretAndDivisionOfWhatIsSaid) {
  const auto secret = *Secret::FromConfig(WithText(kText));
  const Mac mac = secret->Sign("client", {Bytes("ab"), Bytes("c")});
  EXPECT_EQ(mac, secret->Sign("client", {Bytes("ab"), Bytes("c")}));
  EXPECT_NE(mac, secret->Sign("server", {Bytes("ab"), Bytes("c")}));
  EXPECT_NE(mac, secret->Sign("client", {Bytes("a"), Bytes("bc")}));
  EXPECT_NE(mac, secret->Sign("client", {Bytes("abc")}));
  const auto other = *Secret::FromConfig(WithText(kText + "?"));
  EXPECT_NE(mac, other->Sign("client", {Bytes("ab"), Bytes("c")}));
}

TEST(EqualInConstantTime, SeesEveryBit) {
  Mac mac{};
  Mac other{};
  EXPECT_TRUE(EqualInConstantTime(mac, other));
  for (std::byte& one : other) {
    for (int bit = 0; bit < 8; ++bit) {
      one = static_cast<std::byte>(1 << bit);
      EXPECT_FALSE(EqualInConstantTime(mac, other));
    }
    one = std::byte{0};
  }
}

}  // namespace
}  // namespace ferry::session
