// A lane during its handshake, on either side.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ferry/core/loop/event_loop.h"
#include "ferry/net/address.h"
#include "ferry/net/machine/socket_owner.h"
#include "ferry/net/provider.h"
#include "ferry/session/exchange.h"
#include "ferry/session/state.h"
#include "ferry/session/wire.h"

namespace ferry::session {

class Handshake;

// What the accepting side asks for after a valid first frame.
struct Demand {
  std::optional<Secret> secret;             // the peer must prove it; nullopt: no proof
  std::optional<net::ProcessHint> process;  // the process that the peer claims to be
  bool takes_identity = false;              // the peer may add one to its proof
  // The error that a peer with a wrong proof receives.
  const char* wrong_proof =
      "the two sides have different secrets, or somebody between them changes the frames; set "
      "FERRY_SECRET_FILE to the same on both";
};

// Decides what a handshake is for. All callbacks run on the lane's loop. An error of the accepting
// side's callbacks is told to the peer, unless it is kCorrupt, which only closes the lane.
class HandshakeUser {
 public:
  virtual ~HandshakeUser() = default;

  // Accepting side: the peer's first frame, which nothing proves yet. Errors: why it is refused.
  virtual Result<Demand> OnOpening(Handshake* /*handshake*/, wire::Type /*type*/,
                                   wire::MetaReader /*body*/) {
    return Demand{};
  }
  // Accepting side: the challenge is about to be sent. Dialing side: a challenge has arrived, and
  // the demand is empty.
  virtual void OnChallenged(Handshake* /*handshake*/, const Demand& /*demand*/) {}
  // A frame of the peer; its body is without its proof. Accepting side: the first frame, once its
  // proof is right; the user answers by AcceptOnLoop(), then or later. Dialing side: the answer,
  // once its proof is right. Both sides: a frame that follows the answer.
  virtual Status OnReceived(Handshake* handshake, wire::Type type, wire::MetaReader* body) = 0;
  // Both sides are done, and all frames have left: ReleaseLane() may follow, outside the callback.
  virtual void OnComplete(Handshake* handshake) = 0;
  // The peer is refused; it has been sent the reason.
  virtual void OnRefused(Handshake* /*handshake*/, const Error& /*why*/) {}
  // The lane has ended. The last callback.
  virtual void OnGone(Handshake* handshake, const Error& error) = 0;
};

// A lane during its handshake: hello, challenge, both proofs, acceptance, and the frames by which a
// lane replaces another, until a deadline. state.h has the states. Reads one frame at a time, and
// none that is not due. Lives on one loop. Its owner must destroy it outside the lane's callbacks.
class Handshake final : private net::LaneHandler {
 public:
  enum class Side : std::uint8_t { kDials, kAccepts };
  struct Terms {
    Side side = Side::kAccepts;
    wire::Role role{};
    EventLoop* loop = nullptr;
    Deadline deadline = Deadline::Never();
    std::string peer_name = {};                   // for errors; empty: the lane's remote address
    std::optional<Secret> secret = std::nullopt;  // of the dialing side, if it has one
    // Dialing side: what its proof carries, given Exchange::Transcript(); null: nothing.
    std::function<std::vector<std::byte>(const Mac& transcript)> identify = nullptr;
    std::uint64_t number = 0;  // for its owner
  };

  // `user`: called until the lane has ended or was released.
  Handshake(std::unique_ptr<net::Lane> lane, Terms terms, std::shared_ptr<HandshakeUser> user);
  ~Handshake();

  // Attaches the lane.
  void StartOnLoop();
  // Dialing side: sends the first frame.
  void OpenOnLoop(wire::Type type, std::span<const std::byte> body);
  // Accepting side: the answer, with a proof where the peer has proved itself. `more`: the peer
  // owes another frame.
  void AcceptOnLoop(wire::Type type, std::span<const std::byte> body, bool more = false);
  // Accepting side: sends the reason and closes the lane when that has left.
  void RefuseOnLoop(const Error& error);
  // Dialing side, in OnReceived(): another frame of this side will follow the answer.
  void SettleOnLoop();
  // In kSettling: sends this side's part. `more`: the peer owes its own. A kConfirm has a proof.
  void SendPartOnLoop(wire::Type type, std::span<const std::byte> body, bool more = false);
  // Closes at once; no callback follows.
  void CloseOnLoop();
  // Removes the deadline; from now on the owner is responsible for a timeout.
  void LiftDeadlineOnLoop();

  State state() const noexcept { return state_; }
  // Whether ReleaseLane() may be called.
  bool complete() const noexcept;
  std::unique_ptr<net::Lane> ReleaseLane();
  // The error for a handshake that missed its deadline.
  Error Late() const;
  // The body of the dialing side's first frame.
  std::span<const std::byte> opening() const noexcept { return exchange_.opening; }
  // Accepting side: what the peer says of itself, and what that has to be signed over. Where the
  // peer has proved a secret.
  std::span<const std::byte> identity() const noexcept { return exchange_.identity; }
  Mac Transcript() const { return exchange_.Transcript(*secret_); }
  // Whether a secret is proved on this lane, or is being proved.
  bool has_secret() const noexcept { return secret_.has_value(); }
  // Whether the peer has refused this side.
  bool was_refused() const noexcept { return was_refused_; }
  std::uint64_t number() const noexcept { return terms_.number; }
  const std::string& peer_name() const noexcept { return terms_.peer_name; }
  std::string peer_host() const { return std::string(net::HostOf(info_.remote)); }
  // As it was at the start.
  const net::LaneInfo& info() const noexcept { return info_; }
  // Whether the peer's address is on this machine. That proves nothing: a proxy of this machine has
  // such an address, too, whoever is behind it.
  bool is_local() const noexcept { return info_.same_machine; }
  // Whether the peer is this process of our user on this machine (net::Lane::ProvePeer).
  bool ProvePeerOnLoop(const net::ProcessHint& process) { return lane_->ProvePeer(process); }
  // The same with the reason; errors: those of net::RequireProof().
  Status RequireProofOnLoop(const net::ProcessHint& process) {
    return net::RequireProof(lane_.get(), process, peer_name());
  }

 private:
  Result<net::Placement> OnFrame(std::span<const std::byte> meta,
                                 std::uint64_t payload_bytes) override;
  Status OnPayload() override { return Ok(); }
  void OnSent(net::OutFrame* frame) override;
  void OnClosed(net::LaneLoss loss, const Error& error) override;

  bool Expects() const noexcept;
  // False where the event must not occur.
  bool Move(Event event);
  Status Receive(wire::Type type, wire::MetaReader* body);
  Status ReceiveOpening(wire::Type type, wire::MetaReader* body);
  Status ReceiveChallenge(wire::MetaReader* body);
  Status ReceiveProof(wire::MetaReader* body);
  Status ReceiveAnswer(wire::Type type, wire::MetaReader* body);
  Error ReceiveRefusal(wire::MetaReader* body);
  Status ReceiveMore(wire::Type type, wire::MetaReader* body);
  // Takes the proof from the end of the body, where one is due. nullopt: it is wrong.
  std::optional<wire::MetaReader> Unsigned(wire::MetaReader body, bool of_answer);
  void Send(wire::Type type, std::span<const std::byte> body, std::string_view text = {},
            const std::optional<Mac>& mac = std::nullopt);
  Error Unexpected(wire::Type type) const;
  void End(const Error& error);
  bool all_sent() const noexcept { return sent_ > 0 && sent_ == frames_.size(); }

  Terms terms_;
  std::unique_ptr<net::Lane> lane_;
  const net::LaneInfo info_;
  // Shared with the user's own tasks, which may outlive the user's owner.
  const std::shared_ptr<HandshakeUser> user_;
  State state_;
  Exchange exchange_;
  std::optional<Secret> secret_;  // proved by both sides; set once challenged
  const char* wrong_proof_ = "";
  bool takes_identity_ = false;
  std::deque<net::OutFrame> frames_;
  std::size_t sent_ = 0;  // frames of frames_ that are sent
  EventLoop::TimerId timer_ = 0;
  bool owes_more_ = false;  // the peer, after the answer
  bool paused_ = false;
  bool was_refused_ = false;
};

}  // namespace ferry::session
