// A provider whose lanes lead to a script instead of another process: the engine receives the
// script's bytes frame by frame and, within a payload, byte by byte; the script decides when it
// reads the engine's frames. Everything runs on the single loop of an endpoint with one worker.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ferry/net/provider.h"

namespace ferry::fuzz {

// A frame as it went over the wire.
struct WireFrame {
  std::vector<std::byte> meta;
  std::vector<std::byte> payload;
};

class ScriptedLane;

// The script's end of a lane; shared with the lane, whose owner may let go of it at any time. All
// methods on the loop.
class PeerEnd {
 public:
  // Called with the memory that a payload is put into, and that one is read from.
  std::function<void(std::span<const iovec>)> on_place;
  std::function<void(std::span<const iovec>)> on_read;

  // Whether the engine still holds its end open.
  bool open() const noexcept;
  // The engine has been told to be silent about a frame of ours, or has not heard all of it.
  bool busy() const noexcept { return !said_.empty(); }
  // A frame that announces `payload_bytes`, of which the engine hears when Deliver() comes to it.
  void Say(std::vector<std::byte> meta, std::uint64_t payload_bytes);
  // Metadata as a whole, and at most so many bytes of payload.
  void Deliver(std::uint64_t payload_bytes);
  // The next frame that the engine has sent; false where there is none.
  bool Read(WireFrame* frame);
  // Ends the lane; kReset and kUnreachable as a network does.
  void HangUp(net::LaneLoss loss = net::LaneLoss::kPeerClosed);

 private:
  friend class ScriptedLane;
  struct Said {
    std::vector<std::byte> meta;
    std::uint64_t payload_bytes = 0;
  };
  bool Offer();
  void Place(std::uint64_t bytes);

  ScriptedLane* lane_ = nullptr;  // null once it is closed
  std::deque<Said> said_;
  std::deque<net::OutFrame*> sent_;
  bool offered_ = false;  // said_.front() was, and its payload is in flight
  bool paused_ = false;
  bool discard_ = false;
  std::uint64_t left_ = 0;
  std::span<const iovec> place_;
  std::size_t offset_ = 0;  // in place_.front()
  std::uint8_t next_byte_ = 1;
  std::uint64_t received_ = 0;
};

class ScriptedLane final : public net::Lane {
 public:
  // `local`: whether its peer counts as local to this machine.
  ScriptedLane(std::shared_ptr<PeerEnd> peer, bool local);
  ~ScriptedLane() override;

  void Attach(EventLoop* loop, net::LaneHandler* handler) override;
  void Send(net::OutFrame* frame) override;
  void Resume() override { peer_->paused_ = false; }
  void DiscardRest() override { peer_->discard_ = true; }
  void Close(net::Closing how) override;
  void SetMaxMeta(std::size_t /*bytes*/) override {}
  net::LaneInfo Info() const override;
  bool ProvePeer(const net::ProcessHint& /*process*/) override { return local_; }
  std::uint64_t BytesReceived() const override { return peer_->received_; }

  // Lanes that have not been destroyed.
  static int count() noexcept;

 private:
  friend class PeerEnd;
  class Calling;
  void Fail(net::LaneLoss loss, const Error& error);

  const std::shared_ptr<PeerEnd> peer_;  // with the script
  const bool local_;
  net::LaneHandler* handler_ = nullptr;
  bool in_callback_ = false;
};

class ScriptedProvider final : public net::Provider {
 public:
  const char* name() const override { return "scripted"; }
  net::Capabilities capabilities() const override { return {}; }
  Result<std::unique_ptr<net::Listener>> Listen(const net::Address& address, const Config& config,
                                                EventLoop* loop, Accepted accepted) override;
  EventLoop::TimerId Connect(const net::Address& address, const Config& config, EventLoop* loop,
                             Deadline deadline, Connected connected) override;

  EventLoop& loop() const noexcept { return *loop_; }
  // On the loop: a pending peer connects.
  std::shared_ptr<PeerEnd> ConnectLane(bool local = true);  // as the lane's
  // The lane's peer end that Connect() returns; null refuses.
  std::function<std::unique_ptr<net::Lane>()> on_connect;

 private:
  EventLoop* loop_ = nullptr;
  Accepted accepted_;
};

// Runs `task` on a loop that this thread may drive.
void RunOnLoop(EventLoop& loop, const std::function<void()>& task);
// Until what is queued now, and what that queued, has run.
void Settle(EventLoop& loop, int turns = 4);

}  // namespace ferry::fuzz
