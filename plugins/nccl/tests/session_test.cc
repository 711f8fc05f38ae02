// The plugin passes the conformance suite of sessions.
#include <gtest/gtest.h>

#include "ferry/session/testing/conformance.h"
#include "plugins/nccl/tests/testing/nccl_host.h"
#include "plugins/nccl/tests/testing/raw_sender.h"

namespace ferry::nccl_net {
namespace {

class ListenCommHost final : public session::testing::SessionHost {
 public:
  session::wire::Role role() const override { return session::wire::Role::kNccl; }
  net::Address address() const override { return handle().at.front(); }
  Secret secret() const override { return SecretOf(handle().key); }
  std::vector<std::byte> Hello() const override {
    const HelloWire hello = testing::RawSender(listen_.handle()).Hello();
    const auto bytes = session::wire::BytesOf(hello);
    return {bytes.begin(), bytes.end()};
  }
  std::string wrong_proof() const override { return "unknown or closed listen comm"; }

 private:
  ListenAddress handle() const { return *ReadHandle(listen_.handle().data()); }

  const testing::ScopedVariable timeout_{"FERRY_HANDSHAKE_TIMEOUT", "2s"};
  testing::NcclHost host_{FERRY_NCCL_PLUGIN, 12};
  testing::NcclListen listen_{&host_};
};

using session::testing::SessionConformance;
INSTANTIATE_TEST_SUITE_P(ListenComm, SessionConformance,
                         ::testing::Values(session::testing::SessionTarget{
                             "ListenComm", [] { return std::make_unique<ListenCommHost>(); }}));

}  // namespace
}  // namespace ferry::nccl_net
