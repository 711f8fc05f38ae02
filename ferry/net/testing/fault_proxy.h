// A TCP proxy that delays, cuts and corrupts.
#pragma once
#include <poll.h>

#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/fd.h"
#include "ferry/core/result.h"
#include "ferry/net/address.h"

namespace ferry::net {

enum class ProxyDirection : unsigned char { kToTarget, kToClient };
enum class ProxyCut : unsigned char { kClose, kReset };

// Relays between TCP clients and one listening port, and injects network faults. Runs on its own
// thread. Any thread may call any method at any time. Settings apply to all connections together,
// and offsets count the bytes forwarded in one direction over all connections since the start.
class FaultProxy {
 public:
  // Listens on a free port of 127.0.0.1. `seed` determines the random sizes and delays. Errors:
  // kInvalidArgument for a target that is not numeric, kUnavailable.
  static Result<std::unique_ptr<FaultProxy>> Start(const Address& target, std::uint64_t seed = 1);
  // Resets all open connections.
  ~FaultProxy();
  FaultProxy(const FaultProxy&) = delete;
  FaultProxy& operator=(const FaultProxy&) = delete;

  // Where clients connect in place of the target.
  const Address& address() const noexcept { return address_; }

  // Forwards 1..bytes at a time; 0, the default: as much as is available.
  void SetPieceBytes(std::size_t bytes);
  // Delays each piece by 0..delay.
  void SetDelay(microseconds delay);
  // A black hole: connections stay open, new ones too, and nothing is forwarded until this is
  // reset.
  void SetStalled(bool stalled);
  // Ends every connection once the byte before `offset` has been forwarded; later connections work.
  // Peers see kClose as the end of the stream and kReset as a lost connection.
  void CutAt(ProxyDirection direction, std::uint64_t offset, ProxyCut how);
  void CutNow(ProxyCut how);
  // Resets one connection: number `index` of the open ones, modulo their count.
  void ResetOne(std::size_t index);
  // Inverts the byte at `offset`, unless it was already forwarded.
  void CorruptAt(ProxyDirection direction, std::uint64_t offset);

  std::uint64_t forwarded(ProxyDirection direction) const;
  // Accepted so far.
  std::size_t connections() const;

 private:
  // One direction of one connection.
  struct Flow {
    int from = -1;
    int to = -1;
    ProxyDirection direction = ProxyDirection::kToTarget;
    std::vector<std::byte> bytes;  // read and not forwarded
    std::size_t sent = 0;          // of them
    Clock::time_point due;         // of them
    bool ended = false;            // nothing more to read
    bool shut = false;             // and the other side was told
  };
  struct Connection {
    UniqueFd client;
    UniqueFd target;
    std::array<Flow, 2> flows;
    bool draining = false;  // reads to the end, forwards nothing
    bool dead = false;
  };
  struct Cut {
    std::uint64_t offset;
    ProxyCut how;
  };

  FaultProxy(UniqueFd listening, UniqueFd wake, Address address, const RawAddress& target,
             std::uint64_t seed);
  void Main();
  void WaitLocked(std::unique_lock<std::mutex>& lock);
  Deadline WantLocked(const Flow& flow);
  void AcceptLocked();
  void ServeLocked(Connection& connection);
  bool ReadLocked(Flow& flow, bool draining);
  std::size_t PrepareLocked(Flow& flow);
  bool ForwardLocked(Flow& flow);
  void CutLocked(ProxyCut how);
  static void Kill(Connection& connection);
  void Wake() { SignalEventFd(wake_.get()); }

  const UniqueFd listening_;
  const UniqueFd wake_;
  const Address address_;
  const RawAddress target_;
  std::thread thread_;

  mutable std::mutex mutex_;  // guards all below; the thread lets go of it while it sleeps
  bool stopping_ = false;
  std::mt19937_64 random_;
  std::size_t piece_bytes_ = 0;
  microseconds delay_{0};
  bool stalled_ = false;
  std::array<std::optional<Cut>, 2> cuts_;  // by direction, as all below
  std::array<std::optional<std::uint64_t>, 2> corruptions_;
  std::array<std::uint64_t, 2> forwarded_{};
  std::size_t accepted_ = 0;
  std::list<Connection> connections_;
  std::vector<pollfd> polled_;
};

}  // namespace ferry::net
