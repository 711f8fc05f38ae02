// Tests of the choice of a provider by its name.
#include "ferry/net/choose_provider.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ferry::net {
namespace {

using ::testing::HasSubstr;

Result<std::unique_ptr<Provider>> Choose(const std::string& name) {
  Config config;
  config.provider = name;
  return ChooseProvider(config);
}

TEST(ChooseProvider, TcpIsThere) {
  const auto tcp = Choose("tcp");
  ASSERT_TRUE(tcp) << tcp.error().ToString();
  EXPECT_STREQ((*tcp)->name(), "tcp");
}

TEST(ChooseProvider, AnUnknownNameIsRefusedWithThoseThatExist) {
  const auto unknown = Choose("carrier pigeon");
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(unknown.error().message(), HasSubstr("FERRY_PROVIDER to tcp, auto"));
}

TEST(ChooseProvider, APluginThatIsMissingOrNotBuiltInIsNamed) {
  const auto none = Choose("plugin:/no/such/plugin.so");
  ASSERT_FALSE(none);
#ifdef FERRY_WITHOUT_TCPX
  EXPECT_EQ(none.error().code(), Code::kUnsupported);
  EXPECT_THAT(none.error().message(), HasSubstr("-DFERRY_TCPX=ON"));
#else
  EXPECT_EQ(none.error().code(), Code::kInvalidArgument);
#endif
  EXPECT_THAT(none.error().message(), HasSubstr("/no/such/plugin.so"));
}

}  // namespace
}  // namespace ferry::net
