// The steps from a control lane to a lane over a plugin.
#include "ferry/tcpx/lane/lane_setup.h"

#include <fmt/core.h>

#include <mutex>
#include <utility>

#include "ferry/core/log.h"
#include "ferry/core/random.h"
#include "ferry/tcpx/lane/abandoned.h"
#include "ferry/tcpx/lane/lane.h"
#include "ferry/tcpx/lane/step_log.h"

namespace ferry::net::plugin {
namespace {

constexpr milliseconds kStepInterval{1};

// The peer's frames, in their order.
constexpr LaneHello::Kind kOwedToAccept[] = {LaneHello::Kind::kHello, LaneHello::Kind::kProof,
                                             LaneHello::Kind::kHandle};
constexpr LaneHello::Kind kOwedToConnect[] = {LaneHello::Kind::kChallenge,
                                              LaneHello::Kind::kWelcome};

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
  if (heard_ == 0) {
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

// What follows the frames of a set-up is for the lane's user.
Result<Placement> LaneSetup::OnFrame(std::span<const std::byte> meta, std::uint64_t payload_bytes) {
  if (unanswered_ || !Owed()) {
    paused_ = true;
    return Placement{Placement::Action::kPause, {}};
  }
  unanswered_ = Check(payload_bytes == 0 ? meta : std::span<const std::byte>());
  ++heard_;
  if (*unanswered_ && !Owed()) control_->SetMaxMeta(kMaxMetaBytes);
  StepAt(Clock::now());
  return Placement{Placement::Action::kDiscard, {}};
}

std::optional<LaneHello::Kind> LaneSetup::Owed() const noexcept {
  if (role_ == Role::kAccepts) {
    return heard_ < std::size(kOwedToAccept) ? std::optional(kOwedToAccept[heard_]) : std::nullopt;
  }
  return heard_ < std::size(kOwedToConnect) ? std::optional(kOwedToConnect[heard_]) : std::nullopt;
}

Result<LaneHello> LaneSetup::Check(std::span<const std::byte> frame) {
  FERRY_TRY_ASSIGN(LaneHello peer, UnpackLaneHello(frame, remote_));
  if (peer.kind == LaneHello::Kind::kRefusal && role_ == Role::kConnects) {
    return Error(Code::kRefused,
                 fmt::format("{} refused a lane over a network plugin: {}", remote_, peer.text));
  }
  if (peer.kind != Owed()) {
    return Error(
        Code::kRefused,
        fmt::format("{} sent a frame of kind {} where one of kind {} was due; use the same "
                    "release of this library on both sides",
                    remote_, static_cast<std::uint32_t>(peer.kind),
                    static_cast<std::uint32_t>(*Owed())));
  }
  FERRY_TRY(CheckFits(Mine(), peer, remote_));
  if (heard_ == 0) FERRY_TRY(CheckPeer(peer.process));
  if (IsSigned(peer.kind) &&
      !EqualInConstantTime(peer.mac, LaneMac(terms_.secret, frames_, frame))) {
    return Error(Code::kRefused,
                 fmt::format("{} did not prove that it knows the secret; set FERRY_SECRET_FILE to "
                             "the same on both sides",
                             remote_));
  }
  frames_.insert(frames_.end(), frame.begin(), frame.end());
  return peer;
}

void LaneSetup::OnClosed(LaneLoss loss, const Error& error) {
  ended_ = error;
  const bool no_answer = loss == LaneLoss::kPeerClosed || loss == LaneLoss::kReset;
  if (heard_ == 0 && role_ == Role::kConnects && no_answer) {
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
  if (!std::exchange(begun_, true)) FERRY_TRY(Begin());
  if (unanswered_) {
    const Status answered = Answer();
    // Tells also a peer without a plugin, which does not know the frame, not to try again.
    if (!answered && role_ == Role::kAccepts) {
      Send(LaneHello::Kind::kRefusal, answered.error().message());
    }
    FERRY_TRY(answered);
    if (std::exchange(paused_, false) && Owed() && !ended_) control_->Resume();
  }
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
  if (receive_comm_ == nullptr || send_comm_ == nullptr || sent_ < out_.size()) return none;
  return MakeLane();
}

Status LaneSetup::Begin() {
  if (role_ == Role::kAccepts) return Ok();
  FERRY_TRY(CheckTrusted(terms_.secret.has_value(), terms_.insecure, control_->Info()));
  FERRY_TRY(CheckAbandoned(*terms_.plugin, kMaxAbandonedWhenConnecting));
  Send(LaneHello::Kind::kHello, {});
  return Ok();
}

Status LaneSetup::CheckPeer(const ProcessHint& process) const {
  const LaneInfo peer = control_->Info();
  FERRY_TRY(CheckTrusted(terms_.secret.has_value(), terms_.insecure, peer));
  if (terms_.secret) return Ok();
  if (!terms_.insecure) return RequireProof(control_.get(), process, remote_);
  if (peer.same_machine) return Ok();
  static std::once_flag warned;
  std::call_once(warned, [&] {
    Log(LogLevel::kWarn, "plugin",
        "insecure is on: whoever reaches this machine can pass bytes to network plugin {}; set "
        "FERRY_SECRET_FILE on both sides",
        terms_.plugin->name());
  });
  return Ok();
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

Status LaneSetup::Answer() {
  const Result<LaneHello> peer = *std::exchange(unanswered_, std::nullopt);
  if (!peer) return peer.error();
  switch (peer->kind) {
    case LaneHello::Kind::kHello: Send(LaneHello::Kind::kChallenge, {}); return Ok();
    case LaneHello::Kind::kChallenge: Send(LaneHello::Kind::kProof, {}); return Ok();
    case LaneHello::Kind::kProof:
      FERRY_TRY(CheckAbandoned(*terms_.plugin, kMaxAbandonedWhenAccepting));
      FERRY_TRY(Listen());
      Send(LaneHello::Kind::kWelcome, {});
      return Ok();
    case LaneHello::Kind::kWelcome:
      FERRY_TRY(Listen());
      Send(LaneHello::Kind::kHandle, {});
      break;
    case LaneHello::Kind::kHandle:
    case LaneHello::Kind::kRefusal: break;
  }
  connecting_ = std::make_unique<Connecting>(terms_.plugin, device_, peer->handle);
  return Ok();
}

LaneHello LaneSetup::Mine() const {
  LaneHello mine;
  mine.plugin = terms_.plugin->name();
  mine.plugin_version = static_cast<std::uint32_t>(terms_.plugin->version());
  mine.chunk_bytes = terms_.chunks.bytes;
  mine.tag_base = terms_.chunks.tag_base;
  mine.has_secret = terms_.secret.has_value();
  if (!mine.has_secret) mine.process = ThisProcess();
  if (listening_ != nullptr) mine.handle = listening_->handle();
  return mine;
}

void LaneSetup::Send(LaneHello::Kind kind, const std::string& text) {
  LaneHello mine = Mine();
  mine.kind = kind;
  mine.text = text;
  if (kind == LaneHello::Kind::kHello || kind == LaneHello::Kind::kChallenge) {
    FillRandom(mine.nonce);
  }
  OutFrame& frame = out_.emplace_back();
  frame.meta = Pack(mine);
  if (IsSigned(kind)) SetMac(LaneMac(terms_.secret, frames_, frame.meta), &frame.meta);
  frames_.insert(frames_.end(), frame.meta.begin(), frame.meta.end());
  control_->Send(&frame);
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
