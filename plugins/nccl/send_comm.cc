// The sending end of a comm.
#include "plugins/nccl/send_comm.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "plugins/nccl/engine.h"
#include "plugins/nccl/lane_dial.h"

namespace ferry::nccl_net {
namespace {

constexpr std::size_t kMaxSends = abi::kMaxRequests * kMaxReceives;
constexpr std::uint64_t kPieceAlignment = 4096;
// A receiver announces large receives at once. A large message whose receive is small, which the
// receiver rejects, must be asked for.
constexpr std::chrono::milliseconds kAskAfter{100};
// How long a rank with different settings may take to read that it is refused.
constexpr std::chrono::seconds kTellWithin{2};

bool Overlap(std::span<const std::byte> a, std::span<const std::byte> b) noexcept {
  return std::less<>()(a.data(), b.data() + b.size()) &&
         std::less<>()(b.data(), a.data() + a.size());
}

// The peer's addresses that a usable interface reaches. `paths`: the first address that each
// interface reaches; `others`: the rest.
struct Routes {
  std::vector<net::Address> paths;
  std::vector<net::Address> others;
};
Routes ChooseRoutes(Engine* engine, const std::vector<net::Address>& addresses) {
  Routes routes;
  std::set<std::string> interfaces;
  for (const net::Address& address : addresses) {
    const auto by = engine->provider().InterfacesTo(address, engine->settings().config);
    if (by.empty()) continue;
    const bool is_path = interfaces.insert(by.front()).second;
    (is_path ? routes.paths : routes.others).push_back(address);
  }
  return routes;
}

}  // namespace

// ---- connecting ---------------------------------------------------------------------------------

SendComm::SendComm(Engine* engine, EventLoop* swift, const ListenAddress& address,
                   std::optional<Error> refusal, Deadline deadline)
    : Comm(engine, swift, 1 + engine->settings().bulk_lanes),
      address_(address),
      refusal_(std::move(refusal)),
      deadline_(refusal_ ? Deadline::After(kTellWithin).Sooner(deadline) : deadline),
      id_(Uuid::Random()),
      dials_(lanes()) {}

Result<std::shared_ptr<SendComm>> SendComm::Dial(Engine* engine, EventLoop* swift,
                                                 const ListenAddress& address,
                                                 std::optional<Error> refusal, Deadline deadline) {
  auto comm = std::make_shared<SendComm>(engine, swift, address, std::move(refusal), deadline);
  Routes routes = ChooseRoutes(engine, address.at);
  if (routes.paths.empty()) {
    std::string text;
    for (const net::Address& at : address.at) text += (text.empty() ? "" : ", ") + at.ToString();
    // A look-up that failed has left no trace in the routes.
    const auto source = net::SourceTo(address.at.front());
    return Error(Code::kPeerLost,
                 fmt::format("there is no route to the peer's {} by an interface that "
                             "FERRY_INTERFACES or NCCL_SOCKET_IFNAME allows{}",
                             text, source ? "" : "; " + source.error().message()));
  }
  comm->paths_ = routes.paths;
  // Comms start with different paths.
  auto& first = routes.paths;
  const std::size_t turn = comm->number() % first.size();
  std::rotate(first.begin(), first.begin() + static_cast<std::ptrdiff_t>(turn), first.end());
  first.insert(first.end(), routes.others.begin(), routes.others.end());
  comm->LoopOf(0)->Post([weak = std::weak_ptr(comm), addresses = std::move(first)]() mutable {
    if (const auto self = weak.lock()) self->DialOnLoop(0, std::move(addresses));
  });
  return comm;
}

HelloWire SendComm::HelloOf(std::size_t lane) const {
  HelloWire hello;
  hello.lane = static_cast<std::uint16_t>(lane);
  hello.lanes = static_cast<std::uint16_t>(lanes());
  hello.listen = address_.listen;
  hello.comm = id_;
  hello.early_bytes = engine()->settings().small_bytes;
  hello.rank = engine()->settings().rank;
  return hello;
}

void SendComm::DialOnLoop(std::size_t lane, std::vector<net::Address> addresses) {
  LaneDial::Request request{.engine = engine(),
                            .loop = LoopOf(lane),
                            .addresses = std::move(addresses),
                            .deadline = deadline_,
                            .hello = HelloOf(lane),
                            .key = address_.key,
                            .may_retry = !refusal_};
  dials_[lane] = std::make_shared<LaneDial>(
      std::move(request),
      [weak = weak_from_this(), lane](std::unique_ptr<net::Lane> found, const net::Address& at) {
        if (const auto self = weak.lock()) self->OnFound(lane, std::move(found), at);
      },
      [weak = weak_from_this()](const Error& error) {
        if (const auto self = weak.lock()) self->Fail(self->refusal_.value_or(error));
      });
  dials_[lane]->Start();
}

void SendComm::OnFound(std::size_t lane, std::unique_ptr<net::Lane> found,
                       const net::Address& address) {
  dials_[lane].reset();
  // The other rank sees no difference, but this one does.
  if (refusal_) return Fail(*refusal_);
  if (Adopt(lane, std::move(found)) && lane == 0) DialOthers(address);
}

// The other lanes are spread over the network paths. All are dialed together, and the address that
// has led to the peer stands in for a path that does not.
void SendComm::DialOthers(const net::Address& peer) {
  const std::lock_guard lock(mutex_);
  if (closing_ || error_) return;
  for (std::size_t i = 1; i < lanes(); ++i) {
    std::vector<net::Address> addresses{paths_[(number() + i) % paths_.size()]};
    if (addresses.front() != peer) addresses.push_back(peer);
    LoopOf(i)->Post([weak = weak_from_this(), i, addresses = std::move(addresses)]() mutable {
      if (const auto self = weak.lock()) self->DialOnLoop(i, std::move(addresses));
    });
  }
}

void SendComm::OnLaneClosing(std::size_t lane) { dials_[lane].reset(); }

// ---- sending ------------------------------------------------------------------------------------

SendComm::Tag& SendComm::TagOf(int tag) {
  const auto it =
      std::find_if(tags_.begin(), tags_.end(), [&](const Tag& each) { return each.tag == tag; });
  return it != tags_.end() ? *it : tags_.emplace_back(Tag{.tag = tag});
}

SendComm::SendRequest* SendComm::FreeRequest() {
  if (free_.empty()) {
    if (requests_.size() == kMaxSends) return nullptr;
    requests_.push_back(std::make_unique<SendRequest>(this));
    return requests_.back().get();
  }
  SendRequest* const request = free_.back();
  free_.pop_back();
  return request;
}

bool SendComm::IsSmall(const SendRequest& request) const noexcept {
  return request.data.size() <= engine()->settings().small_bytes;
}

// The receiver has posted a receive, or will keep the message until then. This saves a round trip
// for small messages whose receive is posted when they are sent, as in a collective of a few bytes.
bool SendComm::MayLeaveLocked(const SendRequest& request) {
  if (request.sequence < TagOf(request.tag).granted) return true;
  const std::uint64_t bytes = request.data.size();
  if (!IsSmall(request) || early_.size() == kMaxEarly || bytes > kMaxEarlyTotal - early_total_) {
    return false;
  }
  early_.push_back({.tag = request.tag, .sequence = request.sequence, .bytes = bytes});
  early_total_ += bytes;
  return true;
}

void SendComm::ForgetGrantedLocked() {
  const auto is_granted = [&](const Early& early) {
    return early.sequence < TagOf(early.tag).granted;
  };
  early_.erase(std::remove_if(early_.begin(), early_.end(), is_granted), early_.end());
  early_total_ =
      std::accumulate(early_.begin(), early_.end(), std::uint64_t{0},
                      [](std::uint64_t sum, const Early& early) { return sum + early.bytes; });
}

Result<Request*> SendComm::Send(const Outgoing& message) {
  if (failed()) return failure();
  std::unique_lock lock(mutex_);
  SendRequest* const request = FreeRequest();
  if (request == nullptr) return static_cast<Request*>(nullptr);
  Tag& tag = TagOf(message.tag);
  request->data = message.data;
  request->tag = message.tag;
  request->sequence = tag.next++;
  request->in_use = true;
  const bool small = IsSmall(*request);
  request->left.store(1, std::memory_order_relaxed);
  request->ask_at = Clock::time_point::max();
  if (!MayLeaveLocked(*request)) {
    waiting_.push_back(request);
    if (!small) request->ask_at = Clock::now() + kAskAfter;
    const bool asks = small && MayStarveLocked(*request);
    if (!asks || !WantLocked(*request)) return static_cast<Request*>(request);
    lock.unlock();
    LoopOf(0)->PostOrRun([this] { AskOnLoop(); });
    return static_cast<Request*>(request);
  }
  if (!small) {
    BeginLocked(request);
    return static_cast<Request*>(request);
  }
  CutLocked(request, 1);
  small_sent_ = true;
  Frame* const frame = request->frames[0].get();
  lock.unlock();
  // Sent at once, on this thread. The comm cannot be closed during this call.
  LoopOf(0)->PostOrRun([this, frame] { SendOnLoop(0, frame); });
  return static_cast<Request*>(request);
}

void SendComm::CutLocked(SendRequest* request, std::size_t pieces) {
  const std::uint64_t total = request->data.size();
  const std::uint64_t even = (total + pieces - 1) / pieces;
  const std::uint64_t each =
      pieces == 1 ? total : (even + kPieceAlignment - 1) / kPieceAlignment * kPieceAlignment;
  std::uint32_t count = 0;
  std::uint64_t offset = 0;
  do {
    if (request->frames.size() == count) request->frames.push_back(std::make_unique<Frame>());
    Frame& frame = *request->frames[count++];
    DataWire data;
    data.tag = request->tag;
    data.sequence = request->sequence;
    data.total = total;
    data.offset = offset;
    if (IsSmall(*request)) {
      StorePadded(data, total, &frame.meta);
    } else {
      StoreWire(data, &frame.meta);
    }
    frame.left = &request->left;
    frame.payload_bytes = std::min(each, total - offset);
    frame.payload.clear();
    if (frame.payload_bytes > 0) {
      auto* const from = const_cast<std::byte*>(request->data.data() + offset);
      frame.payload.push_back({from, frame.payload_bytes});
    }
    offset += frame.payload_bytes;
  } while (offset < total);
  request->left.store(count, std::memory_order_relaxed);
}

// For large messages only.
void SendComm::BeginLocked(SendRequest* request) {
  const std::uint64_t most = request->data.size() / engine()->settings().piece_bytes;
  const std::size_t pieces = std::clamp<std::uint64_t>(most, 1, lanes() - 1);
  CutLocked(request, pieces);
  const std::uint32_t count = request->left.load(std::memory_order_relaxed);
  // A message of one piece goes to the first idle lane, whose worker has slept for the shortest
  // time: send/recv of 64 KiB took 57 us this way on two H200, and 125 to 240 us with the lanes in
  // turn.
  const std::size_t first = pieces > 1 ? next_lane_++ : 0;
  for (std::uint32_t i = 0; i < count; ++i) PostBulk(request->frames[i].get(), first);
}

Result<Tested> SendComm::Test(Request* request) {
  auto* const one = static_cast<SendRequest*>(request);
  if (one->left.load(std::memory_order_acquire) > 0) {
    swift()->DriveOnce();
    if (one->left.load(std::memory_order_acquire) > 0) {
      if (failed()) return failure();
      AskInTime(one);
      return Tested{};
    }
  }
  Tested tested{.done = true, .count = 1};
  tested.sizes[0] = one->data.size();
  traffic_.Add(one->data.size());
  const std::lock_guard lock(mutex_);
  one->in_use = false;
  free_.push_back(one);
  return tested;
}

// If everything ahead of the request has the same tag and is older, those receives come first, and
// are announced when half of them have arrived.
bool SendComm::MayStarveLocked(const SendRequest& request) const {
  return std::any_of(early_.begin(), early_.end(), [&](const Early& early) {
    return early.tag != request.tag || early.sequence > request.sequence;
  });
}

// Whether to ask the receiver; the caller must then call AskOnLoop().
bool SendComm::WantLocked(const SendRequest& request) {
  Tag& tag = TagOf(request.tag);
  tag.wanted = std::max(tag.wanted, request.sequence + 1);
  return tag.wanted > tag.asked && !closing_ && !error_ && !std::exchange(asking_, true);
}

void SendComm::AskInTime(SendRequest* request) {
  if (request->ask_at == Clock::time_point::max() || Clock::now() < request->ask_at) return;
  request->ask_at = Clock::time_point::max();
  {
    const std::lock_guard lock(mutex_);
    const bool waits = std::find(waiting_.begin(), waiting_.end(), request) != waiting_.end();
    if (!waits || !WantLocked(*request)) return;
  }
  // The comm cannot be closed during this call.
  LoopOf(0)->PostOrRun([this] { AskOnLoop(); });
}

void SendComm::AskOnLoop() {
  std::vector<CountWire> wanted;
  {
    const std::lock_guard lock(mutex_);
    asking_ = false;
    for (Tag& tag : tags_) {
      if (tag.asked >= tag.wanted) continue;
      tag.asked = tag.wanted;
      wanted.push_back({.tag = tag.tag, .receives = tag.wanted});
    }
  }
  SayCountsOnLoop(FrameType::kAsk, wanted);
}

void SendComm::OnBye() {
  arrived_.store(true);
  LoopOf(0)->NotifyWaiters();
}

void SendComm::AwaitArrival() {
  {
    const std::lock_guard lock(mutex_);
    if (!small_sent_ || closing_ || error_) return;
    LoopOf(0)->Post([this] { SayByeOnLoop(); });
  }
  LoopOf(0)->DriveUntil([this] { return arrived_.load() || !swift_open(); },
                        Deadline::After(engine()->settings().config.peer_timeout), microseconds(0));
}

bool SendComm::Uses(std::span<const std::byte> memory) const {
  return std::any_of(requests_.begin(), requests_.end(), [&](const auto& request) {
    return request->in_use && request->left.load(std::memory_order_acquire) > 0 &&
           Overlap(request->data, memory);
  });
}

// ---- the receiver -------------------------------------------------------------------------------

Result<net::Placement> SendComm::HandleFrame(std::size_t lane, std::span<const std::byte> meta,
                                             std::uint64_t payload_bytes) {
  const auto welcome = LoadWire<WelcomeWire>(meta);
  if (lane == 0 && payload_bytes == 0 && welcome && welcome->type == FrameType::kWelcome) {
    welcomed_.store(true);
    LoopOf(0)->NotifyWaiters();
    return net::Placement{.action = net::Placement::Action::kDiscard, .memory = {}};
  }
  const auto credits = LoadCounts(FrameType::kCredit, meta);
  if (lane != 0 || payload_bytes != 0 || !credits) {
    return Error(Code::kCorrupt, "the receiver sent an unexpected frame instead of a credit");
  }
  const std::lock_guard lock(mutex_);
  for (const CountWire& credit : *credits) {
    Tag& tag = TagOf(credit.tag);
    tag.granted = std::max(tag.granted, credit.receives);
    if (tags_.size() > kMaxTags) {
      return Error(Code::kCorrupt,
                   fmt::format("the receiver used more than {} tags; use fewer", kMaxTags));
    }
  }
  ForgetGrantedLocked();
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    SendRequest* const request = *it;
    if (!MayLeaveLocked(*request)) {
      ++it;
      continue;
    }
    it = waiting_.erase(it);
    if (IsSmall(*request)) {
      CutLocked(request, 1);
      small_sent_ = true;
      SendOnLoop(0, request->frames[0].get());
    } else {
      BeginLocked(request);
    }
  }
  // The message that has just left may have used the credit that others waited for, or overtaken
  // them.
  bool asks = false;
  for (const SendRequest* request : waiting_) {
    if (IsSmall(*request) && MayStarveLocked(*request)) asks |= WantLocked(*request);
  }
  if (asks) LoopOf(0)->Post([this] { AskOnLoop(); });
  return net::Placement{.action = net::Placement::Action::kDiscard, .memory = {}};
}

// A closing receiver has announced on lane 0, before, which messages it still waits for.
void SendComm::OnLaneLost(const LostLane& lane, const Error& error) {
  if (!welcomed_.load()) {
    if (error.code() == Code::kPeerLost) turned_away_.store(true);
    return Fail(error);
  }
  if (lane.index == 0 || lane.last || lane.loss != net::LaneLoss::kPeerClosed) return Fail(error);
  FailLaterOnLoop(lane.index, error);
}

}  // namespace ferry::nccl_net
