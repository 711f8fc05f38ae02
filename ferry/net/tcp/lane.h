// A lane over one TCP connection.
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ferry/core/fd.h"
#include "ferry/net/provider.h"
#include "ferry/net/tcp/byte_stream.h"
#include "ferry/net/tcp/frame_prefix.h"
#include "ferry/net/tcp/io_cursor.h"
#include "ferry/net/tcp/splice_pipe.h"

namespace ferry::net::tcp {

// A lane over one connected socket. See provider.h for the contract of the public methods.
class TcpLane final : public Lane, private EventLoop::Handler, private EventLoop::Deferred {
 public:
  // `stream` uses the socket, which `info` describes. `may_splice` allows zero-copy sends.
  TcpLane(UniqueFd fd, std::unique_ptr<ByteStream> stream, LaneInfo info, bool may_splice);
  ~TcpLane() override;

  void Attach(EventLoop* loop, LaneHandler* handler) override;
  void Send(OutFrame* frame) override;
  void Resume() override;
  void DiscardRest() override;
  void Flush() override;
  void Close(Closing how) override;
  void SetMaxMeta(std::size_t bytes) override { max_meta_ = std::min(bytes, kMaxMetaBytes); }
  void Poke() override;
  LaneInfo Info() const override;
  PathStats Path() const override;
  std::uint64_t BytesReceived() const override {
    return bytes_received_.load(std::memory_order_relaxed);
  }

 private:
  enum class Receiving { kFrame, kPayload, kDiscard, kPaused };
  struct Queued {
    OutFrame* frame;
    FramePrefix prefix;
  };

  void OnEvents(std::uint32_t events) override;
  void RunDeferredOnLoop(EventLoop::Defer when) override;
  void WatchOnLoop();
  void CloseNow(bool reset);
  bool InPayload() const noexcept { return receiving_ == Receiving::kPayload; }

  void ReceiveOnLoop();
  bool FailIfReset();
  bool ReadsToTheEnd(int error_number);
  bool ReadOnce();  // false when the socket is drained or the lane is closed
  bool ReadIntoPayload();
  bool DiscardFromSocket();
  bool ReadIntoBuffer();
  void GrowBuffer(std::size_t bytes);
  bool AfterRead(ssize_t got);
  void SleepUntilMore();
  void WakeFor(std::uint64_t bytes);
  bool ParseBuffered();  // false when the lane is closed or paused
  bool StartFrame();     // false when the buffer holds no whole frame head, closed or paused
  void TakeBufferedPayload();
  bool FinishPayload();
  std::size_t buffered() const noexcept { return rx_end_ - rx_begin_; }
  std::span<const std::byte> Buffered() const noexcept {
    return {rx_.get() + rx_begin_, buffered()};
  }

  void FlushOnLoop();
  ssize_t SendSome();
  ssize_t SendCopied();
  void CollectFrames(std::span<iovec> out, std::size_t* used) const;
  static std::size_t CollectHead(const Queued& queued, std::size_t skip, std::span<iovec> out,
                                 std::size_t* used);
  bool Gives(const Queued& queued, std::uint64_t payload_left) const;
  void AdvanceSent(std::size_t bytes);
  void RequestFlush();
  void RequestNextTurn();

  void Fail(LaneLoss loss, const Error& error);
  void FailBySocket(const char* what, int error_number);

  UniqueFd fd_;
  std::unique_ptr<ByteStream> stream_;
  EventLoop* loop_ = nullptr;
  LaneHandler* handler_ = nullptr;
  const LaneInfo info_;  // as of the connect
  std::string remote_;
  bool refused_ = false;  // a frame; the lane is about to end

  // Receiving. rx_ holds the head of a frame, small payloads and bytes that were read ahead.
  Receiving receiving_ = Receiving::kFrame;
  std::size_t max_meta_ = kMaxMetaBytes;
  std::unique_ptr<std::byte[]> rx_;
  std::size_t rx_bytes_ = 0;  // capacity of rx_
  bool rx_filled_ = false;    // the last read filled rx_
  bool after_large_ = false;  // the last frame's payload was large
  std::size_t rx_begin_ = 0;
  std::size_t rx_end_ = 0;
  IoCursor place_;
  std::uint64_t payload_left_ = 0;
  bool readable_ = false;
  int wake_bytes_ = 1;  // the socket's SO_RCVLOWAT
  std::atomic<std::uint64_t> bytes_received_{0};
  bool hung_up_ = false;
  bool looked_for_reset_ = false;  // checked since the last read

  // Sending.
  std::deque<Queued> queue_;
  std::size_t head_sent_ = 0;  // sent bytes of the first frame's prefix and metadata
  IoCursor body_;              // the first frame's payload
  std::uint64_t body_left_ = 0;
  std::size_t sent_frames_ = 0;  // sent, at the front of queue_, not yet reported
  bool writable_ = true;
  bool flush_requested_ = false;
  bool next_turn_requested_ = false;
  bool may_splice_;
  std::optional<SplicePipe> splice_pipe_;  // created at the first zero-copy send
  // True once pages were spliced: the kernel may still read the sender's memory, or hold bytes that
  // the peer must not receive.
  bool given_ = false;
};

}  // namespace ferry::net::tcp
