// Makes a plugin's comms for a new lane, by way of the lane that carries its control.
#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/event_loop.h"
#include "ferry/core/result.h"
#include "ferry/core/secret.h"
#include "ferry/core/unique_function.h"
#include "ferry/cuda/device_api.h"
#include "ferry/net/provider.h"
#include "ferry/tcpx/host/comm.h"
#include "ferry/tcpx/lane/lane_gpu.h"
#include "ferry/tcpx/lane/lane_hello_wire.h"
#include "ferry/tcpx/lane/payload_out.h"

namespace ferry::net::plugin {

// What all lanes of a provider have in common.
struct LaneTerms {
  Plugin* plugin = nullptr;
  cuda::DeviceApi* api = nullptr;  // null without GPUs
  LaneGpu gpu;
  ChunkTerms chunks;
  std::optional<Secret> secret;
  bool insecure = false;  // without a secret, peers of other machines are trusted, too
};

// One lane in the making. Both sides prove that they know the secret, if there is one, and only
// then call the plugin: each sends the handle at which it accepts one comm (lane_hello_wire.h), and
// both then connect to and accept from each other. NCCL's calls for that do not block and are
// repeated, by a timer. Owned by the timer of its deadline, and so destroyed with a loop that stops
// first. A lane that begins when the GPU is lost is one without a GPU: it moves host memory, and
// refuses placements in GPU memory.
class LaneSetup final : private LaneHandler {
 public:
  enum class Role : std::uint8_t { kConnects, kAccepts };
  using Done = UniqueFunction<void(Result<std::unique_ptr<Lane>>)>;

  struct Request {
    int device = 0;
    Role role = Role::kConnects;
    std::unique_ptr<Lane> control;
    EventLoop* loop = nullptr;
    Deadline deadline;
    Done done;
  };

  // OnLoop. `done` runs on the loop once, at the latest at the deadline, outside the control lane's
  // callbacks, with an unattached lane or an error: kRefused where the sides do not fit together or
  // the peer does not prove itself, kTimedOut, kPeerLost, and those of the plugin. The result is
  // valid until then.
  static LaneSetup* Start(const LaneTerms& terms, Request request);
  ~LaneSetup();
  LaneSetup(const LaneSetup&) = delete;
  LaneSetup& operator=(const LaneSetup&) = delete;

  // Destroys it; `done` does not run. OnLoop, outside the control lane's callbacks.
  void Cancel();
  const std::string& remote() const noexcept { return remote_; }

 private:
  LaneSetup(const LaneTerms& terms, Request request);

  Result<Placement> OnFrame(std::span<const std::byte> meta, std::uint64_t payload_bytes) override;
  Status OnPayload() override { return Ok(); }
  void OnSent(OutFrame* /*frame*/) override { ++sent_; }
  void OnClosed(LaneLoss loss, const Error& error) override;

  Error Late() const;
  void StepAt(Clock::time_point when);
  void Step();
  // Null: not yet.
  Result<std::unique_ptr<Lane>> Advance();
  Status Begin();
  // Whether the peer may go on: without a secret it must be `process`, of our user on this machine.
  Status CheckPeer(const ProcessHint& process) const;
  // The frame that the peer owes next; nothing if it owes none.
  std::optional<LaneHello::Kind> Owed() const noexcept;
  // Checks a frame, and that the peer has proved itself where it must have by now.
  Result<LaneHello> Check(std::span<const std::byte> frame);
  // Answers the frame that was heard; the first that the plugin is told of a peer.
  Status Answer();
  Status Listen();
  void LogDone(const char* what, bool done) const;
  Result<std::unique_ptr<Lane>> MakeLane();
  void Send(LaneHello::Kind kind, const std::string& text);
  LaneHello Mine() const;
  void Finish(Result<std::unique_ptr<Lane>> result);

  const LaneTerms terms_;
  const int device_;
  const Role role_;
  EventLoop* const loop_;
  std::unique_ptr<Lane> control_;
  const std::string remote_;
  Done done_;
  EventLoop::TimerId deadline_timer_ = 0;
  EventLoop::TimerId step_timer_ = 0;

  bool begun_ = false;
  std::deque<OutFrame> out_;       // where they are, as the control lane refers to them
  std::size_t sent_ = 0;           // of these
  std::vector<std::byte> frames_;  // of both sides, in their order, for the macs
  std::size_t heard_ = 0;          // of the peer's frames
  std::optional<Result<LaneHello>> unanswered_;  // the last one of these
  bool paused_ = false;                          // for it
  std::optional<Error> ended_;                   // the control lane
  std::unique_ptr<Listening> listening_;
  std::unique_ptr<Connecting> connecting_;
  std::unique_ptr<ReceiveComm> receive_comm_;
  std::unique_ptr<SendComm> send_comm_;
};

}  // namespace ferry::net::plugin
