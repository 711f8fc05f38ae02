// A connection's operations for tests of what carries them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ferry/transfer/lane/lane_site.h"
#include "ferry/transfer/lane/operation_state.h"

namespace ferry::transfer {

// The operations of a connection under test: notes what their slices and messages ask for.
class FakeOperations final : public OperationHost {
 public:
  struct Frame {
    wire::Type type{};
    std::uint64_t operation = 0;
    std::vector<std::byte> body;
    std::size_t payload = 0;
  };

  void PostRoundDone(const OperationRef& operation) override { done.push_back(operation); }
  void DealAgain(const OperationRef& operation) override { dealt.push_back(operation); }
  void Send(wire::Type type, std::uint64_t operation_id, std::span<const std::byte> body,
            std::span<const std::byte> payload, OperationRef /*operation*/) override {
    sent.push_back({type, operation_id, {body.begin(), body.end()}, payload.size()});
  }
  bool MaySendRts() const override { return may_send_rts; }
  bool MayAnswer() const override { return may_answer; }
  void DropMessage(const OperationState& receive) override { dropped = receive.id; }
  void Revoke(const std::shared_ptr<RegionState>& /*region*/, EventLoop::Task then) override {
    revoked.push_back(std::move(then));
  }
  OperationRef Find(std::uint64_t operation_id) const override {
    const auto it = operations.find(operation_id);
    return it == operations.end() ? nullptr : it->second;
  }
  void End(OperationState& operation, Status status) override {
    if (operations.erase(operation.id) > 0) operation.Complete(std::move(status));
  }
  void BeginSlices(const OperationRef& operation) override {
    operation->Enter(OperationState::Phase::kSlices);
    sliced.push_back(operation->id);
  }
  void Fail(const Error& error) override { failed = error.message(); }

  std::vector<OperationRef> done;                    // rounds
  std::vector<OperationRef> dealt;                   // again
  std::map<std::uint64_t, OperationRef> operations;  // those that have not ended
  std::vector<Frame> sent;
  std::vector<std::uint64_t> sliced;
  std::vector<EventLoop::Task> revoked;  // what is to follow
  std::uint64_t dropped = 0;
  std::string failed;
  bool may_send_rts = true;
  bool may_answer = true;
};

}  // namespace ferry::transfer
