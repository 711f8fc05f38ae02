// Tests how many copies of the shared secret endpoints keep in memory.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

#include "ferry/core/testing/masked_secret.h"
#include "ferry/transfer/testing/linked_endpoints.h"

namespace ferry::transfer {
namespace {

// With and without a TLS key that is made from the secret.
class SecretCopiesTest : public ::testing::TestWithParam<TlsMode> {
 protected:
  SecretCopiesTest() {
    ::close(::mkstemp(path_.data()));
    config_->tls = GetParam();
  }
  ~SecretCopiesTest() override { std::remove(path_.c_str()); }

  const MaskedSecret secret_;
  std::string path_ = ::testing::TempDir() + "ferry_copies_XXXXXX";
  std::optional<Config> config_ = SmallSlices(3, 2);
  std::optional<Link> link_;
};

TEST_P(SecretCopiesTest, EndpointsAndConnectionsOfOneConfigShareOne) {
  secret_.Reveal([&](std::string_view text) { config_->secret = text; });
  link_ = MakeLink(*config_);
  EXPECT_TRUE(Works(&*link_));
  EXPECT_EQ(secret_.Copies(), 1u);
  config_.reset();
  EXPECT_EQ(secret_.Copies(), 1u);
  link_.reset();
  EXPECT_EQ(secret_.Copies(), 0u);
}

TEST_P(SecretCopiesTest, EachEndpointKeepsOneOfItsFile) {
  secret_.WriteTo(path_);
  config_->secret_file = path_;
  link_ = MakeLink(*config_);
  EXPECT_TRUE(Works(&*link_));
  EXPECT_EQ(secret_.Copies(), 2u);
  link_->near = {};
  EXPECT_EQ(secret_.Copies(), 1u);
  link_.reset();
  EXPECT_EQ(secret_.Copies(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Tls, SecretCopiesTest, ::testing::Values(TlsMode::kOff, TlsMode::kPsk));

}  // namespace
}  // namespace ferry::transfer
