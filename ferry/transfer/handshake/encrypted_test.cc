// Tests the engine over TLS.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <thread>
#include <utility>

#include "ferry/net/testing/certificates.h"
#include "ferry/net/testing/fake_provider.h"
#include "ferry/net/testing/fault_proxy.h"
#include "ferry/transfer/testing/linked_endpoints.h"

// The engine over TLS.
namespace ferry::transfer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::size_t kSecretBytes = 1'000'000;

Config ByKey(const std::string& secret = "correct horse battery staple") {
  Config config = SmallSlices(3, 2);
  config.tls = TlsMode::kPsk;
  config.secret = secret;
  return config;
}

// Writes, reads and sends, and checks every byte.
void ExpectMovesEverything(Link* link) {
  GuardedMemory here(kSecretBytes, 1);
  GuardedMemory there(kSecretBytes, 2);
  GuardedMemory back(kSecretBytes, 3);
  const Region local = Must(link->near.endpoint->Register(here.span(), Rights::kNone));
  const Region into = Must(link->near.endpoint->Register(back.span(), Rights::kNone));
  const Region target = Must(link->far.endpoint->Register(there.span(), Rights::kReadWrite));
  Connection near = *link->near.connection;
  const RemoteRegion remote = Must(near.Import(target.key()));
  EXPECT_TRUE(EndsOk(near.Write(local, 0, remote, 0, kSecretBytes)));
  EXPECT_EQ(there.Copy(), here.Copy());
  there.Fill(std::byte{9});
  EXPECT_TRUE(EndsOk(near.Read(into, 0, remote, 0, kSecretBytes)));
  EXPECT_EQ(back.Copy(), there.Copy());
  BlockList blocks;
  for (std::uint64_t i = 0; i < 300; ++i) {
    blocks.Add({.dst = i * 3000, .src = (299 - i) * 3000, .len = 2999});
  }
  std::vector<TransferPart> parts;
  parts.push_back({&local, &remote, blocks});
  EXPECT_TRUE(EndsOk(near.Write(Must(near.PrepareWrite(std::move(parts))))));
  for (std::ptrdiff_t i = 0; i < 300; ++i) {
    EXPECT_TRUE(std::equal(there.span().begin() + i * 3000, there.span().begin() + i * 3000 + 2999,
                           here.span().begin() + (299 - i) * 3000));
  }
  GuardedMemory message(kSecretBytes, 4);
  GuardedMemory received(kSecretBytes, 5);
  const auto receive = link->far.connection->Recv(1, kWholeTag, received.span());
  EXPECT_TRUE(EndsOk(near.Send(1, message.span())));
  EXPECT_TRUE(EndsOk(receive));
  EXPECT_EQ(received.Copy(), message.Copy());
  EXPECT_TRUE(Works(link));
  for (const GuardedMemory* memory : {&here, &there, &back, &message, &received}) {
    EXPECT_TRUE(memory->GuardsIntact());
  }
}

TEST(Encrypted, ByAKeyEverythingArrivesWhole) {
  Link link = MakeLink(ByKey());
  for (const Side* side : {&link.near, &link.far}) {
    const auto info = side->connection->Info();
    ASSERT_EQ(info.lanes.size(), 3u);
    for (const net::LaneInfo& lane : info.lanes) {
      EXPECT_TRUE(lane.authenticated);
      EXPECT_EQ(lane.security, "TLSv1.3 TLS_AES_128_GCM_SHA256, pre-shared key");
    }
  }
  ExpectMovesEverything(&link);
}

TEST(Encrypted, ByCertificatesEverythingArrivesWhole) {
  net::TestAuthority authority;
  const Config near = authority.Use(SmallSlices(3, 2), "near");
  const Config far = authority.Use(SmallSlices(3, 2), "far");
  Link link = MakeLink(near, far);
  EXPECT_THAT(link.near.connection->Info().lanes.front().security,
              AllOf(StartsWith("TLSv1.3 TLS_"), HasSubstr("certificate CN=far")));
  EXPECT_THAT(link.far.connection->Info().lanes.front().security, HasSubstr("certificate CN=near"));
  ExpectMovesEverything(&link);
}

TEST(Encrypted, AnEndpointsOwnSecretIsProvedOverTlsByTheConfigs) {
  net::TestAuthority authority;
  const SecretText own = "the secret of one endpoint";
  for (const Config& config : {ByKey(), authority.Use(SmallSlices(3, 2), "both")}) {
    Link link{{Must(Endpoint::Create(config)), {}}, {Must(Endpoint::Create(config, own)), {}}};
    const EndpointAddress address = link.far.endpoint->address();
    const auto refused = link.near.endpoint->Connect(address, Soon(), "the secret of another");
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), Code::kRefused) << refused.error().ToString();
    link.near.connection = Must(link.near.endpoint->Connect(address, Soon(), own));
    link.far.connection = Must(link.far.endpoint->Accept(Soon()));
    EXPECT_TRUE(link.far.connection->Info().lanes.front().authenticated);
    EXPECT_TRUE(Works(&link));
  }
}

TEST(Encrypted, InTheLargeSlicesOfTheDefaultsEverythingArrivesWhole) {
  Config config = ByKey();
  config.slice_bytes = Config().slice_bytes;
  config.window_bytes = Config().window_bytes;
  Link link = MakeLink(config);
  ExpectMovesEverything(&link);
}

TEST(Encrypted, ALaneSaysNothingOfSecurityWithoutTls) {
  const Link link = MakeLink();
  const auto info = link.near.connection->Info();
  EXPECT_FALSE(info.lanes.front().authenticated);
  EXPECT_EQ(info.lanes.front().security, "none");
}

TEST(Encrypted, FilesThatCannotBeReadFailTheEndpoint) {
  Config config = SmallSlices();
  config.tls = TlsMode::kCert;
  config.tls_cert = config.tls_key = config.tls_ca = "/not/there";
  const auto endpoint = Endpoint::Create(config);
  ASSERT_FALSE(endpoint);
  EXPECT_EQ(endpoint.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(endpoint.error().message(), HasSubstr("tls_cert /not/there"));
}

// Otherwise the endpoint would communicate unencrypted.
TEST(Encrypted, AProviderWithoutTlsFailsTheEndpoint) {
  net::FakeNetwork network;
  Config config = ByKey();
  config.listen_host = net::FakeNetwork::kHost;
  const auto endpoint = Endpoint::Create(config, network.CreateProvider());
  ASSERT_FALSE(endpoint);
  EXPECT_EQ(endpoint.error().code(), Code::kUnsupported);
  EXPECT_THAT(endpoint.error().message(), HasSubstr("has no TLS"));
}

TEST(Encrypted, TwoSidesThatDoNotAgreeSaySo) {
  Endpoint plain = Must(Endpoint::Create(SmallSlices()));
  Endpoint secure = Must(Endpoint::Create(ByKey()));
  Endpoint other = Must(Endpoint::Create(ByKey("Correct horse battery staple")));
  const auto to_secure = plain.Connect(secure.address(), Soon());
  ASSERT_FALSE(to_secure);
  EXPECT_THAT(to_secure.error().message(), HasSubstr("set FERRY_TLS to the same"));
  const auto to_plain = secure.Connect(plain.address(), Soon());
  ASSERT_FALSE(to_plain);
  EXPECT_THAT(to_plain.error().message(), HasSubstr("set FERRY_TLS to the same"));
  const auto to_other = secure.Connect(other.address(), Soon());
  ASSERT_FALSE(to_other);
  EXPECT_THAT(to_other.error().message(), HasSubstr("different secrets"));
  Endpoint friendly = Must(Endpoint::Create(ByKey()));
  EXPECT_TRUE(friendly.Connect(secure.address(), Soon()));
}

// The listener checks the peer's certificate last, so the dialing side gets the refusal on a lane
// that it already has.
TEST(Encrypted, ACertificateThatTheListenerRefusesEndsTheCallWithItsReason) {
  net::TestAuthority authority;
  net::TestAuthority unknown("Unknown");
  Config near = unknown.Use(SmallSlices(), "near");
  near.tls_ca = authority.file();
  const Endpoint server = Must(Endpoint::Create(authority.Use(SmallSlices(), "far")));
  Endpoint client = Must(Endpoint::Create(near));
  const auto refused = client.Connect(server.address(), Soon());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kRefused) << refused.error().ToString();
  EXPECT_THAT(refused.error().message(), HasSubstr("unknown CA"));
}

// The second lane is cut in the middle of a write, whose rest only its replacement could carry.
class CutLane : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Encrypted, CutLane, ::testing::Bool(), [](const auto& parameter) {
  return parameter.param ? "OfTheAcceptingSide" : "OfTheDialingSide";
});

TEST_P(CutLane, AWriteOverItEndsAtOnceIfTheNextOneIsRefusedForACertificate) {
  for (const bool is_far : {true, false}) {
    SCOPED_TRACE(is_far ? "the listener's has expired" : "the dialing side's has expired");
    net::TestAuthority authority;
    const Config near = authority.Use(SmallSlices(2, 2), "near");
    const Config far = authority.Use(SmallSlices(2, 2), "far");
    Endpoint server = Must(Endpoint::Create(far));
    Endpoint client = Must(Endpoint::Create(near));
    GuardedMemory there(kSecretBytes, 2);
    GuardedMemory here(kSecretBytes, 1);
    Endpoint& writer = GetParam() ? server : client;
    const Region local = Must(writer.Register(here.span(), Rights::kNone));
    const Region target =
        Must((GetParam() ? client : server).Register(there.span(), Rights::kReadWrite));
    auto proxy = Must(net::FaultProxy::Start({"127.0.0.1", server.port()}));
    const Connection dialed = Must(client.Connect(proxy->address().ToString(), Soon()));
    const Connection accepted = Must(server.Accept(Soon()));
    Connection connection = GetParam() ? accepted : dialed;
    const RemoteRegion remote = Must(connection.Import(target.key()));
    proxy->SetStalled(true);
    Operation write = Must(connection.Write(local, 0, remote, 0, kSecretBytes));
    const Deadline deadline = Soon();
    while (connection.Counters().lanes[1].traffic.payload_bytes_sent == 0) {
      ASSERT_FALSE(deadline.expired());
      std::this_thread::yield();
    }
    const auto expired = authority.Issue("old", {}, -1);
    std::filesystem::rename(expired.cert, is_far ? far.tls_cert : near.tls_cert);
    std::filesystem::rename(expired.key, is_far ? far.tls_key : near.tls_key);
    // Files are looked at once a second.
    while (client.Connect(server.address(), deadline)) ASSERT_FALSE(deadline.expired());
    proxy->ResetOne(1);
    proxy->SetStalled(false);
    const Status ended = write.Wait(Soon());
    ASSERT_FALSE(ended);
    EXPECT_EQ(ended.error().code(), Code::kPeerLost);
    const std::string& message = ended.error().message();
    EXPECT_THAT(message, HasSubstr("lane 1"));
    if (GetParam()) {
      EXPECT_THAT(message, HasSubstr("the peer, which dials, reports that authentication fails"));
    } else {
      EXPECT_THAT(message, AllOf(HasSubstr("has expired"), HasSubstr("FERRY_TLS_CERT")));
    }
  }
}

// Flips a bit anywhere in the bytes that a write and its answer send: either the byte was not
// reached, or the operation ends with an error. It never succeeds with wrong bytes.
TEST(Encrypted, NoByteThatWasChangedOnTheWayIsTakenForGood) {
  Config config = ByKey();
  config.lanes = 1;
  Endpoint server = Must(Endpoint::Create(config));
  GuardedMemory there(kSecretBytes, 2);
  Endpoint client = Must(Endpoint::Create(config));
  GuardedMemory here(kSecretBytes, 1);
  const Region local = Must(client.Register(here.span(), Rights::kNone));
  const Region target = Must(server.Register(there.span(), Rights::kReadWrite));
  int failed = 0;
  for (const auto direction : {net::ProxyDirection::kToTarget, net::ProxyDirection::kToClient}) {
    for (const std::uint64_t offset :
         {0UL, 3UL, 100UL, 300UL, 600UL, 900UL, 1500UL, 9'000UL, 500'000UL, 1'000'000UL}) {
      auto proxy = Must(net::FaultProxy::Start({"127.0.0.1", server.port()}));
      proxy->CorruptAt(direction, offset);
      there.Fill(std::byte{0});
      auto connected = client.Connect(proxy->address().ToString(), Soon());
      if (!connected) {
        ++failed;
        continue;
      }
      const RemoteRegion remote = Must(connected->Import(target.key()));
      auto write = Must(connected->Write(local, 0, remote, 0, kSecretBytes));
      const Status ended = write.Wait(Soon());
      ASSERT_TRUE(write.Poll());
      if (ended) {
        EXPECT_EQ(there.Copy(), here.Copy()) << offset;
      } else {
        ++failed;
      }
    }
  }
  EXPECT_GE(failed, 15);
  EXPECT_TRUE(there.GuardsIntact() && here.GuardsIntact());
}

TEST(Encrypted, AConnectionThatIsCutEndsItsOperations) {
  const Endpoint server = Must(Endpoint::Create(ByKey()));
  Endpoint client = Must(Endpoint::Create(ByKey()));
  for (const auto how : {net::ProxyCut::kClose, net::ProxyCut::kReset}) {
    auto proxy = Must(net::FaultProxy::Start({"127.0.0.1", server.port()}));
    Connection connection = Must(client.Connect(proxy->address().ToString(), Soon()));
    std::vector<std::byte> memory(100);
    auto receive = Must(connection.Recv(1, kWholeTag, memory));
    proxy->CutNow(how);
    EXPECT_TRUE(EndsWith(Code::kPeerLost, receive));
    if (how == net::ProxyCut::kClose) {
      EXPECT_THAT(EndMessage(receive), HasSubstr("without the end of the TLS stream"));
    }
  }
}

TEST(Encrypted, AnEndpointThatGoesIsToldFromACut) {
  Link link = MakeLink(ByKey());
  std::vector<std::byte> memory(100);
  auto receive = Must(link.near.connection->Recv(1, kWholeTag, memory));
  link.far.endpoint.reset();
  EXPECT_TRUE(EndsWith(Code::kPeerLost, receive));
  EXPECT_THAT(EndMessage(receive), HasSubstr("closed the connection"));
}

}  // namespace
}  // namespace ferry::transfer
