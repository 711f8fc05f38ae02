// Tests that checksums detect corruption that TCP's own checksum has missed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

#include "ferry/net/testing/fault_proxy.h"
#include "ferry/transfer/testing/linked_endpoints.h"

// The network changes bytes in a way that TCP's own checksum does not detect.
namespace ferry::transfer {
namespace {

using net::ProxyDirection;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr std::size_t kSummedBytes = 50'000;  // in slices of 4 KiB

class ChecksumTest : public ::testing::Test {
 protected:
  // One lane, through a proxy; `near` dials.
  void Connect(OnOff near, OnOff far) {
    Config config = SmallSlices(1, 1);
    config.checksum = far;
    link_.far.endpoint = Must(Endpoint::Create(config));
    config.checksum = near;
    link_.near.endpoint = Must(Endpoint::Create(config));
    proxy_ = Must(net::FaultProxy::Start({"127.0.0.1", link_.far.endpoint->port()}));
    link_.near.connection =
        Must(link_.near.endpoint->Connect(proxy_->address().ToString(), Soon()));
    link_.far.connection = Must(link_.far.endpoint->Accept(Soon()));
    ASSERT_TRUE(Works(&link_));
    // Flushes the acknowledgement that `near` still owes, so that nothing precedes what a test
    // sends.
    ASSERT_TRUE(EndsOk(link_.near.connection->Notify(RandomBytes(1, 1))));
    ASSERT_TRUE(link_.far.connection->TakeNotification(Soon()));
    local_ = Must(link_.near.endpoint->Register(here_.span(), Rights::kNone));
    remote_ = Must(link_.far.endpoint->Register(there_.span(), Rights::kReadWrite));
  }
  // Corrupts the byte at this distance from the current end of the data sent in that direction.
  void CorruptAhead(ProxyDirection direction, std::uint64_t bytes) {
    proxy_->CorruptAt(direction, proxy_->forwarded(direction) + bytes);
  }
  Result<Operation> Write(bool checksum = false) { return Move(/*write=*/true, checksum); }
  Result<Operation> Read(bool checksum = false) { return Move(/*write=*/false, checksum); }

  GuardedMemory here_{kSummedBytes, 1};
  GuardedMemory there_{kSummedBytes, 2};
  Link link_;
  std::unique_ptr<net::FaultProxy> proxy_;
  std::optional<Region> local_;
  std::optional<Region> remote_;

 private:
  Result<Operation> Move(bool write, bool checksum) {
    Connection& near = *link_.near.connection;
    const RemoteRegion remote = remote_->remote();
    std::vector<TransferPart> parts(1);
    parts[0] = {&*local_, &remote, {}};
    parts[0].blocks.Add({.dst = 0, .src = 0, .len = kSummedBytes});
    if (write) {
      return near.Write(Must(near.PrepareWrite(std::move(parts))), {.checksum = checksum});
    }
    return near.Read(Must(near.PrepareRead(std::move(parts))), {.checksum = checksum});
  }
};

constexpr const char* kBothValues = "CRC32C [0-9a-f]{8}, but [0-9a-f]{8} was sent";

TEST_F(ChecksumTest, AByteOfAWriteThatChangesOnItsWayEndsItNamingPlaceAndValues) {
  Connect(OnOff::kOn, OnOff::kOff);
  EXPECT_TRUE(link_.near.connection->Info().checksums && link_.far.connection->Info().checksums);
  CorruptAhead(ProxyDirection::kToTarget, 10'000);
  Operation write = Must(Write());
  EXPECT_TRUE(EndsWith(Code::kCorrupt, write));
  const std::string message = EndMessage(write);
  EXPECT_THAT(message, ContainsRegex("4096 bytes at offset [0-9]+ of region 0 have CRC32C"));
  EXPECT_THAT(message, ContainsRegex(kBothValues));
  EXPECT_THAT(message, HasSubstr("the sender may have written to its memory while it was sent"));
  EXPECT_TRUE(EndsOk(Write()));
  EXPECT_EQ(there_.Copy(), here_.Copy());
}

TEST_F(ChecksumTest, AByteOfAReadThatChangesOnItsWayEndsItNamingPlaceAndValues) {
  Connect(OnOff::kOff, OnOff::kOn);
  CorruptAhead(ProxyDirection::kToClient, 10'000);
  Operation read = Must(Read());
  EXPECT_TRUE(EndsWith(Code::kCorrupt, read));
  EXPECT_THAT(EndMessage(read), ContainsRegex("4096 bytes at slice [0-9]+ of read"));
  EXPECT_THAT(EndMessage(read), ContainsRegex(kBothValues));
  EXPECT_THAT(EndMessage(read),
              HasSubstr("the owner of the memory may have written to it while it was read"));
  EXPECT_TRUE(EndsOk(Read()));
  EXPECT_EQ(there_.Copy(), here_.Copy());
}

TEST_F(ChecksumTest, AMessageThatChangesOnItsWayEndsAtBothSides) {
  Connect(OnOff::kOn, OnOff::kOn);
  std::vector<std::byte> buffer(kSummedBytes);
  Operation receive = Must(link_.far.connection->Recv(1, kWholeTag, buffer));
  ASSERT_TRUE(Works(&link_));  // so the receive is posted before the message arrives
  CorruptAhead(ProxyDirection::kToTarget, 500);
  EXPECT_TRUE(EndsWith(Code::kCorrupt, link_.near.connection->Send(1, here_.span().first(1000))));
  EXPECT_TRUE(EndsWith(Code::kCorrupt, receive));
  EXPECT_THAT(EndMessage(receive), HasSubstr("the message with tag 1"));
}

TEST_F(ChecksumTest, ANotificationThatChangesOnItsWayIsNotDelivered) {
  Connect(OnOff::kOn, OnOff::kOn);
  CorruptAhead(ProxyDirection::kToTarget, 100);
  EXPECT_TRUE(EndsWith(Code::kCorrupt, link_.near.connection->Notify(RandomBytes(200, 1))));
  EXPECT_FALSE(link_.far.connection->TakeNotification(Now()));
}

// A corrupted address must not decide where bytes are written.
TEST_F(ChecksumTest, AByteOfTheMetadataThatChangesEndsTheConnectionBeforeAnythingIsPutInPlace) {
  for (const std::uint64_t at : {20U, 45U, 60U, 66U}) {  // header, key, offset, length
    SCOPED_TRACE("byte " + std::to_string(at));
    Connect(OnOff::kOn, OnOff::kOn);
    const auto before = there_.Copy();
    CorruptAhead(ProxyDirection::kToTarget, at);
    EXPECT_FALSE(Must(Write()).Wait(Soon()));
    const auto end = link_.far.connection->TakeNotification(Soon());
    ASSERT_FALSE(end);
    EXPECT_EQ(end.error().code(), Code::kCorrupt);
    EXPECT_THAT(end.error().message(), ContainsRegex(kBothValues));
    EXPECT_EQ(there_.Copy(), before);
  }
}

TEST_F(ChecksumTest, OneOperationMayBeCheckedWithoutTheOthers) {
  Connect(OnOff::kOff, OnOff::kOff);
  EXPECT_FALSE(link_.near.connection->Info().checksums);
  CorruptAhead(ProxyDirection::kToTarget, 10'000);
  EXPECT_TRUE(EndsWith(Code::kCorrupt, Write(/*checksum=*/true)));
  CorruptAhead(ProxyDirection::kToClient, 10'000);
  EXPECT_TRUE(EndsWith(Code::kCorrupt, Read(/*checksum=*/true)));
  CorruptAhead(ProxyDirection::kToTarget, 10'000);
  EXPECT_TRUE(EndsOk(Write(/*checksum=*/false)));
  EXPECT_NE(there_.Copy(), here_.Copy());
}

}  // namespace
}  // namespace ferry::transfer
