// Tests the keys of regions.
#include "ferry/transfer/region.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "ferry/transfer/testing/linked_endpoints.h"

namespace ferry::transfer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

RemoteRegion SomeRemote() {
  return {Uuid::Random(), {7, 9, 0x1122334455667788}, Rights::kWrite, std::uint64_t{5} << 40};
}

std::string KeyFailure(std::span<const std::byte> bytes) {
  const auto parsed = RemoteRegion::Parse(bytes);
  if (parsed) return "";
  EXPECT_EQ(parsed.error().code(), Code::kInvalidArgument);
  return parsed.error().message();
}

TEST(RegionKey, ComesBackAsItWas) {
  for (const Rights rights : {Rights::kNone, Rights::kRead, Rights::kWrite, Rights::kReadWrite}) {
    RemoteRegion remote = SomeRemote();
    remote.rights = rights;
    remote.gpu = static_cast<std::uint8_t>(rights);
    const auto bytes = remote.Serialize();
    EXPECT_EQ(bytes.size(), 49u);
    const auto parsed = RemoteRegion::Parse(bytes);
    ASSERT_TRUE(parsed) << parsed.error().ToString();
    EXPECT_EQ(parsed->endpoint, remote.endpoint);
    EXPECT_EQ(parsed->key.region, remote.key.region);
    EXPECT_EQ(parsed->key.generation, remote.key.generation);
    EXPECT_EQ(parsed->key.token, remote.key.token);
    EXPECT_EQ(parsed->rights, rights);
    EXPECT_EQ(parsed->length, remote.length);
    EXPECT_EQ(parsed->gpu, remote.gpu);
  }
}

TEST(RegionKey, SaysWhichSlicesItsOwnerTakes) {
  for (const unsigned log2 : {0U, 12U, 18U, 32U}) {
    RemoteRegion remote = SomeRemote();
    remote.most_slice_log2 = static_cast<std::uint8_t>(log2);
    EXPECT_EQ(Must(RemoteRegion::Parse(remote.Serialize())).most_slice_log2, log2);
  }
  for (const unsigned log2 : {1U, 11U, 33U, 64U, 255U}) {
    RemoteRegion remote = SomeRemote();
    remote.most_slice_log2 = static_cast<std::uint8_t>(log2);
    EXPECT_NE(KeyFailure(remote.Serialize()), "") << log2;
  }
}

TEST(RegionKey, OfAnyOtherLengthIsNoKey) {
  auto bytes = SomeRemote().Serialize();
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    const std::vector<std::byte> cut(bytes.begin(),
                                     bytes.begin() + static_cast<std::ptrdiff_t>(length));
    EXPECT_THAT(KeyFailure(cut), HasSubstr("not a region key")) << length;
  }
  bytes.push_back(std::byte{0});
  EXPECT_THAT(KeyFailure(bytes), HasSubstr("50 bytes"));
}

TEST(RegionKey, OfAnotherVersionSaysBothVersions) {
  auto bytes = SomeRemote().Serialize();
  bytes[4] = std::byte{0x2A};
  EXPECT_THAT(KeyFailure(bytes),
              AllOf(HasSubstr("version 42"), HasSubstr("version 3"), HasSubstr("same release")));
}

TEST(RegionKey, GarbageIsNoKey) {
  const auto good = SomeRemote().Serialize();
  auto bytes = good;
  bytes[0] ^= std::byte{1};
  EXPECT_THAT(KeyFailure(bytes), HasSubstr("unchanged"));
  bytes = good;
  bytes[6] = std::byte{4};  // rights that do not exist
  EXPECT_THAT(KeyFailure(bytes), HasSubstr("not a region key"));
  std::vector<std::byte> noise(48);
  FillRandom(noise);
  EXPECT_NE(KeyFailure(noise), "");
}

}  // namespace
}  // namespace ferry::transfer
