// Tests region keys that only one peer may use.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "ferry/transfer/testing/linked_endpoints.h"

// Region keys that only one peer may use.
namespace ferry::transfer {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kGranted = 20'000;  // in slices of 4 KiB

// An owner whose memory has Rights::kNone, and two peers connected to it.
class GrantTest : public ::testing::Test {
 protected:
  Connection Join(Endpoint* peer) {
    Connection connection = Must(peer->Connect(owner_.address(), Soon()));
    accepted_.push_back(Must(owner_.Accept(Soon())));
    return connection;
  }
  // Waits for the end of the write.
  Status WriteBy(Endpoint* peer, Connection* connection, std::span<const std::byte> key) {
    const Region local = Must(peer->Register(content_, Rights::kNone));
    const RemoteRegion remote = Must(connection->Import(key));
    auto posted = connection->Write(local, 0, remote, 0, kGranted);
    if (!posted) return posted.error();
    return posted->Wait(Soon());
  }
  static void ExpectRefused(const Status& ended, const char* words) {
    ASSERT_FALSE(ended);
    EXPECT_EQ(ended.error().code(), Code::kRefused);
    EXPECT_THAT(ended.error().message(), HasSubstr(words));
  }

  GuardedMemory memory_{kGranted, 1};
  std::vector<std::byte> content_ = RandomBytes(kGranted, 7);
  Endpoint owner_ = Must(Endpoint::Create(SmallSlices()));
  Endpoint first_ = Must(Endpoint::Create(SmallSlices()));
  Endpoint second_ = Must(Endpoint::Create(SmallSlices()));
  std::vector<Connection> accepted_;
  Connection to_owner_ = Join(&first_);
  Connection also_to_owner_ = Join(&second_);
  Region region_ = Must(owner_.Register(memory_.span(), Rights::kNone));
};

TEST_F(GrantTest, ItsPeerUsesItAndAnotherIsRefused) {
  const auto key = Must(region_.KeyFor(first_.id(), Rights::kWrite));
  const auto before = memory_.Copy();
  ExpectRefused(WriteBy(&second_, &also_to_owner_, key), "was granted to endpoint");
  EXPECT_EQ(memory_.Copy(), before);
  EXPECT_TRUE(Works(also_to_owner_, accepted_[1]));
  EXPECT_TRUE(WriteBy(&first_, &to_owner_, key));
  EXPECT_EQ(memory_.Copy(), content_);
}

TEST_F(GrantTest, ItAllowsWhatItWasGivenForAndNoMore) {
  const auto key = Must(region_.KeyFor(first_.id(), Rights::kRead));
  ExpectRefused(WriteBy(&first_, &to_owner_, key), "allows reading only");
  // The region's own key does not work either: it grants nothing.
  ExpectRefused(WriteBy(&first_, &to_owner_, region_.key()), "allows");
  std::vector<std::byte> into(kGranted);
  const Region local = Must(first_.Register(into, Rights::kNone));
  EXPECT_TRUE(EndsOk(to_owner_.Read(local, 0, Must(to_owner_.Import(key)), 0, kGranted)));
  EXPECT_EQ(into, memory_.Copy());
}

TEST_F(GrantTest, OnceWithdrawnItIsRefusedAndANewOneWorks) {
  const auto key = Must(region_.KeyFor(first_.id(), Rights::kWrite));
  EXPECT_TRUE(WriteBy(&first_, &to_owner_, key));
  region_.Withdraw(first_.id());
  ExpectRefused(WriteBy(&first_, &to_owner_, key), "key");
  const auto anew = Must(region_.KeyFor(first_.id(), Rights::kWrite));
  EXPECT_TRUE(WriteBy(&first_, &to_owner_, anew));
  ExpectRefused(WriteBy(&first_, &to_owner_, key), "key");
}

}  // namespace
}  // namespace ferry::transfer
