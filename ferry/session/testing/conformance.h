// The conformance suite for accepting sides of sessions.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "ferry/net/address.h"
#include "ferry/net/testing/raw_peer.h"
#include "ferry/session/exchange.h"
#include "ferry/session/wire.h"

// Every user of sessions passes this suite, with lanes over TCP: pending peers that send anything,
// in any order, get nothing, and honest peers get in afterwards.
namespace ferry::session::testing {

// An accepting side with a secret, and FERRY_HANDSHAKE_TIMEOUT of at most 2 s.
class SessionHost {
 public:
  virtual ~SessionHost() = default;
  virtual wire::Role role() const = 0;
  virtual net::Address address() const = 0;
  virtual Secret secret() const = 0;
  // The body of a hello frame that is challenged, and accepted once its proof is right.
  virtual std::vector<std::byte> Hello() const = 0;
  // What such a proof has to carry.
  virtual std::vector<std::byte> Identify(const Mac& /*transcript*/) const { return {}; }
  // What a peer is told whose proof is wrong.
  virtual std::string wrong_proof() const { return "different secrets"; }
};

struct SessionTarget {
  std::string name;
  std::function<std::unique_ptr<SessionHost>()> make;
};

inline std::ostream& operator<<(std::ostream& out, const SessionTarget& target) {
  return out << target.name;
}

struct SessionFrame {
  wire::Header header;
  std::vector<std::byte> body;
};

// One end of a lane, byte by byte; as a rule the dialing one.
class RawSession {
 public:
  RawSession(net::RawPeer peer, wire::Role role) : peer_(std::move(peer)), role_(role) {
    exchange_.role = role;
  }
  RawSession(const net::Address& address, wire::Role role)
      : RawSession(net::RawPeer::ConnectTo(address), role) {}
  // The host must outlive this object.
  explicit RawSession(const SessionHost& host) : RawSession(host.address(), host.role()) {
    host_ = &host;
  }

  // The bytes of a frame as this role sends it.
  std::vector<std::byte> Encode(wire::Type type, std::span<const std::byte> body) const;
  bool Say(wire::Type type, std::span<const std::byte> body);
  // Also remembers what the proofs cover.
  bool SayHello(std::vector<std::byte> body);
  // The proof of this secret for what was said so far, and for the identity that the host asks
  // for.
  wire::ProofBody Prove(const Secret& secret);
  // The same for the identity that exchange() has.
  wire::ProofBody ProveIdentity(const Secret& secret) const;
  // The frame's body: this proof and the identity of exchange().
  std::vector<std::byte> Identified(const wire::ProofBody& proof) const;
  bool SayProof(const wire::ProofBody& proof) { return Say(wire::Type::kProof, Identified(proof)); }
  // The next frame; nothing where the lane has ended. Remembers a challenge.
  std::optional<SessionFrame> Hear();
  // Hears a frame of this type, and fails the test otherwise.
  SessionFrame Expect(wire::Type type);
  Exchange& exchange() noexcept { return exchange_; }
  net::RawPeer& peer() noexcept { return peer_; }

 private:
  net::RawPeer peer_;
  wire::Role role_;
  const SessionHost* host_ = nullptr;
  Exchange exchange_;
};

class SessionConformance : public ::testing::TestWithParam<SessionTarget> {
 protected:
  SessionConformance() : host_(GetParam().make()) {}
  // Whoever came before, an honest peer gets in.
  ~SessionConformance() override;
  // Says hello and is challenged.
  RawSession Challenged() const;
  void ExpectRefused(RawSession* session, const std::string& words);
  void ExpectNoAnswer(RawSession* session);

  const std::unique_ptr<SessionHost> host_;
};

}  // namespace ferry::session::testing
