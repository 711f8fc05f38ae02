// Accepts lanes and assigns them to listen comms.
#include "plugins/nccl/acceptor.h"

#include <fmt/core.h>

#include <utility>

#include "ferry/core/log_limiter.h"
#include "ferry/net/machine/local_addresses.h"
#include "plugins/nccl/engine.h"
#include "plugins/nccl/rank.h"
#include "plugins/nccl/recv_comm.h"

namespace ferry::nccl_net {
namespace {

Key RandomKey() {
  Key key;
  FillRandom(key);
  return key;
}

// Whoever reaches the port can cause these lines.
void LogPeer(const std::string& remote, const std::string& text) {
  PeerLogLimiter().Write(LogLevel::kWarn, "nccl", net::HostOf(remote), {}, text);
}

}  // namespace

// ---- who has come -------------------------------------------------------------------------------

PendingComms::PendingComms(Engine* engine, EventLoop* swift, std::uint64_t id)
    : engine_(engine), swift_(swift), id_(id), key_(RandomKey()) {}

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

Result<std::unique_ptr<Acceptor>> Acceptor::Open(Engine* engine, EventLoop* loop) {
  const Config& config = engine->settings().config;
  std::unique_ptr<Acceptor> acceptor(new Acceptor(engine, loop));
  FERRY_TRY_ASSIGN(
      acceptor->listener_,
      engine->provider().Listen({config.listen_host, 0}, config, loop,
                                [raw = acceptor.get()](std::unique_ptr<net::Lane> lane) {
                                  raw->pending_peers_.EnterOnLoop(std::move(lane));
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
      pending_peers_({.loop = loop,
                      .role = session::wire::Role::kNccl,
                      .places = engine->settings().config.max_pending_handshakes,
                      .timeout = engine->settings().config.handshake_timeout},
                     this,
                     [this](bool full) {
                       if (listener_) listener_->PauseOnLoop(full);
                     }),
      nobodys_(SecretOf(RandomKey())) {}
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

std::shared_ptr<PendingComms> Acceptor::Find(std::uint64_t listen) {
  const std::lock_guard lock(mutex_);
  const auto it = listens_.find(listen);
  return it == listens_.end() ? nullptr : it->second;
}

// A peer that names a listen comm that does not exist is challenged, too, and fails by its proof:
// otherwise a peer without a key would learn which numbers exist.
Result<session::Demand> Acceptor::OnOpening(Handshake* /*handshake*/, session::wire::Type type,
                                            session::wire::MetaReader body) {
  const auto head = LoadHelloHead(body.rest());
  if (type != session::wire::Type::kHello || !head) {
    return Error(Code::kCorrupt, "its first frame is not a hello frame of a rank");
  }
  const auto comms = Find(head->listen);
  return session::Demand{.secret = comms == nullptr ? nobodys_ : SecretOf(comms->key()),
                         .process = {},
                         .wrong_proof = kUnknownListen};
}

// The key is right here: only a rank of the job can make an accept fail.
Status Acceptor::OnReceived(Handshake* handshake, session::wire::Type /*type*/,
                            session::wire::MetaReader* body) {
  const auto head = LoadHelloHead(body->rest());  // OnOpening() has seen it
  const auto comms = head ? Find(head->listen) : nullptr;
  if (comms == nullptr) return Error(Code::kRefused, kUnknownListen);
  const std::string& remote = handshake->peer_name();
  const auto hello = LoadWire<HelloWire>(body->rest());
  std::optional<Error> refusal;
  if (head->version != kWireVersion) {
    refusal = OtherVersion(head->version, remote);
  } else if (hello) {
    refusal = FindDifference(engine_->settings().rank, hello->rank, remote);
  }
  if (refusal) {
    comms->Refuse(*refusal);
    return *refusal;
  }
  if (!hello || hello->lanes == 0 || hello->lanes > kMaxLanes || hello->lane >= hello->lanes) {
    return Error(Code::kCorrupt, "its hello frame names an invalid lane");
  }
  handshake->AcceptOnLoop(session::wire::Type::kWelcome, {});
  return Ok();
}

void Acceptor::OnTurnedAway(const Handshake& handshake, const std::string& sentence) {
  LogPeer(handshake.peer_name(), sentence);
}

// Moves the lane to its comm outside the lane's callbacks.
void Acceptor::OnComplete(Handshake* handshake) {
  loop_->Post([this, number = handshake->number()] { AdmitOnLoop(number); });
}

void Acceptor::AdmitOnLoop(std::uint64_t number) {
  Handshake* const handshake = pending_peers_.Find(number);
  if (handshake == nullptr) return;
  const std::string remote = handshake->peer_name();
  const HelloWire hello = *LoadWire<HelloWire>(handshake->opening());
  const auto comms = Find(hello.listen);
  auto lane = pending_peers_.TakeOnLoop(handshake);
  const Status entered = comms != nullptr ? comms->Enter(hello, std::move(lane))
                                          : Error(Code::kCancelled, "the listen comm was closed");
  if (!entered) LogPeer(remote, fmt::format("refused {}: {}", remote, entered.error().message()));
}

}  // namespace ferry::nccl_net
