// Implements LaneDial.
#include "bindings/nccl_net/lane_dial.h"

#include <fmt/core.h>

#include <utility>

#include "bindings/nccl_net/engine.h"
#include "bindings/nccl_net/rank.h"
#include "bindings/nccl_net/wire.h"

namespace ferry::nccl_net {

// A lane that has sent the first frame and waits for the answer.
class LaneDial::Probe final : private net::LaneHandler {
 public:
  Probe(LaneDial* dial, std::size_t index, std::unique_ptr<net::Lane> lane)
      : dial_(dial),
        loop_(dial->request_.loop),
        index_(index),
        lane_(std::move(lane)),
        remote_(lane_->Info().remote) {}
  ~Probe() { StopTimer(); }

  void StartOnLoop(Deadline deadline) {
    if (!deadline.never()) {
      timer_ = loop_->AddTimerOnLoop(deadline.when(), [this] {
        timer_ = 0;
        lane_->Close(net::Closing::kOrderly);
        dial_->OnGone(index_, Error(Code::kTimedOut,
                                    fmt::format("{} did not answer in time; check that the rank "
                                                "listens there, and no other program",
                                                remote_)));
      });
    }
    frame_.meta = dial_->request_.first;
    lane_->SetMaxMeta(net::kMaxPendingPeerMeta);
    lane_->Attach(loop_, this);
    lane_->Send(&frame_);
  }
  std::unique_ptr<net::Lane> Release() {
    StopTimer();
    lane_->SetMaxMeta(net::kMaxMetaBytes);
    return std::move(lane_);
  }

 private:
  Result<net::Placement> OnFrame(std::span<const std::byte> meta,
                                 std::uint64_t payload_bytes) override {
    // The lane is about to move to the comm, which reads all further frames.
    if (answered_) return net::Placement{.action = net::Placement::Action::kPause, .memory = {}};
    const auto here = LoadWire<HereWire>(meta);
    const auto& proof = dial_->request_.proof;
    if (payload_bytes == 0 && here && here->type == FrameType::kHere && proof &&
        EqualInConstantTime(here->proof, *proof)) {
      answered_ = true;
      TakeIfReady();
      return net::Placement{.action = net::Placement::Action::kDiscard, .memory = {}};
    }
    if (IsRefusal(meta)) return ListenCommClosed(remote_);
    return Error(Code::kCorrupt,
                 fmt::format("{} answered with an unexpected frame; check that the rank listens "
                             "there, and no other program",
                             remote_));
  }
  Status OnPayload() override { return Ok(); }
  void OnSent(net::OutFrame* /*frame*/) override {
    sent_ = true;
    TakeIfReady();
  }
  void OnClosed(net::LaneLoss /*loss*/, const Error& error) override {
    StopTimer();
    dial_->OnGone(index_, error);
  }

  // The lane moves without queued frames, which belong to this object.
  void TakeIfReady() {
    if (!answered_ || !sent_) return;
    loop_->Post([weak = dial_->weak_from_this(), index = index_, probe = this] {
      if (const auto self = weak.lock()) self->Take(index, probe);
    });
  }
  void StopTimer() {
    if (timer_ != 0) loop_->CancelTimerOnLoop(std::exchange(timer_, 0));
  }

  LaneDial* const dial_;  // until the lane has ended or moved
  EventLoop* const loop_;
  const std::size_t index_;
  net::OutFrame frame_;
  std::unique_ptr<net::Lane> lane_;
  const std::string remote_;
  EventLoop::TimerId timer_ = 0;
  bool sent_ = false;
  bool answered_ = false;
};

LaneDial::LaneDial(Request request, Found found, Failed failed)
    : request_(std::move(request)),
      found_(std::move(found)),
      failed_(std::move(failed)),
      probes_(request_.addresses.size()) {}

LaneDial::~LaneDial() = default;

void LaneDial::Start() {
  dial_ = std::make_shared<net::Dial>(
      &request_.engine->provider(), &request_.engine->settings().config, request_.loop,
      net::Candidates(request_.addresses, request_.deadline, Clock::now(), milliseconds(0)),
      [weak = weak_from_this()](std::size_t index, auto lane, Deadline deadline) {
        if (const auto self = weak.lock()) self->OnUp(index, std::move(lane), deadline);
      },
      [weak = weak_from_this()](const Error& error) {
        if (const auto self = weak.lock()) self->failed_(error);
      });
  dial_->Start();
}

void LaneDial::OnUp(std::size_t index, std::unique_ptr<net::Lane> lane, Deadline deadline) {
  probes_[index] = std::make_unique<Probe>(this, index, std::move(lane));
  probes_[index]->StartOnLoop(deadline);
}

// Destroyed later: this may be a callback of its lane.
void LaneDial::OnGone(std::size_t index, const Error& error) {
  request_.loop->Post([gone = std::move(probes_[index])] {});
  const bool may_pass = request_.may_retry && error.code() == Code::kPeerLost;
  dial_->Fail(index, error,
              may_pass ? net::Candidates::Retry::kLater : net::Candidates::Retry::kNever);
}

void LaneDial::Take(std::size_t index, const Probe* probe) {
  // The lane has ended meanwhile, or another one was taken.
  if (probes_.empty() || probes_[index].get() != probe) return;
  const auto probes = std::exchange(probes_, {});  // until the lane has another handler
  dial_.reset();
  found_(probes[index]->Release(), request_.addresses[index]);
}

}  // namespace ferry::nccl_net
