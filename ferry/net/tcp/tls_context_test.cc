// Tests of TLS settings and files.
#include "ferry/net/tcp/tls_context.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "ferry/net/testing/certificates.h"

namespace ferry::net::tcp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

void ExpectError(const Config& config, const ::testing::Matcher<std::string>& message) {
  const auto context = TlsContext::Create(config);
  ASSERT_FALSE(context);
  EXPECT_EQ(context.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(context.error().message(), message);
}

TEST(TlsContext, IsNoneWhereTlsIsOff) {
  const auto context = TlsContext::Create({});
  ASSERT_TRUE(context);
  EXPECT_EQ(*context, nullptr);
}

TEST(TlsContext, ByAKeyNeedsASecret) {
  Config config;
  config.tls = TlsMode::kPsk;
  ExpectError(config, HasSubstr("FERRY_SECRET_FILE"));
  config.secret_file = "/not/there";
  ExpectError(config, HasSubstr("/not/there cannot be read"));
  config.secret_file = {};
  config.secret = "sixteen letters!";
  EXPECT_TRUE(TlsContext::Create(config));
}

TEST(TlsContext, ByCertificatesNeedsThreeFiles) {
  TestAuthority authority;
  const Config whole = authority.Use({}, "node");
  EXPECT_TRUE(TlsContext::Create(whole));
  for (const auto& [name, member] :
       {std::pair("tls_cert", &Config::tls_cert), std::pair("tls_key", &Config::tls_key),
        std::pair("tls_ca", &Config::tls_ca)}) {
    Config config = whole;
    (config.*member).clear();
    ExpectError(config, HasSubstr(std::string(name) + " names no file"));
    config.*member = "/not/there";
    ExpectError(config, HasSubstr(std::string(name) +
                                  " /not/there cannot be used: No such file or directory"));
  }
}

TEST(TlsContext, AFileThatIsNoCertificateIsAnError) {
  TestAuthority authority;
  Config config = authority.Use({}, "node");
  config.tls_cert = config.tls_key;
  ExpectError(config, AllOf(HasSubstr("tls_cert"), HasSubstr("no start line")));
}

TEST(TlsContext, AKeyOfAnotherCertificateIsAnError) {
  TestAuthority authority;
  Config config = authority.Use({}, "node");
  config.tls_key = authority.Issue("other").key;
  ExpectError(config, AllOf(HasSubstr("tls_key"), HasSubstr("key values mismatch")));
}

// OpenSSL would ask for the password on the terminal.
TEST(TlsContext, AKeyWithAPasswordIsAnError) {
  TestAuthority authority;
  Config config = authority.Use({}, "node");
  const std::string locked = config.tls_key + ".locked";
  const std::string command =
      "openssl pkcs8 -topk8 -passout pass:sesame -in " + config.tls_key + " -out " + locked;
  if (std::system(command.c_str()) != 0) GTEST_SKIP() << "no openssl program";
  config.tls_key = locked;
  ExpectError(config, AllOf(HasSubstr("tls_key"), HasSubstr("without a password")));
}

TEST(TlsContextCache, ReadsFilesOnce) {
  TlsContextCache cache;
  Config config;
  {
    TestAuthority authority;
    config = authority.Use({}, "node");
    ASSERT_TRUE(cache.Get(config));
  }
  ASSERT_FALSE(std::filesystem::exists(config.tls_cert));
  const auto again = cache.Get(config);
  ASSERT_TRUE(again);
  EXPECT_NE(*again, nullptr);
  config.tls_name = "node";
  EXPECT_FALSE(cache.Get(config));
  config.tls = TlsMode::kOff;
  const auto none = cache.Get(config);
  ASSERT_TRUE(none);
  EXPECT_EQ(*none, nullptr);
}

}  // namespace
}  // namespace ferry::net::tcp
