// What both ends of an NCCL connection share.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ferry/core/fork.h"
#include "ferry/core/loop/event_loop.h"
#include "ferry/core/result.h"
#include "ferry/net/provider.h"
#include "ferry/session/heartbeat.h"
#include "plugins/nccl/frame.h"
#include "plugins/nccl/wire.h"

namespace ferry::nccl_net {

class Comm;
class Engine;

inline constexpr std::size_t kMaxLanes = 65;    // of a comm
inline constexpr std::size_t kMaxReceives = 8;  // that one request may group

// A piece of work of NCCL's, which refers to it by void*.
struct Request {
  explicit Request(Comm* the_comm) : comm(the_comm) {}
  Comm* const comm;
};

// The result of testing a request.
struct Tested {
  bool done = false;
  std::size_t count = 0;                               // of sizes
  std::array<std::uint64_t, kMaxReceives> sizes = {};  // bytes sent or received, by message
};

// How much a comm has sent or received. Any thread.
class Traffic {
 public:
  // Call for each message that is done.
  void Add(std::uint64_t bytes) noexcept {
    messages_.fetch_add(1, std::memory_order_relaxed);
    bytes_.fetch_add(bytes, std::memory_order_relaxed);
  }
  std::uint64_t messages() const noexcept { return messages_.load(); }
  std::uint64_t bytes() const noexcept { return bytes_.load(); }

 private:
  std::atomic<std::uint64_t> messages_{0};
  std::atomic<std::uint64_t> bytes_{0};
};

// One end of an NCCL connection, which is one-way: the lanes to the other end and their state. Lane
// 0 runs on one of the engine's loops for small messages and carries those in both directions; the
// other lanes carry large messages.
//
// Threads: NCCL's threads call it, one at a time for a comm; each lane belongs to its loop. mutex_
// synchronises the two and is held for a few instructions, or for copying small messages that came
// early. It is also held while posting tasks that need the comm: Close() first prevents further
// posts, and then waits for the posted tasks.
class Comm {
 public:
  virtual ~Comm();
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  std::size_t lanes() const noexcept { return lanes_.size(); }
  // The loop of lane 0, which callers drive while they wait.
  EventLoop* swift() const noexcept { return LoopOf(0); }
  // Takes a lane that is up, on its own loop or unattached. Returns false and destroys the lane if
  // the comm already has a lane of this number, or is closed.
  bool Adopt(std::size_t index, std::unique_ptr<net::Lane> lane);
  // Whether all lanes are up.
  bool complete() const noexcept { return adopted_.load() == lanes_.size(); }
  // Whether it has ended other than by Close(). No lane touches any memory by then.
  bool failed() const noexcept { return failed_.load() && open_.load() == 0; }
  // The error, once failed().
  Error failure();
  // Ends the comm, and blocks until no lane touches memory and none of its tasks is left. Not on a
  // loop. May be called again, or by two threads at once: each call waits.
  void Close();
  // Closes the comm if an unfinished request uses this memory, which is about to be released.
  void Forget(std::span<const std::byte> memory);

  // Any thread, without a lock. True in a child forked since the comm was made, where no other
  // method may be called.
  bool of_parent() const noexcept { return made_.forked(); }

  // A request that is done must not be used again. Errors: the comm's.
  virtual Result<Tested> Test(Request* request) = 0;

 protected:
  // A lane that has ended.
  struct LostLane {
    std::size_t index;
    net::LaneLoss loss;
    bool last;  // all lanes have ended
  };
  class CommLane;

  Comm(Engine* engine, EventLoop* swift, std::size_t lanes);

  Engine* engine() const noexcept { return engine_; }
  // A sequence number within the process, by which comms start with different workers and
  // interfaces.
  std::size_t number() const noexcept { return number_; }
  EventLoop* LoopOf(std::size_t lane) const noexcept;
  // OnLoop of the lane.
  void SendOnLoop(std::size_t lane, Frame* frame);
  // On the loop of lane 0. The bye frame is sent once.
  void SayCountsOnLoop(FrameType type, std::span<const CountWire> counts);
  void SayByeOnLoop();
  // Under mutex_, any thread: uses the lane with the fewest queued bytes, other than lane 0; ties
  // go to the first one from `first` on.
  void PostBulk(Frame* frame, std::size_t first);
  // Any thread. The first error is kept; all lanes close.
  void Fail(const Error& error);
  void FailLocked(const Error& error);
  // OnLoop of a lane that has ended: fails the comm, unless it is gone by the time the other lanes
  // have had to deliver what the peer sent before it closed.
  void FailLaterOnLoop(std::size_t lane, const Error& error);
  // The address of the peer on the first lane: "10.0.0.2:4567".
  std::string Peer();

  // On the lane's loop; the placement's memory must stay valid until the payload has arrived.
  virtual Result<net::Placement> HandleFrame(std::size_t lane, std::span<const std::byte> meta,
                                             std::uint64_t payload_bytes) = 0;
  virtual Status HandlePayload(std::size_t lane) = 0;
  virtual void OnLaneLost(const LostLane& lane, const Error& error) = 0;
  // Called when complete(), on the loop of lane 0.
  virtual void OnComplete() {}
  // Called before a lane that is up is closed, or instead, on the lane's loop and outside callbacks
  // of lanes. Possibly more than once.
  virtual void OnLaneClosing(std::size_t /*lane*/) {}
  // The other side has sent bye on lane 0.
  virtual void OnBye() = 0;
  // Called first by Close(), not on a loop; possibly by two threads at once. May block.
  virtual void AwaitArrival() {}
  // Whether lane 0 is up. Waiters on its loop are notified when it ends.
  bool swift_open() const noexcept { return swift_open_.load(); }
  // Whether an unfinished request uses the memory. Under mutex_.
  virtual bool Uses(std::span<const std::byte> memory) const = 0;
  virtual const char* kind() const noexcept = 0;  // "isend"

  Traffic traffic_;
  std::mutex mutex_;
  bool closing_ = false;        // under mutex_: nothing may be posted any more
  std::optional<Error> error_;  // under mutex_

 private:
  struct Closing;
  // Reused after it was sent.
  struct CountsFrame : Frame {
    std::atomic<bool> is_sent{true};
  };

  void CloseLaneOnLoop(std::size_t lane);
  void EndedOnLoop(CommLane* place);
  void BeatOnLoop();

  const ProcessMark made_;
  Engine* const engine_;
  const std::size_t number_;
  std::vector<std::unique_ptr<CommLane>> lanes_;
  std::atomic<std::size_t> adopted_{0};
  std::atomic<std::size_t> open_{0};
  std::atomic<std::size_t> lost_{0};
  std::atomic<bool> failed_{false};
  std::atomic<bool> swift_open_{false};
  // Under mutex_. Shared with the tasks that close lanes, which may still run when Close() returns.
  std::shared_ptr<Closing> in_flight_;
  std::string peer_;  // under mutex_

  // On the swift loop.
  std::vector<std::unique_ptr<CountsFrame>> counts_;
  Frame bye_;
  bool bye_said_ = false;
  session::Heartbeat heartbeat_;  // of lane 0
  CountsFrame beat_;
  EventLoop::TimerId beat_timer_ = 0;
};

// One lane of a comm. Belongs to its loop, except `queued`.
class Comm::CommLane final : public net::LaneHandler {
 public:
  CommLane(Comm* the_comm, std::size_t the_index, EventLoop* the_loop)
      : comm(the_comm), index(the_index), loop(the_loop) {}

  Result<net::Placement> OnFrame(std::span<const std::byte> meta,
                                 std::uint64_t payload_bytes) override;
  Status OnPayload() override { return comm->HandlePayload(index); }
  void OnSent(net::OutFrame* frame) override;
  void OnClosed(net::LaneLoss loss, const Error& error) override;

  Comm* const comm;
  const std::size_t index;
  EventLoop* const loop;
  std::unique_ptr<net::Lane> lane;  // set under the comm's mutex, before the loop knows of it
  bool open = false;                // the same
  EventLoop::TimerId grace = 0;
  std::atomic<std::uint64_t> queued{0};  // bytes that were not sent yet
};

}  // namespace ferry::nccl_net
