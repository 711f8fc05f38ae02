// What accepting sides of sessions do with pending peers.
#include "ferry/session/testing/conformance.h"

#include <gmock/gmock.h>

#include <cstring>
#include <utility>

#include "ferry/core/deadline.h"
#include "ferry/core/random.h"
#include "ferry/net/tcp/frame_prefix.h"

namespace ferry::session::testing {
namespace {

using ::testing::HasSubstr;
using wire::Type;

constexpr Type kTypes[] = {Type::kHello,         Type::kWelcome, Type::kJoin,    Type::kJoined,
                           Type::kRefuse,        Type::kProof,   Type::kRejoin,  Type::kRejoined,
                           Type::kChallenge,     Type::kResume,  Type::kResumed, Type::kConfirm,
                           static_cast<Type>(34)};

}  // namespace

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(SessionConformance);

std::vector<std::byte> RawSession::Encode(Type type, std::span<const std::byte> body) const {
  std::vector<std::byte> meta;
  wire::Append(&meta, wire::Header{.type = type, .role = role_});
  meta.insert(meta.end(), body.begin(), body.end());
  net::tcp::FramePrefix prefix;
  prefix.meta_bytes = static_cast<std::uint32_t>(meta.size());
  std::vector<std::byte> bytes;
  wire::Append(&bytes, prefix);
  bytes.insert(bytes.end(), meta.begin(), meta.end());
  return bytes;
}

bool RawSession::Say(Type type, std::span<const std::byte> body) {
  return peer_.Write(Encode(type, body));
}

bool RawSession::SayHello(std::vector<std::byte> body) {
  exchange_.first = Type::kHello;
  exchange_.opening = std::move(body);
  return Say(Type::kHello, exchange_.opening);
}

wire::ProofBody RawSession::Prove(const Secret& secret) {
  FillRandom(exchange_.client);
  if (host_ != nullptr) exchange_.identity = host_->Identify(exchange_.Transcript(secret));
  return ProveIdentity(secret);
}

wire::ProofBody RawSession::ProveIdentity(const Secret& secret) const {
  return {.nonce = exchange_.client,
          .binding = exchange_.binding,
          .mac = exchange_.ClientProof(secret)};
}

std::vector<std::byte> RawSession::Identified(const wire::ProofBody& proof) const {
  std::vector<std::byte> body;
  wire::Append(&body, proof);
  body.insert(body.end(), exchange_.identity.begin(), exchange_.identity.end());
  return body;
}

std::optional<SessionFrame> RawSession::Hear() {
  net::tcp::FramePrefix prefix;
  const auto head = peer_.Read(sizeof prefix);
  if (head.size() != sizeof prefix) return std::nullopt;
  std::memcpy(&prefix, head.data(), sizeof prefix);
  SessionFrame frame;
  frame.body = peer_.Read(prefix.meta_bytes);
  if (frame.body.size() < sizeof frame.header) return std::nullopt;
  std::memcpy(&frame.header, frame.body.data(), sizeof frame.header);
  frame.body.erase(frame.body.begin(), frame.body.begin() + sizeof frame.header);
  if (frame.header.type == Type::kChallenge && frame.body.size() == exchange_.server.size()) {
    std::memcpy(exchange_.server.data(), frame.body.data(), exchange_.server.size());
  }
  return frame;
}

SessionFrame RawSession::Expect(Type type) {
  auto frame = Hear();
  EXPECT_TRUE(frame) << "the lane has ended instead of a " << wire::TypeName(type) << " frame";
  if (!frame) return {};
  EXPECT_EQ(frame->header.type, type) << wire::TypeName(frame->header.type);
  return *std::move(frame);
}

SessionConformance::~SessionConformance() {
  RawSession honest = Challenged();
  EXPECT_TRUE(honest.SayProof(honest.Prove(host_->secret())));
  (void)honest.Expect(Type::kWelcome);
}

RawSession SessionConformance::Challenged() const {
  RawSession session(*host_);
  EXPECT_TRUE(session.SayHello(host_->Hello()));
  (void)session.Expect(Type::kChallenge);
  return session;
}

void SessionConformance::ExpectRefused(RawSession* session, const std::string& words) {
  const SessionFrame refusal = session->Expect(Type::kRefuse);
  wire::MetaReader reader(refusal.body);
  wire::RefuseBody body;
  ASSERT_TRUE(reader.Read(&body));
  EXPECT_THAT(reader.Text(), HasSubstr(words));
  EXPECT_FALSE(session->Hear());
}

void SessionConformance::ExpectNoAnswer(RawSession* session) { EXPECT_FALSE(session->Hear()); }

TEST_P(SessionConformance, APendingPeerGetsAChallengeThatIsNewEachTime) {
  std::vector<std::vector<std::byte>> nonces;
  for (int i = 0; i < 3; ++i) {
    RawSession session(*host_);
    ASSERT_TRUE(session.SayHello(host_->Hello()));
    nonces.push_back(session.Expect(Type::kChallenge).body);
    EXPECT_EQ(nonces.back().size(), sizeof(wire::ChallengeBody));
  }
  EXPECT_NE(nonces[0], nonces[1]);
  EXPECT_NE(nonces[1], nonces[2]);
}

TEST_P(SessionConformance, TheRightProofIsAnsweredByAWelcomeWithAProof) {
  RawSession session = Challenged();
  ASSERT_TRUE(session.SayProof(session.Prove(host_->secret())));
  const SessionFrame welcome = session.Expect(Type::kWelcome);
  EXPECT_EQ(welcome.header.role, host_->role());
  Mac mac;
  ASSERT_GE(welcome.body.size(), mac.size());
  const auto rest = std::span(welcome.body).first(welcome.body.size() - mac.size());
  std::memcpy(mac.data(), welcome.body.data() + rest.size(), mac.size());
  session.exchange().answer.assign(rest.begin(), rest.end());
  EXPECT_EQ(mac, session.exchange().ServerProof(host_->secret()));
}

TEST_P(SessionConformance, AWrongProofIsRefused) {
  const Secret other(SecretText("another secret of sixteen"));
  for (const bool has_mac : {false, true}) {
    RawSession session = Challenged();
    const auto proof = has_mac ? session.Prove(other) : wire::ProofBody{};
    ASSERT_TRUE(session.SayProof(proof));
    ExpectRefused(&session, host_->wrong_proof());
  }
}

TEST_P(SessionConformance, AProofForAnotherTlsConnectionIsRefused) {
  RawSession session = Challenged();
  session.exchange().binding.fill(std::byte{1});
  ASSERT_TRUE(session.SayProof(session.Prove(host_->secret())));
  ExpectRefused(&session, "somebody is between the two sides");
}

TEST_P(SessionConformance, AProofForAnotherRoleIsRefused) {
  for (const wire::Role role : {wire::Role::kEndpoint, wire::Role::kNccl, wire::Role::kPlugin}) {
    if (role == host_->role()) continue;
    RawSession session = Challenged();
    session.exchange().role = role;
    ASSERT_TRUE(session.SayProof(session.Prove(host_->secret())));
    ExpectRefused(&session, host_->wrong_proof());
  }
}

TEST_P(SessionConformance, AnIdentityThatTheProofDoesNotCoverIsRefused) {
  RawSession session = Challenged();
  const wire::ProofBody proof = session.Prove(host_->secret());
  auto& identity = session.exchange().identity;
  const bool takes_one = !identity.empty();
  identity.resize(takes_one ? identity.size() - 1 : 1);
  ASSERT_TRUE(session.SayProof(proof));
  ExpectRefused(&session, takes_one ? host_->wrong_proof() : "the identity has 1 bytes");
}

TEST_P(SessionConformance, AnIdentityIsRefusedThatIsOverTheLimitOrNotExpected) {
  for (const std::size_t bytes : {std::size_t{1}, wire::kMaxIdentityBytes + 1}) {
    RawSession session = Challenged();
    (void)session.Prove(host_->secret());
    session.exchange().identity.assign(bytes, std::byte{'x'});
    ASSERT_TRUE(session.SayProof(session.ProveIdentity(host_->secret())));
    ExpectRefused(&session, "identity");
  }
}

TEST_P(SessionConformance, AProofOfAnotherLaneIsRefused) {
  const auto hello = host_->Hello();
  wire::ProofBody proof;
  {
    RawSession honest(*host_);
    ASSERT_TRUE(honest.SayHello(hello));
    (void)honest.Expect(Type::kChallenge);
    proof = honest.Prove(host_->secret());
    ASSERT_TRUE(honest.SayProof(proof));
    (void)honest.Expect(Type::kWelcome);
  }
  RawSession replay(*host_);
  ASSERT_TRUE(replay.SayHello(hello));
  (void)replay.Expect(Type::kChallenge);
  ASSERT_TRUE(replay.SayProof(proof));
  ExpectRefused(&replay, host_->wrong_proof());
}

TEST_P(SessionConformance, AProofThatDoesNotWaitForTheChallengeIsRefused) {
  RawSession session(*host_);
  session.exchange().first = Type::kHello;
  session.exchange().opening = host_->Hello();
  auto bytes = session.Encode(Type::kHello, session.exchange().opening);
  const auto proof =
      session.Encode(Type::kProof, session.Identified(session.Prove(host_->secret())));
  bytes.insert(bytes.end(), proof.begin(), proof.end());
  ASSERT_TRUE(session.peer().Write(bytes));
  (void)session.Expect(Type::kChallenge);
  ExpectRefused(&session, host_->wrong_proof());
}

TEST_P(SessionConformance, AnAlteredHelloIsRefusedByItsProof) {
  RawSession session = Challenged();
  session.exchange().opening.back() ^= std::byte{1};
  ASSERT_TRUE(session.SayProof(session.Prove(host_->secret())));
  ExpectRefused(&session, host_->wrong_proof());
}

TEST_P(SessionConformance, OtherFramesThanThoseThatAreDueCloseTheLane) {
  const std::vector<std::byte> body(100);
  for (const Type type : kTypes) {
    SCOPED_TRACE(static_cast<int>(type));
    if (type != Type::kHello && type != Type::kJoin && type != Type::kRejoin) {
      RawSession first(*host_);
      ASSERT_TRUE(first.Say(type, body));
      ExpectNoAnswer(&first);
    }
    if (type == Type::kProof) continue;
    RawSession second = Challenged();
    ASSERT_TRUE(second.Say(type, body));
    ExpectNoAnswer(&second);
  }
}

TEST_P(SessionConformance, AnotherRoleIsRefusedByASentenceThatNamesBoth) {
  for (const wire::Role role :
       {wire::Role::kEndpoint, wire::Role::kNccl, wire::Role::kPlugin, wire::Role{77}}) {
    if (role == host_->role()) continue;
    RawSession session(host_->address(), role);
    ASSERT_TRUE(session.SayHello(host_->Hello()));
    ExpectRefused(&session, std::string("this side is ") + wire::RoleName(host_->role()) +
                                ", and the other one is " + wire::RoleName(role));
  }
}

TEST_P(SessionConformance, AHelloAndAProofMayBeCutAtEveryByte) {
  const auto bytes = RawSession(*host_).Encode(Type::kHello, host_->Hello());
  for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
    RawSession session(*host_);
    ASSERT_TRUE(session.peer().Write(std::span(bytes).first(cut)));
    session.peer().EndWriting();
    ExpectNoAnswer(&session);
  }
  for (std::size_t cut = 0; cut < sizeof(wire::Header) + sizeof(wire::ProofBody); cut += 3) {
    RawSession session = Challenged();
    const auto proof =
        session.Encode(Type::kProof, session.Identified(session.Prove(host_->secret())));
    ASSERT_TRUE(session.peer().Write(std::span(proof).first(cut)));
    session.peer().EndWriting();
    ExpectNoAnswer(&session);
  }
}

TEST_P(SessionConformance, OtherProtocolsAreClosedWithoutAnAnswer) {
  std::vector<std::byte> noise(1000);
  FillRandom(noise);
  noise[0] = std::byte{0};
  const std::string_view request = "GET / HTTP/1.0\r\n\r\n";
  const auto http = std::as_bytes(std::span(request));
  for (const std::span<const std::byte> bytes : {http, std::span<const std::byte>(noise)}) {
    RawSession session(*host_);
    (void)session.peer().Write(bytes);
    ExpectNoAnswer(&session);
  }
}

TEST_P(SessionConformance, PeersThatFallSilentAreClosedInTime) {
  const auto begun = Clock::now();
  RawSession silent(*host_);
  RawSession challenged = Challenged();
  ExpectNoAnswer(&silent);
  ExpectNoAnswer(&challenged);
  EXPECT_LT(Clock::now() - begun, std::chrono::seconds(30));
}

}  // namespace ferry::session::testing
