// The steps from a control lane to a lane over a plugin.
#include "ferry/tcpx/lane/lane_setup.h"

#include <fmt/core.h>

#include <utility>

#include "ferry/core/log.h"
#include "ferry/tcpx/lane/abandoned.h"
#include "ferry/tcpx/lane/lane.h"
#include "ferry/tcpx/lane/step_log.h"

namespace ferry::net::plugin {
namespace {

constexpr milliseconds kStepInterval{1};

// A GPU that is lost takes no part, so that host memory can still be moved.
LaneTerms WithoutLostGpu(LaneTerms terms) {
  if (terms.gpu && terms.gpu.api->IsLost(terms.gpu.ordinal)) terms.gpu = {};
  return terms;
}

}  // namespace

LaneSetup* LaneSetup::Start(const LaneTerms& terms, Request request) {
  EventLoop* const loop = request.loop;
  const Deadline deadline = request.deadline;
  std::unique_ptr<LaneSetup> self(new LaneSetup(terms, std::move(request)));
  LaneSetup* const raw = self.get();
  raw->deadline_timer_ = loop->AddTimerOnLoop(
      deadline.when(), [self = std::move(self)] { self->Finish(self->Late()); });
  raw->control_->SetMaxMeta(kMaxPendingPeerMeta);
  raw->control_->Attach(loop, raw);
  raw->StepAt(Clock::now());
  return raw;
}

LaneSetup::LaneSetup(const LaneTerms& terms, Request request)
    : terms_(WithoutLostGpu(terms)),
      device_(request.device),
      role_(request.role),
      loop_(request.loop),
      control_(std::move(request.control)),
      remote_(control_->Info().remote),
      done_(std::move(request.done)) {}

// A set-up may end between the plugin's first answer "not yet" and its last one.
LaneSetup::~LaneSetup() {
  CloseInBackground(terms_.gpu, std::move(listening_), std::move(connecting_));
}

Error LaneSetup::Late() const {
  const std::string& plugin = terms_.plugin->name();
  if (!peer_) {
    return Error(Code::kTimedOut,
                 fmt::format("{} did not say in time which network plugin it uses (here {}); check "
                             "that it is an endpoint with the same provider and not overloaded",
                             remote_, plugin));
  }
  return Error(Code::kTimedOut,
               fmt::format("setting up a lane to {} over network plugin {} did not end in time; "
                           "see that its interfaces reach each other on both sides",
                           remote_, plugin));
}

void LaneSetup::Cancel() {
  loop_->CancelTimerOnLoop(step_timer_);
  loop_->CancelTimerOnLoop(deadline_timer_);  // destroys this
}

void LaneSetup::Finish(Result<std::unique_ptr<Lane>> result) {
  Done done = std::move(done_);
  control_.reset();
  Cancel();  // destroys this, unless it is called from the deadline
  done(std::move(result));
}

// The peer's first frame. Those that follow are for the lane's user.
Result<Placement> LaneSetup::OnFrame(std::span<const std::byte> meta, std::uint64_t payload_bytes) {
  if (peer_) return Placement{Placement::Action::kPause, {}};
  peer_ = UnpackLaneHello(payload_bytes == 0 ? meta : std::span<const std::byte>(), remote_);
  control_->SetMaxMeta(kMaxMetaBytes);
  StepAt(Clock::now());
  return Placement{Placement::Action::kDiscard, {}};
}

void LaneSetup::OnClosed(LaneLoss loss, const Error& error) {
  ended_ = error;
  const bool no_answer = loss == LaneLoss::kPeerClosed || loss == LaneLoss::kReset;
  if (!peer_ && role_ == Role::kConnects && no_answer) {
    ended_ = Error(Code::kRefused,
                   fmt::format("{} closed the connection without a word about a network plugin, "
                               "and this side uses {}; set the provider to the same on both sides "
                               "(FERRY_PROVIDER)",
                               remote_, terms_.plugin->name()));
  }
  StepAt(Clock::now());
}

void LaneSetup::StepAt(Clock::time_point when) {
  loop_->CancelTimerOnLoop(step_timer_);
  step_timer_ = loop_->AddTimerOnLoop(when, [this] { Step(); });
}

void LaneSetup::Step() {
  auto lane = Advance();
  if (!lane || *lane != nullptr) return Finish(std::move(lane));
  StepAt(Clock::now() + kStepInterval);
}

Result<std::unique_ptr<Lane>> LaneSetup::Advance() {
  std::unique_ptr<Lane> none;
  FERRY_TRY_ASSIGN(const auto current, terms_.gpu.MakeCurrent());
  if (role_ == Role::kConnects && listening_ == nullptr) {
    FERRY_TRY(CheckAbandoned(*terms_.plugin, kMaxAbandonedWhenConnecting));
    FERRY_TRY(Listen());
    Say(LaneHello::Kind::kHello, {});
  }
  if (peer_ && !std::exchange(took_hello_, true)) FERRY_TRY(TakeHello());
  if (ended_) return *ended_;
  if (connecting_ == nullptr) return none;
  if (receive_comm_ == nullptr) {
    FERRY_TRY_ASSIGN(receive_comm_, listening_->Accept());
    LogDone("accepted", receive_comm_ != nullptr);
  }
  if (send_comm_ == nullptr) {
    FERRY_TRY_ASSIGN(send_comm_, connecting_->Connect());
    LogDone("connected", send_comm_ != nullptr);
  }
  if (receive_comm_ == nullptr || send_comm_ == nullptr || !sent_) return none;
  return MakeLane();
}

Status LaneSetup::Listen() {
  FERRY_TRY_ASSIGN(listening_, Listening::Open(terms_.plugin, device_));
  Log(LogLevel::kInfo, "plugin", "listening on device {} for {}; the handle begins {}", device_,
      remote_, FirstBytes(listening_->handle()));
  return Ok();
}

void LaneSetup::LogDone(const char* what, bool done) const {
  if (done) Log(LogLevel::kInfo, "plugin", "{} a comm of {} on device {}", what, remote_, device_);
}

Status LaneSetup::TakeHello() {
  if (!*peer_) {
    // A peer without a plugin does not know the frame, which tells it not to try again.
    if (role_ == Role::kAccepts) Say(LaneHello::Kind::kRefusal, peer_->error().message());
    return peer_->error();
  }
  const LaneHello& peer = **peer_;
  if (peer.kind == LaneHello::Kind::kRefusal) {
    return Error(Code::kRefused,
                 fmt::format("{} refused a lane over a network plugin: {}", remote_, peer.text));
  }
  Status fits = CheckFits(Mine(), peer, remote_);
  if (role_ == Role::kAccepts) {
    if (fits) fits = CheckAbandoned(*terms_.plugin, kMaxAbandonedWhenAccepting);
    if (fits) {
      FERRY_TRY(Listen());
      Say(LaneHello::Kind::kWelcome, {});
    } else {
      Say(LaneHello::Kind::kRefusal, fits.error().message());
    }
  }
  FERRY_TRY(fits);
  connecting_ = std::make_unique<Connecting>(terms_.plugin, device_, peer.handle);
  return Ok();
}

LaneHello LaneSetup::Mine() const {
  LaneHello mine;
  mine.plugin = terms_.plugin->name();
  mine.plugin_version = static_cast<std::uint32_t>(terms_.plugin->version());
  mine.chunk_bytes = terms_.chunks.bytes;
  mine.tag_base = terms_.chunks.tag_base;
  if (listening_ != nullptr) mine.handle = listening_->handle();
  return mine;
}

void LaneSetup::Say(LaneHello::Kind kind, const std::string& text) {
  LaneHello mine = Mine();
  mine.kind = kind;
  mine.text = text;
  out_.meta = Pack(mine);
  control_->Send(&out_);
  control_->Flush();
}

Result<std::unique_ptr<Lane>> LaneSetup::MakeLane() {
  FERRY_TRY_ASSIGN(auto out, PayloadOut::Create(std::move(send_comm_), terms_.chunks));
  FERRY_TRY_ASSIGN(
      auto in, PayloadIn::Create(terms_.api, terms_.gpu, std::move(receive_comm_), terms_.chunks));
  // Shared by the lane and the move to its loop.
  auto control = std::make_shared<ControlLane>(std::move(control_));
  control->lane->Attach(loop_, control.get());
  return std::unique_ptr<Lane>(
      std::make_unique<PluginLane>(std::move(control), loop_, std::move(out), std::move(in)));
}

}  // namespace ferry::net::plugin
