// A connection of the in-memory network, with faults.
#pragma once
#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <vector>

#include "ferry/core/loop/event_loop.h"
#include "ferry/net/testing/fake_provider.h"

namespace ferry::net {

// Maximum bytes that a lane moves in one turn of its loop.
inline constexpr std::size_t kTurnBytes = 4 << 20;

// The connection between two lanes: a byte pipe for each direction, with the network's faults. Any
// thread. Owned jointly by the lanes, by wake-ups in flight and by the network.
class FakeLink : public std::enable_shared_from_this<FakeLink> {
 public:
  enum Side : std::size_t { kConnector = 0, kListener = 1 };

  // Notified on its loop that bytes, room or the end may be available.
  class Waker {
   public:
    virtual void OnWake() = 0;

   protected:
    ~Waker() = default;
  };

  // `host`: the host of the network that was dialled, which also determines the interface.
  FakeLink(std::size_t index, std::string host) : index_(index), host_(std::move(host)) {}

  const std::string& host() const noexcept { return host_; }

  void SetFaults(const FakeFaults& faults);
  void Cut();
  void Reset();
  // Both sides see the network give up the connection.
  void Unreach();
  // While set, written bytes are lost, whatever the faults say.
  void SetDown(bool down);
  std::uint64_t BytesSent(FakeDirection direction) const;

  // From now on wake-ups of this side go to the waker on `loop`; one comes at once.
  void Bind(Side side, EventLoop* loop, Waker* waker);
  // No wake-up begins after this. With `drop`, bytes in flight to the peer are lost.
  void Close(Side side, bool drop);

  // How the connection failed, once it has; nothing can be read or written then.
  std::optional<LaneLoss> Failed(Side side) const;
  // How many bytes may be written now, at most `most`. After 0, a wake-up will follow.
  std::size_t Room(Side side, std::size_t most);
  // The bytes must fit into Room().
  void Write(Side side, std::vector<std::byte> bytes);

  struct Taken {
    enum class State { kBytes, kNothing, kLater, kEnd };
    State state = State::kNothing;
    std::size_t bytes = 0;   // for kBytes
    Clock::time_point when;  // for kLater
  };
  // After kNothing, a wake-up will follow.
  Taken Take(Side side, std::span<std::byte> into);
  // Maximum bytes that one turn may receive.
  std::size_t TurnBytes(Side side);
  std::uint64_t pipe_bytes() const;
  bool another_machine() const;
  bool forwarded() const;
  bool authenticated() const;
  std::string interface() const;

 private:
  struct Chunk {
    std::vector<std::byte> bytes;
    std::size_t taken = 0;
    Clock::time_point arrives;
  };
  // One direction; named by the side that writes.
  struct Pipe {
    std::deque<Chunk> chunks;
    std::size_t held = 0;
    std::uint64_t written = 0;
    std::optional<std::uint64_t> cut;
    bool ended = false;       // no byte follows those in it
    bool wants_room = false;  // the writer waits
    Clock::time_point last_arrival;
    std::mt19937_64 random;
  };
  struct End {
    EventLoop* loop = nullptr;
    Waker* waker = nullptr;
    bool woken = false;  // a wake-up is in flight
    std::optional<LaneLoss> failed;
    bool closed = false;
  };

  static Side Other(Side side) { return side == kConnector ? kListener : kConnector; }
  void WakeLocked(Side side);
  void RunWake(Side side, const EventLoop* loop);
  void CutLocked(Side writer);
  void FailLocked(LaneLoss loss);

  const std::size_t index_;
  const std::string host_;
  mutable std::mutex mutex_;  // guards all below
  FakeFaults faults_;
  bool down_ = false;
  std::array<Pipe, 2> pipes_;
  std::array<End, 2> ends_;
};

}  // namespace ferry::net
