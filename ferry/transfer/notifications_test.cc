// Tests notifications, alone and attached to writes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <utility>

#include "ferry/core/testing/random_bytes.h"
#include "ferry/transfer/testing/linked_endpoints.h"

namespace ferry::transfer {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kMaxBytes = 64 * 1024;

std::vector<TransferPart> OnePart(const Region& local, const RemoteRegion& remote,
                                  std::uint64_t bytes) {
  BlockList list;
  list.Add({.dst = 0, .src = 0, .len = bytes});
  std::vector<TransferPart> parts;
  parts.push_back({&local, &remote, std::move(list)});
  return parts;
}

class NotificationTest : public ::testing::Test {
 protected:
  std::string Take() {
    auto taken = far_.TakeNotification(Soon());
    return taken ? TextOf(*taken) : taken.error().ToString();
  }

  Link link_ = MakeLink(SmallSlices(3, 2));
  Connection near_ = *link_.near.connection;
  Connection far_ = *link_.far.connection;
};

TEST_F(NotificationTest, AreTakenInTheOrderOfTheirSending) {
  std::vector<Operation> sent;
  for (int i = 0; i < 100; ++i) sent.push_back(Must(near_.Notify(BytesOf(std::to_string(i)))));
  for (int i = 0; i < 100; ++i) ASSERT_EQ(Take(), std::to_string(i));
  for (const Operation& operation : sent) EXPECT_TRUE(EndsOk(operation));
}

TEST_F(NotificationTest, HaveEverySizeFromOneByteToTheMost) {
  for (const std::size_t bytes : {1UL, 2UL, 4095UL, 4096UL, kMaxBytes - 1, kMaxBytes}) {
    const auto sent = RandomBytes(bytes, 1);
    auto operation = near_.Notify(sent);
    const auto taken = far_.TakeNotification(Soon());
    ASSERT_TRUE(taken) << taken.error().ToString();
    EXPECT_EQ(*taken, sent);
    ASSERT_TRUE(EndsOk(operation));
    EXPECT_EQ(operation->bytes(), bytes);
  }
}

TEST_F(NotificationTest, AWaitForOneThatDoesNotComeTimesOut) {
  const auto none = far_.TakeNotification(Now());
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code(), Code::kTimedOut);
  const auto later = far_.TakeNotification(Deadline::After(milliseconds(20)));
  ASSERT_FALSE(later);
  EXPECT_EQ(later.error().code(), Code::kTimedOut);
}

TEST_F(NotificationTest, WhenItIsTakenTheBytesOfItsWriteAreInPlace) {
  constexpr std::size_t kBytes = 500'000;
  GuardedMemory here(kBytes, 1);
  GuardedMemory there(kBytes, 2);
  const Region local = Must(link_.near.endpoint->Register(here.span(), Rights::kNone));
  const Region target = Must(link_.far.endpoint->Register(there.span(), Rights::kWrite));
  const RemoteRegion remote = Must(near_.Import(target.key()));
  const auto transfer = Must(near_.PrepareWrite(OnePart(local, remote, kBytes)));
  for (unsigned round = 0; round < 20; ++round) {
    const auto fresh = RandomBytes(kBytes, round);
    std::copy(fresh.begin(), fresh.end(), here.span().begin());
    const std::string name = "round " + std::to_string(round);
    const auto write = near_.Write(transfer, {.notification = BytesOf(name)});
    ASSERT_EQ(Take(), name);
    ASSERT_TRUE(std::equal(fresh.begin(), fresh.end(), there.span().begin())) << name;
    ASSERT_TRUE(EndsOk(write));
  }
}

TEST_F(NotificationTest, OfARefusedWriteIsNotDelivered) {
  GuardedMemory here(50'000, 1);
  GuardedMemory there(50'000, 2);
  const Region local = Must(link_.near.endpoint->Register(here.span(), Rights::kNone));
  Region target = Must(link_.far.endpoint->Register(there.span(), Rights::kWrite));
  const RemoteRegion remote = Must(near_.Import(target.key()));
  const auto transfer = Must(near_.PrepareWrite(OnePart(local, remote, 50'000)));
  ASSERT_TRUE(target.Deregister(Soon()));
  const auto write = near_.Write(transfer, {.notification = BytesOf("never")});
  ASSERT_TRUE(EndsWith(Code::kRefused, write));
  ASSERT_TRUE(EndsOk(near_.Notify(BytesOf("next"))));
  EXPECT_EQ(Take(), "next");
}

TEST_F(NotificationTest, AreEachTakenByOneOfTheThreadsThatWait) {
  constexpr int kNotifications = 200;
  std::atomic<int> taken{0};
  std::atomic<int> sum{0};
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&, from = far_]() mutable {
        while (taken.load() < kNotifications) {
          const auto got = from.TakeNotification(Deadline::After(milliseconds(50)));
          if (!got) continue;
          sum.fetch_add(std::stoi(TextOf(*got)));
          taken.fetch_add(1);
        }
      });
    }
    for (int i = 0; i < kNotifications; ++i) {
      ASSERT_TRUE(EndsOk(near_.Notify(BytesOf(std::to_string(i)))));
    }
  }
  EXPECT_EQ(taken.load(), kNotifications);
  EXPECT_EQ(sum.load(), kNotifications * (kNotifications - 1) / 2);
}

TEST_F(NotificationTest, ThatCameBeforeTheConnectionWasLostCanStillBeTaken) {
  ASSERT_TRUE(EndsOk(near_.Notify(BytesOf("last words"))));
  near_.Close();
  EXPECT_EQ(Take(), "last words");
  const auto after = far_.TakeNotification(Soon());
  ASSERT_FALSE(after);
  EXPECT_EQ(after.error().code(), Code::kPeerLost);
}

TEST_F(NotificationTest, AThreadThatWaitsForOneLearnsThatTheConnectionWasLost) {
  std::jthread waiter([from = far_]() mutable {
    const auto none = from.TakeNotification(Soon());
    ASSERT_FALSE(none);
    EXPECT_EQ(none.error().code(), Code::kPeerLost);
  });
  near_.Close();
}

TEST(NotificationQueue, WhenFullOfBytesTheNextIsUnavailableAndLaterOnesAreFine) {
  Config config = SmallSlices();
  config.notification_bytes = 4096;
  Link link = MakeLink(SmallSlices(), config);
  Connection near = *link.near.connection;
  ASSERT_TRUE(EndsOk(near.Notify(RandomBytes(4000, 1))));
  auto refused = near.Notify(RandomBytes(97, 2));
  ASSERT_TRUE(EndsWith(Code::kUnavailable, refused));
  EXPECT_THAT(EndMessage(*refused), HasSubstr("notification queue is full"));
  ASSERT_TRUE(EndsOk(near.Notify(RandomBytes(96, 3))));
  EXPECT_EQ(Must(link.far.connection->TakeNotification(Soon())), RandomBytes(4000, 1));
  ASSERT_TRUE(EndsOk(near.Notify(RandomBytes(97, 4))));
  EXPECT_EQ(Must(link.far.connection->TakeNotification(Soon())), RandomBytes(96, 3));
  EXPECT_EQ(Must(link.far.connection->TakeNotification(Soon())), RandomBytes(97, 4));
  EXPECT_TRUE(Works(&link));
}

TEST(NotificationQueue, WhenFullByNumberTheNextIsUnavailableAndTheWriteItWasJoinedToIsInPlace) {
  Config config = SmallSlices();
  config.max_operations = 2;
  GuardedMemory here(10'000, 1);
  GuardedMemory there(10'000, 2);
  Link link = MakeLink(SmallSlices(), config);
  Connection near = *link.near.connection;
  const Region local = Must(link.near.endpoint->Register(here.span(), Rights::kNone));
  const Region target = Must(link.far.endpoint->Register(there.span(), Rights::kWrite));
  const RemoteRegion remote = Must(near.Import(target.key()));
  ASSERT_TRUE(EndsOk(near.Notify(BytesOf("a"))));
  ASSERT_TRUE(EndsOk(near.Notify(BytesOf("b"))));
  const auto transfer = Must(near.PrepareWrite(OnePart(local, remote, 10'000)));
  const auto write = near.Write(transfer, {.notification = BytesOf("c")});
  ASSERT_TRUE(EndsWith(Code::kUnavailable, write));
  EXPECT_TRUE(SameBytes(there.Copy(), here.Copy()));
  EXPECT_EQ(TextOf(Must(link.far.connection->TakeNotification(Soon()))), "a");
  ASSERT_TRUE(EndsOk(near.Write(transfer, {.notification = BytesOf("d")})));
  EXPECT_EQ(TextOf(Must(link.far.connection->TakeNotification(Soon()))), "b");
  EXPECT_EQ(TextOf(Must(link.far.connection->TakeNotification(Soon()))), "d");
}

}  // namespace
}  // namespace ferry::transfer
