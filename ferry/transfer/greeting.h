#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "ferry/core/event_loop.h"
#include "ferry/net/address.h"
#include "ferry/net/provider.h"
#include "ferry/transfer/wire.h"

namespace ferry::transfer {

// A lane until it belongs to a connection: frames are said and heard, by a deadline. After a frame
// was heard no other is, unless HearMoreOnLoop() asks for it. Belongs to one loop. Whoever owns it
// destroys it outside the lane's callbacks.
class Greeting final : private net::LaneHandler {
 public:
  // Gets a frame; an Error closes the lane and goes on to `gone`.
  using Heard = std::function<Status(const wire::MessageHeader&, wire::MetaReader*)>;
  using Gone = std::function<void(const Error&)>;

  Greeting(std::unique_ptr<net::Lane> lane, EventLoop* loop, Deadline deadline);
  ~Greeting();

  void StartOnLoop(Heard heard, Gone gone);
  // From inside `heard`: calls it again with the next frame.
  void HearMoreOnLoop() noexcept { heard_ = false; }
  void SayOnLoop(wire::Type type, std::span<const std::byte> body, std::string_view text = {});
  // After this the lane closes as soon as what was said has left.
  void CloseWhenSaidOnLoop();
  // At once; no callback follows.
  void CloseOnLoop();
  // It no longer ends by itself for being late; its owner sees to that.
  void LiftDeadlineOnLoop();
  // The error of one that is late.
  Error Late() const;
  // The peer is known: its lane may hold as much as any.
  void TrustOnLoop() { lane_->SetMaxMeta(net::kMaxMetaBytes); }
  // All was said and heard: the lane may move on.
  bool complete() const noexcept { return said() && heard_; }
  // Runs when complete() becomes true by what was said leaving.
  void SetOnSaid(std::function<void()> on_said) { on_said_ = std::move(on_said); }
  std::unique_ptr<net::Lane> ReleaseLane();
  const std::string& peer_name() const noexcept { return peer_name_; }
  std::string peer_host() const { return std::string(net::HostOf(peer_name_)); }
  // The address and port of this side.
  const std::string& local_name() const noexcept { return local_name_; }
  // On this machine, as its address says.
  bool is_local() const noexcept { return is_local_; }
  const std::string& interface() const noexcept { return interface_; }
  // By the lane itself, with TLS.
  bool is_authenticated() const noexcept { return is_authenticated_; }
  const net::ChannelBinding& channel_binding() const noexcept { return channel_binding_; }

 private:
  Result<net::Placement> OnFrame(std::span<const std::byte> meta,
                                 std::uint64_t payload_bytes) override;
  Status OnPayload() override { return Ok(); }
  void OnSent(net::OutFrame* frame) override;
  void OnClosed(const Error& error) override;
  void Expire();
  bool said() const noexcept { return sent_ > 0 && sent_ == frames_.size(); }

  std::unique_ptr<net::Lane> lane_;
  EventLoop* const loop_;
  const Deadline deadline_;
  std::string peer_name_;
  std::string local_name_;
  std::string interface_;
  bool is_local_;
  bool is_authenticated_;
  net::ChannelBinding channel_binding_;
  std::deque<net::OutFrame> frames_;
  std::size_t sent_ = 0;  // of them
  Heard heard_callback_;
  Gone gone_;
  std::function<void()> on_said_;
  EventLoop::TimerId timer_ = 0;
  bool heard_ = false;
  bool close_when_said_ = false;
};

}  // namespace ferry::transfer
