// What replacing lanes needs of the connection and the endpoint.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "ferry/core/config.h"
#include "ferry/core/loop/event_loop.h"
#include "ferry/core/random.h"
#include "ferry/core/secret.h"
#include "ferry/core/unique_function.h"
#include "ferry/net/provider.h"
#include "ferry/session/trust.h"
#include "ferry/transfer/handshake/lane_progress.h"

namespace ferry::transfer {

// What is constant for a connection whose lanes are replaced. What the pointers refer to must
// outlive LaneHealth::Stop().
struct RecoveryContext {
  const Config* config = nullptr;
  EventLoop* home = nullptr;
  std::string peer_name;  // its address, for messages
  std::size_t lanes = 0;
  std::uint32_t connection = 0;  // the number and token that the accepting side knows it by
  Uuid token;

  net::Provider* provider = nullptr;
  std::optional<Secret> secret = std::nullopt;  // that both sides prove
  // Whether the settings allow the use of a lane dialed to this peer.
  std::function<Status(const net::LaneInfo& lane, const std::string& peer_name)> may_use;
  session::Trust trust = {};
  net::ProcessHint process = {};  // the peer, as it said itself
};

// The connection as recovery sees it. Home loop only.
class RecoveryHost {
 public:
  using Frozen = UniqueFunction<void(std::optional<LaneProgress> progress)>;

  // Keeps the connection, and thus its lanes, alive.
  virtual std::shared_ptr<void> KeepAlive() = 0;
  // Remembers an event.
  virtual void Note(const std::string& event) = 0;
  virtual void Fail(const Error& error) = 0;
  // Fails the connection if operations wait for this lane, which is down and cannot be replaced for
  // this reason.
  virtual void FailIfWaitedFor(std::uint32_t lane, const Error& reason) = 0;
  // Stops using the lane. `then` runs later, with nullopt if a later attempt to replace the lane
  // has started, or if the connection has ended.
  virtual void Freeze(std::uint32_t lane, std::uint32_t attempt, Frozen then) = 0;
  // Puts `replacement`, which is attached to the home loop, in the place of the lane that this
  // attempt froze. `peer`: the peer's progress.
  virtual void Revive(std::uint32_t lane, std::uint32_t attempt,
                      std::unique_ptr<net::Lane> replacement, const LaneProgress& peer) = 0;

 protected:
  ~RecoveryHost() = default;
};

}  // namespace ferry::transfer
