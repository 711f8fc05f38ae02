// Accepts lanes and assigns them to listen comms.
#include "bindings/nccl_net/acceptor.h"

#include <fmt/core.h>

#include <utility>

#include "bindings/nccl_net/engine.h"
#include "bindings/nccl_net/rank.h"
#include "bindings/nccl_net/recv_comm.h"
#include "ferry/core/log_limiter.h"
#include "ferry/net/local_addresses.h"

namespace ferry::nccl_net {
namespace {

// Constant time: the duration does not reveal where the keys differ.
Error NoHello(const std::string& remote, const char* why) {
  return Error(Code::kCorrupt, fmt::format("{} {} and was refused; use the same "
                                           "libnccl-net-ferry.so on all nodes",
                                           remote, why));
}

// Whoever reaches the port can cause these lines.
void LogPeer(LogLevel level, const std::string& remote, const std::string& text) {
  PeerLogLimiter().Write(level, "nccl", net::HostOf(remote), {}, remote + text);
}

}  // namespace

// ---- who has come -------------------------------------------------------------------------------

PendingComms::PendingComms(Engine* engine, EventLoop* swift, std::uint64_t id)
    : engine_(engine), swift_(swift), id_(id) {
  FillRandom(key_);
}

Status PendingComms::Enter(const HelloWire& hello, std::unique_ptr<net::Lane> lane) {
  std::shared_ptr<RecvComm> comm;  // shared with here_
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return Error(Code::kCancelled, "the listen comm was closed");
    auto& place = here_[hello.comm];
    if (place == nullptr) {
      place = std::make_shared<RecvComm>(engine_, swift_, hello.lanes, hello.early_bytes);
    }
    comm = place;
  }
  // Without the mutex: Adopt() takes the comm's own, so several lanes may come in at once. It
  // refuses a lane that comes after Close().
  if (comm->lanes() != hello.lanes || !comm->Adopt(hello.lane, std::move(lane))) {
    return Error(
        Code::kCorrupt,
        fmt::format(
            "lane {} of {} is invalid: it is up already, or other lanes announced another count",
            hello.lane, hello.lanes));
  }
  return Ok();
}

void PendingComms::Refuse(const Error& reason) {
  const std::lock_guard lock(mutex_);
  if (!refused_) refused_ = reason;
}

Result<std::shared_ptr<RecvComm>> PendingComms::Take() {
  std::shared_ptr<RecvComm> taken;  // returned to the caller
  {
    const std::lock_guard lock(mutex_);
    // Final, unlike a loss: settings do not change while the processes run.
    if (refused_) return *refused_;
    for (auto it = here_.begin(); it != here_.end(); ++it) {
      if (!it->second->complete() && !it->second->failed()) continue;
      taken = std::move(it->second);
      here_.erase(it);
      if (taken->complete()) gone_.reset();
      break;
    }
    if (taken == nullptr && gone_ && Clock::now() >= gone_for_good_) return *gone_;
  }
  if (taken == nullptr || !taken->failed()) return taken;
  // Closing is done without the mutex, as in Close().
  const Error error = taken->failure();
  taken->Close();
  if (taken->complete()) return error;
  // The sender may have been turned away on its other lanes, and dial again.
  const std::lock_guard lock(mutex_);
  if (!gone_) gone_for_good_ = Clock::now() + engine_->settings().config.connect_timeout;
  gone_ = error;
  return std::shared_ptr<RecvComm>();
}

void PendingComms::Close() {
  // Removed from here_, destroyed after the lock.
  std::unordered_map<Uuid, std::shared_ptr<RecvComm>> gone;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    gone.swap(here_);
  }
  for (auto& [id, comm] : gone) comm->Close();
}

// ---- who wishes to come in ----------------------------------------------------------------------

class Acceptor::PendingPeer final : public net::LaneHandler {
 public:
  PendingPeer(Acceptor* acceptor, std::uint64_t number, std::unique_ptr<net::Lane> lane)
      : acceptor_(acceptor),
        number_(number),
        lane_(std::move(lane)),
        info_(lane_->Info()),
        remote_(info_.remote) {}

  const net::LaneInfo& info() const noexcept { return info_; }

  void StartOnLoop() {
    // Whoever reaches the port can send; until the hello frame has been checked, little memory is
    // allocated for it.
    lane_->SetMaxMeta(net::kMaxPendingPeerMeta);
    lane_->Attach(acceptor_->loop_, this);
    const auto timeout = acceptor_->engine_->settings().config.handshake_timeout;
    timer_ = acceptor_->loop_->AddTimerOnLoop(Clock::now() + timeout, [this] {
      timer_ = 0;
      LogPeer(LogLevel::kWarn, remote_, " connected and sent no hello frame in time");
      acceptor_->DropOnLoop(number_);
    });
  }
  void StopOnLoop() {
    if (timer_ != 0) acceptor_->loop_->CancelTimerOnLoop(std::exchange(timer_, 0));
  }

  Result<net::Placement> OnFrame(std::span<const std::byte> meta,
                                 std::uint64_t payload_bytes) override {
    // The lane is about to move to its comm's loop, where this frame is delivered again.
    if (pending_comms_ != nullptr || refused_)
      return net::Placement{.action = net::Placement::Action::kPause, .memory = {}};
    if (payload_bytes != 0) return NoHello(remote_, "sent something other than a hello frame");
    auto checked = acceptor_->Check(meta, remote_);
    if (!checked && checked.error().code() == Code::kRefused) {
      LogPeer(LogLevel::kInfo, remote_, " was refused: " + checked.error().message());
      refused_ = true;
      acceptor_->loop_->Post(
          [acceptor = acceptor_, number = number_] { acceptor->RefuseOnLoop(number); });
      return net::Placement{.action = net::Placement::Action::kDiscard, .memory = {}};
    }
    const auto probe = LoadWire<ProbeWire>(meta);
    if (checked && probe) {
      return AnswerProbe(ProofOf((*checked)->key(), FrameType::kHere, probe->nonce, probe->listen));
    }
    FERRY_TRY_ASSIGN(pending_comms_, std::move(checked));
    hello_ = *LoadWire<HelloWire>(meta);
    lane_->SetMaxMeta(net::kMaxMetaBytes);
    acceptor_->OnHello(number_);
    return net::Placement{.action = net::Placement::Action::kDiscard, .memory = {}};
  }
  Status OnPayload() override { return Ok(); }
  void OnSent(net::OutFrame* frame) override {
    if (frame != &here_) return;
    owes_answer_ = false;
    if (pending_comms_ != nullptr) acceptor_->OnHello(number_);
  }
  void OnClosed(net::LaneLoss loss, const Error& error) override {
    ended_ = true;
    const bool left = loss == net::LaneLoss::kPeerClosed;
    LogPeer(left ? LogLevel::kInfo : LogLevel::kWarn, remote_,
            "'s connection ended before it was accepted: " + error.message());
    acceptor_->loop_->Post(
        [acceptor = acceptor_, number = number_] { acceptor->DropOnLoop(number); });
  }

  // Tells the sender that this is final. Otherwise it would take the close for a full table of
  // pending peers, and dial again.
  void SendRefusalOnLoop() {
    if (ended_) return;
    StoreWire(RefusalWire{}, &refusal_.meta);
    lane_->Send(&refusal_);
    lane_->Flush();
    lane_->Close(net::Closing::kOrderly);
  }

  // The lane may move to its comm when its hello frame has arrived and no answer to a probe is left
  // to send.
  bool IsReady() const noexcept { return pending_comms_ != nullptr && !owes_answer_; }
  // A lane that has ended since its hello frame would not report it again; its sender notices.
  void GoIn() {
    if (ended_) return;
    if (auto entered = pending_comms_->Enter(hello_, std::move(lane_)); !entered) {
      LogPeer(LogLevel::kWarn, remote_, " was refused: " + entered.error().message());
    }
  }

 private:
  // The sender has the key; it may leave without a hello frame if another address was faster.
  Result<net::Placement> AnswerProbe(const Proof& proof) {
    if (std::exchange(probed_, true)) return NoHello(remote_, "sent a second probe");
    owes_answer_ = true;
    StoreWire(HereWire{.proof = proof}, &here_.meta);
    lane_->Send(&here_);
    acceptor_->admission_.MarkSpoken(number_, Clock::now(), /*proven=*/true);
    return net::Placement{.action = net::Placement::Action::kDiscard, .memory = {}};
  }

  Acceptor* const acceptor_;
  const std::uint64_t number_;
  net::OutFrame refusal_;
  net::OutFrame here_;
  std::unique_ptr<net::Lane> lane_;
  const net::LaneInfo info_;
  const std::string& remote_;
  EventLoop::TimerId timer_ = 0;
  std::shared_ptr<PendingComms>
      pending_comms_;  // shared with the acceptor; set from the hello frame on
  HelloWire hello_;
  bool probed_ = false;
  bool owes_answer_ = false;  // here_ is queued
  bool refused_ = false;
  bool ended_ = false;
};

Result<std::unique_ptr<Acceptor>> Acceptor::Open(Engine* engine, EventLoop* loop) {
  const Config& config = engine->settings().config;
  std::unique_ptr<Acceptor> acceptor(new Acceptor(engine, loop));
  FERRY_TRY_ASSIGN(
      acceptor->listener_,
      engine->provider().Listen({config.listen_host, 0}, config, loop,
                                [raw = acceptor.get()](std::unique_ptr<net::Lane> lane) {
                                  raw->EnterOnLoop(std::move(lane));
                                }));
  acceptor->told_ = net::ToldAddresses(engine->nic().addresses, acceptor->listener_->addresses());
  if (acceptor->told_.empty()) {
    return Error(Code::kInvalidArgument,
                 fmt::format("FERRY_LISTEN_HOST={} has no address of those that {} selects; leave "
                             "one of them unset",
                             config.listen_host, engine->settings().selection));
  }
  return acceptor;
}

Acceptor::Acceptor(Engine* engine, EventLoop* loop)
    : engine_(engine),
      loop_(loop),
      admission_(engine->settings().config.max_pending_handshakes),
      gate_(loop, &admission_, [this](bool full) {
        if (listener_) listener_->PauseOnLoop(full);
      }) {}
Acceptor::~Acceptor() = default;

std::shared_ptr<PendingComms> Acceptor::Listen(EventLoop* swift) {
  const std::lock_guard lock(mutex_);
  // Never used again, so that a late lane does not reach another listen comm.
  const std::uint64_t id = next_listen_++;
  return listens_[id] = std::make_shared<PendingComms>(engine_, swift, id);
}

void Acceptor::Unlisten(std::uint64_t id) {
  std::shared_ptr<PendingComms> gone;  // shared with lanes on their way in
  {
    const std::lock_guard lock(mutex_);
    auto node = listens_.extract(id);
    if (!node.empty()) gone = std::move(node.mapped());
  }
  if (gone != nullptr) gone->Close();
}

Result<std::shared_ptr<PendingComms>> Acceptor::Find(const HelloWire& hello,
                                                     const std::optional<ProbeWire>& probe) {
  const std::lock_guard lock(mutex_);
  const auto it = listens_.find(hello.listen);
  const auto has_key = [&](const Key& key) {
    if (!probe) return EqualInConstantTime(key, hello.key);
    return EqualInConstantTime(ProofOf(key, FrameType::kProbe, probe->nonce, probe->listen),
                               probe->proof);
  };
  // One error for both: it tells nobody without the key which numbers exist.
  if (it == listens_.end() || !has_key(it->second->key())) {
    return Error(Code::kRefused, "unknown or closed listen comm");
  }
  return it->second;
}

Result<std::shared_ptr<PendingComms>> Acceptor::Check(std::span<const std::byte> meta,
                                                      const std::string& remote) {
  const auto head = LoadHelloHead(meta);
  const auto probe =
      head && head->type == FrameType::kProbe ? LoadWire<ProbeWire>(meta) : std::nullopt;
  if (!head || (head->type != FrameType::kHello && !probe)) {
    return NoHello(remote, "sent something other than a hello frame");
  }
  // A hello frame of that version does not have the listen comm's number, so no accept can be told.
  if (head->version < kFirstAlike) return OtherVersion(head->version, remote);
  FERRY_TRY_ASSIGN(auto pending_comms, Find(*head, probe));
  // The key is right from here on: only a rank of the job can make an accept fail.
  const auto refuse = [&pending_comms](const Error& reason) {
    pending_comms->Refuse(reason);
    return reason;
  };
  if (head->version != kWireVersion) return refuse(OtherVersion(head->version, remote));
  if (probe) return pending_comms;
  const auto hello = LoadWire<HelloWire>(meta);
  if (!hello) return NoHello(remote, "sent something other than a hello frame");
  if (const auto different = FindDifference(engine_->settings().rank, hello->rank, remote)) {
    return refuse(*different);
  }
  if (hello->lanes == 0 || hello->lanes > kMaxLanes || hello->lane >= hello->lanes) {
    return NoHello(remote, "named an invalid lane");
  }
  return pending_comms;
}

void Acceptor::EnterOnLoop(std::unique_ptr<net::Lane> lane) {
  const std::uint64_t number = next_pending_peer_++;
  auto pending_peer = std::make_unique<PendingPeer>(this, number, std::move(lane));
  PendingPeer* const raw = pending_peer.get();
  const net::LaneInfo& info = raw->info();
  // Admission may choose another pending peer to make room, which leaves before this one starts.
  const auto leaving =
      admission_.Enter(number, net::HostOf(info.remote), info.same_machine, Clock::now());
  if (leaving) DropOnLoop(*leaving);
  if (info.authenticated) admission_.MarkSpoken(number, Clock::now(), /*proven=*/true);
  pending_peers_.emplace(number, std::move(pending_peer));
  raw->StartOnLoop();
  gate_.UpdateOnLoop();
}

// Moves the lane to its comm outside the lane's callbacks.
void Acceptor::OnHello(std::uint64_t number) {
  admission_.MarkSpoken(number, Clock::now(), /*proven=*/true);
  loop_->Post([this, number] { AdmitOnLoop(number); });
}

void Acceptor::AdmitOnLoop(std::uint64_t number) {
  const auto it = pending_peers_.find(number);
  if (it == pending_peers_.end() || !it->second->IsReady()) return;
  it->second->GoIn();
  DropOnLoop(number);
}

void Acceptor::RefuseOnLoop(std::uint64_t number) {
  const auto it = pending_peers_.find(number);
  if (it == pending_peers_.end()) return;
  it->second->SendRefusalOnLoop();
  DropOnLoop(number);
}

void Acceptor::DropOnLoop(std::uint64_t number) {
  auto node = pending_peers_.extract(number);
  if (!node.empty()) node.mapped()->StopOnLoop();
  admission_.Leave(number);
  gate_.UpdateOnLoop();
}

}  // namespace ferry::nccl_net
