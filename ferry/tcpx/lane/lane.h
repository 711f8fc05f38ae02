// A lane whose payloads travel over an NCCL network plugin.
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "ferry/net/provider.h"
#include "ferry/tcpx/lane/payload_in.h"
#include "ferry/tcpx/lane/payload_out.h"

// Frames travel over a lane of another provider, the control lane. A frame without a payload, or
// with a small one that is named by its address and may take a shorter way
// (OutFrame::over_network), goes over it unchanged. Any other payload goes over the plugin: the
// control lane then carries the frame's metadata, with the payload's size as the payload (an
// announcement). The payload is received when the announcement has come and the user has named its
// place; meanwhile the control lane is paused.
namespace ferry::tcpx {

class PluginLane;

// Owns the control lane and stays its handler. Lives on while the control lane is moving to the
// loop of its user, who may be gone when it arrives; paused until then.
class ControlLane final : public net::LaneHandler {
 public:
  explicit ControlLane(std::unique_ptr<net::Lane> the_lane) : lane(std::move(the_lane)) {}
  // On the loop `here` of the control lane: moves it to `target`, and tells `to` when it is there.
  static void Follow(std::shared_ptr<ControlLane> control, EventLoop* here, PluginLane* to);

  const std::unique_ptr<net::Lane> lane;
  std::atomic<EventLoop*> target{nullptr};  // the user's loop, set there
  // On the user's loop.
  PluginLane* user = nullptr;                            // from its arrival on
  bool abandoned = false;                                // the user is gone
  std::optional<std::pair<net::LaneLoss, Error>> ended;  // before the arrival

 private:
  Result<net::Placement> OnFrame(std::span<const std::byte> meta,
                                 std::uint64_t payload_bytes) override;
  Status OnPayload() override;
  void OnSent(net::OutFrame* frame) override;
  void OnClosed(net::LaneLoss loss, const Error& error) override;
};

// See provider.h for the contract of the public methods.
class PluginLane final : public net::Lane, private EventLoop::Deferred {
 public:
  // `control` is attached to the loop `home`, where this is called.
  PluginLane(std::shared_ptr<ControlLane> control, EventLoop* home, std::unique_ptr<PayloadOut> out,
             std::unique_ptr<PayloadIn> in);
  ~PluginLane() override;

  void Attach(EventLoop* loop, net::LaneHandler* handler) override;
  void Send(net::OutFrame* frame) override;
  void Resume() override;
  void DiscardRest() override;
  void Flush() override;
  // Closes the comms, after which the plugin touches no memory. Payloads that the plugin has not
  // sent are dropped, however it closes.
  void Close(net::Closing how) override;
  void SetMaxMeta(std::size_t bytes) override;
  net::LaneInfo Info() const override { return info_; }
  net::PathStats Path() const override { return control().Path(); }
  bool ProvePeer(const net::ProcessHint& process) override { return control().ProvePeer(process); }
  void ProvePeerLater(const net::ProcessHint& process) override {
    control().ProvePeerLater(process);
  }
  std::string Waits() const override;
  std::string NameOfSent(std::uint64_t number, std::uint64_t bytes) const override;
  void Poke() override;
  std::uint64_t BytesReceived() const override {
    return control().BytesReceived() + bytes_received_.load(std::memory_order_relaxed);
  }

  // For ControlLane.
  void Arrive();
  Result<net::Placement> OnControlFrame(std::span<const std::byte> meta,
                                        std::uint64_t payload_bytes);
  Status OnControlPayload();
  void OnControlSent();
  void OnControlClosed(net::LaneLoss loss, const Error& error);

 private:
  // The state of the frame that is arriving, which Enter() alone changes.
  enum class Receiving : std::uint8_t {
    kFrame,     // none, or one that is the control lane's
    kAnnounce,  // the payload's size comes next
    kPaused,    // announced; the user does not want it yet
    kOffer,     // announced; to be offered again in the next turn
    kPayload,
    kSmall,  // over the control lane, on its way into GPU memory
  };
  struct Announcement {
    net::OutFrame frame;
    std::uint64_t payload_bytes = 0;
  };
  struct Queued {
    net::OutFrame* frame = nullptr;
    std::unique_ptr<Announcement> announcement;  // null: the control lane has the frame itself
    std::uint64_t number = 0;                    // of the payload that the plugin carries
  };

  // Chunks sent and bytes received, as of the last poll.
  struct Progress {
    std::uint64_t count = 0;
    Clock::time_point at;  // when it last changed, or something was begun
  };

  // The payload in kSmall: it comes here first.
  struct Small {
    std::vector<std::byte> bytes;
    iovec place{};  // of those
    PayloadIn::Target target;
  };

  net::Lane& control() const noexcept { return *control_->lane; }
  void Enter(Receiving next);
  void Start(Queued* queued);
  void ReportSent();
  Status Offer();
  PayloadIn::Target TargetOf(const net::Placement& placed);
  Result<net::Placement> PlaceSmall(const PayloadIn::Target& target, std::uint64_t bytes);
  Status CopySmall();
  void AwaitPayload();
  void FinishPayload();
  void RunDeferredOnLoop(EventLoop::Defer when) override;
  void Turn();
  Status Advance();
  void RequestTurn();
  void PollAgain();
  void LeaveLoop();
  void MoveControl();
  void CloseNow(net::Closing how);
  void FailSoon(const Error& error);
  void AwaitVerdict();
  void Fail(net::LaneLoss loss, const Error& error, net::Closing how = net::Closing::kOrderly);

  const std::shared_ptr<ControlLane> control_;  // shared with its move
  EventLoop* const home_;
  const net::LaneInfo info_;  // as of the set-up
  EventLoop* loop_ = nullptr;
  // Counts the moves and the end, each on the loop that the lane leaves.
  const std::shared_ptr<std::atomic<std::uint64_t>> departures_ =
      std::make_shared<std::atomic<std::uint64_t>>(0);
  net::LaneHandler* handler_ = nullptr;
  bool arrived_ = false;  // at its loop, with the control lane
  bool closed_ = false;
  std::size_t max_meta_ = net::kMaxMetaBytes;
  std::optional<std::pair<net::LaneLoss, Error>> peer_closed_;  // while a payload was arriving
  Clock::time_point peer_closed_at_;
  std::optional<Error> failure_;  // of the plugin; not reported yet

  std::unique_ptr<PayloadOut> out_;
  std::deque<Queued> queue_;
  std::size_t control_sent_ = 0;  // of queue_, from the first on

  std::unique_ptr<PayloadIn> in_;
  Receiving receiving_ = Receiving::kFrame;
  std::vector<std::byte> meta_;
  std::uint64_t announced_ = 0;
  iovec place_{};  // of the announced size, or of registered memory
  Small small_;
  std::atomic<std::uint64_t> bytes_received_{0};

  bool turn_requested_ = false;
  EventLoop::TimerId poll_timer_ = 0;
  Progress progress_;
};

}  // namespace ferry::tcpx
