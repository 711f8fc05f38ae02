// The endpoint of an agent passes the conformance suite of sessions.
#include <gtest/gtest.h>

#include "ferry/session/testing/conformance.h"
#include "ferry/transfer/handshake/wire.h"
#include "plugins/nixl/peers/identity.h"
#include "tests/support/peer_process.h"

namespace ferry::nixl {
namespace {

class AgentHost final : public session::testing::SessionHost {
 public:
  session::wire::Role role() const override { return session::wire::Role::kEndpoint; }
  net::Address address() const override { return {"127.0.0.1", endpoint_.port()}; }
  Secret secret() const override { return Secret(ConnectionSecret({}, metadata_)); }
  std::vector<std::byte> Hello() const override {
    transfer::wire::HelloBody hello{.lanes = 1, .flags = transfer::wire::kHasSecret};
    hello.endpoint[0] = 1;
    hello.window_bytes = 64 << 10;
    const auto bytes = session::wire::BytesOf(hello);
    return {bytes.begin(), bytes.end()};
  }
  std::vector<std::byte> Identify(const Mac& transcript) const override {
    return key_.Identify("dials", "accepts", transcript).Serialize();
  }

 private:
  static Config MakeConfig() {
    Config config;
    config.devices = DeviceChoice::None();
    config.workers = 1;
    config.listen_host = "127.0.0.1";
    config.handshake_timeout = std::chrono::seconds(2);
    return config;
  }

  const Uuid metadata_ = Uuid::Random();
  const SigningKey key_ = tests::Must(SigningKey::Random());
  transfer::Endpoint endpoint_ = tests::Must(transfer::Endpoint::Create(
      MakeConfig(), nullptr, ConnectionSecret({}, metadata_), CheckOfIdentities("accepts")));
};

using session::testing::SessionConformance;
INSTANTIATE_TEST_SUITE_P(Nixl, SessionConformance,
                         ::testing::Values(session::testing::SessionTarget{
                             "Agent", [] { return std::make_unique<AgentHost>(); }}));

}  // namespace
}  // namespace ferry::nixl
