#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "ferry/core/event_loop.h"
#include "ferry/net/provider.h"
#include "ferry/transfer/wire.h"

namespace ferry::transfer {

// A lane until it belongs to a connection: one frame is said and one is heard, in either order, by
// a deadline. Belongs to one loop. Whoever owns it destroys it outside the lane's callbacks.
class Greeting final : private net::LaneHandler {
 public:
  // Gets the one frame; an Error closes the lane and goes on to `gone`.
  using Heard = std::function<Status(const wire::MessageHeader&, wire::MetaReader*)>;
  using Gone = std::function<void(const Error&)>;

  Greeting(std::unique_ptr<net::Lane> lane, EventLoop* loop, Deadline deadline);
  ~Greeting();

  void StartOnLoop(Heard heard, Gone gone);
  // Once.
  void SayOnLoop(wire::Type type, std::span<const std::byte> body, std::string_view text = {});
  // After this the lane closes as soon as what was said has left.
  void CloseWhenSaidOnLoop();
  // Both said and heard: the lane may move on.
  bool complete() const noexcept { return said_ && heard_; }
  // Runs when complete() becomes true by what was said leaving.
  void SetOnSaid(std::function<void()> on_said) { on_said_ = std::move(on_said); }
  std::unique_ptr<net::Lane> ReleaseLane();
  const std::string& peer_name() const noexcept { return peer_name_; }

 private:
  Result<net::Placement> OnFrame(std::span<const std::byte> meta,
                                 std::uint64_t payload_bytes) override;
  Status OnPayload() override { return Ok(); }
  void OnSent(net::OutFrame* frame) override;
  void OnClosed(const Error& error) override;
  void Expire();

  std::unique_ptr<net::Lane> lane_;
  EventLoop* const loop_;
  const Deadline deadline_;
  std::string peer_name_;
  net::OutFrame frame_;
  Heard heard_callback_;
  Gone gone_;
  std::function<void()> on_said_;
  EventLoop::TimerId timer_ = 0;
  bool said_ = false;
  bool heard_ = false;
  bool close_when_said_ = false;
};

}  // namespace ferry::transfer
