// Tests the queue of notifications and its limits.
#include <gtest/gtest.h>
#include <poll.h>

#include "ferry/transfer/lane/message_queue.h"

namespace ferry::transfer {
namespace {

std::vector<std::byte> SomeBytes(std::size_t count, int value = 1) {
  return std::vector<std::byte>(count, static_cast<std::byte>(value));
}

bool PollsReadable(const UniqueFd& fd) {
  pollfd polled{.fd = fd.get(), .events = POLLIN, .revents = 0};
  return ::poll(&polled, 1, 0) == 1;
}

class NotificationQueueTest : public ::testing::Test {
 protected:
  static Config Limits() {
    Config config;
    config.notification_bytes = 100;
    config.max_operations = 3;
    return config;
  }

  const Config config_ = Limits();
  HeldMemory memory_;
  NotificationQueue queue_{&config_, &memory_};
};

TEST_F(NotificationQueueTest, GivesThemInTheirOrder) {
  std::vector<std::byte> taken;
  EXPECT_FALSE(queue_.Take(&taken));
  queue_.Add(SomeBytes(10, 1));
  queue_.Add(SomeBytes(20, 2));
  ASSERT_TRUE(queue_.Take(&taken));
  EXPECT_EQ(taken, SomeBytes(10, 1));
  ASSERT_TRUE(queue_.Take(&taken));
  EXPECT_EQ(taken, SomeBytes(20, 2));
  EXPECT_FALSE(queue_.Take(&taken));
}

TEST_F(NotificationQueueTest, HasRoomForSoManyBytesAndNotifications) {
  EXPECT_TRUE(queue_.HasRoom(100));
  EXPECT_FALSE(queue_.HasRoom(101));
  queue_.Add(SomeBytes(60));
  EXPECT_TRUE(queue_.HasRoom(40));
  EXPECT_FALSE(queue_.HasRoom(41));
  queue_.Add(SomeBytes(1));
  queue_.Add(SomeBytes(1));
  EXPECT_FALSE(queue_.HasRoom(1)) << "three are kept";
  std::vector<std::byte> taken;
  ASSERT_TRUE(queue_.Take(&taken));
  EXPECT_TRUE(queue_.HasRoom(98));
}

TEST_F(NotificationQueueTest, WhatItKeepsIsCharged) {
  queue_.Add(SomeBytes(60));
  EXPECT_EQ(memory_.held(), kKeptRecordBytes + 60);
  std::vector<std::byte> taken;
  ASSERT_TRUE(queue_.Take(&taken));
  EXPECT_EQ(memory_.held(), 0u);
}

TEST_F(NotificationQueueTest, ADescriptorPollsReadableWhileOneCanBeTaken) {
  queue_.Add(SomeBytes(1));
  const auto fd = queue_.Descriptor();
  ASSERT_TRUE(fd);
  EXPECT_TRUE(PollsReadable(*fd));
  std::vector<std::byte> taken;
  ASSERT_TRUE(queue_.Take(&taken));
  EXPECT_FALSE(PollsReadable(*fd));
  queue_.Add(SomeBytes(1));
  EXPECT_TRUE(PollsReadable(*fd));
}

TEST_F(NotificationQueueTest, AfterTheEndADescriptorStaysReadable) {
  const auto early = queue_.Descriptor();
  ASSERT_TRUE(early);
  queue_.Add(SomeBytes(1));
  queue_.Close();
  std::vector<std::byte> taken;
  EXPECT_TRUE(queue_.Take(&taken)) << "what came before is not lost";
  EXPECT_FALSE(queue_.Take(&taken));
  EXPECT_TRUE(PollsReadable(*early));
  const auto late = queue_.Descriptor();
  ASSERT_TRUE(late);
  EXPECT_TRUE(PollsReadable(*late));
}

}  // namespace
}  // namespace ferry::transfer
