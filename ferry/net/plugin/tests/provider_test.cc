// Runs the provider conformance suite on the provider of plugins, over the stand-in.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "ferry/net/choose_provider.h"
#include "ferry/net/plugin/factory.h"
#include "ferry/net/plugin/tests/testing/standin.h"
#include "ferry/net/tcp/factory.h"
#include "ferry/net/testing/conformance.h"

namespace ferry::net::plugin {
namespace {

using plugin::testing::StandIn;
using plugin::testing::Variables;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kHost = "127.0.0.1";

std::unique_ptr<Provider> Over(StandIn& standin, std::uint64_t chunk_bytes = 512 * 1024) {
  // Before the provider, with the variables that the plugin needs.
  const auto opened = standin.Open();
  EXPECT_TRUE(opened) << opened.error().ToString();
  Config config;
  config.provider = "plugin:" + standin.path();
  config.devices = DeviceChoice::None();
  auto provider = CreateProvider(config, tcp::CreateProvider(), chunk_bytes);
  EXPECT_TRUE(provider) << provider.error().ToString();
  return *std::move(provider);
}

// ---- the whole contract -------------------------------------------------------------------------

class PluginTarget : public ConformanceTarget {
 public:
  explicit PluginTarget(const Variables& variables) : standin_(variables) {}
  ~PluginTarget() override { EXPECT_EQ(standin_.Misuse(), ""); }
  std::unique_ptr<Provider> MakeProvider() override { return Over(standin_); }
  Address ListenAddress() override { return {kHost, 0}; }
  // Never accepts: what connects waits for an answer to its hello.
  Address SilentAddress() override {
    if (silent_ == nullptr) {
      silent_host_ = std::make_unique<TestHost>(tcp::CreateProvider());
      silent_ = std::make_unique<Address>(*silent_host_->Listen({kHost, 0}, {}));
    }
    return *silent_;
  }
  std::size_t LargeBytes() override { return std::size_t{16} << 20; }

 private:
  StandIn standin_;
  std::unique_ptr<TestHost> silent_host_;
  std::unique_ptr<Address> silent_;
};

std::unique_ptr<ConformanceTarget> Make(const Variables& variables) {
  return std::make_unique<PluginTarget>(variables);
}

INSTANTIATE_TEST_SUITE_P(
    Plugin, ProviderConformance,
    ::testing::Values(
        ConformanceCase{"StandIn", [] { return Make({}); }},
        ConformanceCase{
            "RandomFragments",
            [] {
              return Make({{"FRAGMENTS", "random"}, {"SOCKETS", "3"}, {"POLLS", "immediate"}});
            }}),
    ConformanceCaseName);

}  // namespace
}  // namespace ferry::net::plugin
