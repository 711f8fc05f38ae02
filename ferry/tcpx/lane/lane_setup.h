// Makes a plugin's comms for a new lane, by way of the lane that carries its control.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/event_loop.h"
#include "ferry/core/result.h"
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
};

// One lane in the making. The connecting side sends a hello with the handle at which it accepts one
// comm, the accepting side answers with its own, and both then connect to and accept from each
// other. NCCL's calls for that do not block and are repeated, by a timer. Owned by the timer of its
// deadline, and so destroyed with a loop that stops first. A lane that begins when the GPU is lost
// is one without a GPU: it moves host memory, and refuses placements in GPU memory.
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
  // callbacks, with an unattached lane or an error: kRefused where the sides do not fit together,
  // kTimedOut, kPeerLost, and those of the plugin. The result is valid until then.
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
  void OnSent(OutFrame* /*frame*/) override { sent_ = true; }
  void OnClosed(LaneLoss loss, const Error& error) override;

  Error Late() const;
  void StepAt(Clock::time_point when);
  void Step();
  // Null: not yet.
  Result<std::unique_ptr<Lane>> Advance();
  Status TakeHello();
  Status Listen();
  void LogDone(const char* what, bool done) const;
  Result<std::unique_ptr<Lane>> MakeLane();
  void Say(LaneHello::Kind kind, const std::string& text);
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

  OutFrame out_;
  bool sent_ = false;
  std::optional<Result<LaneHello>> peer_;  // once it has spoken
  bool took_hello_ = false;
  std::optional<Error> ended_;  // the control lane
  std::unique_ptr<Listening> listening_;
  std::unique_ptr<Connecting> connecting_;
  std::unique_ptr<ReceiveComm> receive_comm_;
  std::unique_ptr<SendComm> send_comm_;
};

}  // namespace ferry::net::plugin
