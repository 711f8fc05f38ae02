// A lane over one TCP connection.
#pragma once
#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "ferry/core/fd.h"
#include "ferry/net/machine/socket_owner.h"
#include "ferry/net/provider.h"
#include "ferry/net/tcp/byte_stream.h"
#include "ferry/net/tcp/frame_input.h"
#include "ferry/net/tcp/send_queue.h"

namespace ferry::net::tcp {

// A lane over one connected socket. See provider.h for the contract of the public methods.
class TcpLane final : public Lane, private EventLoop::Handler, private EventLoop::Deferred {
 public:
  // `stream` uses the socket, which `info` describes. `may_splice` allows zero-copy sends,
  // where the peer cannot read the pages later.
  TcpLane(UniqueFd fd, std::unique_ptr<ByteStream> stream, LaneInfo info, bool may_splice);
  ~TcpLane() override;

  void Attach(EventLoop* loop, LaneHandler* handler) override;
  void Send(OutFrame* frame) override;
  void Resume() override;
  void DiscardRest() override;
  void Flush() override;
  void Close(Closing how) override;
  void SetMaxMeta(std::size_t bytes) override { input_.SetMaxMeta(bytes); }
  void Poke() override;
  LaneInfo Info() const override;
  bool ProvePeer(const ProcessHint& process) override;
  void ProvePeerLater(const ProcessHint& process) override { claimed_ = process; }
  bool HasDelivered(std::uint64_t position) const override;
  PathStats Path() const override;
  std::size_t BufferBytes() const override { return input_.buffer_bytes(); }
  std::uint64_t BytesReceived() const override {
    return bytes_received_.load(std::memory_order_relaxed);
  }

 private:
  void OnEvents(std::uint32_t events) override;
  void RunDeferredOnLoop(EventLoop::Defer when) override;
  void WatchOnLoop();
  void CloseNow(bool reset);
  // Whether the peer must not receive what was sent: pages that may change, or half of a frame.
  // Also while a payload is arriving, so that nothing more is placed.
  bool EndsByReset() const noexcept;

  void ReceiveOnLoop();
  bool FailIfReset();
  bool ReadsToTheEnd(int error_number);
  bool ReadOnce();  // false when the socket is drained or the lane is closed
  bool AfterRead(ssize_t got);
  void SleepUntilMore();
  void WakeFor(std::uint64_t bytes);
  bool ParseBuffered();  // false when the lane is closed or paused
  bool StartFrame();     // false when the buffer holds no whole frame head, closed or paused
  bool FinishPayload();

  void FlushOnLoop();
  void RequestFlush();
  void RequestNextTurn();

  void Fail(LaneLoss loss, const Error& error);
  void FailBySocket(const char* what, int error_number);

  UniqueFd fd_;
  std::optional<ListedSocket> listed_;
  std::unique_ptr<ByteStream> stream_;
  EventLoop* loop_ = nullptr;
  LaneHandler* handler_ = nullptr;
  const LaneInfo info_;  // as of the connect
  std::string remote_;
  ProcessHint claimed_;        // which the peer says it is
  ProcessHint proved_;         // which it was proved to be
  std::optional<Error> doom_;  // the lane ends with it in the next turn

  // Receiving.
  FrameInput input_;
  bool readable_ = false;
  int wake_bytes_ = 1;  // the socket's SO_RCVLOWAT
  std::atomic<std::uint64_t> bytes_received_{0};
  bool hung_up_ = false;
  bool looked_for_reset_ = false;  // checked since the last read

  // Sending.
  SendQueue output_;
  bool splice_undecided_;  // zero-copy sends are wanted, and the path is not known yet
  bool writable_ = true;
  bool flush_requested_ = false;
  bool next_turn_requested_ = false;
};

}  // namespace ferry::net::tcp
