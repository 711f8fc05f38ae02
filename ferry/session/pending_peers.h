// The table of peers that are connected and not known yet.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "ferry/core/loop/event_loop.h"
#include "ferry/net/accept_gate.h"
#include "ferry/net/admission.h"
#include "ferry/net/provider.h"
#include "ferry/session/handshake.h"

namespace ferry::session {

// What becomes of pending peers, beside HandshakeUser.
class PendingPeerUser : public HandshakeUser {
 public:
  // A pending peer was closed or refused; a sentence for a log, with its address. Anybody who
  // reaches the port can cause this.
  virtual void OnTurnedAway(const Handshake& handshake, const std::string& sentence) = 0;
};

// Runs the handshakes of a listener's accepted lanes, each until a deadline. net::Admission decides
// who leaves when there are too many, and accepting pauses while nobody may: a place is all that a
// peer gets before it has proved itself. Lives on the listener's loop.
class PendingPeers final : private HandshakeUser {
 public:
  struct Terms {
    EventLoop* loop = nullptr;
    wire::Role role{};
    std::size_t places = 0;
    microseconds timeout{};
  };

  // `user` must outlive this object. `set_paused`: as AcceptGate.
  PendingPeers(const Terms& terms, PendingPeerUser* user, net::AcceptGate::SetPaused set_paused);
  ~PendingPeers() override;

  void EnterOnLoop(std::unique_ptr<net::Lane> lane);
  // Null if that handshake has ended.
  Handshake* Find(std::uint64_t number);
  // The peer is known and no longer counts; its handshake goes on.
  void AdmitOnLoop(const Handshake* handshake);
  // The peer at this host will open further lanes, which are preferred to others'.
  void ExpectOnLoop(const std::string& host, std::size_t lanes, Clock::time_point until) {
    admission_.Expect(host, lanes, until);
  }
  // Closes the lane; OnGone() does not follow.
  void CloseOnLoop(Handshake* handshake);
  // Hands the lane over when its handshake is complete. Outside the lane's callbacks.
  std::unique_ptr<net::Lane> TakeOnLoop(Handshake* handshake);
  void ClearOnLoop();

 private:
  Result<Demand> OnOpening(Handshake* handshake, wire::Type type, wire::MetaReader body) override;
  void OnChallenged(Handshake* handshake, const Demand& demand) override;
  Status OnReceived(Handshake* handshake, wire::Type type, wire::MetaReader* body) override;
  void OnComplete(Handshake* handshake) override { user_->OnComplete(handshake); }
  void OnRefused(Handshake* handshake, const Error& why) override;
  void OnGone(Handshake* handshake, const Error& error) override;
  void Evict(std::uint64_t number);
  // Posted, to leave the callback that called this.
  void Drop(std::uint64_t number);

  const Terms terms_;
  PendingPeerUser* const user_;
  net::Admission admission_;
  net::AcceptGate gate_;
  std::unordered_map<std::uint64_t, std::unique_ptr<Handshake>> all_;
  std::uint64_t next_ = 1;
};

}  // namespace ferry::session
