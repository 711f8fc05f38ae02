// One attempt to replace a lane of a connection, on the dialing side.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>

#include "ferry/net/provider.h"
#include "ferry/transfer/channel.h"
#include "ferry/transfer/connection_core.h"
#include "ferry/transfer/introduction.h"

namespace ferry::transfer {

class EndpointCore;
class LaneKeeper;

std::vector<std::byte> EncodeProgress(const LaneProgress& progress);
// Parses a kResume or kResumed frame. Errors: kCorrupt.
Result<LaneProgress> ParseProgress(wire::MetaReader* reader, const std::string& peer_name);

// One attempt of the dialing side to replace a lane: connects, runs the handshake, and freezes the
// old lane only after the peer has agreed. Lives on the connection's home loop. Owners: the keeper
// and callbacks in flight.
class Rejoin final : public std::enable_shared_from_this<Rejoin> {
 public:
  // `endpoint`, `connection` and `keeper` must stay valid until CancelOnLoop() or the end of the
  // attempt.
  Rejoin(EndpointCore* endpoint, ConnectionCore* connection, LaneKeeper* keeper, std::uint32_t lane,
         std::uint32_t attempt);
  ~Rejoin();

  void StartOnLoop(const net::Address& to);
  // The host that was reached replied that it knows no such connection. The reply is not
  // authenticated.
  bool refused() const noexcept { return refused_; }
  // Ends the attempt; the keeper is not called after this.
  void CancelOnLoop();

 private:
  void OnConnected(Result<std::unique_ptr<net::Lane>> lane);
  Status OnHeard(const wire::MessageHeader& header, wire::MetaReader* reader);
  void FreezeOnLoop();
  void OnFrozen(std::optional<LaneProgress> progress);
  void FinishIfReady();
  void FinishOnLoop();
  void EndOnLoop(const std::optional<Error>& error);

  EndpointCore* const endpoint_;
  // Kept until the end: owns the channel that is being frozen.
  std::shared_ptr<ConnectionCore> connection_;
  LaneKeeper* keeper_;  // null once it was called or the attempt was cancelled
  const std::uint32_t lane_;
  const std::uint32_t attempt_;
  const Deadline deadline_;
  Introduction introduction_;
  std::unique_ptr<Greeting> greeting_;
  bool refused_ = false;
  bool joined_ = false;
  bool frozen_ = false;
  bool resumed_ = false;
  LaneProgress peer_;
};

}  // namespace ferry::transfer
