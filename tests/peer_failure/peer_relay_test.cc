// Tests two processes that share a secret and have certificates, with an attacker between them who
// has a certificate of the same authority but not the secret. The attacker can terminate TLS
// towards both and relay their proofs, but a proof is valid for one TLS connection only.

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "ferry/core/units.h"
#include "ferry/net/testing/certificates.h"
#include "tests/support/engine_peer.h"
#include "tests/support/tls_relay.h"

namespace ferry::tests {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kRelayedBytes = 3 * kMiB + 17;
constexpr std::size_t kRelayedLanes = 3;
constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();
constexpr const char* kWhatItMeans = "somebody is between the two sides";

class RelayedTest : public testing::Test {
 protected:
  RelayedTest() {
    testing::internal::CaptureStderr();  // the peer's, too
    peer_.emplace(SettingsOf("far"));
    endpoint_.emplace(Must(transfer::Endpoint::Create(ConfigOf(SettingsOf("near")))));
    relay_ = Must(TlsRelay::Start(peer_->address().at.front(),
                                  ConfigOf(SettingsOf("between", /*with_secret=*/false))));
  }
  ~RelayedTest() override {
    if (!log_taken_) (void)Log();
  }

  Settings SettingsOf(const std::string& name, bool with_secret = true) {
    const net::TestAuthority::Issued issued = authority_.Issue(name);
    Settings settings =
        FastSettings({fmt::format("lanes={}", kRelayedLanes), "tls=cert", "tls_cert=" + issued.cert,
                      "tls_key=" + issued.key, "tls_ca=" + authority_.file(), "log_level=warn"});
    if (with_secret) settings.push_back("secret=" + secret_);
    return settings;
  }
  // The log of both processes.
  std::string Log() {
    log_taken_ = true;
    return testing::internal::GetCapturedStderr();
  }
  Result<transfer::Connection> ConnectThroughTheRelay() {
    return endpoint_->Connect(relay_->address().ToString(), TestDeadline());
  }
  void ExpectWrites(transfer::Connection* connection) {
    const PatternRegion source(*endpoint_, kRelayedBytes, kSourceSeed);
    const auto in = Must(connection->Import(peer_->Region("in", kRelayedBytes, kPeerInSeed)));
    const Status written =
        Must(connection->Write(source.region, 0, in, 0, kRelayedBytes)).Wait(TestDeadline());
    EXPECT_TRUE(written) << written.error().ToString();
    EXPECT_EQ(peer_->TakeCensus("in", kPeerInSeed, kSourceSeed).after, kRelayedBytes);
  }

  net::TestAuthority authority_;
  const std::string secret_ = "0123456789abcdef";
  std::optional<EnginePeer> peer_;  // the listening side
  std::optional<transfer::Endpoint> endpoint_;
  std::unique_ptr<TlsRelay> relay_;
  bool log_taken_ = false;
};

TEST_F(RelayedTest, WhoPassesTlsOnAsItIsIsNoHarm) {
  relay_->EndTlsFrom(kNever);
  auto connection = Must(ConnectThroughTheRelay());
  peer_->Accept();
  ExpectWrites(&connection);
  EXPECT_EQ(relay_->bytes_seen(), 0u);
}

TEST_F(RelayedTest, WhoEndsTlsIsRefusedByBothSidesWithWhatItMeans) {
  const auto refused = ConnectThroughTheRelay();
  ASSERT_FALSE(refused) << "it read and wrote " << relay_->bytes_seen() << " bytes in the clear";
  EXPECT_EQ(refused.error().code(), Code::kRefused) << refused.error().ToString();
  EXPECT_THAT(refused.error().message(), HasSubstr(kWhatItMeans));
  EXPECT_GT(relay_->bytes_seen(), 0u);  // and so it was between
  auto direct = Must(endpoint_->Connect(peer_->address(), TestDeadline()));
  peer_->Accept();
  ExpectWrites(&direct);
  EXPECT_THAT(Log(), HasSubstr(kWhatItMeans));
}

TEST_F(RelayedTest, WhoEndsTlsOfAFurtherLaneIsRefusedByBothSides) {
  relay_->EndTlsFrom(1);
  const auto refused = ConnectThroughTheRelay();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kRefused) << refused.error().ToString();
  EXPECT_THAT(refused.error().message(), HasSubstr(kWhatItMeans));
  EXPECT_THAT(Log(), HasSubstr(kWhatItMeans));
}

TEST_F(RelayedTest, WhoEndsTlsOfALaneThatIsJoinedAnewIsRefusedByBothSides) {
  relay_->EndTlsFrom(kNever);
  auto connection = Must(ConnectThroughTheRelay());
  peer_->Accept();
  relay_->EndTlsFrom(relay_->connections());
  relay_->Cut(kRelayedLanes - 1);
  const auto was_refused = [&] {
    const auto events = connection.Events();
    return std::any_of(events.begin(), events.end(), [](const auto& event) {
      return event.text.find(kWhatItMeans) != std::string::npos;
    });
  };
  const Deadline deadline = TestDeadline();
  // The listening side says one thing of a host a second, and has just said that the lane was lost:
  // the pauses before the fifth attempt are longer than that.
  const auto goes_on = [&] { return !connection.lost() && !deadline.expired(); };
  while (goes_on() && !(was_refused() && relay_->connections() >= kRelayedLanes + 5)) {
    (void)connection.TakeNotification(Deadline::After(milliseconds(1)));
  }
  EXPECT_TRUE(was_refused());
  ExpectWrites(&connection);  // over the other lanes
  EXPECT_EQ(connection.Counters().traffic.lanes_replaced, 0u);
  relay_->EndTlsFrom(kNever);
  while (goes_on() && connection.Counters().traffic.lanes_replaced == 0) {
    (void)connection.TakeNotification(Deadline::After(milliseconds(1)));
  }
  EXPECT_EQ(connection.Counters().traffic.lanes_replaced, 1u);
  EXPECT_THAT(Log(), HasSubstr(kWhatItMeans));
}

}  // namespace
}  // namespace ferry::tests
