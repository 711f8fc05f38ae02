// A lane during the handshake, before it belongs to a connection.
#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "ferry/core/event_loop.h"
#include "ferry/net/address.h"
#include "ferry/net/provider.h"
#include "ferry/net/socket_owner.h"
#include "ferry/transfer/handshake/wire.h"

namespace ferry::transfer {

// A lane during the handshake: sends and receives handshake frames until a deadline. After a frame
// was received no other is read, unless HearMoreOnLoop() asks for it. Lives on one loop. Its owner
// must destroy it outside the lane's callbacks.
class HelloExchange final : private net::LaneHandler {
 public:
  // Called for each frame; a returned Error closes the lane and is passed to `gone`.
  using Heard = std::function<Status(const wire::MessageHeader&, wire::MetaReader*)>;
  using Gone = std::function<void(const Error&)>;

  HelloExchange(std::unique_ptr<net::Lane> lane, EventLoop* loop, Deadline deadline);
  ~HelloExchange();

  void StartOnLoop(Heard heard, Gone gone);
  // Call inside `heard`: it is called again for the next frame.
  void HearMoreOnLoop() noexcept { heard_ = false; }
  void SayOnLoop(wire::Type type, std::span<const std::byte> body, std::string_view text = {});
  // Closes the lane as soon as all queued frames are sent.
  void CloseWhenSaidOnLoop();
  // Closes at once; no callback follows.
  void CloseOnLoop();
  // Removes the deadline; from now on the owner is responsible for a timeout.
  void LiftDeadlineOnLoop();
  // The timeout error of this handshake.
  Error Late() const;
  // The peer is authenticated: its frames may have metadata of full size.
  void TrustOnLoop() { lane_->SetMaxMeta(net::kMaxMetaBytes); }
  // All frames were sent and the awaited frame was received: the lane may move on.
  bool complete() const noexcept { return said() && heard_; }
  // Called when complete() becomes true because a frame was sent.
  void SetOnSaid(std::function<void()> on_said) { on_said_ = std::move(on_said); }
  std::unique_ptr<net::Lane> ReleaseLane();
  const std::string& peer_name() const noexcept { return info_.remote; }
  std::string peer_host() const { return std::string(net::HostOf(info_.remote)); }
  // Address and port of this side.
  const std::string& local_name() const noexcept { return info_.local; }
  // Whether the peer's address is on this machine. That proves nothing: a proxy of this machine has
  // such an address, too, whoever is behind it.
  bool is_local() const noexcept { return info_.same_machine; }
  // Whether the peer is this process of our user on this machine (net::Lane::ProvePeer).
  bool ProvePeerOnLoop(const net::ProcessHint& process) { return lane_->ProvePeer(process); }
  // The same with the reason; errors: those of net::RequireProof().
  Status RequireProofOnLoop(const net::ProcessHint& process) {
    return net::RequireProof(lane_.get(), process, peer_name());
  }
  // Whether the lane itself has authenticated the peer (TLS).
  bool is_authenticated() const noexcept { return info_.authenticated; }
  const net::ChannelBinding& channel_binding() const noexcept { return info_.channel_binding; }
  // As it was at the start.
  const net::LaneInfo& info() const noexcept { return info_; }

 private:
  Result<net::Placement> OnFrame(std::span<const std::byte> meta,
                                 std::uint64_t payload_bytes) override;
  Status OnPayload() override { return Ok(); }
  void OnSent(net::OutFrame* frame) override;
  void OnClosed(net::LaneLoss loss, const Error& error) override;
  void Expire();
  bool said() const noexcept { return sent_ > 0 && sent_ == frames_.size(); }

  std::unique_ptr<net::Lane> lane_;
  EventLoop* const loop_;
  const Deadline deadline_;
  const net::LaneInfo info_;
  std::deque<net::OutFrame> frames_;
  std::size_t sent_ = 0;  // frames of frames_ that are sent
  Heard heard_callback_;
  Gone gone_;
  std::function<void()> on_said_;
  EventLoop::TimerId timer_ = 0;
  bool heard_ = false;
  bool close_when_said_ = false;
};

}  // namespace ferry::transfer
