// Concurrent operations of every kind between two endpoints, for tests.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "ferry/transfer/testing/linked_endpoints.h"

namespace ferry::transfer {

// Blocks until the connection reports its loss. Operations may all end before that.
inline bool IsLostSoon(std::optional<Connection>& connection) {
  Result<std::vector<std::byte>> note = connection->TakeNotification(Soon());
  while (note) note = connection->TakeNotification(Soon());
  return note.error().code() == Code::kPeerLost;
}

inline constexpr std::size_t kTrafficBytes = 300'000;

// Operations of every kind in both directions, all of which succeed on a working network.
class Traffic {
 public:
  explicit Traffic(Link* link)
      : link_(link),
        local_(Must(link->near.endpoint->Register(here_.span(), Rights::kNone))),
        into_(Must(link->near.endpoint->Register(fetched_.span(), Rights::kNone))),
        target_(Must(link->far.endpoint->Register(there_.span(), Rights::kReadWrite))),
        source_(Must(link->far.endpoint->Register(given_.span(), Rights::kRead))) {}

  void Begin() {
    Connection near = *link_->near.connection;
    Connection far = *link_->far.connection;
    Keep(far.Recv(1, kWholeTag, large_in_.span()));
    Keep(near.Send(1, large_out_.span()));
    Keep(far.Recv(2, kWholeTag, small_in_.span()));
    Keep(near.Send(2, large_out_.span().first(1000)));
    Keep(near.Recv(3, kWholeTag, back_in_.span()));
    Keep(far.Send(3, given_.span()));
    Keep(near.Notify(BytesOf("note")));
    BlockList list;
    for (std::uint64_t i = 0; i < 100; ++i) {
      list.Add({.dst = i * 3000, .src = (99 - i) * 3000, .len = 2999});
    }
    const RemoteRegion target = target_.remote();
    const RemoteRegion source = source_.remote();
    std::vector<TransferPart> out;
    out.push_back({&local_, &target, list});
    std::vector<TransferPart> in;
    in.push_back({&into_, &source, list});
    Keep(near.Write(Must(near.PrepareWrite(std::move(out)))));
    Keep(near.Read(Must(near.PrepareRead(std::move(in)))));
  }
  void ExpectAllWell() {
    for (const Operation& operation : operations_) EXPECT_TRUE(EndsOk(operation));
    EXPECT_EQ(large_in_.Copy(), large_out_.Copy());
    EXPECT_EQ(back_in_.Copy(), given_.Copy());
    EXPECT_TRUE(std::equal(there_.span().begin(), there_.span().begin() + 2999,
                           here_.span().begin() + 99 * 3000));
    EXPECT_TRUE(std::equal(fetched_.span().begin(), fetched_.span().begin() + 2999,
                           given_.span().begin() + 99 * 3000));
  }
  // All have ended: successfully, or because the connection was lost or they were cancelled.
  // Afterwards nothing touches memory.
  void ExpectAllEnd() {
    for (Operation& operation : operations_) {
      const Status status = operation.Wait(Soon());
      ASSERT_TRUE(operation.Poll());
      if (status) continue;
      const Code code = status.error().code();
      // kRefused: by a receive that was cancelled at the peer.
      EXPECT_TRUE(code == Code::kPeerLost || code == Code::kCancelled || code == Code::kRefused)
          << status.error().ToString();
      EXPECT_NE(status.error().message(), "");
    }
    for (Region* region : {&local_, &into_, &target_, &source_}) {
      EXPECT_TRUE(region->Deregister(Soon()));
    }
  }
  void CancelAll() {
    for (Operation& operation : operations_) operation.Cancel();
  }
  bool over() {
    return std::all_of(operations_.begin(), operations_.end(),
                       [](Operation& operation) { return operation.Poll(); });
  }
  bool GuardsIntact() const {
    return std::all_of(all_.begin(), all_.end(), [](const auto* m) { return m->GuardsIntact(); });
  }

 private:
  void Keep(const Result<Operation>& operation) {
    if (operation) operations_.push_back(*operation);
  }

  GuardedMemory here_{kTrafficBytes, 1};
  GuardedMemory there_{kTrafficBytes, 2};
  GuardedMemory fetched_{kTrafficBytes, 3};
  GuardedMemory given_{kTrafficBytes, 4};
  GuardedMemory large_out_{kTrafficBytes, 5};
  GuardedMemory large_in_{kTrafficBytes, 6};
  GuardedMemory small_in_{1000, 7};
  GuardedMemory back_in_{kTrafficBytes, 8};
  std::vector<const GuardedMemory*> all_{&here_,      &there_,    &fetched_,  &given_,
                                         &large_out_, &large_in_, &small_in_, &back_in_};
  Link* link_;
  Region local_;
  Region into_;
  Region target_;
  Region source_;
  std::vector<Operation> operations_;
};

}  // namespace ferry::transfer
