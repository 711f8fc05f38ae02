// Tests a peer that was restarted at the same address while the other side still has its old
// address and keys, and keys that were tampered with.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "ferry/core/units.h"
#include "tests/support/engine_peer.h"

namespace ferry::tests {
namespace {

using transfer::Connection;
using transfer::Endpoint;
using transfer::RemoteRegion;
using transfer::Rights;

constexpr std::uint64_t kBytes = 3 * kMiB + 17;

// A peer that had a region, was killed, and runs again at the same address with another region.
class Restarted : public testing::Test {
 protected:
  Restarted() : endpoint_(Must(Endpoint::Create(ConfigOf(FastSettings())))) {
    EnginePeer old(FastSettings({LastingPorts()}));
    old_address_ = old.address();
    const Connection connection = Must(endpoint_.Connect(old_address_, TestDeadline()));
    old_key_ = old.Region("in", kBytes, kPeerInSeed);
    old.process().Kill();
    Must(old.process().WaitExit(TestDeadline()));
    peer_.emplace(FastSettings({fmt::format("port_range={}", old_address_.at.front().port)}));
    new_key_ = peer_->Region("in", kBytes, kPeerInSeed);
  }

  Connection ConnectByName() {
    Connection connection = Must(endpoint_.Connect(peer_->host_and_port(), TestDeadline()));
    peer_->Accept();
    return connection;
  }
  void ExpectTargetUntouched() {
    const Census census = peer_->TakeCensus("in", kPeerInSeed, kSourceSeed);
    EXPECT_EQ(census.before, kBytes);
  }
  void ExpectStillGood(Connection* connection, const PatternRegion& source) {
    EXPECT_FALSE(connection->lost());
    const auto in = Must(connection->Import(new_key_));
    const Status written =
        Must(connection->Write(source.region, 0, in, 0, kBytes)).Wait(TestDeadline());
    EXPECT_TRUE(written) << written.error().ToString();
    EXPECT_EQ(peer_->TakeCensus("in", kPeerInSeed, kSourceSeed).after, kBytes);
    EXPECT_EQ(peer_->Quit(), 0);
  }

  Endpoint endpoint_;
  transfer::EndpointAddress old_address_;
  std::vector<std::byte> old_key_;
  std::optional<EnginePeer> peer_;
  std::vector<std::byte> new_key_;
};

TEST_F(Restarted, PeerIsNotTakenForTheOneThatTheAddressMeans) {
  ASSERT_EQ(peer_->address().at.front().port, old_address_.at.front().port);
  const auto connection = endpoint_.Connect(old_address_, TestDeadline());
  ASSERT_FALSE(connection);
  EXPECT_EQ(connection.error().code(), Code::kRefused);
  EXPECT_NE(connection.error().message().find("restarted or replaced"), std::string::npos)
      << connection.error().message();
  EXPECT_TRUE(endpoint_.Connect(peer_->address(), TestDeadline()));
}

TEST_F(Restarted, PeerReachedByNameOnlyDoesNotTakeTheOldKey) {
  Connection connection = ConnectByName();
  const auto imported = connection.Import(old_key_);
  ASSERT_FALSE(imported);
  EXPECT_EQ(imported.error().code(), Code::kInvalidArgument);
  EXPECT_NE(imported.error().message().find(old_address_.endpoint.ToString()), std::string::npos)
      << imported.error().message();
  const PatternRegion source(endpoint_, kBytes, kSourceSeed);
  ExpectStillGood(&connection, source);
}

TEST_F(Restarted, PeerRefusesTheOldTokenUnderItsNewName) {
  Connection connection = ConnectByName();
  const PatternRegion source(endpoint_, kBytes, kSourceSeed);
  RemoteRegion forged = Must(RemoteRegion::Parse(old_key_));
  const RemoteRegion real = Must(RemoteRegion::Parse(new_key_));
  ASSERT_EQ(forged.key.region, real.key.region);
  ASSERT_EQ(forged.key.generation, real.key.generation);
  forged.endpoint = real.endpoint;
  const RemoteRegion imported = Must(connection.Import(forged.Serialize()));
  const Status written =
      Must(connection.Write(source.region, 0, imported, 0, kBytes)).Wait(TestDeadline());
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code(), Code::kRefused);
  EXPECT_NE(written.error().message().find("token"), std::string::npos)
      << written.error().message();
  EXPECT_GE(peer_->Refusals(), 1u);
  ExpectTargetUntouched();
  ExpectStillGood(&connection, source);
}

struct Forgery {
  std::string name;
  std::function<void(RemoteRegion*)> forge;
  std::string sentence;  // part of what the peer says
};
void PrintTo(const Forgery& forgery, std::ostream* out) { *out << forgery.name; }

class Forged : public Restarted, public testing::WithParamInterface<Forgery> {};
INSTANTIATE_TEST_SUITE_P(
    Key, Forged,
    testing::Values(
        Forgery{"region", [](RemoteRegion* key) { key->key.region += 1000; }, "there is no region"},
        Forgery{"generation", [](RemoteRegion* key) { key->key.generation += 1; },
                "there is no region"},
        Forgery{"token", [](RemoteRegion* key) { key->key.token ^= 1; }, "token"},
        Forgery{"length", [](RemoteRegion* key) { key->length += 1; }, "has"},
        Forgery{"huge_length", [](RemoteRegion* key) { key->length = ~0ull; }, "offset"}),
    [](const auto& forgery) { return forgery.param.name; });

TEST_P(Forged, KeyIsRefusedByTheTargetWhichSaysWhy) {
  Connection connection = ConnectByName();
  const PatternRegion source(endpoint_, kBytes, kSourceSeed);
  RemoteRegion forged = Must(RemoteRegion::Parse(new_key_));
  GetParam().forge(&forged);
  // At the end of what the key claims, so that only its check stands in the way.
  const std::uint64_t offset = forged.length - 1000;
  for (const bool write : {true, false}) {
    auto posted = write ? connection.Write(source.region, 0, forged, offset, 1000)
                        : connection.Read(source.region, 0, forged, offset, 1000);
    const Status done = Must(std::move(posted)).Wait(TestDeadline());
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().code(), Code::kRefused) << done.error().ToString();
    EXPECT_NE(done.error().message().find(GetParam().sentence), std::string::npos)
        << done.error().message();
  }
  EXPECT_EQ(peer_->Refusals(), 2u);
  EXPECT_EQ(TakeCensus(source.bytes(), 0, kSourceSeed).after, kBytes);
  ExpectTargetUntouched();
  ExpectStillGood(&connection, source);
}

TEST_F(Restarted, PeerAllowsNoMoreThanItsRegionEvenIfTheKeySaysSo) {
  Connection connection = ConnectByName();
  const PatternRegion source(endpoint_, kBytes, kSourceSeed);
  RemoteRegion forged =
      Must(RemoteRegion::Parse(peer_->Region("readable", kBytes, kPeerInSeed, "read")));
  EXPECT_FALSE(connection.Write(source.region, 0, forged, 0, kBytes));
  forged.rights = Rights::kReadWrite;
  const Status written =
      Must(connection.Write(source.region, 0, forged, 0, kBytes)).Wait(TestDeadline());
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code(), Code::kRefused);
  EXPECT_NE(written.error().message().find("reading only"), std::string::npos)
      << written.error().message();
  EXPECT_EQ(peer_->TakeCensus("readable", kPeerInSeed, kSourceSeed).before, kBytes);
  ExpectStillGood(&connection, source);
}

TEST_F(Restarted, PeerRefusesTheKeyOfARegionThatIsGone) {
  Connection connection = ConnectByName();
  const PatternRegion source(endpoint_, kBytes, kSourceSeed);
  const auto stale = Must(connection.Import(peer_->Region("brief", kBytes, kPeerInSeed)));
  peer_->Deregister("brief");
  const Status written =
      Must(connection.Write(source.region, 0, stale, 0, kBytes)).Wait(TestDeadline());
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code(), Code::kRefused);
  EXPECT_NE(written.error().message().find("stale"), std::string::npos)
      << written.error().message();
  EXPECT_EQ(peer_->TakeCensus("brief", kPeerInSeed, kSourceSeed).before, kBytes);
  ExpectStillGood(&connection, source);
}

}  // namespace
}  // namespace ferry::tests
