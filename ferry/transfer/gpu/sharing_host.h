// What sharing GPU memory with a peer needs of the connection.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "ferry/core/config.h"
#include "ferry/core/loop/event_loop.h"
#include "ferry/core/result.h"
#include "ferry/transfer/handshake/wire.h"
#include "ferry/transfer/memory/held_memory.h"
#include "ferry/transfer/memory/region_table.h"

namespace ferry::transfer {

// The connection as GpuSharing sees it. Any thread, except where OnLoop is said: its home loop.
class SharingHost {
 public:
  virtual ~SharingHost() = default;
  // For tasks that may run when the connection has gone.
  virtual std::weak_ptr<SharingHost> weak() noexcept = 0;
  virtual const Config& config() const noexcept = 0;
  virtual RegionTable& regions() const noexcept = 0;
  virtual EventLoop* home() const noexcept = 0;
  // Memory that the peer makes this side hold.
  virtual HeldMemory& memory() noexcept = 0;
  // Its number in the endpoint (region_openers.h).
  virtual std::uint32_t number() const noexcept = 0;
  virtual const std::string& peer_name() const noexcept = 0;
  // A secret that this connection has and no other; both sides know it.
  virtual const Uuid& token() const noexcept = 0;
  // The process at the other end, proved to be our user's on this machine; 0 if it is not proved.
  virtual std::int32_t PeerProcessOnLoop() const = 0;
  virtual bool lost() const noexcept = 0;
  // Fails everything with `error` and closes the lanes.
  virtual void Fail(const Error& error) = 0;
  // A sequenced frame without payload, over the first lane.
  virtual void SendControlOnLoop(wire::Type type, std::span<const std::byte> body) = 0;
};

}  // namespace ferry::transfer
