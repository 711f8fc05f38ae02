// One attempt to replace a lane of a connection, on the dialing side.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>

#include "ferry/net/provider.h"
#include "ferry/session/handshake.h"
#include "ferry/transfer/handshake/lane_progress.h"
#include "ferry/transfer/handshake/wire.h"

namespace ferry::transfer {

class LaneHealth;
class RecoveryHost;
struct NetworkPath;
struct RecoveryContext;

// One attempt of the connecting side to put a new lane in the place of another: connects, sends
// a kRejoin, and stops using the old one only when the peer has agreed. Belongs to the connection's
// home loop; shared between the LaneHealth and its callbacks in flight.
class Rejoin final : public std::enable_shared_from_this<Rejoin>, private session::HandshakeUser {
 public:
  // `lane_health` must stay valid until Cancel() or the end of the attempt, the others until nobody
  // keeps the connection alive.
  Rejoin(const RecoveryContext& context, RecoveryHost* host, LaneHealth* lane_health,
         std::uint32_t lane, std::uint32_t attempt);
  ~Rejoin() override;

  void Start(const NetworkPath& path);
  // The host that was reached replied that it knows no such connection, or that it does not accept
  // this side's proof of the secret. The reply is not authenticated.
  bool refused() const noexcept { return refused_; }
  // One side did not accept the other's certificate or key, or this side not the host's proof.
  bool unauthenticated() const noexcept { return unauthenticated_; }
  // Ends the attempt; the LaneHealth is not called after this.
  void Cancel();

 private:
  void OnConnected(Result<std::unique_ptr<net::Lane>> lane);
  Status OnReceived(session::Handshake* handshake, session::wire::Type type,
                    wire::MetaReader* body) override;
  void OnComplete(session::Handshake* handshake) override;
  void OnGone(session::Handshake* handshake, const Error& error) override;
  void Freeze();
  void OnFrozen(std::optional<LaneProgress> progress);
  void Finish();
  void End(const std::optional<Error>& error);

  const RecoveryContext& context_;
  RecoveryHost* const host_;
  // The connection, until the end: it owns the lane that is being frozen.
  const std::shared_ptr<void> keep_;
  LaneHealth* const lane_health_;  // until over_
  const std::uint32_t lane_;
  const std::uint32_t attempt_;
  const Deadline deadline_;
  std::unique_ptr<session::Handshake> handshake_;  // null before the new lane is up, and at the end
  bool over_ = false;                              // the LaneHealth was notified, or has cancelled
  bool frozen_ = false;                            // the old lane is being stopped, or is
  bool refused_ = false;
  bool unauthenticated_ = false;
  LaneProgress peer_;
};

}  // namespace ferry::transfer
