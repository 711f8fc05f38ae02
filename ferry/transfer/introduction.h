#pragma once
#include <span>
#include <string>
#include <vector>

#include "ferry/transfer/greeting.h"
#include "ferry/transfer/secret.h"

namespace ferry::transfer {

// The connecting side of knowing each other over one lane: what it said first, the challenge, and
// both proofs. One loop.
class Introduction {
 public:
  // `secret`: of this endpoint, which outlives this; the peer is called `peer_name` in errors.
  Introduction(const std::optional<Secret>& secret, std::string peer_name)
      : secret_(&secret), peer_name_(std::move(peer_name)) {}

  void SayFirstOnLoop(Greeting* greeting, wire::Type type, std::span<const std::byte> body);
  // Errors: kCorrupt for a challenge out of turn.
  Status AnswerChallengeOnLoop(Greeting* greeting, wire::MetaReader* reader);
  // `body` is what the peer proves itself with, and the proof is the rest of the frame. Errors:
  // kRefused for a peer that does not know the secret.
  Status CheckPeer(std::span<const std::byte> body, std::span<const std::byte> proof) const;
  // What a kRefuse says.
  Error Refusal(wire::MetaReader* reader) const;

 private:
  const std::optional<Secret>* secret_;
  std::string peer_name_;
  Exchange exchange_;
  bool challenged_ = false;
};

}  // namespace ferry::transfer
