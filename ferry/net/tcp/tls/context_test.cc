// Tests of TLS settings and files.
#include "ferry/net/tcp/tls/context.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

#include "ferry/core/deadline.h"
#include "ferry/core/fd.h"
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

class TlsContextCacheTest : public ::testing::Test {
 protected:
  // The files of `from` take the places of those that the config names, each by a rename, as
  // certbot and Kubernetes do.
  void Replace(const Config& from) {
    for (const auto member : {&Config::tls_cert, &Config::tls_key, &Config::tls_ca}) {
      ReplaceFile(from.*member, config_.*member);
    }
  }
  static void ReplaceFile(const std::string& from, const std::string& to) {
    std::filesystem::copy_file(from, to + ".new",
                               std::filesystem::copy_options::overwrite_existing);
    std::filesystem::rename(to + ".new", to);
  }
  static void Write(const std::string& path, const std::string& text) {
    std::ofstream(path, std::ios::trunc) << text;
  }
  // A second later, unless the test sets the time.
  std::shared_ptr<const TlsContext> Get(Clock::duration later = TlsContextCache::kBetweenLooks) {
    now_ += later;
    auto context = cache_->Get(config_);
    EXPECT_TRUE(context) << context.error().ToString();
    return context ? *context : nullptr;
  }
  // With `timeout` for files.
  void Begin(Clock::duration timeout) {
    cache_ = std::make_shared<TlsContextCache>(timeout, [this] { return now_; });
  }
  void SetUp() override { Begin(std::chrono::seconds(60)); }

  TestAuthority authority_;
  TestAuthority other_;
  Config config_ = authority_.Use({}, "node");
  Clock::time_point now_;
  std::shared_ptr<TlsContextCache> cache_;  // shared with its threads
};

TEST_F(TlsContextCacheTest, ReadsFilesAgainThatWereReplaced) {
  const auto first = Get();
  EXPECT_EQ(Get(), first);
  Replace(authority_.Use({}, "renewed"));
  const auto renewed = Get();
  EXPECT_NE(renewed, first);
  EXPECT_EQ(Get(), renewed);
  Replace(other_.Use({}, "node"));  // by another authority
  EXPECT_NE(Get(), renewed);
}

TEST_F(TlsContextCacheTest, KeepsWhatItHasWhileNewFilesAreWrittenAndSaysSoOnce) {
  const auto first = Get();
  const Config renewed = authority_.Use({}, "renewed");
  ReplaceFile(renewed.tls_cert, config_.tls_cert);
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Get(), first);  // the key is still that of the old one
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, AllOf(HasSubstr("certificate files have changed and cannot be used"),
                         HasSubstr("key values mismatch")));
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
  ReplaceFile(renewed.tls_key, config_.tls_key);
  EXPECT_NE(Get(), first);
}

TEST_F(TlsContextCacheTest, KeepsWhatItHasWhereTheNewFileIsCutShort) {
  const auto first = Get();
  Write(config_.tls_ca, "-----BEGIN CERTIFICATE-----\nMIIB");
  EXPECT_EQ(Get(), first);
  Write(config_.tls_ca, "");
  EXPECT_EQ(Get(), first);
}

TEST_F(TlsContextCacheTest, LooksAtFilesOnceASecond) {
  const auto first = Get();
  Replace(authority_.Use({}, "renewed"));
  EXPECT_EQ(Get(milliseconds(999)), first);
  EXPECT_NE(Get(milliseconds(1)), first);
}

// Regression: an event loop read them, and stood still with the file system.
TEST_F(TlsContextCacheTest, AFileThatCannotBeReadForLongStopsNobody) {
  Begin(milliseconds(10));
  const auto first = Get();
  const std::string authority = config_.tls_ca + ".kept";
  std::filesystem::copy_file(config_.tls_ca, authority);
  const std::string pipe = config_.tls_ca + ".pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::filesystem::create_hard_link(pipe, config_.tls_ca + ".new");
  std::filesystem::rename(config_.tls_ca + ".new", config_.tls_ca);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Get(), first);
  const Deadline end = Deadline::After(std::chrono::seconds(60));
  UniqueFd writer;
  while (!writer && !end.expired()) {
    writer = UniqueFd(::open(pipe.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
  }
  ASSERT_TRUE(writer);  // while a thread of the cache reads
  EXPECT_EQ(Get(), first);
  std::filesystem::rename(authority, config_.tls_ca);
  Replace(authority_.Use({}, "renewed"));
  writer.reset();
  while (Get() == first && !end.expired()) std::this_thread::yield();
  EXPECT_NE(Get(), first);
}

TEST(TlsContextCache, KeepsWhatItReadWhereFilesAreGone) {
  Clock::time_point now;
  const auto cache =
      std::make_shared<TlsContextCache>(std::chrono::seconds(60), [&now] { return now; });
  Config config;
  {
    TestAuthority authority;
    config = authority.Use({}, "node");
    ASSERT_TRUE(cache->Get(config));
  }
  ASSERT_FALSE(std::filesystem::exists(config.tls_cert));
  now += TlsContextCache::kBetweenLooks;
  const auto again = cache->Get(config);
  ASSERT_TRUE(again);
  EXPECT_NE(*again, nullptr);
  config.tls_name = "node";
  EXPECT_FALSE(cache->Get(config));
  config.tls = TlsMode::kOff;
  const auto none = cache->Get(config);
  ASSERT_TRUE(none);
  EXPECT_EQ(*none, nullptr);
}

}  // namespace
}  // namespace ferry::net::tcp
