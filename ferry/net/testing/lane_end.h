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

// Tools for tests of lanes: the provider's callbacks, turned into things that a test can wait for.
namespace ferry::net {

// For waits that end soon unless something is broken.
inline constexpr std::chrono::seconds kPatience{60};

std::span<const std::byte> AsBytes(std::string_view text);
std::string AsText(std::span<const std::byte> bytes);
// Sizes that add up to `total`, taken from `sizes` over and over.
std::vector<std::size_t> CutInto(std::uint64_t total, std::span<const std::size_t> sizes);

// Scattered memory: pieces that lie in another order than they are used in, with guard bytes
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

// Counts something that happens on another thread.
class Tally {
 public:
  void Add();
  int count() const;
  // False when that does not happen in kPatience.
  bool AwaitAtLeast(int count);

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int count_ = 0;
};

// Runs `task` on the loop and waits for its end; aborts when that takes longer than kPatience.
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

// The handler of one lane, with the frames that it sends. Checks that callbacks come on the right
// loop, and that nothing is written outside the placements.
class LaneEnd final : public LaneHandler {
 public:
  // `loop` must have a worker, and outlive this.
  LaneEnd(std::unique_ptr<Lane> lane, EventLoop* loop);
  ~LaneEnd();
  LaneEnd(const LaneEnd&) = delete;
  LaneEnd& operator=(const LaneEnd&) = delete;

  // What to do instead of receiving a frame whole, or along with the other callbacks. To be set
  // before Attach(), or in Do().
  using Choice = std::optional<Result<Placement>>;  // nothing: receive it
  std::function<Choice(const std::string& meta, std::uint64_t payload_bytes)> on_frame;
  std::function<Status()> on_payload;  // of payloads that on_frame has placed
  std::function<void(OutFrame*)> on_sent;
  // Sizes of the pieces of receiving memory, used over and over; empty: one piece.
  std::vector<std::size_t> receive_pieces;

  void Attach();
  // On the lane's loop, as RunOn.
  void Do(FunctionRef<void(Lane&)> task);
  void MoveTo(EventLoop* loop);  // on the lane's loop: to call from Do() or a posted task
  // On its loop, or on this thread, which only a loop that has stopped allows.
  void DestroyLane();
  void DestroyLaneHere() { lane_.reset(); }
  EventLoop* loop() const noexcept { return loop_.load(); }
  Lane& lane() noexcept { return *lane_; }

  // Frames live as long as this end. The payload has the given pieces, filled with a pattern.
  TestFrame* Make(std::string_view meta, std::span<const std::size_t> pieces = {},
                  std::uint64_t seed = 0);
  // From any thread; all in one turn.
  void Send(std::span<TestFrame* const> frames);
  void Send(TestFrame* frame) { Send(std::span(&frame, 1)); }

  // Waits until so many frames have arrived whole, and takes them. Fails the test, and returns
  // what there is, after kPatience or when the lane closes before.
  std::vector<Arrived> Take(std::size_t count);
  bool AwaitSent(std::size_t count);
  // The error of OnClosed.
  std::optional<Error> AwaitClosed();
  std::vector<const OutFrame*> sent() const;
  // The callbacks so far: F and P for OnFrame and OnPayload, S for OnSent, C for OnClosed.
  std::string log() const;

 private:
  Result<Placement> OnFrame(std::span<const std::byte> meta, std::uint64_t payload_bytes) override;
  Status OnPayload() override;
  void OnSent(OutFrame* frame) override;
  void OnClosed(const Error& error) override;
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
  std::string log_;
};

// Destroys the end, if there is one. Unlike reset(), leaves the pointer alone while callbacks that
// use it may still come.
void Destroy(std::unique_ptr<LaneEnd>* end);

// A provider with two loops that have workers, as one process would use them.
class TestHost {
 public:
  explicit TestHost(std::unique_ptr<Provider> provider);
  ~TestHost();
  TestHost(const TestHost&) = delete;
  TestHost& operator=(const TestHost&) = delete;

  Provider& provider() noexcept { return *provider_; }
  // Connections are made and accepted on loop(0).
  EventLoop* loop(std::size_t index = 0) const noexcept { return loops_[index].get(); }

  // Lanes that arrive are kept for Accept(). Replaces an earlier listener.
  Result<Address> Listen(const Address& address, const Config& config);
  void StopListening();
  // Null, and the test fails, after kPatience.
  std::unique_ptr<Lane> Accept();
  Result<std::unique_ptr<Lane>> Connect(const Address& address, const Config& config,
                                        Deadline deadline = Deadline::After(kPatience));

 private:
  std::unique_ptr<Provider> provider_;
  std::array<std::unique_ptr<EventLoop>, 2> loops_;
  std::unique_ptr<Listener> listener_;
  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Lane>> accepted_;
};

}  // namespace ferry::net
