// Tests of the table of open connections and of the queue of those to accept.
#include "ferry/transfer/endpoint/connection_table.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ferry/transfer/connection/connection_core.h"
#include "ferry/transfer/memory/region_table.h"
#include "ferry/transfer/testing/linked_endpoints.h"

namespace ferry::transfer {
namespace {

bool IsReadable(const UniqueFd& fd) {
  pollfd poll_fd{fd.get(), POLLIN, 0};
  return poll(&poll_fd, 1, 0) == 1;
}

// Connections without lanes that run: nobody adopts or starts them.
class ConnectionTableTest : public ::testing::Test {
 protected:
  using Connection = ConnectionTable::Connection;

  // As a peer has dialed it.
  Connection Make(Peer peer = {}) {
    if (peer.name.empty()) peer.name = "10.0.0.1:1";
    return std::make_shared<ConnectionCore>(config_, &regions_, std::move(peer),
                                            std::vector<EventLoop*>{loop_.get()});
  }
  Connection Keep(Peer peer = {}) {
    Connection connection = Make(std::move(peer));
    EXPECT_TRUE(table_.Keep(connection));
    return connection;
  }

  const Config config_{};
  const std::unique_ptr<EventLoop> loop_ = Must(EventLoop::Create());
  RegionTable regions_;
  ConnectionTable table_;
};

TEST_F(ConnectionTableTest, FindsAConnectionByItsNumberUntilItIsForgotten) {
  EXPECT_EQ(table_.Find(0), nullptr);
  const Connection first = Keep();
  const Connection second = Keep();
  EXPECT_NE(first->number(), second->number());
  EXPECT_EQ(table_.Find(first->number()), first);
  EXPECT_EQ(table_.Find(second->number()), second);
  table_.Forget(first.get());
  EXPECT_EQ(table_.Find(first->number()), nullptr);
  EXPECT_EQ(table_.All(), std::vector<Connection>{second});
}

TEST_F(ConnectionTableTest, KeepsAndQueuesNothingOnceItIsClosed) {
  const Connection before = Keep();
  table_.Close();
  const Connection after = Make();
  EXPECT_FALSE(table_.Keep(after));
  EXPECT_EQ(table_.All(), std::vector<Connection>{before});
  table_.Enqueue(before);
  EXPECT_EQ(table_.TakeAccepted(), nullptr);
  table_.Forget(before.get());
  table_.AwaitEmpty();
}

TEST_F(ConnectionTableTest, GivesAFreeNumberToTheNextConnection) {
  const Connection first = Keep();
  const Connection second = Keep();
  table_.Forget(first.get());
  const Connection third = Keep();
  EXPECT_EQ(third->number(), first->number());
  EXPECT_EQ(table_.Find(second->number()), second);
}

TEST_F(ConnectionTableTest, ForgetsAConnectionOnce) {
  const Connection first = Keep();
  table_.Forget(first.get());
  table_.Forget(first.get());
  EXPECT_NE(Keep()->number(), Keep()->number());
}

TEST_F(ConnectionTableTest, FindsAnAgreedConnectionOnlyByNumberAndToken) {
  Peer peer;
  peer.connection = 7;
  peer.token = Uuid::Random();
  const Connection connection = Keep(peer);
  EXPECT_EQ(table_.FindAgreed(7, peer.token), connection);
  EXPECT_EQ(table_.FindAgreed(8, peer.token), nullptr);
  EXPECT_EQ(table_.FindAgreed(7, Uuid::Random()), nullptr);
  table_.Forget(connection.get());
  EXPECT_EQ(table_.FindAgreed(7, peer.token), nullptr);
}

TEST_F(ConnectionTableTest, CountsOpenAndEndedConnections) {
  const Connection first = Keep();
  Keep();
  EXPECT_EQ(table_.FromOutside(), 2U);
  table_.Forget(first.get());
  EXPECT_EQ(table_.FromOutside(), 1U);
  const EndpointCounters counters = table_.Counters();
  EXPECT_EQ(counters.connections.size(), 1U);
  EXPECT_EQ(counters.connections_accepted, 2U);
}

TEST_F(ConnectionTableTest, HandsOutQueuedConnectionsInTheirOrder) {
  EXPECT_EQ(table_.TakeAccepted(), nullptr);
  const Connection first = Keep();
  const Connection second = Keep();
  table_.Enqueue(first);
  table_.Enqueue(second);
  EXPECT_EQ(table_.TakeAccepted(), first);
  EXPECT_EQ(table_.TakeAccepted(), second);
  EXPECT_EQ(table_.TakeAccepted(), nullptr);
}

TEST_F(ConnectionTableTest, DoesNotHandOutAConnectionThatHasClosedInTheQueue) {
  const Connection first = Keep();
  const Connection second = Keep();
  table_.Enqueue(first);
  table_.Enqueue(second);
  table_.Forget(first.get());
  EXPECT_EQ(table_.TakeAccepted(), second);
}

TEST_F(ConnectionTableTest, HasADescriptorThatIsReadableWhileAConnectionWaits) {
  const UniqueFd early = Must(table_.AcceptDescriptor());
  EXPECT_FALSE(IsReadable(early));
  table_.Enqueue(Keep());
  EXPECT_TRUE(IsReadable(early));
  EXPECT_TRUE(IsReadable(Must(table_.AcceptDescriptor())));
  (void)table_.TakeAccepted();
  EXPECT_FALSE(IsReadable(early));
}

TEST_F(ConnectionTableTest, IsReadableForGoodOnceItIsClosed) {
  const UniqueFd early = Must(table_.AcceptDescriptor());
  table_.Enqueue(Keep());
  table_.Close();
  EXPECT_EQ(table_.TakeAccepted(), nullptr);
  EXPECT_TRUE(IsReadable(early));
  EXPECT_TRUE(IsReadable(Must(table_.AcceptDescriptor())));
}

TEST_F(ConnectionTableTest, AwaitsTheEndOfEveryConnection) {
  table_.AwaitEmpty();
  const Connection first = Keep();
  const Connection second = Keep();
  table_.Forget(first.get());
  auto empty = std::async(std::launch::async, [this] { table_.AwaitEmpty(); });
  EXPECT_EQ(empty.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  table_.Forget(second.get());
  EXPECT_EQ(empty.wait_for(std::chrono::seconds(20)), std::future_status::ready);
}

}  // namespace
}  // namespace ferry::transfer
