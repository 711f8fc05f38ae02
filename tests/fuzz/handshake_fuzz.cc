// Fuzzes the handshake: pending peers that send anything to an endpoint, and listeners that answer
// anything, with and without a secret, from this machine and from others. No connection is made
// with a peer that has not proved that it knows the secret, Connect() ends, and nothing remains of
// the pending peers once they have gone.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "ferry/core/check.h"
#include "ferry/session/exchange.h"
#include "ferry/transfer/endpoint.h"
#include "ferry/transfer/handshake/wire.h"
#include "tests/fuzz/script.h"
#include "tests/fuzz/scripted_lane.h"

namespace ferry::fuzz {
namespace {

using namespace transfer;  // NOLINT(google-build-using-namespace): a test of all of it
using wire::Type;

constexpr std::uint16_t kLanes = 3;
constexpr std::size_t kMaxPendingPeers = 8;
constexpr int kMaxSteps = 300;
constexpr std::chrono::seconds kTimeout{5};
constexpr const char* kSecret = "what both sides know";
constexpr Type kSayings[] = {
    Type::kHello,  Type::kJoin,      Type::kProof,  Type::kWelcome, Type::kJoined,
    Type::kRefuse, Type::kChallenge, Type::kPing,   Type::kWrite,   static_cast<Type>(99),
    Type::kRejoin, Type::kRejoined,  Type::kResume, Type::kResumed,
};

Config MakeConfig(bool has_secret) {
  Config config;
  config.lanes = kLanes;
  config.workers = 1;
  config.connect_timeout = std::chrono::hours(1);
  config.handshake_timeout = std::chrono::hours(1);
  config.peer_timeout = std::chrono::hours(1);
  config.heartbeat_interval = std::chrono::minutes(59);
  if (has_secret) config.secret = kSecret;
  return config;
}

// One endpoint of each kind for the whole run: threads cost more than an input.
struct Host {
  bool has_secret;
  ScriptedProvider* provider;  // the endpoint's
  std::optional<Endpoint> endpoint;
  std::optional<Secret> secret;

  explicit Host(bool with_secret) : has_secret(with_secret) {
    const Config config = MakeConfig(with_secret);
    auto owned = std::make_unique<ScriptedProvider>();
    provider = owned.get();
    const auto check = [](auto /*identity*/, auto /*transcript*/) { return Ok(); };
    auto created = with_secret ? Endpoint::Create(config, std::move(owned), {}, check)
                               : Endpoint::Create(config, std::move(owned));
    FERRY_CHECK(created.has_value());
    endpoint = *std::move(created);
    auto known = Secret::FromConfig(config);
    FERRY_CHECK(known.has_value());
    secret = *std::move(known);
  }

  static Host& With() {
    static Host host(true);
    return host;
  }
  static Host& Without() {
    static Host host(false);
    return host;
  }
};

// The script's end of a lane, and what was said over it.
struct PendingPeer {
  std::shared_ptr<PeerEnd> end;  // with the lane
  bool local = true;
  session::Exchange exchange;  // as both sides would sign it
  bool proved = false;
};

class Session {
 public:
  explicit Session(Script* script)
      : script_(script),
        how_(script->U8()),
        host_((how_ & 1) != 0 ? Host::With() : Host::Without()) {}

  void Run() {
    (how_ & 2) != 0 ? Dial() : Listen();
    RunOnLoop(loop(), [this] { HangUpAll(); });
    Settle(loop());
    for (;;) {
      auto accepted = host_.endpoint->Accept(Deadline::At(Clock::now()));
      if (!accepted) break;
      Judge();
      accepted->Close();
    }
    for (int turns = 0; ScriptedLane::count() > 0; ++turns) {
      FERRY_CHECK(turns < 1000, ScriptedLane::count());
      Settle(loop(), 1);
    }
  }

 private:
  EventLoop& loop() const { return host_.provider->loop(); }
  bool far() const { return (how_ & 4) != 0; }

  // A connection has come about.
  void Judge() const {
    FERRY_CHECK(host_.has_secret || !far());
    FERRY_CHECK(!host_.has_secret || proved_ > 0, proved_);
  }

  void Listen() {
    for (int steps = 0; steps < kMaxSteps && !script_->empty(); ++steps) {
      RunOnLoop(loop(), [this] { Step(); });
      if (steps % 64 == 63) Settle(loop(), 1);
    }
  }

  // The script goes on in turns of the loop that Connect() drives, or its worker.
  void Dial() {
    auto running = std::make_shared<std::atomic<bool>>(true);  // with the turns
    host_.provider->on_connect = [this, running]() -> std::unique_ptr<net::Lane> {
      over_ = Deadline::After(kTimeout);
      if (std::exchange(turns_, 0) == 0) loop().Post([this, running] { Turn(running); });
      // A call is made again while it is only cut off; a refusal is final.
      const bool refuses = script_->U8() == 255 || hung_up_;
      if (refuses || pending_peers_.size() >= kMaxPendingPeers) return nullptr;
      PendingPeer& pending_peer = pending_peers_.emplace_back();
      pending_peer.end = std::make_shared<PeerEnd>();
      return std::make_unique<ScriptedLane>(pending_peer.end, !far());
    };
    EndpointAddress address;
    if ((how_ & 8) != 0) address.endpoint.bytes = expected_.bytes;
    address.at.push_back({"scripted", 1});
    if ((how_ & 16) != 0) address.at.push_back({"scripted", 2});
    MakeIdentity identify;
    if (host_.has_secret) {
      identify = [](std::span<const std::byte> transcript) {
        return std::vector<std::byte>(transcript.begin(), transcript.end());
      };
    }
    auto connected = host_.endpoint->Connect(address, Deadline::Never(), {}, identify);
    RunOnLoop(loop(), [&] { running->store(false); });
    host_.provider->on_connect = nullptr;
    if (!connected) return;
    Judge();
    connected->Close();
  }

  // Connect() ends soon after every lane has been lost, or refused.
  void Turn(const std::shared_ptr<std::atomic<bool>>& running) {
    if (!running->load()) return;
    if (++turns_ < kMaxSteps && !script_->empty()) {
      Step();
      over_ = Deadline::After(kTimeout);
    } else {
      FERRY_CHECK(!over_.expired(), pending_peers_.size());
      HangUpAll();
    }
    loop().Post([this, running] { Turn(running); });
  }

  void HangUpAll() {
    hung_up_ = true;
    for (PendingPeer& pending_peer : pending_peers_) pending_peer.end->HangUp();
  }

  // ---- OnLoop

  void Step() {
    const std::size_t what = script_->Below(10);
    if (what == 0) return ConnectLane();
    if (pending_peers_.empty()) return;
    PendingPeer& pending_peer = pending_peers_[script_->Below(pending_peers_.size())];
    switch (what) {
      case 1:
      case 2:
      case 3:
      case 4: return Say(&pending_peer);
      case 5:
      case 6:
      case 7: (void)Hear(&pending_peer); return;
      case 8: return pending_peer.end->Deliver(script_->U16());
      default:
        if (script_->Below(4) == 0) pending_peer.end->HangUp();
    }
  }

  void ConnectLane() {
    if ((how_ & 2) != 0 || pending_peers_.size() >= kMaxPendingPeers) return;
    PendingPeer& pending_peer = pending_peers_.emplace_back();
    pending_peer.end = host_.provider->ConnectLane(!far());
  }

  bool Hear(PendingPeer* pending_peer) {
    WireFrame frame;
    if (!pending_peer->end->Read(&frame)) return false;
    Learn(pending_peer, frame);
    return true;
  }

  void Learn(PendingPeer* pending_peer, const WireFrame& frame) {
    wire::MetaReader reader(frame.meta);
    wire::MessageHeader header;
    FERRY_CHECK(reader.Read(&header));
    session::Exchange& exchange = pending_peer->exchange;
    wire::ProofBody proof;
    switch (header.type) {
      case Type::kWelcome: FERRY_CHECK(reader.Read(&welcome_)); return;
      case Type::kChallenge: FERRY_CHECK(reader.Read(&exchange.server)); return;
      case Type::kProof:
        FERRY_CHECK(reader.Read(&proof));
        exchange.client = proof.nonce;
        exchange.binding = proof.binding;
        exchange.identity.assign(reader.rest().begin(), reader.rest().end());
        return;
      case Type::kHello:
      case Type::kRejoin:
      case Type::kJoin:
        exchange.first = static_cast<session::wire::Type>(header.type);
        exchange.opening.assign(reader.rest().begin(), reader.rest().end());
        return;
      default: return;
    }
  }

  template <class T>
  static void Note(PendingPeer* pending_peer, Type type, const T& body,
                   std::vector<std::byte>* meta) {
    pending_peer->exchange.first = static_cast<session::wire::Type>(type);
    const auto bytes = std::as_bytes(std::span(&body, 1));
    pending_peer->exchange.opening.assign(bytes.begin(), bytes.end());
    wire::Append(meta, body);
  }

  void AppendHello(PendingPeer* pending_peer, std::uint8_t odd, std::vector<std::byte>* meta) {
    wire::HelloBody hello;
    hello.lanes = static_cast<std::uint16_t>(script_->Below(5));
    hello.flags = host_.has_secret ? wire::kHasSecret : 0;
    hello.window_bytes = 1 << 16;
    if (odd == 1) hello.version = script_->U16();
    if (odd == 2) hello.flags = script_->U32();
    if (odd == 4) hello.expected[0] = script_->U8();
    if (odd == 3) hello.window_bytes = script_->U64();
    Note(pending_peer, Type::kHello, hello, meta);
  }

  void AppendJoin(PendingPeer* pending_peer, std::uint8_t odd, std::vector<std::byte>* meta) {
    wire::JoinBody join;
    join.lane = static_cast<std::uint16_t>(script_->Below(5));
    join.connection = welcome_.connection;
    std::memcpy(join.token, welcome_.token, sizeof join.token);
    if (odd == 1) join.version = script_->U16();
    if (odd == 2) join.connection += script_->U8();
    if (odd == 3) join.token[script_->Below(16)] ^= script_->U8();
    Note(pending_peer, Type::kJoin, join, meta);
  }

  void AppendRejoin(PendingPeer* pending_peer, std::uint8_t odd, std::vector<std::byte>* meta) {
    wire::RejoinBody rejoin;
    rejoin.lane = static_cast<std::uint16_t>(script_->Below(5));
    rejoin.connection = welcome_.connection;
    rejoin.attempt = script_->U8();
    std::memcpy(rejoin.token, welcome_.token, sizeof rejoin.token);
    if (odd == 1) rejoin.version = script_->U16();
    if (odd == 2) rejoin.connection += script_->U8();
    if (odd == 3) rejoin.token[script_->Below(16)] ^= script_->U8();
    Note(pending_peer, Type::kRejoin, rejoin, meta);
  }

  void AppendResume(std::vector<std::byte>* meta) {
    wire::ResumeBody resume;
    resume.finished = script_->U8();
    resume.refusals = static_cast<std::uint32_t>(script_->Below(4));
    wire::Append(meta, resume);
    for (std::uint32_t i = 0; i < resume.refusals; ++i) {
      wire::Append(meta, wire::RefusalOnWire{script_->U8(), script_->U8()});
    }
  }

  void AppendProof(PendingPeer* pending_peer, std::uint8_t odd, std::vector<std::byte>* meta) {
    wire::ProofBody proof;
    proof.nonce[0] = static_cast<std::byte>(script_->U8());
    pending_peer->exchange.client = proof.nonce;
    pending_peer->exchange.binding = proof.binding;
    auto& identity = pending_peer->exchange.identity;
    identity.assign(odd == 2 ? 100 : 0, std::byte{'x'});
    if (host_.has_secret && odd != 1) {
      proof.mac = pending_peer->exchange.ClientProof(*host_.secret);
      ++proved_;
    }
    wire::Append(meta, proof);
    meta->insert(meta->end(), identity.begin(), identity.end());
  }

  // A listener's answer that admits us, and its proof.
  void AppendAnswer(const PendingPeer& pending_peer, std::span<const std::byte> body,
                    std::uint8_t odd, std::vector<std::byte>* meta) {
    meta->insert(meta->end(), body.begin(), body.end());
    if (!host_.has_secret || odd == 1) return;
    session::Exchange exchange = pending_peer.exchange;
    exchange.answer.assign(body.begin(), body.end());
    wire::Append(meta, exchange.ServerProof(*host_.secret));
    ++proved_;
  }

  void AppendWelcome(const PendingPeer& pending_peer, std::uint8_t odd,
                     std::vector<std::byte>* meta) {
    wire::WelcomeBody welcome;
    welcome.lanes = static_cast<std::uint16_t>(script_->Below(5));
    welcome.window_bytes = 1 << 16;
    std::memcpy(welcome.endpoint, expected_.bytes.data(), sizeof welcome.endpoint);
    if (odd == 2) welcome.version = script_->U16();
    if (odd == 3) welcome.window_bytes = script_->U64();
    if (odd == 4) welcome.endpoint[0] ^= script_->U8();
    AppendAnswer(pending_peer, std::as_bytes(std::span(&welcome, 1)), odd, meta);
  }

  void AppendBody(PendingPeer* pending_peer, Type type, std::uint8_t odd,
                  std::vector<std::byte>* meta) {
    switch (type) {
      case Type::kHello: return AppendHello(pending_peer, odd, meta);
      case Type::kJoin: return AppendJoin(pending_peer, odd, meta);
      case Type::kProof: return AppendProof(pending_peer, odd, meta);
      case Type::kWelcome: return AppendWelcome(*pending_peer, odd, meta);
      case Type::kRejoin: return AppendRejoin(pending_peer, odd, meta);
      case Type::kResume:
      case Type::kResumed: return AppendResume(meta);
      case Type::kJoined:
      case Type::kRejoined: return AppendAnswer(*pending_peer, {}, odd, meta);
      case Type::kChallenge: {
        wire::ChallengeBody challenge;
        challenge.nonce[0] = static_cast<std::byte>(script_->U8());
        pending_peer->exchange.server = challenge.nonce;
        return wire::Append(meta, challenge);
      }
      case Type::kRefuse: {
        wire::RefuseBody refuse;
        refuse.code = script_->U8();
        return wire::Append(meta, refuse);
      }
      default: return;
    }
  }

  void Say(PendingPeer* pending_peer) {
    const Type type = kSayings[script_->Below(std::size(kSayings))];
    const std::uint8_t how = script_->U8();
    wire::MessageHeader header;
    header.type = type;
    std::vector<std::byte> meta;
    wire::Append(&meta, header);
    const auto before = proved_;
    AppendBody(pending_peer, type, how & 7, &meta);
    std::uint64_t payload = 0;
    if ((how & 8) != 0 && Tamper(&meta) && type != Type::kHello && type != Type::kJoin) {
      proved_ = before;
    }
    if ((how & 16) != 0) payload = script_->U32();
    pending_peer->end->Say(std::move(meta), payload);
    pending_peer->end->Deliver((how & 32) != 0 ? script_->U16() : 0);
  }

  // Whether what a proof is of, which the header is not, has changed.
  bool Tamper(std::vector<std::byte>* meta) {
    const std::vector<std::byte> untampered = *meta;
    Change(meta);
    return meta->size() != untampered.size() ||
           !std::equal(meta->begin() + sizeof(wire::MessageHeader), meta->end(),
                       untampered.begin() + sizeof(wire::MessageHeader));
  }

  void Change(std::vector<std::byte>* meta) {
    const std::size_t at = script_->U8() % meta->size();
    switch (script_->Below(3)) {
      case 0: meta->resize(std::max<std::size_t>(at, 1)); return;
      case 1: (*meta)[at] ^= static_cast<std::byte>(script_->U8() | 1); return;
      default: {
        const auto more = script_->Bytes(script_->U8());
        meta->insert(meta->end(), more.begin(), more.end());
      }
    }
  }

  Script* const script_;
  const std::uint8_t how_;
  Host& host_;
  const Uuid expected_ = Uuid::Random();
  std::vector<PendingPeer> pending_peers_ = Reserved();
  bool hung_up_ = false;
  wire::WelcomeBody welcome_;
  int turns_ = 0;  // since the last Connect() of a lane
  Deadline over_ = Deadline::Never();
  int proved_ = 0;  // right proofs of a secret that were said, untampered

  static std::vector<PendingPeer> Reserved() {
    std::vector<PendingPeer> pending_peers;
    pending_peers.reserve(kMaxPendingPeers);  // a step may add to it while it uses one
    return pending_peers;
  }
};

}  // namespace
}  // namespace ferry::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ferry::fuzz::Script script(data, size);
  ferry::fuzz::Session(&script).Run();
  return 0;
}
