// A lane's surroundings for tests of its parts: no socket, no connection, no thread.
#pragma once
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ferry/core/config.h"
#include "ferry/core/loop/event_loop.h"
#include "ferry/net/provider.h"
#include "ferry/transfer/lane/frames/frame_sender.h"
#include "ferry/transfer/lane/lane_site.h"
#include "ferry/transfer/lane/message_queue.h"
#include "ferry/transfer/memory/plan.h"
#include "ferry/transfer/testing/fake_operations.h"
#include "ferry/transfer/testing/linked_endpoints.h"

namespace ferry::transfer {

// The connection of a lane under test: notes what it is told.
class FakeOwner final : public LaneOwner {
 public:
  std::shared_ptr<void> KeepAlive() override { return alive; }
  void OnLaneUp(std::uint32_t /*index*/, net::LaneInfo /*info*/) override { Note("up"); }
  void LaneLost(std::uint32_t /*index*/, const Error& /*error*/,
                std::optional<net::LaneLoss> loss) override {
    Note(loss ? "lost" : "given up");
  }
  void LaneFrozen(std::uint32_t /*index*/, bool /*was_heard*/) override { Note("frozen"); }
  void LaneFailed(const Error& error) override { Note("failed: " + error.message()); }
  void PeerClosedLane(std::uint32_t /*index*/, const Error& /*error*/) override {
    Note("peer closed");
  }
  void PeerGaveUpLane(std::uint32_t index) override { Note("gave up " + std::to_string(index)); }
  void PostLaneClosed(std::uint32_t /*index*/) override { Note("closed"); }
  void SetLanePath(std::uint32_t /*index*/, const net::PathStats& /*path*/) override {}
  void CountRefusal(const Error& error) override { refusals.push_back(error.message()); }
  void CountMismatch() override { Note("mismatch"); }

  void Note(std::string what) { events.push_back(std::move(what)); }

  std::shared_ptr<void> alive = std::make_shared<int>(0);  // shared with tasks in flight
  std::vector<std::string> events;
  std::vector<std::string> refusals;
};

// A lane that only notes what is asked of it. The test plays the network.
class ScriptedLane final : public net::Lane {
 public:
  void Attach(EventLoop* /*loop*/, net::LaneHandler* handler) override { handler_ = handler; }
  void Send(net::OutFrame* frame) override { queue.push_back(frame); }
  void Resume() override { ++resumed; }
  void DiscardRest() override { ++discarded; }
  void Close(net::Closing how) override { (how == net::Closing::kAbort ? aborted : closed) = true; }
  void SetMaxMeta(std::size_t /*bytes*/) override {}
  net::LaneInfo Info() const override { return {}; }
  std::uint64_t BytesReceived() const override { return bytes_received; }
  std::string NameOfSent(std::uint64_t number, std::uint64_t bytes) const override {
    return "payload " + std::to_string(number) + " of " + std::to_string(bytes);
  }

  net::LaneHandler& handler() { return *handler_; }
  // The types of the queued frames, which stay queued.
  std::vector<wire::Type> Types() const {
    std::vector<wire::Type> types;
    for (std::size_t i = 0; i < queue.size(); ++i) types.push_back(Header(i).type);
    return types;
  }
  wire::MessageHeader Header(std::size_t index) const {
    wire::MessageHeader header;
    wire::MetaReader(queue[index]->meta).Read(&header);
    return header;
  }
  // Takes the first frame off the queue: it has been sent.
  LaneFrame* TakeSent() {
    auto* const frame = static_cast<LaneFrame*>(queue.front());  // engines send no others
    queue.pop_front();
    return frame;
  }

  std::deque<net::OutFrame*> queue;
  int resumed = 0;
  int discarded = 0;
  bool closed = false;
  bool aborted = false;
  std::uint64_t bytes_received = 0;

 private:
  net::LaneHandler* handler_ = nullptr;
};

// Where the parts of a lane under test are. The loop has no worker: the test drives it.
struct LaneBed {
  explicit LaneBed(std::uint32_t index = 0) : site{context, loop.get(), index, &counts, &opened} {
    config.slice_bytes = 1000;
    config.max_operations = 100;
    context.config = &config;
    context.regions = &regions;
    context.memory = &memory;
    SetShare(1);
    context.connection = this;
    context.peer_name = "peer";
    context.window_bytes = 8000;
    context.lanes = 1;
    context.bulk_lanes = 1;
    context.owner = &owner;
    context.operations = &operations;
    messages.emplace(&context, loop.get());
    context.messages = &*messages;
  }
  // Posts a receive.
  OperationRef Receive(std::uint64_t tag, std::span<std::byte> buffer) {
    auto receive = std::make_shared<OperationState>();
    receive->kind = OperationKind::kRecv;
    receive->id = ++last_id;
    receive->tag = tag;
    receive->mask = ~std::uint64_t{0};
    receive->buffer = buffer;
    operations.operations[receive->id] = receive;
    messages->BeginReceive(receive);
    return receive;
  }
  // The lane's fraction (0 to 1) of bulk data; another lane has the rest.
  void SetShare(double part) {
    shares.emplace(site.index + (part < 1 ? 2 : 1), site.index);
    context.shares = &*shares;
    if (part == 1) return;
    shares->SetRate(site.index, static_cast<std::uint64_t>(part * 1e6));
    shares->SetRate(site.index + 1, static_cast<std::uint64_t>((1 - part) * 1e6));
  }

  Config config;
  RegionTable regions;
  HeldMemory memory;
  std::optional<LaneShares> shares;
  LaneContext context;
  FakeOwner owner;
  FakeOperations operations;
  std::unique_ptr<EventLoop> loop = Must(EventLoop::Create());
  LaneCounts counts;
  std::optional<MessageQueue> messages;
  std::uint64_t last_id = 0;
  OpenedRegions opened;
  LaneSite site;
};

// An operation of `slices` slices of 1000 bytes, whose ledger has begun.
struct SlicedMemory {
  explicit SlicedMemory(std::size_t slices, Direction direction = Direction::kWrite)
      : memory(slices * 1000, std::byte{7}), operation(std::make_shared<OperationState>()) {
    PlanPart part;
    part.local_base = memory.data();
    part.blocks.Add({.dst = 0, .src = 0, .len = memory.size()});
    std::vector<PlanPart> parts;
    parts.push_back(std::move(part));
    operation->kind = direction == Direction::kWrite ? OperationKind::kWrite : OperationKind::kRead;
    operation->id = 17;
    operation->plan = Must(MakePlan(direction, Uuid{}, std::move(parts), {.slice_bytes = 1000}));
    operation->ledger.Begin(slices);
  }

  std::vector<std::byte> memory;
  OperationRef operation;
};

// A frame as it arrives: header and body.
template <class Body>
std::vector<std::byte> MetaOf(wire::Type type, std::uint64_t operation, const Body& body,
                              std::uint32_t ack = 0) {
  wire::MessageHeader header;
  header.type = type;
  header.operation = operation;
  header.ack = ack;
  std::vector<std::byte> meta;
  wire::Append(&meta, header);
  wire::Append(&meta, body);
  return meta;
}

}  // namespace ferry::transfer
