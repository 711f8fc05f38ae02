// Tests how long a connect takes when other addresses come before the peer's that lead nowhere.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "ferry/net/testing/bad_address.h"
#include "tests/links/load_meter.h"
#include "tests/support/engine_peer.h"

namespace ferry::tests {
namespace {

using net::Bad;
using net::BadAddress;

constexpr milliseconds kDetour{1500};

class WrongAddressesTest : public testing::Test {
 protected:
  // Connects by these addresses, and last the peer's own.
  void ExpectConnects(const std::vector<std::unique_ptr<BadAddress>>& wrong) {
    transfer::EndpointAddress address = peer_.address();
    for (const auto& each : wrong) address.at.insert(address.at.begin(), each->address());
    RestartLoadMeter();
    const Stopwatch since;
    const auto connection = Must(endpoint_.Connect(address, TestDeadline()));
    ExpectWithin(since.elapsed(), kDetour, fmt::format("{} wrong addresses", wrong.size()));
    peer_.Accept();
  }

  EnginePeer peer_;
  transfer::Endpoint endpoint_ = Must(transfer::Endpoint::Create(ConfigOf(FastSettings())));
};

class WrongAddressTest : public WrongAddressesTest, public testing::WithParamInterface<Bad> {};

TEST_P(WrongAddressTest, HardlyDelaysTheConnect) {
  std::vector<std::unique_ptr<BadAddress>> wrong;
  wrong.push_back(std::make_unique<BadAddress>(GetParam()));
  ExpectConnects(wrong);
}

INSTANTIATE_TEST_SUITE_P(PeerFailure, WrongAddressTest, testing::ValuesIn(net::kAllBad),
                         [](const auto& parameter) { return net::BadName(parameter.param); });

TEST_F(WrongAddressesTest, SevenThatDropConnectsHardlyDelayIt) {
  std::vector<std::unique_ptr<BadAddress>> wrong;
  for (int i = 0; i < 7; ++i) wrong.push_back(std::make_unique<BadAddress>(Bad::kDrops));
  ExpectConnects(wrong);
}

}  // namespace
}  // namespace ferry::tests
