// Starts and ends a connection, and hands on what happens to its lanes.
#include "ferry/transfer/connection/connection_core.h"

#include <fmt/core.h>

#include <utility>

namespace ferry::transfer {

ConnectionCore::ConnectionCore(const Config& config, RegionTable* regions, Peer peer,
                               const std::vector<EventLoop*>& loops)
    : peer_(std::move(peer)),
      shares_(loops.size(), FirstBulkLaneOf(loops.size())),
      common_(config, ContextFor(regions, loops.size()), loops.front(),
              [this](const Error& error) { FailNow(error); }),
      monitor_(&common_, &lanes_),
      operations_(&common_, &lanes_, &monitor_, &messages_),
      messages_(&common_.context, common_.home),
      lanes_(common_.context, loops),
      open_lanes_(loops.size()) {}

ConnectionCore::~ConnectionCore() = default;

LaneContext ConnectionCore::ContextFor(RegionTable* regions, std::size_t lanes) {
  LaneContext context;
  context.regions = regions;
  context.memory = &memory_;
  context.sharing = &sharing_;
  context.shares = &shares_;
  context.owner = this;
  context.messages = &messages_;
  context.connection = this;
  context.peer = peer_.endpoint;
  context.process = peer_.process;
  context.peer_name = peer_.name;
  context.window_bytes = peer_.window_bytes;
  context.checksums = peer_.checksums;
  context.lanes = lanes;
  context.bulk_lanes = lanes - FirstBulkLaneOf(lanes);
  return context;
}

void ConnectionCore::SendControlOnLoop(wire::Type type, std::span<const std::byte> body) {
  lanes_.front().SendSequenced(type, 0, body, {}, nullptr);
}

ConnectionCounters ConnectionCore::Counters() const {
  ConnectionCounters counters;
  counters.peer = peer_name();
  counters.endpoint = peer_.endpoint.ToString();
  counters.called = monitor_.called();
  counters.lost = lost();
  counters.held_bytes = memory_.held();
  // The lanes may have no record yet, while the connection is brought up.
  counters.lanes = monitor_.records().Counters();
  for (std::size_t i = 0; i < counters.lanes.size(); ++i) {
    counters.lanes[i].up = counters.lanes[i].up && !counters.lost;
    counters.lanes[i].traffic = lanes_.lane(i).Traffic();
    counters.lanes[i].rate = lanes_.lane(i).rate();
  }
  counters.traffic = common_.stats.Traffic();
  counters.traffic.lanes = lanes_.Traffic();
  return counters;
}

// ---- what happens to the lanes ------------------------------------------------------------------

void ConnectionCore::SetLaneDown(std::uint32_t index) {
  monitor_.SetDown(index);
  operations_.DealRestSoon();
}

void ConnectionCore::FailIfAllDown(const Error& error) {
  if (monitor_.AllDown()) FailNow(error);
}

void ConnectionCore::LaneLost(std::uint32_t index, const Error& error,
                              std::optional<net::LaneLoss> loss) {
  home()->Post(
      [self = shared_from_this(), index, error, loss] { self->OnLaneLost(index, error, loss); });
}

void ConnectionCore::OnLaneLost(std::uint32_t index, const Error& error,
                                std::optional<net::LaneLoss> loss) {
  SetLaneDown(index);
  if (lost()) return FailIfAllDown(error);
  if (!monitor_.OnLost(index, error, loss)) LaneFailed(error);
}

// Lanes of a closing peer end one after another; the last of them ends the connection, or the timer
// does.
void ConnectionCore::PeerClosedLane(std::uint32_t index, const Error& error) {
  MarkLost(error, /*by_peer=*/true);
  home()->Post([self = shared_from_this(), index, error] { self->OnPeerClosedLane(index, error); });
}

void ConnectionCore::OnPeerClosedLane(std::uint32_t index, const Error& error) {
  if (common_.state.ending()) return;
  SetLaneDown(index);
  if (common_.state.starting()) return FailNow(error);
  FailIfAllDown(error);
  if (common_.state.ending() || last_words_timer_ != 0) return;
  last_words_timer_ = home()->AddTimerOnLoop(Clock::now() + config().drain_grace, [this, error] {
    last_words_timer_ = 0;
    FailNow(error);
  });
}

void ConnectionCore::LaneFrozen(std::uint32_t index, bool was_heard) {
  home()->Post([self = shared_from_this(), index, was_heard] {
    self->SetLaneDown(index);
    self->monitor_.OnFrozen(index, was_heard);
    if (self->lost()) self->FailIfAllDown(self->state().error());
  });
}

void ConnectionCore::OnLaneUp(std::uint32_t index, net::LaneInfo info) {
  home()->Post([self = shared_from_this(), index, info = std::move(info)] {
    self->monitor_.OnReplaced(index, info);
    self->operations_.DealRestSoon();
  });
}

void ConnectionCore::OnLinkChange(const net::LinkChange& change) {
  home()->Post([self = shared_from_this(), change] { self->monitor_.OnLinkChange(change); });
}

// ---- regions ------------------------------------------------------------------------------------

void ConnectionCore::Revoke(const std::shared_ptr<RegionState>& region) {
  operations_.Revoke(region, [] {});
}

void ConnectionCore::TakeBack(const std::shared_ptr<RegionState>& region) {
  home()->Post(
      [self = shared_from_this(), region] { self->sharing_.TakeBackOnLoop(region.get()); });
}

void ConnectionCore::FailIfHolding(const std::shared_ptr<RegionState>& region, LaneSet lanes) {
  const auto fail_holder = [this, region](LaneEngine& lane) {
    if (!lane.Holds(region.get())) return;
    Fail(Error(Code::kPeerLost,
               fmt::format("{} has not acknowledged data that it read from region {}, which is "
                           "being deregistered, for {:.1f} s (FERRY_DRAIN_GRACE); the connection "
                           "was closed, reconnect",
                           peer_name(), region->id, Seconds(config().drain_grace))));
  };
  lanes_.Run(lanes, fail_holder, [] {});
}

// ---- start and end ------------------------------------------------------------------------------

void ConnectionCore::Start() {
  if (common_.state.ending()) return;
  common_.state.Start();
  if (const auto& error = common_.state.failed_at_start()) return FailNow(*error);
  if (lost()) return;  // LaneFailed will report it
  monitor_.Start();
}

void ConnectionCore::MarkLost(const Error& error, bool by_peer) {
  const std::string events = common_.stats.EventsInALine();
  // If the peer closes it, acknowledgements may still arrive on the other lanes: OnClosed() logs
  // the close.
  if (!common_.state.Lose(error, by_peer ? std::optional(events) : std::nullopt)) return;
  if (!by_peer) common_.stats.LogLoss(error, error.code() == Code::kCancelled, events);
  common_.stats.Note("the connection ended: {}", error.message());
}

void ConnectionCore::LaneFailed(const Error& error) {
  MarkLost(error);
  // A loop polls its sockets between two tasks.
  lanes_.Run(
      kAllLanes, [](LaneEngine&) {},
      [self = shared_from_this(), error] {
        self->lanes_.Run(
            kAllLanes, [](LaneEngine&) {}, [self, error] { self->FailNow(error); });
      });
}

void ConnectionCore::Fail(const Error& error) {
  home()->Post([self = shared_from_this(), error] { self->FailNow(error); });
}

void ConnectionCore::Close(const Error& error) {
  home()->Post([self = shared_from_this(), error] {
    if (self->common_.state.starting()) return self->FailNow(error);
    // Nothing new begins: data in flight would turn an orderly close into a reset.
    self->MarkLost(error);
    // Every lane sends its acknowledgements before any lane closes: the peer may see the end of one
    // lane first.
    self->lanes_.Run(
        kAllLanes, [](LaneEngine& lane) { lane.FlushDueAck(); },
        [self, error] { self->FailNow(error); });
  });
}

void ConnectionCore::FailNow(const Error& cause) {
  if (common_.state.ending()) return;
  // Some lanes are not adopted yet.
  if (common_.state.starting()) return common_.state.FailAtStart(cause);
  MarkLost(cause);
  common_.state.End();
  const Error error = state().error();
  if (last_words_timer_ != 0) home()->CancelTimerOnLoop(std::exchange(last_words_timer_, 0));
  monitor_.Stop();
  // The lanes go on until they are closed: a message that still arrives finds no receive.
  messages_.Stop();
  operations_.Stop(error);
  lanes_.PostToAll([error](LaneEngine& lane) { lane.Close(error); });
  home()->NotifyWaiters();
}

void ConnectionCore::PostLaneClosed(std::uint32_t index) {
  lanes_.Post(index, [this](LaneEngine& lane) {
    lane.Free();
    home()->Post([self = shared_from_this()] { self->OnLaneClosed(); });
  });
}

void ConnectionCore::OnLaneClosed() {
  if (--open_lanes_ > 0) return;
  if (!common_.state.ending()) {
    // The peer has closed every lane before LaneFailed ran.
    if (common_.state.starting()) common_.state.Start();
    FailNow(*lanes_.front().closed_by());
  }
  OnClosed();
}

void ConnectionCore::OnClosed() {
  messages_.Close();
  sharing_.EndOnLoop();
  operations_.Close(state().error());
  // Peers come and go: a warning only if operations of this side failed because of it.
  if (const auto events = common_.state.unlogged()) {
    common_.stats.LogLoss(state().error(), !common_.stats.loss_hurt(), *events);
  }
  common_.state.Close();
  notifications().Close();
  home()->NotifyWaiters();
  if (closed_callback_) closed_callback_();
}

}  // namespace ferry::transfer
