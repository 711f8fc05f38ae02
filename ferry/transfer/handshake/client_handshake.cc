// Proves the shared secret to the server, and checks the server's proof.
#include "ferry/transfer/handshake/client_handshake.h"

#include <fmt/core.h>

#include <cstring>

#include "ferry/core/random.h"

namespace ferry::transfer {

void ClientHandshake::SayFirstOnLoop(HelloExchange* hello_exchange, wire::Type type,
                                     std::span<const std::byte> body) {
  exchange_.first = type;
  exchange_.said.assign(body.begin(), body.end());
  hello_exchange->SayOnLoop(type, body);
}

Status ClientHandshake::AnswerChallengeOnLoop(HelloExchange* hello_exchange,
                                              wire::MetaReader* reader) {
  wire::ChallengeBody challenge;
  if (!reader->Read(&challenge) || !secret_ || challenged_) {
    return Error(Code::kCorrupt,
                 fmt::format("{} sent an unexpected challenge; use the same release on both sides",
                             peer_name_));
  }
  challenged_ = true;
  exchange_.server = challenge.nonce;
  FillRandom(exchange_.client);
  exchange_.binding = hello_exchange->channel_binding();
  const wire::ProofBody proof{.nonce = exchange_.client,
                              .binding = exchange_.binding,
                              .mac = exchange_.ClientProof(*secret_)};
  hello_exchange->HearMoreOnLoop();
  hello_exchange->SayOnLoop(wire::Type::kProof, std::as_bytes(std::span(&proof, 1)));
  return Ok();
}

Status ClientHandshake::CheckPeer(std::span<const std::byte> body,
                                  std::span<const std::byte> proof) const {
  if (!secret_) return Ok();
  // A server that does not know the secret could just leave out the challenge.
  if (!challenged_) {
    return Error(Code::kRefused,
                 fmt::format("{} does not ask for a secret, though this endpoint has one; set "
                             "FERRY_SECRET_FILE to the same on both sides",
                             peer_name_));
  }
  Mac mac;
  if (proof.size() == mac.size()) {
    std::memcpy(mac.data(), proof.data(), mac.size());
    // The proof covers the answer's body, so nobody in between can change it.
    if (EqualInConstantTime(exchange_.ServerProof(*secret_, body), mac)) return Ok();
  }
  return Error(
      Code::kRefused,
      fmt::format("{} did not prove the secret for this connection; it is not the peer it claims "
                  "to be, or somebody is between the two sides and relays or changes the frames",
                  peer_name_));
}

Error ClientHandshake::Refusal(wire::MetaReader* reader) const {
  wire::RefuseBody body;
  if (!reader->Read(&body)) {
    return Error(Code::kCorrupt, fmt::format("{} sent a malformed refusal", peer_name_));
  }
  return Error(wire::CodeFromWire(body.code),
               fmt::format("{} refused the connection: {}", peer_name_, reader->Text()));
}

}  // namespace ferry::transfer
