// A lane over a plugin: which way a frame takes, and polling the plugin.
#include "ferry/tcpx/lane/lane.h"

#include <fmt/core.h>

#include <chrono>
#include <thread>
#include <utility>

#include "ferry/core/check.h"
#include "ferry/core/loop/edges.h"

namespace ferry::tcpx {
namespace {

constexpr std::uint64_t kAnnouncementBytes = sizeof(std::uint64_t);
// The largest payload that goes over the control lane.
constexpr std::uint64_t kMaxControlPayload = 4096;
// Plugins have no descriptor to wait for. A lane polls in every turn of its loop at first, where
// few bytes are in flight, whose arrival somebody may wait for. With more of them, or when a chunk
// takes longer, it pauses between polls, which leaves the core to the plugin's threads. The pauses
// are long only after more time than a chunk takes on a slow link: the peer may be paused.
constexpr std::chrono::microseconds kPollEachTurn{200};
constexpr std::uint64_t kFewBytes = 1 << 20;
constexpr std::chrono::milliseconds kPollOften{20};
constexpr std::chrono::microseconds kShortPause{30};
constexpr std::chrono::milliseconds kLongPause{1};
// How long the control lane has to tell why a comm has ended.
constexpr milliseconds kVerdictTimeout{20};
// How long a payload may still take when the control lane has reported the peer's close, which it
// overtakes.
constexpr std::chrono::seconds kLastPayloadTimeout{1};

// A payload of an announcement's size would be taken for one.
bool GoesOverControl(const net::OutFrame& frame) {
  if (frame.payload_bytes == 0) return true;
  return !frame.over_network && frame.registered.memory == nullptr &&
         frame.payload_bytes <= kMaxControlPayload && frame.payload_bytes != kAnnouncementBytes;
}

iovec MemoryOf(const net::RegisteredRange& range) {
  return {PluginMemoryOf(range).memory.data() + range.offset,
          static_cast<std::size_t>(range.bytes)};
}

net::LaneInfo InfoOf(const net::Lane& control, std::shared_ptr<const net::LaunchCounts> launches) {
  net::LaneInfo info = control.Info();
  info.launches = std::move(launches);
  return info;
}

// On a machine with few cores the plugin's threads would otherwise wait for the end of this
// thread's time slice: 2.4 ms. Once for all lanes that this thread polls in a turn.
void YieldOnce(Clock::time_point now) {
  constexpr std::chrono::microseconds kTurn{20};
  thread_local Clock::time_point yielded{};
  if (now - yielded < kTurn) return;
  std::this_thread::yield();
  yielded = Clock::now();
}

net::Placement Pause() { return {net::Placement::Action::kPause, {}}; }

}  // namespace

// ---- ControlLane --------------------------------------------------------------------------------

void ControlLane::Follow(std::shared_ptr<ControlLane> control, EventLoop* here, PluginLane* to) {
  EventLoop* const target = control->target.load();
  if (target == here) {
    if (!control->abandoned) to->Arrive();
    return;
  }
  if (!control->ended) control->lane->Attach(target, control.get());
  target->Post([control = std::move(control), target, to]() mutable {
    Follow(std::move(control), target, to);
  });
}

Result<net::Placement> ControlLane::OnFrame(std::span<const std::byte> meta,
                                            std::uint64_t payload_bytes) {
  return user == nullptr ? Pause() : user->OnControlFrame(meta, payload_bytes);
}

Status ControlLane::OnPayload() { return user == nullptr ? Ok() : user->OnControlPayload(); }

void ControlLane::OnSent(net::OutFrame* /*frame*/) {
  if (user != nullptr) user->OnControlSent();
}

void ControlLane::OnClosed(net::LaneLoss loss, const Error& error) {
  if (user == nullptr) {
    ended.emplace(loss, error);
  } else {
    user->OnControlClosed(loss, error);
  }
}

// ---- life ---------------------------------------------------------------------------------------

PluginLane::PluginLane(std::shared_ptr<ControlLane> control, EventLoop* home,
                       std::unique_ptr<PayloadOut> out, std::unique_ptr<PayloadIn> in)
    : control_(std::move(control)),
      home_(home),
      info_(InfoOf(*control_->lane, in->launches())),
      out_(std::move(out)),
      in_(std::move(in)) {}

PluginLane::~PluginLane() {
  ++*departures_;
  CloseNow(queue_.empty() ? net::Closing::kOrderly : net::Closing::kAbort);
  if (loop_ != nullptr) {
    control_->user = nullptr;
    control_->abandoned = true;
  } else if (!home_->InLoop()) {
    home_->Post([control = control_] {});  // where the control lane ends
  }
}

// The control lane is on the loop of its set-up, and the first call may come from any thread, so it
// follows by way of that loop. Until it arrives, frames are only queued.
void PluginLane::Attach(EventLoop* loop, net::LaneHandler* handler) {
  const bool first = loop_ == nullptr;
  // Read before the control lane may arrive at the new loop.
  const bool moves = arrived_ && !closed_;
  LeaveLoop();
  if (receiving_ == Receiving::kPaused) Enter(Receiving::kOffer);
  handler_ = handler;
  loop_ = loop;
  control_->target = loop;
  if (first) {
    home_->Post([control = control_, home = home_, this]() mutable {
      ControlLane::Follow(std::move(control), home, this);
    });
  } else if (moves) {
    MoveControl();
  }
}

// Once the control lane is attached, this lane may get frames on its new loop, move on and end, all
// before this thread goes on to post the task, which may then run while another loop has the lane,
// or none.
void PluginLane::MoveControl() {
  const auto departures = departures_;
  const std::uint64_t departure = ++*departures;
  EventLoop* const loop = loop_;
  control().Attach(loop, control_.get());
  loop->Post([this, departures, departure] {
    if (*departures == departure) RequestTurn();
  });
}

void PluginLane::Arrive() {
  arrived_ = true;
  if (closed_) return control().Close(net::Closing::kOrderly);
  if (control_->ended) return Fail(control_->ended->first, control_->ended->second);
  control_->user = this;
  control().SetMaxMeta(max_meta_);
  for (Queued& queued : queue_) Start(&queued);
  control().Resume();
}

void PluginLane::SetMaxMeta(std::size_t bytes) {
  max_meta_ = bytes;
  if (arrived_) control().SetMaxMeta(bytes);
}

void PluginLane::Close(net::Closing how) { CloseNow(how); }

void PluginLane::CloseNow(net::Closing how) {
  if (std::exchange(closed_, true)) return;
  LeaveLoop();
  if (arrived_) control().Close(how);
  const auto current = in_->MakeGpuCurrent();
  out_.reset();
  PayloadIn::End(std::move(in_));
  queue_.clear();
  control_sent_ = 0;
}

void PluginLane::LeaveLoop() {
  if (loop_ == nullptr || !arrived_) return;
  loop_->CancelDeferredOnLoop(this);
  turn_requested_ = false;
  if (poll_timer_ != 0) loop_->CancelTimerOnLoop(std::exchange(poll_timer_, 0));
}

void PluginLane::Fail(net::LaneLoss loss, const Error& error, net::Closing how) {
  CloseNow(how);
  net::LaneHandler* const handler = std::exchange(handler_, nullptr);
  if (handler != nullptr) handler->OnClosed(loss, error);
}

std::string PluginLane::Waits() const {
  if (closed_) return {};
  const std::string sends = out_->busy() ? out_->Waits() : std::string();
  const std::string receives = receiving_ == Receiving::kPayload ? in_->Waits() : std::string();
  return sends + (sends.empty() || receives.empty() ? "" : ", and ") + receives;
}

std::string PluginLane::NameOfSent(std::uint64_t number, std::uint64_t bytes) const {
  return closed_ ? std::string() : out_->NameOf(number, bytes);
}

void PluginLane::Poke() {
  if (arrived_ && !closed_) control().Poke();
}

void PluginLane::Flush() {
  if (arrived_ && !closed_) control().Flush();
}

// ---- sending ------------------------------------------------------------------------------------

void PluginLane::Send(net::OutFrame* frame) {
  if (closed_) return;
  queue_.push_back({frame, nullptr, 0});
  if (arrived_) Start(&queue_.back());
}

void PluginLane::Start(Queued* queued) {
  net::OutFrame* const frame = queued->frame;
  frame->payload_number = 0;  // a frame that is sent again has that of another lane
  if (GoesOverControl(*frame)) return control().Send(frame);
  queued->announcement = std::make_unique<Announcement>();
  Announcement& announcement = *queued->announcement;
  announcement.payload_bytes = frame->payload_bytes;
  announcement.frame.meta = frame->meta;
  announcement.frame.payload = {{&announcement.payload_bytes, kAnnouncementBytes}};
  announcement.frame.payload_bytes = kAnnouncementBytes;
  control().Send(&announcement.frame);
  queued->number = frame->payload_number = out_->Push(*frame);
  progress_.at = Clock::now();
  RequestTurn();
}

// The control lane sends frames in the order of queue_.
void PluginLane::OnControlSent() {
  if (closed_) return;
  ++control_sent_;
  ReportSent();
}

void PluginLane::ReportSent() {
  while (control_sent_ > 0 && queue_.front().number <= out_->sent_frames()) {
    net::OutFrame* const frame = queue_.front().frame;
    queue_.pop_front();
    --control_sent_;
    handler_->OnSent(frame);
    if (closed_) return;
  }
}

// ---- receiving ----------------------------------------------------------------------------------

// Each edge with its reason. In all states but kFrame, the control lane is paused before its next
// frame.
void PluginLane::Enter(Receiving next) {
  static constexpr Edge<Receiving> kEdges[] = {
      // A frame has come whose payload is an announcement.
      {Receiving::kFrame, Receiving::kAnnounce},
      // The size that it announces has come.
      {Receiving::kAnnounce, Receiving::kOffer},
      // The user does not want the payload now.
      {Receiving::kOffer, Receiving::kPaused},
      // The user resumes, or is another one, to whom it has not been offered.
      {Receiving::kPaused, Receiving::kOffer},
      // The user has named its place, or drops it.
      {Receiving::kOffer, Receiving::kPayload},
      // All of it is in place, or has come and was dropped.
      {Receiving::kPayload, Receiving::kFrame},
      // A small payload is for GPU memory, which the control lane cannot write.
      {Receiving::kFrame, Receiving::kSmall},
      // It has come, and is copied.
      {Receiving::kSmall, Receiving::kPayload},
      // The user drops it before it has come.
      {Receiving::kSmall, Receiving::kFrame},
  };
  FERRY_CHECK(HasEdge(kEdges, receiving_, next), static_cast<int>(receiving_),
              static_cast<int>(next));
  receiving_ = next;
}

Result<net::Placement> PluginLane::OnControlFrame(std::span<const std::byte> meta,
                                                  std::uint64_t payload_bytes) {
  if (receiving_ != Receiving::kFrame) return Pause();
  if (payload_bytes == kAnnouncementBytes) {
    meta_.assign(meta.begin(), meta.end());
    Enter(Receiving::kAnnounce);
    place_ = {&announced_, kAnnouncementBytes};
    return net::Placement{net::Placement::Action::kPlace, {&place_, 1}};
  }
  auto placed = handler_->OnFrame(meta, payload_bytes);
  if (closed_ || !placed || placed->action != net::Placement::Action::kPlace) return placed;
  const PayloadIn::Target target = TargetOf(*placed);
  if (target.gpu && payload_bytes > 0) return PlaceSmall(target, payload_bytes);
  return net::Placement{placed->action, target.memory, placed->revocable};
}

PayloadIn::Target PluginLane::TargetOf(const net::Placement& placed) {
  if (placed.action == net::Placement::Action::kDiscard) return {};
  if (placed.registered.memory == nullptr) return {placed.memory, placed.gpu};
  place_ = MemoryOf(placed.registered);
  return {{&place_, 1}, PluginMemoryOf(placed.registered).on_gpu};
}

// The control lane cannot write GPU memory.
Result<net::Placement> PluginLane::PlaceSmall(const PayloadIn::Target& target,
                                              std::uint64_t bytes) {
  if (bytes > kMaxControlPayload) {
    return Error(Code::kCorrupt,
                 fmt::format("{} sent {} bytes beside the plugin; {} are allowed, so the "
                             "connection was closed",
                             info_.remote, bytes, kMaxControlPayload));
  }
  small_.target = target;
  small_.bytes.resize(bytes);
  small_.place = {small_.bytes.data(), bytes};
  Enter(Receiving::kSmall);
  return net::Placement{net::Placement::Action::kPlace, {&small_.place, 1}};
}

Status PluginLane::CopySmall() {
  FERRY_TRY(in_->BeginCopy(small_.bytes, small_.target));
  AwaitPayload();
  return Ok();
}

Status PluginLane::OnControlPayload() {
  if (receiving_ == Receiving::kSmall) return CopySmall();
  if (receiving_ != Receiving::kAnnounce) return handler_->OnPayload();
  if (announced_ == 0 || announced_ > net::kMaxPayloadBytes) {
    return Error(Code::kCorrupt,
                 fmt::format("{} announced a payload of {} bytes; 1 to {} are allowed, so the "
                             "connection was closed",
                             info_.remote, announced_, net::kMaxPayloadBytes));
  }
  Enter(Receiving::kOffer);
  return Offer();
}

Status PluginLane::Offer() {
  FERRY_TRY_ASSIGN(const net::Placement placed, handler_->OnFrame(meta_, announced_));
  if (closed_) return Ok();
  if (placed.action == net::Placement::Action::kPause) {
    Enter(Receiving::kPaused);
    return Ok();
  }
  FERRY_TRY(in_->Begin(announced_, TargetOf(placed)));
  AwaitPayload();
  return Ok();
}

void PluginLane::AwaitPayload() {
  Enter(Receiving::kPayload);
  progress_.at = peer_closed_at_ = Clock::now();
  RequestTurn();
}

void PluginLane::FinishPayload() {
  Enter(Receiving::kFrame);
  const Status done = handler_->OnPayload();
  if (closed_) return;
  if (!done) return Fail(net::LaneLoss::kBroken, done.error());
  if (peer_closed_) return Fail(peer_closed_->first, peer_closed_->second);
  control().Resume();
}

void PluginLane::Resume() {
  if (!arrived_ || closed_) return;
  if (receiving_ == Receiving::kPaused) {
    Enter(Receiving::kOffer);
    RequestTurn();
  } else {
    control().Resume();
  }
}

void PluginLane::DiscardRest() {
  if (!arrived_ || closed_) return;
  if (receiving_ == Receiving::kPayload) {
    const auto current = in_->MakeGpuCurrent();
    in_->DropRest();
  } else {
    // The control lane reports a small payload when it has dropped it.
    if (receiving_ == Receiving::kSmall) Enter(Receiving::kFrame);
    control().DiscardRest();
  }
}

// What the peer has sent before it closed is still in the plugin's sockets.
void PluginLane::OnControlClosed(net::LaneLoss loss, const Error& error) {
  if (closed_) return;
  const bool in_frame = receiving_ != Receiving::kFrame && receiving_ != Receiving::kAnnounce &&
                        receiving_ != Receiving::kSmall;
  if (loss != net::LaneLoss::kPeerClosed || !in_frame || failure_) return Fail(loss, error);
  peer_closed_.emplace(loss, error);
  peer_closed_at_ = Clock::now();
  RequestTurn();
}

// ---- polling ------------------------------------------------------------------------------------

void PluginLane::RequestTurn() {
  if (!arrived_ || closed_ || std::exchange(turn_requested_, true)) return;
  loop_->DeferOnLoop(EventLoop::Defer::kNextTurn, this);
}

void PluginLane::RunDeferredOnLoop(EventLoop::Defer /*when*/) {
  turn_requested_ = false;
  Turn();
}

void PluginLane::Turn() {
  if (closed_) return;
  if (failure_) return AwaitVerdict();
  if (const Status advanced = Advance(); !advanced && !closed_) return FailSoon(advanced.error());
  if (!closed_) PollAgain();
}

// A peer that closes the lane ends the comms, too, and what it said about it is on its way over the
// control lane. A plugin that has failed alone ends the lane like a network that has dropped it: by
// a reset for the peer.
void PluginLane::FailSoon(const Error& error) {
  if (peer_closed_) return Fail(peer_closed_->first, peer_closed_->second);
  if (error.code() != Code::kPeerLost) {
    return Fail(net::LaneLoss::kBroken, error, net::Closing::kAbort);
  }
  failure_ = error;
  if (poll_timer_ != 0) loop_->CancelTimerOnLoop(std::exchange(poll_timer_, 0));
  AwaitVerdict();
}

// Again after a move, which cancels the timer.
void PluginLane::AwaitVerdict() {
  if (poll_timer_ != 0) return;
  poll_timer_ = loop_->AddTimerOnLoop(Clock::now() + kVerdictTimeout, [this] {
    poll_timer_ = 0;
    Fail(net::LaneLoss::kReset, Error(*failure_), net::Closing::kAbort);
  });
}

Status PluginLane::Advance() {
  const auto current = in_->MakeGpuCurrent();
  if (receiving_ == Receiving::kOffer) {
    if (const Status offered = Offer(); !offered && !closed_) {
      Fail(net::LaneLoss::kBroken, offered.error());
    }
    if (closed_) return Ok();
  }
  if (out_->busy() && !peer_closed_) {
    FERRY_TRY(out_->Progress());
    ReportSent();
  }
  if (closed_ || receiving_ != Receiving::kPayload) return Ok();
  FERRY_TRY(in_->Progress());
  bytes_received_.store(in_->received_bytes(), std::memory_order_relaxed);
  if (!in_->busy()) {
    FinishPayload();
  } else if (peer_closed_ && Clock::now() > peer_closed_at_ + kLastPayloadTimeout) {
    return peer_closed_->second;
  }
  return Ok();
}

void PluginLane::PollAgain() {
  const bool sends = out_->busy() && !peer_closed_;
  const bool receives = receiving_ == Receiving::kPayload;
  if (!sends && !receives && receiving_ != Receiving::kOffer) return;
  const auto now = Clock::now();
  const std::uint64_t count = out_->sent_chunks() + in_->received_bytes();
  const bool advanced = std::exchange(progress_.count, count) != count;
  if (advanced) progress_.at = now;
  const auto idle = now - progress_.at;
  const bool few = (sends && out_->bytes_in_flight() <= kFewBytes) ||
                   (receives && in_->bytes_left() <= kFewBytes);
  if (advanced || ((few || !(sends || receives)) && idle < kPollEachTurn)) {
    if (!advanced) YieldOnce(now);
    return RequestTurn();
  }
  if (poll_timer_ != 0) loop_->CancelTimerOnLoop(std::exchange(poll_timer_, 0));
  const Clock::duration pause = idle < kPollOften ? Clock::duration(kShortPause) : kLongPause;
  poll_timer_ = loop_->AddTimerOnLoop(now + pause, [this] {
    poll_timer_ = 0;
    Turn();
  });
}

}  // namespace ferry::tcpx
