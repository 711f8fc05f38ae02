// Admits accepted lanes as pending peers, and runs their handshakes.
#include "ferry/session/pending_peers.h"

#include <fmt/core.h>

#include <utility>

#include "ferry/core/log.h"

namespace ferry::session {

PendingPeers::PendingPeers(const Terms& terms, PendingPeerUser* user,
                           net::AcceptGate::SetPaused set_paused)
    : terms_(terms),
      user_(user),
      admission_(terms.places),
      gate_(terms.loop, &admission_, std::move(set_paused)) {}

PendingPeers::~PendingPeers() = default;

// If the table is full, the policy names one to evict.
void PendingPeers::EnterOnLoop(std::unique_ptr<net::Lane> lane) {
  const std::uint64_t number = next_++;
  // Fixed from now on: a slow sender does not extend the deadline.
  Handshake::Terms terms{.role = terms_.role,
                         .loop = terms_.loop,
                         .deadline = Deadline::After(terms_.timeout),
                         .number = number};
  // Not owned: all handshakes are destroyed before this.
  const std::shared_ptr<HandshakeUser> self(std::shared_ptr<void>(), this);
  auto owned = std::make_unique<Handshake>(std::move(lane), std::move(terms), self);
  Handshake* const handshake = owned.get();
  const auto now = Clock::now();
  // Before anything of it is read: how many peers may be pending does not depend on what they send.
  const auto leaving = admission_.Enter(number, handshake->peer_host(), handshake->is_local(), now);
  if (leaving) Evict(*leaving);
  // It has completed a TLS handshake.
  if (handshake->info().authenticated) admission_.MarkSpoken(number, now, /*proven=*/true);
  all_.emplace(number, std::move(owned));
  handshake->StartOnLoop();
  gate_.UpdateOnLoop();
}

Handshake* PendingPeers::Find(std::uint64_t number) {
  const auto it = all_.find(number);
  return it == all_.end() ? nullptr : it->second.get();
}

void PendingPeers::Evict(std::uint64_t number) {
  Handshake* const handshake = Find(number);
  if (handshake == nullptr) return;
  user_->OnTurnedAway(*handshake,
                      fmt::format("closed {} before it was authenticated: {} pending peers are "
                                  "connected, the limit is FERRY_MAX_PENDING_HANDSHAKES",
                                  handshake->peer_name(), admission_.size()));
  CloseOnLoop(handshake);
}

void PendingPeers::AdmitOnLoop(const Handshake* handshake) {
  admission_.Leave(handshake->number());
  gate_.UpdateOnLoop();
}

void PendingPeers::CloseOnLoop(Handshake* handshake) {
  handshake->CloseOnLoop();
  Drop(handshake->number());
}

std::unique_ptr<net::Lane> PendingPeers::TakeOnLoop(Handshake* handshake) {
  std::unique_ptr<net::Lane> lane = handshake->ReleaseLane();
  Drop(handshake->number());
  return lane;
}

void PendingPeers::Drop(std::uint64_t number) {
  auto node = all_.extract(number);
  if (node.empty()) return;
  admission_.Leave(number);
  terms_.loop->Post([owned = std::move(node.mapped())] {});
  gate_.UpdateOnLoop();
}

void PendingPeers::ClearOnLoop() {
  for (const auto& [number, handshake] : all_) admission_.Leave(number);
  all_.clear();
  gate_.UpdateOnLoop();
}

// ---- callbacks ----------------------------------------------------------------------------------

Result<Demand> PendingPeers::OnOpening(Handshake* handshake, wire::Type type,
                                       wire::MetaReader body) {
  return user_->OnOpening(handshake, type, body);
}

// It has begun well: it keeps its place where silent ones lose theirs. The kernel is asked for its
// process only when many of one address have begun.
void PendingPeers::OnChallenged(Handshake* handshake, const Demand& demand) {
  const bool is_proved = admission_.NeedsProof(handshake->number()) && demand.process &&
                         handshake->ProvePeerOnLoop(*demand.process);
  admission_.MarkSpoken(handshake->number(), Clock::now(), is_proved);
  gate_.UpdateOnLoop();
}

Status PendingPeers::OnReceived(Handshake* handshake, wire::Type type, wire::MetaReader* body) {
  admission_.MarkSpoken(handshake->number(), Clock::now(), handshake->has_secret());
  return user_->OnReceived(handshake, type, body);
}

void PendingPeers::OnRefused(Handshake* handshake, const Error& why) {
  user_->OnTurnedAway(*handshake,
                      fmt::format("refused {}: {}", handshake->peer_name(), why.message()));
}

void PendingPeers::OnGone(Handshake* handshake, const Error& error) {
  const std::string& peer = handshake->peer_name();
  if (error.code() == Code::kCorrupt || error.code() == Code::kTimedOut) {
    const bool is_named = error.message().starts_with(peer);
    user_->OnTurnedAway(*handshake,
                        fmt::format("refused {}{}", is_named ? "" : peer + ": ", error.message()));
  } else {
    Log(LogLevel::kDebug, "session", "handshake with {} ended: {}", peer, error.message());
  }
  user_->OnGone(handshake, error);
  Drop(handshake->number());
}

}  // namespace ferry::session
