// Makes a plugin's comms for a new lane, by way of the lane that carries its control.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "ferry/core/deadline.h"
#include "ferry/core/loop/event_loop.h"
#include "ferry/core/result.h"
#include "ferry/core/secret.h"
#include "ferry/core/unique_function.h"
#include "ferry/cuda/device_api.h"
#include "ferry/net/provider.h"
#include "ferry/session/handshake.h"
#include "ferry/session/trust.h"
#include "ferry/tcpx/host/comm.h"
#include "ferry/tcpx/lane/lane_gpu.h"
#include "ferry/tcpx/lane/lane_terms_wire.h"
#include "ferry/tcpx/lane/payload_out.h"

namespace ferry::tcpx {

// What all lanes of a provider have in common.
struct LaneTerms {
  Plugin* plugin = nullptr;
  cuda::DeviceApi* api = nullptr;  // null without GPUs
  LaneGpu gpu;
  ChunkTerms chunks;
  std::optional<Secret> secret;
  bool insecure = false;  // without a secret, peers of other machines are trusted, too

  session::Trust trust() const noexcept { return {secret.has_value(), insecure}; }
  // What this side tells its peers.
  PluginTerms Told() const;
  // Checks the peer's terms, and whether it may be trusted as far as it needs no secret: an error
  // before the plugin is told of it. On the lane's loop. Errors: kRefused, kUnavailable.
  Status CheckPeerOnLoop(session::Handshake* handshake, const PluginTerms& peer) const;
};

// How often NCCL's calls, which do not block, are repeated.
inline constexpr milliseconds kStepInterval{1};

// The comms of one lane in the making: both sides accept from and connect to each other, by handles
// that the sides tell each other once they are known. All methods on one loop. A set-up that begins
// when the GPU is lost makes a lane without a GPU: it moves host memory, and refuses placements in
// GPU memory.
class CommSetup {
 public:
  CommSetup(const LaneTerms& terms, int device, std::string remote);
  // A set-up may end between the plugin's first answer "not yet" and its last one.
  ~CommSetup();
  CommSetup(const CommSetup&) = delete;
  CommSetup& operator=(const CommSetup&) = delete;

  // The handle at which this side accepts. Errors: the plugin's.
  Result<Handle> Listen();
  // Begins to connect to the peer's handle; after Listen().
  void Connect(const Handle& handle);
  bool connects() const noexcept { return connecting_ != nullptr; }
  // Whether both comms are up. Errors: the plugin's.
  Result<bool> Advance();
  // The lane of these comms, whose control lane is unattached. Once Advance() is true.
  Result<std::unique_ptr<net::Lane>> MakeLane(std::unique_ptr<net::Lane> control, EventLoop* loop);

 private:
  void LogDone(const char* what, bool done) const;

  const LaneTerms terms_;
  const int device_;
  const std::string remote_;
  ChunkTerms chunks_;  // with this lane's channel
  std::unique_ptr<Listening> listening_;
  std::unique_ptr<Connecting> connecting_;
  std::unique_ptr<ReceiveComm> receive_comm_;
  std::unique_ptr<SendComm> send_comm_;
};

// The dialing side of a lane in the making. Both sides prove that they know the secret, if there is
// one, before either calls its plugin. Owned by the timer of its deadline, and so destroyed with a
// loop that stops first.
class PluginDial final : private session::HandshakeUser {
 public:
  using Done = UniqueFunction<void(Result<std::unique_ptr<net::Lane>>)>;
  struct Site {
    int device;
    EventLoop* loop;
    Deadline deadline;
  };

  // OnLoop. `done` runs on the loop once, at the latest at the deadline, outside the control lane's
  // callbacks, with an unattached lane or an error: kRefused where the sides do not fit together or
  // the peer does not prove itself, kTimedOut, kPeerLost, and those of the plugin.
  static void Start(const LaneTerms& terms, const Site& site, std::unique_ptr<net::Lane> control,
                    Done done);

 private:
  PluginDial(const LaneTerms& terms, const Site& site, std::unique_ptr<net::Lane> control,
             Done done);

  Status OnReceived(session::Handshake* handshake, session::wire::Type type,
                    session::wire::MetaReader* body) override;
  void OnComplete(session::Handshake* /*handshake*/) override {}
  void OnGone(session::Handshake* handshake, const Error& error) override;
  Error Late() const;
  void StepAt(Clock::time_point when);
  // Null: not yet.
  Result<std::unique_ptr<net::Lane>> Advance();
  void Finish(Result<std::unique_ptr<net::Lane>> result);

  const LaneTerms terms_;
  EventLoop* const loop_;
  const std::string remote_;
  Done done_;
  EventLoop::TimerId deadline_timer_ = 0;
  EventLoop::TimerId step_timer_ = 0;
  std::unique_ptr<session::Handshake> handshake_;
  CommSetup setup_;
  std::optional<Handle> peer_;  // the peer's, once it has welcomed this side
  std::optional<Error> ended_;  // the control lane
};

}  // namespace ferry::tcpx
