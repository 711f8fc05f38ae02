// Tests of the address of an endpoint: parsing, limits, and the way back.
#include "ferry/transfer/handshake/endpoint_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <cstdint>
#include <optional>
#include <thread>
#include <vector>

#include "ferry/net/address.h"
#include "ferry/transfer/testing/linked_endpoints.h"

namespace ferry::transfer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string AddressFailure(std::span<const std::byte> bytes) {
  const auto parsed = EndpointAddress::Parse(bytes);
  if (parsed) return "";
  EXPECT_EQ(parsed.error().code(), Code::kInvalidArgument);
  return parsed.error().message();
}

void ExpectRoundTrip(const EndpointAddress& address) {
  const auto parsed = EndpointAddress::Parse(address.Serialize());
  ASSERT_TRUE(parsed) << parsed.error().ToString();
  EXPECT_EQ(parsed->endpoint, address.endpoint);
  EXPECT_EQ(parsed->at, address.at);
}

EndpointAddress Some() { return {Uuid::Random(), {{"10.0.0.1", 1}, {"fe80::1", 65535}, {"", 7}}}; }

TEST(EndpointAddress, ComesBackAsItWas) {
  ExpectRoundTrip(Some());
  ExpectRoundTrip({});
  ExpectRoundTrip({Uuid::Random(), {}});
  ExpectRoundTrip({Uuid::Random(), {{std::string(255, 'h'), 80}}});
  ExpectRoundTrip({Uuid::Random(), std::vector<net::Address>(64, {"127.0.0.1", 4010})});
}

TEST(EndpointAddress, CutShortOrTooLongIsNoAddress) {
  auto bytes = Some().Serialize();
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    const std::vector<std::byte> cut(bytes.begin(),
                                     bytes.begin() + static_cast<std::ptrdiff_t>(length));
    EXPECT_THAT(AddressFailure(cut), HasSubstr("not an endpoint address")) << length;
  }
  bytes.push_back(std::byte{0});
  EXPECT_THAT(AddressFailure(bytes), HasSubstr("unchanged"));
}

TEST(EndpointAddress, OfAnotherVersionSaysBothVersions) {
  auto bytes = Some().Serialize();
  bytes[4] = std::byte{9};
  EXPECT_THAT(AddressFailure(bytes),
              AllOf(HasSubstr("version 9"), HasSubstr("version 3"), HasSubstr("same release")));
}

TEST(EndpointAddress, GarbageIsNoAddress) {
  auto bytes = Some().Serialize();
  bytes[1] ^= std::byte{0x20};
  EXPECT_THAT(AddressFailure(bytes), HasSubstr("not an endpoint address"));
  bytes = Some().Serialize();
  bytes[7] = std::byte{0xFF};  // 65283 hosts
  EXPECT_THAT(AddressFailure(bytes), HasSubstr("not an endpoint address"));
  bytes = Some().Serialize();
  bytes[26] = std::byte{0xFF};  // a first host of 255 bytes
  EXPECT_THAT(AddressFailure(bytes), HasSubstr("not an endpoint address"));
  std::vector<std::byte> noise(200);
  FillRandom(noise);
  EXPECT_NE(AddressFailure(noise), "");
}

TEST(EndpointAddress, ARegionKeyIsNoAddress) {
  const RemoteRegion remote{Uuid::Random(), {1, 1, 1}, Rights::kRead, 1};
  EXPECT_THAT(AddressFailure(remote.Serialize()), HasSubstr("not an endpoint address"));
  EXPECT_FALSE(RemoteRegion::Parse(Some().Serialize()));
}

// A peer must be able to use it without a name server.
TEST(EndpointAddress, OfAnEndpointThatListensAtANameIsNumeric) {
  Config config = SmallSlices();
  config.listen_host = "localhost";
  const Endpoint server = Must(Endpoint::Create(config));
  const EndpointAddress address = server.address();
  ASSERT_FALSE(address.at.empty());
  for (const net::Address& at : address.at) EXPECT_TRUE(net::ToRaw(at)) << at.ToString();
  Endpoint client = Must(Endpoint::Create(SmallSlices()));
  EXPECT_TRUE(client.Connect(address, Soon()));
}

TEST(EndpointAddress, OfAMachineWithoutANetworkIsLoopback) {
  std::optional<EndpointAddress> address;
  std::uint16_t port = 0;
  // The namespace is the thread's, and ends with it.
  std::thread([&] {
    if (::unshare(CLONE_NEWNET) != 0) return;
    Config config = SmallSlices();
    config.listen_host.clear();
    const Endpoint server = Must(Endpoint::Create(config));
    address = server.address();
    port = server.port();
  }).join();
  if (!address) GTEST_SKIP() << "making a network namespace needs privileges";
  EXPECT_EQ(address->at, (std::vector<net::Address>{{"127.0.0.1", port}}));
}

TEST(EndpointAddress, IsOfTheInterfacesThatTheListNames) {
  Config config = SmallSlices();
  config.listen_host.clear();
  config.interfaces = "lo";
  const Endpoint server = Must(Endpoint::Create(config));
  const EndpointAddress address = server.address();
  ASSERT_FALSE(address.at.empty());
  EXPECT_EQ(address.at.front(), (net::Address{"127.0.0.1", server.port()}));
  config.interfaces = "nosuch0";
  const auto refused = Endpoint::Create(config);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(refused.error().message(),
              AllOf(HasSubstr("interfaces=nosuch0 (FERRY_INTERFACES)"), HasSubstr("lo 127.0.0.1")));
}

}  // namespace
}  // namespace ferry::transfer
