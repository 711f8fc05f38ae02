// A lane of the in-memory network.
#pragma once
#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "ferry/net/provider.h"
#include "ferry/net/testing/fake_link.h"

namespace ferry::net {

// What Provider::Register() returns.
struct FakeRegisteredMemory final : RegisteredMemory {
  explicit FakeRegisteredMemory(std::span<std::byte> the_memory) : memory(the_memory) {}
  const std::span<std::byte> memory;
};

// One end of a FakeLink. Aborts on a user that does not keep to provider.h.
class FakeLane final : public Lane, private FakeLink::Waker, private EventLoop::Deferred {
 public:
  FakeLane(std::shared_ptr<FakeLink> link, FakeLink::Side side, std::string local,
           std::string remote);
  ~FakeLane() override;

  void Attach(EventLoop* loop, LaneHandler* handler) override;
  void Send(OutFrame* frame) override;
  void Resume() override;
  void DiscardRest() override;
  void Flush() override;
  void Close(Closing how) override;
  void SetMaxMeta(std::size_t bytes) override { max_meta_ = bytes; }
  LaneInfo Info() const override;
  bool ProvePeer(const ProcessHint& /*process*/) override {
    return !link_->another_machine() && !link_->forwarded();
  }
  std::uint64_t BytesReceived() const override {
    return bytes_received_.load(std::memory_order_relaxed);
  }

 private:
  enum class Receiving { kPrefix, kMeta, kOffer, kPaused, kPayload, kDiscard };
  struct Prefix {
    std::uint64_t meta_bytes = 0;
    std::uint64_t payload_bytes = 0;
  };
  static_assert(sizeof(Prefix) == kFakePrefixBytes);
  struct Queued {
    std::span<const iovec> payload() const {
      return registered.iov_base == nullptr ? std::span<const iovec>(frame->payload)
                                            : std::span(&registered, 1);
    }
    OutFrame* frame;
    Prefix prefix;
    iovec registered{};  // the frame's payload, if it is registered memory
  };

  void OnWake() override;
  void RunDeferredOnLoop(EventLoop::Defer when) override;

  void ReceiveOnLoop();
  void WaitFor(const FakeLink::Taken& taken);
  std::span<std::byte> Target();
  void Advance(std::size_t bytes);
  void Offer();
  void StartPayload(const Placement& placement);
  void FinishPayload();
  void StartPrefix();

  void FlushOnLoop();
  std::vector<std::byte> Gather(std::size_t most);
  void RequestFlush();
  void RequestNextTurn();
  void LeaveLoop(bool reset);
  void Fail(LaneLoss loss, const Error& error);
  void CheckUse() const;

  const std::shared_ptr<FakeLink> link_;  // with the other lane
  const FakeLink::Side side_;
  const std::string local_;
  const std::string remote_;
  EventLoop* loop_ = nullptr;
  LaneHandler* handler_ = nullptr;
  bool closed_ = false;
  bool in_callback_ = false;

  // Receiving.
  Receiving receiving_ = Receiving::kPrefix;
  std::vector<std::byte> buffer_;  // prefix, metadata, or what is discarded
  std::size_t filled_ = 0;         // of buffer_, or of the piece
  Prefix prefix_;
  std::size_t max_meta_ = kMaxMetaBytes;
  std::span<const iovec> place_;  // from the piece that is being filled
  iovec registered_place_{};      // instead of the placement's memory
  std::uint64_t payload_left_ = 0;
  std::atomic<std::uint64_t> bytes_received_{0};
  EventLoop::TimerId timer_ = 0;

  // Sending.
  std::deque<Queued> queue_;
  std::size_t written_ = 0;       // frames at the front of queue_, not yet reported
  std::size_t piece_ = 0;         // of the next: 0 is the prefix, 1 the metadata, then payload
  std::size_t piece_offset_ = 0;  // written of that piece
  bool flush_requested_ = false;
  bool next_turn_requested_ = false;
};

}  // namespace ferry::net
