// The acceptor: the listening port of the process, and pending comms.
#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "bindings/nccl_net/wire.h"
#include "ferry/core/event_loop.h"
#include "ferry/core/result.h"
#include "ferry/net/accept_gate.h"
#include "ferry/net/admission.h"
#include "ferry/net/provider.h"

namespace ferry::nccl_net {

class Engine;
class RecvComm;

// Those who have come for one listen comm.
class Arrivals {
 public:
  Arrivals(Engine* engine, EventLoop* swift, std::uint64_t id);

  std::uint64_t id() const noexcept { return id_; }
  // Of the comms that come.
  EventLoop* swift() const noexcept { return swift_; }
  const Key& key() const noexcept { return key_; }
  // By the door: a lane of the comm that `hello` names. Errors: kCorrupt for one that cannot be.
  Status Enter(const HelloWire& hello, std::unique_ptr<net::Lane> lane);
  // A rank that cannot work with this one has come: Take() fails with this from now on.
  void Refuse(const Error& reason);
  // The next comm whose lanes are all there, or null. Errors: that of Refuse(); kPeerLost where a
  // sender has gone again, and has not come back for as long as it may try.
  Result<std::shared_ptr<RecvComm>> Take();
  // Nobody enters any more; those who wait go.
  void Close();

 private:
  Engine* const engine_;
  EventLoop* const swift_;
  const std::uint64_t id_;
  Key key_;
  std::mutex mutex_;
  bool closed_ = false;  // under mutex_, as the rest
  std::optional<Error> refused_;
  std::optional<Error> gone_;  // of a sender whose lanes have not all come
  Clock::time_point gone_for_good_;
  std::unordered_map<Uuid, std::shared_ptr<RecvComm>>
      here_;  // shared with the tasks that move its lanes
};

// The process's listening port. Lanes that come in say which listen comm they are for, with its
// key, and go to its Arrivals; those that say anything else, or nothing in time, are closed. Who
// leaves when more come than there is room for is net::Admission's to say.
class Door {
 public:
  // Before the loop runs.
  static Result<std::unique_ptr<Door>> Open(Engine* engine, EventLoop* loop);
  // After the loop has stopped.
  ~Door();

  std::uint16_t port() const noexcept { return port_; }
  // Shared with the lanes that are on their way in.
  std::shared_ptr<Arrivals> Listen(EventLoop* swift);
  void Unlisten(std::uint64_t id);

 private:
  class Stranger;

  Door(Engine* engine, EventLoop* loop);
  void EnterOnLoop(std::unique_ptr<net::Lane> lane);
  void OnHelloOnLoop(std::uint64_t number);
  Result<std::shared_ptr<Arrivals>> Find(const HelloWire& hello);
  // Errors: for a hello whose sender is not to come in; the listen comm hears of it where it is a
  // rank that has the key.
  Result<std::shared_ptr<Arrivals>> Check(std::span<const std::byte> meta,
                                          const std::string& remote);
  void AdmitOnLoop(std::uint64_t number);
  void RefuseOnLoop(std::uint64_t number);
  void DropOnLoop(std::uint64_t number);

  Engine* const engine_;
  EventLoop* const loop_;
  std::uint16_t port_ = 0;
  net::Admission admission_;                                                // loop
  net::AcceptGate gate_;                                                    // loop
  std::unordered_map<std::uint64_t, std::unique_ptr<Stranger>> strangers_;  // loop; by number
  std::uint64_t next_stranger_ = 1;                                         // loop
  std::mutex mutex_;
  std::unordered_map<std::uint64_t, std::shared_ptr<Arrivals>> listens_;  // under mutex_
  std::uint64_t next_listen_ = 1;                                         // likewise
  std::unique_ptr<net::Listener> listener_;
};

}  // namespace ferry::nccl_net
