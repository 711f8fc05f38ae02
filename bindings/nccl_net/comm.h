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

#include "bindings/nccl_net/wire.h"
#include "ferry/core/event_loop.h"
#include "ferry/core/fork.h"
#include "ferry/core/result.h"
#include "ferry/net/provider.h"

namespace ferry::nccl_net {

class Comm;
class Engine;

inline constexpr std::size_t kMaxLanes = 65;    // of a comm
inline constexpr std::size_t kMaxReceives = 8;  // that one request may group

// What NCCL has for a piece of work: void* there.
struct Request {
  explicit Request(Comm* the_comm) : comm(the_comm) {}
  Comm* const comm;
};

// What a test of a request says.
struct Tested {
  bool done = false;
  std::size_t count = 0;                               // of sizes
  std::array<std::uint64_t, kMaxReceives> sizes = {};  // that were sent, or received
};

// One end of a connection of NCCL's, which is one way: the lanes to the other end, and what became
// of them. Lane 0 is on a swift loop of the engine's and carries what is small, both ways; the
// others carry large messages.
//
// Callers are NCCL's threads, one at a time for a comm; lanes are their loops'. mutex_ stands
// between the two, is held for a few instructions (or the copy of small messages that came early),
// and by whoever posts tasks that need the comm: Close() lets nobody post any more, and then waits
// for what was posted.
class Comm {
 public:
  virtual ~Comm();
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  std::size_t lanes() const noexcept { return lanes_.size(); }
  // That of lane 0, which its users drive while they wait.
  EventLoop* swift() const noexcept { return LoopOf(0); }
  // A lane that has come up, on the loop that it belongs to, or unattached. False, and the lane is
  // gone, where it has one of this number already, or the comm is closed.
  bool Adopt(std::size_t index, std::unique_ptr<net::Lane> lane);
  // Whether all lanes have come up.
  bool complete() const noexcept { return adopted_.load() == lanes_.size(); }
  // Whether it has ended otherwise than by Close(). No lane touches any memory by then.
  bool failed() const noexcept { return failed_.load() && open_.load() == 0; }
  // Once failed().
  Error failure();
  // Ends it, and waits until no lane touches memory and no task of its is left; not on a loop.
  // Again, or by two at once: waits as well.
  void Close();
  // Closes it if a request that is not done uses this memory, which is about to go.
  void Forget(std::span<const std::byte> memory);

  // Any thread, without a lock. In a child that was forked since, where nothing else may be called.
  bool of_parent() const noexcept { return made_.forked(); }

  // The request is no more when it is done. Errors: the comm's.
  virtual Result<Tested> Test(Request* request) = 0;

 protected:
  // A frame of ours, and what it is for.
  struct Frame : net::OutFrame {
    std::atomic<std::uint32_t>* left = nullptr;  // counts it down when it is sent
    std::atomic<bool>* sent = nullptr;           // set then
  };
  class CommLane;

  Comm(Engine* engine, EventLoop* swift, std::size_t lanes);

  Engine* engine() const noexcept { return engine_; }
  // Of this process's: comms begin with different workers and interfaces by it.
  std::size_t number() const noexcept { return number_; }
  EventLoop* LoopOf(std::size_t lane) const noexcept;
  // OnLoop of the lane.
  void SendOnLoop(std::size_t lane, Frame* frame);
  // On the swift loop, by lane 0. Bye is said once.
  void SayCountsOnLoop(FrameType type, std::span<const CountWire> counts);
  void SayByeOnLoop();
  // Under mutex_, any thread: by the lane with the least to send beside lane 0, the first of these
  // from `first` on.
  void PostBulk(Frame* frame, std::size_t first);
  // Any thread. The first reason counts; all lanes close.
  void Fail(const Error& error);
  void FailLocked(const Error& error);
  // OnLoop of a lane that has ended: the comm fails if it is there still when the others have had
  // time to bring what the peer sent by them before it closed.
  void FailLaterOnLoop(std::size_t lane, const Error& error);
  // OnLoop of a lane that has ended: whether the peer closed it in good order.
  bool WasClosedOnLoop(std::size_t lane) const;
  // "10.0.0.2:4567", by the first lane.
  std::string Peer();

  // On the lane's loop; `place` stays as it is until the payload is there.
  virtual Result<net::Placement> OnFrameOnLoop(std::size_t lane, std::span<const std::byte> meta,
                                               std::uint64_t payload_bytes) = 0;
  virtual Status OnPayloadOnLoop(std::size_t lane) = 0;
  // A lane has ended; all have if `last`.
  virtual void OnLaneLostOnLoop(std::size_t lane, const Error& error, bool last) = 0;
  // When complete(), on the swift loop.
  virtual void OnCompleteOnLoop() {}
  // The other side has said bye by lane 0.
  virtual void OnByeOnLoop() = 0;
  // By Close() first, not on a loop; perhaps by two threads at once.
  virtual void AwaitArrival() {}
  // Lane 0 is there. Those who wait on its loop are told when it goes.
  bool swift_open() const noexcept { return swift_open_.load(); }
  // Of a message that is done.
  void Count(std::uint64_t bytes) noexcept {
    messages_.fetch_add(1, std::memory_order_relaxed);
    bytes_.fetch_add(bytes, std::memory_order_relaxed);
  }
  // Under mutex_.
  virtual bool Uses(std::span<const std::byte> memory) const = 0;
  virtual const char* kind() const noexcept = 0;  // "isend"

  std::mutex mutex_;
  bool closing_ = false;        // under mutex_: nobody may post any more
  std::optional<Error> error_;  // under mutex_

 private:
  struct Closing;
  // Used again when it is sent.
  struct CountsFrame : Frame {
    std::atomic<bool> is_sent{true};
  };

  void CloseLaneOnLoop(std::size_t lane);
  void EndedOnLoop(CommLane* place);
  void BeatOnLoop();
  void PlanBeatOnLoop();

  const ProcessMark made_;
  Engine* const engine_;
  const std::size_t number_;
  std::vector<std::unique_ptr<CommLane>> lanes_;
  std::atomic<std::size_t> adopted_{0};
  std::atomic<std::size_t> open_{0};
  std::atomic<std::size_t> lost_{0};
  std::atomic<bool> failed_{false};
  std::atomic<bool> swift_open_{false};
  std::atomic<std::uint64_t> messages_{0};
  std::atomic<std::uint64_t> bytes_{0};
  // Under mutex_. Shared with the tasks that close lanes, which may be in it when Close() returns.
  std::shared_ptr<Closing> under_way_;
  std::string peer_;  // under mutex_

  // On the swift loop.
  std::vector<std::unique_ptr<CountsFrame>> counts_;
  Frame bye_;
  bool bye_said_ = false;
  Frame beat_;
  std::atomic<bool> beat_sent_{true};
  EventLoop::TimerId beat_timer_ = 0;
  std::uint64_t heard_bytes_ = 0;
  int silent_beats_ = 0;
};

// One lane of a comm. Belongs to its loop, but for `queued`.
class Comm::CommLane final : public net::LaneHandler {
 public:
  CommLane(Comm* the_comm, std::size_t the_index, EventLoop* the_loop)
      : comm(the_comm), index(the_index), loop(the_loop) {}

  Result<net::Placement> OnFrame(std::span<const std::byte> meta,
                                 std::uint64_t payload_bytes) override;
  Status OnPayload() override { return comm->OnPayloadOnLoop(index); }
  void OnSent(net::OutFrame* frame) override;
  void OnClosed(const Error& error) override;

  Comm* const comm;
  const std::size_t index;
  EventLoop* const loop;
  std::unique_ptr<net::Lane> lane;  // set under the comm's mutex, before the loop knows of it
  bool open = false;                // likewise
  EventLoop::TimerId grace = 0;
  std::atomic<std::uint64_t> queued{0};  // bytes that are not sent
};

}  // namespace ferry::nccl_net
