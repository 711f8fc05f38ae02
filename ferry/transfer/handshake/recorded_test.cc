// Tests what this build answers to the recorded handshakes of each release.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "ferry/core/units.h"
#include "ferry/transfer/handshake/endpoint_address.h"
#include "ferry/transfer/testing/linked_endpoints.h"
#include "ferry/transfer/testing/raw_peer.h"
#include "ferry/transfer/testing/recorded_releases.h"

namespace ferry::transfer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using wire::Type;

std::vector<std::byte> BytesOfDigits(std::string_view digits) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i + 1 < digits.size(); i += 2) {
    bytes.push_back(
        static_cast<std::byte>(std::stoi(std::string(digits.substr(i, 2)), nullptr, 16)));
  }
  return bytes;
}

// first, first + 1, ...
template <class Bytes>
void Count(Bytes* bytes, int first) {
  for (auto& byte : *bytes) {
    byte = static_cast<std::remove_reference_t<decltype(byte)>>(first++);
  }
}

std::string VersionText(std::uint16_t version) { return "version " + std::to_string(version); }

class RecordedHandshake : public testing::TestWithParam<RecordedRelease> {
 protected:
  bool IsOurs() const { return GetParam().version == wire::kVersion; }
};

TEST_P(RecordedHandshake, AHelloIsWelcomedOrRefusedByASentenceThatNamesBothVersions) {
  Link link = MakeLink(SmallSlices(3, 2));
  RawLane lane(link.far.endpoint->port());
  ASSERT_TRUE(lane.SendBytes(BytesOfDigits(GetParam().hello)));
  if (IsOurs()) {
    const RawFrame welcome = lane.Expect(Type::kWelcome);
    EXPECT_EQ(welcome.Body<wire::WelcomeBody>().version, GetParam().version);
  } else {
    const RawFrame refusal = lane.Expect(Type::kRefuse);
    EXPECT_EQ(refusal.Body<wire::RefuseBody>().code, static_cast<std::uint8_t>(Code::kUnsupported));
    EXPECT_THAT(refusal.Text<wire::RefuseBody>(),
                AllOf(HasSubstr(VersionText(wire::kVersion)),
                      HasSubstr("not " + std::to_string(GetParam().version))));
  }
}

TEST_P(RecordedHandshake, AddressesAndKeysAreReadOrRefusedByASentenceThatNamesBothVersions) {
  const auto address = EndpointAddress::Parse(BytesOfDigits(GetParam().address));
  const auto key = RemoteRegion::Parse(BytesOfDigits(GetParam().key));
  if (IsOurs()) {
    ASSERT_TRUE(address) << address.error().ToString();
    ASSERT_EQ(address->at.size(), 1U);
    EXPECT_EQ(address->at[0].host, "10.0.0.1");
    EXPECT_EQ(address->at[0].port, 7471);
    ASSERT_TRUE(key) << key.error().ToString();
    EXPECT_EQ(key->rights, Rights::kReadWrite);
    EXPECT_EQ(key->length, kMiB);
    return;
  }
  const auto names_both =
      AllOf(HasSubstr(VersionText(GetParam().version)), HasSubstr(VersionText(wire::kVersion)));
  ASSERT_FALSE(address);
  EXPECT_THAT(address.error().message(), names_both);
  ASSERT_FALSE(key);
  EXPECT_THAT(key.error().message(), names_both);
}

// A layout that differs under the same number would be read wrongly by the other side.
TEST_P(RecordedHandshake, TheSameVersionHasTheSameBytes) {
  if (!IsOurs()) GTEST_SKIP() << "this build has another version, which refuses that one";
  const auto encode = [](Type type, std::vector<std::byte> body) {
    return RawLane(UniqueFd()).Encode({.type = type, .body = std::move(body), .ack = 0});
  };
  wire::HelloBody hello{
      .lanes = 3, .flags = wire::kChecksums, .window_bytes = 65536, .process = {}};
  Count(&hello.endpoint, 1);
  EXPECT_EQ(encode(Type::kHello, Pod(hello)), BytesOfDigits(GetParam().hello));

  wire::WelcomeBody welcome{
      .lanes = 3, .connection = 7, .window_bytes = 65536, .flags = wire::kChecksums, .process = {}};
  Count(&welcome.endpoint, 1);
  Count(&welcome.token, 33);
  EXPECT_EQ(encode(Type::kWelcome, Pod(welcome)), BytesOfDigits(GetParam().welcome));

  wire::JoinBody join{.lane = 1, .connection = 7};
  Count(&join.token, 33);
  EXPECT_EQ(encode(Type::kJoin, Pod(join)), BytesOfDigits(GetParam().join));
  EXPECT_EQ(encode(Type::kJoined, {}), BytesOfDigits(GetParam().joined));

  wire::RejoinBody rejoin{.lane = 1, .connection = 7, .attempt = 4};
  Count(&rejoin.token, 33);
  EXPECT_EQ(encode(Type::kRejoin, Pod(rejoin)), BytesOfDigits(GetParam().rejoin));

  wire::ChallengeBody challenge;
  Count(&challenge.nonce, 64);
  EXPECT_EQ(encode(Type::kChallenge, Pod(challenge)), BytesOfDigits(GetParam().challenge));
  wire::ProofBody proof;
  Count(&proof.nonce, 64);
  Count(&proof.mac, 96);
  EXPECT_EQ(encode(Type::kProof, Pod(proof)), BytesOfDigits(GetParam().proof));

  const wire::RefuseBody refuse{.code = static_cast<std::uint8_t>(Code::kCancelled)};
  EXPECT_EQ(encode(Type::kRefuse, Pod(refuse)), BytesOfDigits(GetParam().refuse));
}

INSTANTIATE_TEST_SUITE_P(Releases, RecordedHandshake, testing::ValuesIn(kRecordedReleases),
                         [](const auto& of) {
                           std::string name(of.param.release);
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

// The release that is being made has a record, with the version that it speaks.
TEST(RecordedReleases, ThisVersionIsAmongThem) {
  EXPECT_TRUE(std::any_of(kRecordedReleases.begin(), kRecordedReleases.end(), [](const auto& one) {
    return one.version == wire::kVersion;
  })) << "add this release's bytes to ferry/transfer/testing/recorded_releases.h";
}

}  // namespace
}  // namespace ferry::transfer
