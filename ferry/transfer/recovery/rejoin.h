// One attempt to replace a lane of a connection, on the dialing side.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>

#include "ferry/net/provider.h"
#include "ferry/transfer/handshake/client_handshake.h"
#include "ferry/transfer/handshake/lane_progress.h"

namespace ferry::transfer {

class LaneHealth;
class RecoveryHost;
struct NetworkPath;
struct RecoveryContext;

// One attempt of the connecting side to put a new lane in the place of another: connects, says
// hello, and only when the peer has agreed stops using the old one. Belongs to the connection's
// home loop; shared between the LaneHealth and its callbacks in flight.
class Rejoin final : public std::enable_shared_from_this<Rejoin> {
 public:
  // `lane_health` must stay valid until Cancel() or the end of the attempt, the others until nobody
  // keeps the connection alive.
  Rejoin(const RecoveryContext& context, RecoveryHost* host, LaneHealth* lane_health,
         std::uint32_t lane, std::uint32_t attempt);
  ~Rejoin();

  void Start(const NetworkPath& path);
  // The host that was reached replied that it knows no such connection, or that it does not accept
  // this side's proof of the secret. The reply is not authenticated.
  bool refused() const noexcept { return refused_; }
  // One side did not accept the other's certificate or key, or this side not the host's proof.
  bool unauthenticated() const noexcept { return unauthenticated_; }
  // Ends the attempt; the LaneHealth is not called after this.
  void Cancel();

 private:
  // Each step goes to the next, and any to kOver.
  enum class State : std::uint8_t {
    kConnecting,  // the new lane
    kJoining,     // the peer was asked whether the lane may take the other's place
    kFreezing,    // it may: this side is stopping the old lane
    kResuming,    // the peer was sent this side's progress, and owes its own
    kMoving,      // both are known: the new lane moves when all that was said has left
    kOver,        // the LaneHealth was notified, or has cancelled
  };

  void MoveTo(State to);
  void OnConnected(Result<std::unique_ptr<net::Lane>> lane);
  void OnGone(const Error& error);
  void SayRejoin();
  Status OnHeard(const wire::MessageHeader& header, wire::MetaReader* reader);
  void Freeze();
  void OnFrozen(std::optional<LaneProgress> progress);
  void FinishIfReady();
  void Finish();
  void End(const std::optional<Error>& error);

  const RecoveryContext& context_;
  RecoveryHost* const host_;
  // The connection, until the end: it owns the lane that is being frozen.
  const std::shared_ptr<void> keep_;
  LaneHealth* const lane_health_;  // until kOver
  const std::uint32_t lane_;
  const std::uint32_t attempt_;
  const Deadline deadline_;
  ClientHandshake client_handshake_;
  std::unique_ptr<HelloExchange> hello_exchange_;
  State state_ = State::kConnecting;
  bool refused_ = false;
  bool unauthenticated_ = false;
  LaneProgress peer_;
};

}  // namespace ferry::transfer
