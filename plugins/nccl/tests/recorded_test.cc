// Tests that handles and hello frames are as each release has sent them.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "plugins/nccl/wire.h"

namespace ferry::nccl_net {
namespace {

// Version 5 of the protocol, as hexadecimal digits. A later version adds bytes of its own; these
// stay, and the part before `rank` has to be read as it was (kFirstAlike).
constexpr std::uint16_t kRecordedVersion = 5;
constexpr std::string_view kRecordedHandle =
    "6672796e05002f1d09000000000000000102030405060708090a0b0c0d0e0f100104000000000000"
    "0a000001000000000000000000000000000000000000000000000000000000000000000000000000"
    "00000000000000000000000000000000000000000000000044332211000008000508100120080000"
    "0000000000000000";

// Version 8, with the rank's last bytes before the addresses, and hello frames of sessions.
constexpr std::uint16_t kNewestRecordedVersion = 8;
constexpr std::string_view kNewestHandle =
    "6672796e08002f1d09000000000000000102030405060708090a0b0c0d0e0f100104000000080201"
    "0a000001000000000000000000000000000000000000000000000000000000000000000000000000"
    "00000000000000000000000000000000000000000000000044332211000008000508100120080000"
    "0000000000000000";
constexpr std::string_view kNewestHello =
    "080002000400000009000000000000002122232425262728292a2b2c2d2e2f30"
    "00000100000000004433221100000800050810012008000008020100"
    "00000000";

std::vector<std::byte> BytesOfRecord(std::string_view digits) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i + 1 < digits.size(); i += 2) {
    bytes.push_back(
        static_cast<std::byte>(std::stoi(std::string(digits.substr(i, 2)), nullptr, 16)));
  }
  return bytes;
}

Key RecordedKey() {
  Key key;
  for (std::size_t i = 0; i < key.size(); ++i) key[i] = static_cast<std::byte>(i + 1);
  return key;
}

RankWire RecordedRank() {
  return {.build = 0x11223344,
          .chunk_bytes = 524288,
          .devices = 5,
          .min_channels = 8,
          .max_channels = 16,
          .min_ctas = 1,
          .max_ctas = 32,
          .tuned_channels = 8,
          .peer_channels = 8,
          .channel_gbps = 2,
          .gpu_link = GpuLink::kDirect};
}

TEST(NcclRecorded, HandlesOfARecordedReleaseSayWhereToConnect) {
  const auto read = ReadHandle(BytesOfRecord(kRecordedHandle).data());
  ASSERT_TRUE(read) << read.error().ToString();
  EXPECT_EQ(read->version, kRecordedVersion);
  EXPECT_EQ(read->listen, 9U);
  EXPECT_EQ(read->key, RecordedKey());
  ASSERT_EQ(read->at.size(), 1U);
  EXPECT_EQ(read->at[0].host, "10.0.0.1");
  EXPECT_EQ(read->at[0].port, 7471);
}

TEST(NcclRecorded, HellosOfARecordedReleaseTellTheirVersion) {
  const auto head = LoadHelloHead(BytesOfRecord(kNewestHello));
  ASSERT_TRUE(head);
  EXPECT_EQ(head->version, kNewestRecordedVersion);
  EXPECT_EQ(head->lane, 2);
  EXPECT_EQ(head->lanes, 4);
  EXPECT_EQ(head->listen, 9U);
}

// A layout that differs under the same number would be read wrongly by the other rank.
TEST(NcclRecorded, TheSameVersionHasTheSameBytes) {
  if (kNewestRecordedVersion != kWireVersion) GTEST_SKIP() << "this build has another version";
  ListenAddress address{.listen = 9, .key = RecordedKey(), .at = {{"10.0.0.1", 7471}}};
  address.rank = RecordedRank();
  std::vector<std::byte> handle(sizeof(HandleWire));
  ASSERT_TRUE(WriteHandle(address, handle.data()));
  EXPECT_EQ(handle, BytesOfRecord(kNewestHandle));
  EXPECT_EQ(ReadHandle(handle.data())->rank.gpu_link, GpuLink::kDirect);

  HelloWire hello;
  hello.lane = 2;
  hello.lanes = 4;
  hello.listen = 9;
  for (std::size_t i = 0; i < hello.comm.bytes.size(); ++i) {
    hello.comm.bytes[i] = static_cast<std::byte>(i + 33);
  }
  hello.early_bytes = 65536;
  hello.rank = RecordedRank();
  std::vector<std::byte> bytes(sizeof hello);
  std::memcpy(bytes.data(), &hello, sizeof hello);
  EXPECT_EQ(bytes, BytesOfRecord(kNewestHello));
}

}  // namespace
}  // namespace ferry::nccl_net
