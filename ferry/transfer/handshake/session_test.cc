// Endpoints pass the conformance suite of sessions.
#include <gtest/gtest.h>

#include "ferry/session/testing/conformance.h"
#include "ferry/transfer/testing/linked_endpoints.h"
#include "ferry/transfer/testing/raw_peer.h"

namespace ferry::transfer {
namespace {

constexpr const char* kSessionSecret = "what both endpoints know";

class EndpointHost final : public session::testing::SessionHost {
 public:
  EndpointHost() : endpoint_(Must(Endpoint::Create(MakeConfig()))) {}
  session::wire::Role role() const override { return session::wire::Role::kEndpoint; }
  net::Address address() const override { return {"127.0.0.1", endpoint_.port()}; }
  Secret secret() const override { return Secret(SecretText(kSessionSecret)); }
  std::vector<std::byte> Hello() const override {
    wire::HelloBody hello = transfer::Hello(Uuid::Random(), 1);
    hello.flags = wire::kHasSecret;
    return Pod(hello);
  }

 private:
  static Config MakeConfig() {
    Config config = SmallSlices(1, 1);
    config.secret = kSessionSecret;
    config.handshake_timeout = std::chrono::seconds(2);
    return config;
  }

  Endpoint endpoint_;
};

using session::testing::SessionConformance;
INSTANTIATE_TEST_SUITE_P(Endpoint, SessionConformance,
                         ::testing::Values(session::testing::SessionTarget{
                             "Endpoint", [] { return std::make_unique<EndpointHost>(); }}));

}  // namespace
}  // namespace ferry::transfer
