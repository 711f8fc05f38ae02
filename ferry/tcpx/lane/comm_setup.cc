// The steps from a control lane to a lane over a plugin.
#include "ferry/tcpx/lane/comm_setup.h"

#include <fmt/core.h>

#include <atomic>
#include <mutex>
#include <utility>

#include "ferry/core/log.h"
#include "ferry/tcpx/lane/abandoned.h"
#include "ferry/tcpx/lane/lane.h"
#include "ferry/tcpx/lane/step_log.h"

namespace ferry::tcpx {
namespace {

// A GPU that is lost takes no part, so that host memory can still be moved.
LaneTerms WithoutLostGpu(LaneTerms terms) {
  if (terms.gpu && terms.gpu.api->IsLost(terms.gpu.ordinal)) terms.gpu = {};
  return terms;
}

}  // namespace

PluginTerms LaneTerms::Told() const {
  PluginTerms mine;
  mine.SetPlugin(plugin->name());
  mine.plugin_version = static_cast<std::uint32_t>(plugin->version());
  mine.chunk_bytes = chunks.bytes;
  mine.tag_base = chunks.tag_base;
  mine.has_secret = secret ? 1 : 0;
  if (!secret) mine.process = net::ThisProcess();
  return mine;
}

Status LaneTerms::CheckPeerOnLoop(session::Handshake* handshake, const PluginTerms& peer) const {
  FERRY_TRY(trust().CheckReach(handshake->info(), handshake->peer_name()));
  FERRY_TRY(CheckFits(Told(), peer, handshake->peer_name()));
  FERRY_TRY(trust().CheckPeerOnLoop(handshake, peer.process));
  if (secret || handshake->is_local()) return Ok();
  static std::once_flag warned;
  std::call_once(warned, [&] {
    Log(LogLevel::kWarn, "plugin",
        "insecure is on: whoever reaches this machine can pass bytes to network plugin {}; set "
        "FERRY_SECRET_FILE on both sides",
        plugin->name());
  });
  return Ok();
}

// ---- comms --------------------------------------------------------------------------------------

CommSetup::CommSetup(const LaneTerms& terms, int device, std::string remote)
    : terms_(WithoutLostGpu(terms)), device_(device), remote_(std::move(remote)) {
  static std::atomic<int> channels{0};
  chunks_ = terms_.chunks;
  chunks_.channel = channels++;
}

CommSetup::~CommSetup() {
  CloseInBackground(terms_.gpu, std::move(listening_), std::move(connecting_));
}

Result<Handle> CommSetup::Listen() {
  FERRY_TRY_ASSIGN(const auto current, terms_.gpu.MakeCurrent());
  FERRY_TRY_ASSIGN(listening_, Listening::Open(terms_.plugin, device_));
  Log(LogLevel::kInfo, "plugin", "listening on device {} for {}; the handle begins {}", device_,
      remote_, FirstBytes(listening_->handle()));
  return listening_->handle();
}

void CommSetup::Connect(const Handle& handle) {
  connecting_ = std::make_unique<Connecting>(terms_.plugin, device_, handle);
}

Result<bool> CommSetup::Advance() {
  if (connecting_ == nullptr) return false;
  FERRY_TRY_ASSIGN(const auto current, terms_.gpu.MakeCurrent());
  if (receive_comm_ == nullptr) {
    FERRY_TRY_ASSIGN(receive_comm_, listening_->Accept());
    LogDone("accepted", receive_comm_ != nullptr);
  }
  if (send_comm_ == nullptr) {
    FERRY_TRY_ASSIGN(send_comm_, connecting_->Connect());
    LogDone("connected", send_comm_ != nullptr);
  }
  return receive_comm_ != nullptr && send_comm_ != nullptr;
}

void CommSetup::LogDone(const char* what, bool done) const {
  if (!done) return;
  Log(LogLevel::kInfo, "plugin", "{} a comm of {} on device {}, channel {}", what, remote_, device_,
      chunks_.channel);
}

Result<std::unique_ptr<net::Lane>> CommSetup::MakeLane(std::unique_ptr<net::Lane> control,
                                                       EventLoop* loop) {
  FERRY_TRY_ASSIGN(const auto current, terms_.gpu.MakeCurrent());
  FERRY_TRY_ASSIGN(auto out, PayloadOut::Create(std::move(send_comm_), chunks_));
  FERRY_TRY_ASSIGN(auto in,
                   PayloadIn::Create(terms_.api, terms_.gpu, std::move(receive_comm_), chunks_));
  // Shared by the lane and the move to its loop.
  auto owner = std::make_shared<ControlLane>(std::move(control));
  owner->lane->SetMaxMeta(net::kMaxMetaBytes);
  owner->lane->Attach(loop, owner.get());
  return std::unique_ptr<net::Lane>(
      std::make_unique<PluginLane>(std::move(owner), loop, std::move(out), std::move(in)));
}

// ---- the dialing side ---------------------------------------------------------------------------

void PluginDial::Start(const LaneTerms& terms, const Site& site, std::unique_ptr<net::Lane> control,
                       Done done) {
  std::unique_ptr<PluginDial> self(
      new PluginDial(terms, site, std::move(control), std::move(done)));
  PluginDial* const raw = self.get();
  raw->deadline_timer_ = site.loop->AddTimerOnLoop(
      site.deadline.when(), [self = std::move(self)] { self->Finish(self->Late()); });
  raw->handshake_->StartOnLoop();
  raw->StepAt(Clock::now());
}

// The handshake ends with this object, so it does not own it.
PluginDial::PluginDial(const LaneTerms& terms, const Site& site, std::unique_ptr<net::Lane> control,
                       Done done)
    : terms_(terms),
      loop_(site.loop),
      remote_(control->Info().remote),
      done_(std::move(done)),
      handshake_(std::make_unique<session::Handshake>(
          std::move(control),
          session::Handshake::Terms{.side = session::Handshake::Side::kDials,
                                    .role = session::wire::Role::kPlugin,
                                    .loop = loop_,
                                    .secret = terms.secret},
          std::shared_ptr<HandshakeUser>(std::shared_ptr<void>(), this))),
      setup_(terms, site.device, remote_) {}

Error PluginDial::Late() const {
  if (!peer_) return handshake_->Late();
  return Error(Code::kTimedOut,
               fmt::format("setting up a lane to {} over network plugin {} did not end in time; "
                           "see that its interfaces reach each other on both sides",
                           remote_, terms_.plugin->name()));
}

void PluginDial::Finish(Result<std::unique_ptr<net::Lane>> result) {
  Done done = std::move(done_);
  handshake_.reset();
  loop_->CancelTimerOnLoop(step_timer_);
  loop_->CancelTimerOnLoop(deadline_timer_);  // destroys this, unless it is called from there
  done(std::move(result));
}

Status PluginDial::OnReceived(session::Handshake* handshake, session::wire::Type /*type*/,
                              session::wire::MetaReader* body) {
  FERRY_TRY_ASSIGN(const PluginTerms peer, ReadTerms(body, remote_));
  FERRY_TRY(terms_.CheckPeerOnLoop(handshake, peer));
  Handle handle{};
  if (!body->Read(&handle)) {
    return Error(Code::kCorrupt, fmt::format("{} sent a welcome without a handle", remote_));
  }
  peer_ = handle;
  handshake->SettleOnLoop();
  StepAt(Clock::now());
  return Ok();
}

void PluginDial::OnGone(session::Handshake* handshake, const Error& error) {
  // A listener without room closes the lane, and another attempt may succeed; a refusal is final.
  const bool may_retry = error.code() == Code::kPeerLost && !peer_;
  ended_ = may_retry                  ? Error(Code::kUnavailable, error.message())
           : handshake->was_refused() ? Error(Code::kRefused, error.message())
                                      : error;
  StepAt(Clock::now());
}

void PluginDial::StepAt(Clock::time_point when) {
  loop_->CancelTimerOnLoop(step_timer_);
  step_timer_ = loop_->AddTimerOnLoop(when, [this] {
    auto lane = Advance();
    if (!lane || *lane != nullptr) return Finish(std::move(lane));
    StepAt(Clock::now() + kStepInterval);
  });
}

// The plugin is called first when the peer has welcomed this side.
Result<std::unique_ptr<net::Lane>> PluginDial::Advance() {
  std::unique_ptr<net::Lane> none;
  if (ended_) return *ended_;
  if (handshake_->state() == session::State::kDialed) {
    FERRY_TRY(terms_.trust().CheckReach(handshake_->info(), remote_));
    FERRY_TRY(CheckAbandoned(*terms_.plugin, kMaxAbandonedWhenConnecting));
    handshake_->OpenOnLoop(session::wire::Type::kHello, session::wire::BytesOf(terms_.Told()));
  }
  if (!peer_) return none;
  if (!setup_.connects()) {
    FERRY_TRY_ASSIGN(const Handle handle, setup_.Listen());
    handshake_->SendPartOnLoop(session::wire::Type::kConfirm, handle);
    setup_.Connect(*peer_);
  }
  FERRY_TRY_ASSIGN(const bool is_up, setup_.Advance());
  if (!is_up || !handshake_->complete()) return none;
  return setup_.MakeLane(handshake_->ReleaseLane(), loop_);
}

}  // namespace ferry::tcpx
