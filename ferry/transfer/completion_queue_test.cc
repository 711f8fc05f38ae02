// Tests the ends of many operations by one descriptor.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <optional>
#include <vector>

#include "ferry/core/testing/forked_child.h"
#include "ferry/transfer/testing/linked_endpoints.h"

namespace ferry::transfer {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAreArray;

bool TellsWithin(const CompletionQueue& queue, int timeout_ms) {
  pollfd wanted{Must(queue.fd()), POLLIN, 0};
  return ::poll(&wanted, 1, timeout_ms) == 1;
}
constexpr int kToldWithinMs = 60'000;

TEST(CompletionQueue, TellsEachOfManyOperationsOnce) {
  Link link = MakeLink();
  CompletionQueue queue = Must(CompletionQueue::Create());
  std::vector<Operation> operations;
  std::vector<std::uint64_t> wanted;
  for (std::uint64_t i = 0; i < 500; ++i) {
    operations.push_back(Must(link.near.connection->Notify(BytesOf("x"))));
    ASSERT_TRUE(queue.Watch(operations.back(), i));
    wanted.push_back(i);
  }
  std::vector<std::uint64_t> told;
  while (told.size() < wanted.size()) {
    ASSERT_TRUE(TellsWithin(queue, kToldWithinMs));
    for (const std::uint64_t cookie : Must(queue.Take())) {
      EXPECT_TRUE(operations[cookie].Done());
      told.push_back(cookie);
    }
  }
  EXPECT_THAT(told, UnorderedElementsAreArray(wanted));
  EXPECT_FALSE(TellsWithin(queue, 0));
}

TEST(CompletionQueue, TellsAtOnceOfAnOperationThatHasEnded) {
  Link link = MakeLink();
  CompletionQueue queue = Must(CompletionQueue::Create());
  Operation operation = Must(link.near.connection->Notify(BytesOf("x")));
  ASSERT_TRUE(operation.Wait(Soon()));
  ASSERT_TRUE(queue.Watch(operation, 7));
  EXPECT_TRUE(TellsWithin(queue, 0));
  EXPECT_THAT(Must(queue.Take()), ElementsAre(7));
  EXPECT_THAT(Must(queue.Take()), IsEmpty());
}

TEST(CompletionQueue, TellsOfOperationsThatFail) {
  Link link = MakeLink();
  CompletionQueue queue = Must(CompletionQueue::Create());
  std::vector<std::byte> memory(100);
  Operation receive = Must(link.near.connection->Recv(1, kWholeTag, memory));
  ASSERT_TRUE(queue.Watch(receive, 1));
  EXPECT_FALSE(TellsWithin(queue, 0));
  receive.Cancel();
  ASSERT_TRUE(TellsWithin(queue, kToldWithinMs));
  EXPECT_THAT(Must(queue.Take()), ElementsAre(1));
  EXPECT_EQ(receive.Wait(Now()).error().code(), Code::kCancelled);
}

TEST(CompletionQueue, MayGoBeforeItsOperations) {
  Link link = MakeLink();
  std::vector<std::byte> memory(100);
  Operation receive = Must(link.near.connection->Recv(1, kWholeTag, memory));
  {
    CompletionQueue queue = Must(CompletionQueue::Create());
    ASSERT_TRUE(queue.Watch(receive, 1));
  }
  receive.Cancel();
  EXPECT_EQ(receive.Wait(Soon()).error().code(), Code::kCancelled);
}

TEST(CompletionQueue, IsRefusedInAForkedChild) {
  FERRY_SKIP_FORK_TEST();
  Link link = MakeLink();
  CompletionQueue queue = Must(CompletionQueue::Create());
  Operation operation = Must(link.near.connection->Notify(BytesOf("x")));
  EXPECT_EQ(StatusOfChild([&] {
              const bool refused =
                  queue.fd().error().code() == Code::kInvalidArgument &&
                  queue.Watch(operation, 1).error().code() == Code::kInvalidArgument &&
                  queue.Take().error().code() == Code::kInvalidArgument;
              return refused ? 0 : 1;
            }),
            0);
  EXPECT_TRUE(operation.Wait(Soon()));
}

}  // namespace
}  // namespace ferry::transfer
