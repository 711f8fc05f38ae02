// Tests how a dial finds the peer among its addresses, and how its lanes are assigned to loops.
#include "ferry/transfer/endpoint/dialer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "ferry/net/builtin.h"
#include "ferry/net/testing/bad_address.h"
#include "ferry/transfer/connection/connection_core.h"
#include "ferry/transfer/endpoint/endpoint_core.h"
#include "ferry/transfer/testing/linked_endpoints.h"

namespace ferry::transfer {
namespace {

using net::Bad;
using net::BadAddress;
using ::testing::AllOf;
using ::testing::HasSubstr;

// With more lanes the first two would share a loop, because the first one carries little then.
TEST(DialerTest, TwoLanesAreOnTwoLoopsHoweverManyWereAskedFor) {
  const Endpoint far = Must(Endpoint::Create(SmallSlices(2, 2)));
  for (const int lanes : {2, 3, 5}) {
    SCOPED_TRACE(lanes);
    const auto near =
        std::make_shared<EndpointCore>(SmallSlices(lanes, 2), net::CreateBuiltinProvider());
    ASSERT_TRUE(near->Start());
    const auto dialer = std::make_shared<Dialer>(
        near, std::vector<net::Address>{{"127.0.0.1", far.port()}}, far.id(), Soon());
    near->Follow(dialer);
    dialer->home()->PostOrRun([dialer] { dialer->StartOnLoop(); });
    dialer->home()->DriveUntil([&] { return dialer->done(); }, Soon(), near->config().spin);
    const auto connection = Must(dialer->result());
    EXPECT_EQ(connection->lanes().size(), 2u);
    EXPECT_NE(connection->lanes().lane(0).loop(), connection->lanes().lane(1).loop());
    near->Shutdown();
  }
}

// An address that keeps its share of the connect timeout would take minutes.
constexpr std::chrono::seconds kConnectTimeout{600};
constexpr std::chrono::seconds kMuchLess{30};

class DialerAddressesTest : public ::testing::Test {
 protected:
  static Endpoint Make(int lanes) {
    Config config = SmallSlices(lanes, 2);
    config.connect_timeout = kConnectTimeout;
    return Must(Endpoint::Create(config));
  }
  void ExpectConnects(const EndpointAddress& address, int lanes = 3) {
    Endpoint near = Make(lanes);
    const auto begun = Clock::now();
    const auto out = near.Connect(address, Deadline::Never());
    EXPECT_LT(Clock::now() - begun, kMuchLess);
    ASSERT_TRUE(out) << out.error().ToString();
    const Connection in = Must(far_.Accept(Soon()));
    EXPECT_TRUE(Works(*out, in));
  }

  Endpoint far_ = Make(3);
};

class BadAddressesTest : public DialerAddressesTest, public ::testing::WithParamInterface<Bad> {};

TEST_P(BadAddressesTest, OneBeforeThePeersDoesNotKeepItFromBeingReached) {
  const BadAddress bad(GetParam());
  EndpointAddress address = far_.address();
  address.at.insert(address.at.begin(), bad.address());
  for (const int lanes : {1, 3}) ExpectConnects(address, lanes);
}

INSTANTIATE_TEST_SUITE_P(Dialer, BadAddressesTest, ::testing::ValuesIn(net::kAllBad),
                         [](const auto& parameter) { return net::BadName(parameter.param); });

TEST_F(DialerAddressesTest, SevenThatDropConnectsLeaveTimeForTheEighth) {
  std::vector<std::unique_ptr<BadAddress>> bad;
  EndpointAddress address = far_.address();
  address.at = {{"127.0.0.1", far_.port()}};
  for (int i = 0; i < 7; ++i) {
    bad.push_back(std::make_unique<BadAddress>(Bad::kDrops));
    address.at.insert(address.at.begin(), bad.back()->address());
  }
  ExpectConnects(address);
}

TEST_F(DialerAddressesTest, AllKindsTogetherDoNotKeepThePeerFromBeingReached) {
  std::vector<std::unique_ptr<BadAddress>> bad;
  EndpointAddress address = far_.address();
  for (const Bad each : net::kAllBad) {
    bad.push_back(std::make_unique<BadAddress>(each));
    address.at.insert(address.at.begin(), bad.back()->address());
  }
  ExpectConnects(address);
}

TEST_F(DialerAddressesTest, AnotherEndpointAtAnAddressIsPassedOver) {
  const Endpoint other = Make(3);
  EndpointAddress address = far_.address();
  address.at.insert(address.at.begin(), {"127.0.0.1", other.port()});
  ExpectConnects(address);
}

TEST_F(DialerAddressesTest, TheErrorNamesEachWithItsReason) {
  const BadAddress refuses(Bad::kRefuses);
  const BadAddress http(Bad::kHttp);
  Endpoint near = Make(3);
  const auto connected = near.Connect({{}, {refuses.address(), http.address()}}, Soon());
  ASSERT_FALSE(connected);
  EXPECT_EQ(connected.error().code(), Code::kCorrupt);
  EXPECT_THAT(connected.error().message(),
              AllOf(HasSubstr("(1) cannot connect to " + refuses.address().ToString()),
                    HasSubstr("(2) " + http.address().ToString()), HasSubstr("no ferry frame")));
}

}  // namespace
}  // namespace ferry::transfer
