// Sends and receives handshake frames on a lane until it is complete or its deadline passes.
#include "ferry/transfer/handshake/hello_exchange.h"

#include <fmt/core.h>

#include <utility>

namespace ferry::transfer {

HelloExchange::HelloExchange(std::unique_ptr<net::Lane> lane, EventLoop* loop, Deadline deadline)
    : lane_(std::move(lane)), loop_(loop), deadline_(deadline), info_(lane_->Info()) {}

HelloExchange::~HelloExchange() {
  if (timer_ != 0) loop_->CancelTimerOnLoop(timer_);
}

void HelloExchange::StartOnLoop(Heard heard, Gone gone) {
  heard_callback_ = std::move(heard);
  gone_ = std::move(gone);
  if (!deadline_.never()) {
    timer_ = loop_->AddTimerOnLoop(deadline_.when(), [this] {
      timer_ = 0;
      Expire();
    });
  }
  lane_->Attach(loop_, this);
}

void HelloExchange::SayOnLoop(wire::Type type, std::span<const std::byte> body,
                              std::string_view text) {
  wire::MessageHeader header;
  header.type = type;
  net::OutFrame& frame = frames_.emplace_back();
  wire::Append(&frame.meta, header);
  // The lane refers to the frame until OnSent(); frames_ is a deque, so that it stays where it is.
  frame.meta.insert(frame.meta.end(), body.begin(), body.end());
  wire::AppendText(&frame.meta, text);
  lane_->Send(&frame);
}

void HelloExchange::CloseWhenSaidOnLoop() { close_when_said_ = true; }

void HelloExchange::CloseOnLoop() {
  LiftDeadlineOnLoop();
  lane_->Close(net::Closing::kOrderly);
}

void HelloExchange::LiftDeadlineOnLoop() {
  if (timer_ != 0) loop_->CancelTimerOnLoop(std::exchange(timer_, 0));
}

std::unique_ptr<net::Lane> HelloExchange::ReleaseLane() {
  LiftDeadlineOnLoop();
  return std::move(lane_);
}

Result<net::Placement> HelloExchange::OnFrame(std::span<const std::byte> meta,
                                              std::uint64_t payload_bytes) {
  // The peer may send more at once; the connection will read it.
  // One frame at a time: HearMoreOnLoop() resumes the lane when the next one is expected.
  if (heard_) return net::Placement{net::Placement::Action::kPause, {}};
  wire::MetaReader reader(meta);
  wire::MessageHeader header;
  if (!reader.Read(&header) || payload_bytes != 0) {
    return Error(
        Code::kCorrupt,
        fmt::format("{} sent a malformed handshake frame; check that it is a Tensorferry endpoint",
                    peer_name()));
  }
  heard_ = true;
  FERRY_TRY(heard_callback_(header, &reader));
  return net::Placement{};
}

void HelloExchange::OnSent(net::OutFrame* /*frame*/) {
  ++sent_;
  if (!said()) return;
  if (close_when_said_) {
    // An orderly close lets the peer read the refusal first.
    lane_->Close(net::Closing::kOrderly);
    gone_(Error(Code::kRefused, "the peer was refused"));
    return;
  }
  if (heard_ && on_said_) on_said_();
}

void HelloExchange::OnClosed(net::LaneLoss /*loss*/, const Error& error) { gone_(error); }

void HelloExchange::Expire() {
  lane_->Close(net::Closing::kOrderly);
  gone_(Late());
}

Error HelloExchange::Late() const {
  return Error(Code::kTimedOut, fmt::format("{} did not finish the handshake in time; check that "
                                            "it is a Tensorferry endpoint and not overloaded",
                                            peer_name()));
}

}  // namespace ferry::transfer
