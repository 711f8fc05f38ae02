// Lane handlers and hosts that tests can wait on.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ferry/core/function_ref.h"
#include "ferry/core/testing/random_bytes.h"
#include "ferry/net/provider.h"

// Tools for tests of lanes: they turn the provider's callbacks into events that a test can wait
// for.
namespace ferry::net {

// Timeout of waits that end soon unless something is broken.
inline constexpr std::chrono::seconds kTimeout{60};

std::span<const std::byte> AsBytes(std::string_view text);
std::string AsText(std::span<const std::byte> bytes);
// Sizes that add up to `total`, taken cyclically from `sizes`.
std::vector<std::size_t> CutInto(std::uint64_t total, std::span<const std::size_t> sizes);

// Scattered memory: pieces whose order in memory differs from their order of use, with guard bytes
// between them.
class Scatter {
 public:
  Scatter() = default;
  explicit Scatter(std::span<const std::size_t> piece_bytes);

  std::span<const iovec> pieces() const noexcept { return pieces_; }
  std::size_t bytes() const noexcept { return bytes_; }
  void Store(std::span<const std::byte> bytes);  // exactly bytes()
  std::vector<std::byte> Load() const;
  bool GuardsAreIntact() const;

 private:
  std::vector<std::byte> memory_;
  std::vector<iovec> pieces_;
  std::size_t bytes_ = 0;
};

// Counts an event that happens on another thread.
class Tally {
 public:
  void Add();
  int count() const;
  // Returns false after kTimeout.
  bool AwaitAtLeast(int count);

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int count_ = 0;
};

// Runs `task` on the loop and waits for its end; aborts after kTimeout.
void RunOn(EventLoop& loop, FunctionRef<void()> task);

struct TestFrame final : OutFrame {
  Scatter memory;
  std::vector<std::byte> content;  // of the payload
};

// A frame that has arrived whole.
struct Arrived {
  std::string meta;
  std::vector<std::byte> payload;
};

// The handler of one lane, with the frames that it sends. Checks that callbacks run on the right
// loop, and that nothing is written outside the placements.
class LaneEnd final : public LaneHandler {
 public:
  // `loop` must have a worker, and outlive this.
  LaneEnd(std::unique_ptr<Lane> lane, EventLoop* loop);
  ~LaneEnd();
  LaneEnd(const LaneEnd&) = delete;
  LaneEnd& operator=(const LaneEnd&) = delete;

  // Overrides how a frame is received, or observes the callbacks. Set before Attach(), or in Do().
  using Choice = std::optional<Result<Placement>>;  // nothing: receive it
  std::function<Choice(const std::string& meta, std::uint64_t payload_bytes)> on_frame;
  std::function<Status()> on_payload;  // of payloads that on_frame has placed
  std::function<void(OutFrame*)> on_sent;
  // Sizes of the pieces of receive memory, used cyclically; empty: one piece.
  std::vector<std::size_t> receive_pieces;

  void Attach();
  // Runs on the lane's loop, as RunOn.
  void Do(FunctionRef<void(Lane&)> task);
  void MoveTo(EventLoop* loop);  // on the lane's loop: to call from Do() or a posted task
  // The first destroys the lane on its loop, the second on this thread, which is allowed only after
  // the loop has stopped.
  void DestroyLane();
  void DestroyLaneHere() { lane_.reset(); }
  EventLoop* loop() const noexcept { return loop_.load(); }
  Lane& lane() noexcept { return *lane_; }

  // Frames live as long as this object. The payload has the given pieces, filled with a pattern.
  TestFrame* Make(std::string_view meta, std::span<const std::size_t> pieces = {},
                  std::uint64_t seed = 0);
  // Any thread; sends all frames in one turn.
  void Send(std::span<TestFrame* const> frames);
  void Send(TestFrame* frame) { Send(std::span(&frame, 1)); }

  // Waits until `count` frames have arrived whole, and takes them. After kTimeout, or when the
  // lane closes first, fails the test and returns the frames there are.
  std::vector<Arrived> Take(std::size_t count);
  bool AwaitSent(std::size_t count);
  // The error passed to OnClosed.
  std::optional<Error> AwaitClosed();
  // Once closed.
  LaneLoss loss() const;
  std::vector<const OutFrame*> sent() const;
  // The callbacks so far: F for OnFrame, P for OnPayload, S for OnSent, C for OnClosed.
  std::string log() const;

 private:
  Result<Placement> OnFrame(std::span<const std::byte> meta, std::uint64_t payload_bytes) override;
  Status OnPayload() override;
  void OnSent(OutFrame* frame) override;
  void OnClosed(LaneLoss loss, const Error& error) override;
  void Note(char what);

  std::unique_ptr<Lane> lane_;
  std::atomic<EventLoop*> loop_;
  std::deque<TestFrame> frames_;

  std::optional<Scatter> receiving_;  // on the loop
  std::string receiving_meta_;

  mutable std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::vector<Arrived> arrived_;
  std::vector<const OutFrame*> sent_;
  std::vector<Error> closed_;
  LaneLoss loss_ = LaneLoss::kBroken;
  std::string log_;
};

// Destroys the lane end, if any. Unlike reset(), keeps the pointer valid while callbacks that use
// it may still run.
void Destroy(std::unique_ptr<LaneEnd>* end);

// A provider with two loops that have workers, as in a real process.
class TestHost {
 public:
  explicit TestHost(std::unique_ptr<Provider> provider);
  ~TestHost();
  TestHost(const TestHost&) = delete;
  TestHost& operator=(const TestHost&) = delete;

  Provider& provider() noexcept { return *provider_; }
  // Connections are made and accepted on loop(0).
  EventLoop* loop(std::size_t index = 0) const noexcept { return loops_[index].get(); }

  // Keeps arriving lanes for Accept(). Replaces an earlier listener.
  Result<Address> Listen(const Address& address, const Config& config);
  void StopListening();
  // After kTimeout fails the test and returns null.
  std::unique_ptr<Lane> Accept();
  Result<std::unique_ptr<Lane>> Connect(const Address& address, const Config& config,
                                        Deadline deadline = Deadline::After(kTimeout));

 private:
  std::unique_ptr<Provider> provider_;
  std::array<std::unique_ptr<EventLoop>, 2> loops_;
  std::unique_ptr<Listener> listener_;
  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Lane>> accepted_;
};

}  // namespace ferry::net
