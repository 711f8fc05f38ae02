// The client side of mutual authentication on one lane.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ferry/transfer/handshake/hello_exchange.h"
#include "ferry/transfer/handshake/secret.h"

namespace ferry::transfer {

// The client side of mutual authentication on one lane: the hello frame, the challenge, and both
// proofs. Lives on one loop.
class ClientHandshake {
 public:
  // `secret`: shared with the peer; nullopt if there is none. `peer_name`: the peer's name in error
  // messages.
  ClientHandshake(std::optional<Secret> secret, std::string peer_name)
      : secret_(std::move(secret)), peer_name_(std::move(peer_name)) {}

  void SayFirstOnLoop(HelloExchange* hello_exchange, wire::Type type,
                      std::span<const std::byte> body);
  // Errors: kCorrupt for an unexpected challenge.
  Status AnswerChallengeOnLoop(HelloExchange* hello_exchange, wire::MetaReader* reader);
  // `body`: the part of the frame that the proof covers; `proof`: the rest of it. Errors: kRefused
  // if the peer does not know the secret.
  Status CheckPeer(std::span<const std::byte> body, std::span<const std::byte> proof) const;
  // Converts a kRefuse frame into an error.
  Error Refusal(wire::MetaReader* reader) const;

 private:
  std::optional<Secret> secret_;
  std::string peer_name_;
  Exchange exchange_;
  bool challenged_ = false;
};

}  // namespace ferry::transfer
