// Checks requests for reads, and sends the data from host memory at once, from a GPU when copied.
#include "ferry/transfer/lane/read_answers.h"

#include <fmt/core.h>

#include <optional>
#include <utility>

#include "ferry/core/check.h"
#include "ferry/transfer/lane/lane_limits.h"
#include "ferry/transfer/lane/lane_staging.h"

namespace ferry::transfer {
namespace {

using net::Placement;

// The sum of the blocks' lengths; nullopt if that is more than a frame may carry.
std::optional<std::uint64_t> BytesIn(wire::MetaReader blocks) {
  std::uint64_t bytes = 0;
  for (wire::BlockOnWire block; blocks.Read(&block);) {
    if (block.length > net::kMaxPayloadBytes - bytes) return std::nullopt;
    bytes += block.length;
  }
  return bytes;
}

}  // namespace

Result<Placement> ReadAnswers::OnRequest(const wire::MessageHeader& header,
                                         wire::MetaReader* reader) {
  wire::WriteBody body;
  const bool whole =
      reader->Read(&body) && reader->rest().size() == body.blocks * sizeof(wire::BlockOnWire);
  const auto bytes = whole ? BytesIn(*reader) : std::nullopt;
  if (!bytes) return MalformedFrame(site_, "read request");
  // Reserved before the region is opened.
  const std::uint64_t cost = AnswerCost(body.blocks);
  const AnswerMemory memory =
      frames_->memory().ReserveAnswer(cost, window_->replies() + outbox_->size());
  if (memory == AnswerMemory::kNone) return Placement{Placement::Action::kPause, {}};
  LaneFrame* const frame = frames_->New(wire::Type::kReadData, header.operation);
  auto region = site_.context.regions->Open(body.key, Rights::kRead, site_.accessor());
  Status placed = region ? PlaceBlocks(*region->get(), reader->rest(), *bytes, &frame->payload)
                         : Status(region.error());
  Stager* const stager = placed ? region->get()->stager : nullptr;
  if (stager != nullptr && *bytes > stager->slot_bytes()) placed = TooLargeToStage(*bytes, *stager);
  if (!placed) {
    frames_->pool().Recycle(frame);
    frames_->memory().CancelAnswer(cost, memory);
    if (placed.error().code() == Code::kCorrupt) return placed.error();
    Refuse(header.operation, body.slice, placed.error());
    return Placement{};
  }
  wire::Append(&frame->meta, wire::SliceBody{body.slice, 0});
  frame->payload_bytes = *bytes;
  frame->over_network = true;
  frame->sequenced = true;
  frame->checked |= (header.flags & wire::kChecked) != 0;
  frames_->pool().HoldAnswer(frame, cost, memory);
  Answer(frame, *std::move(region), body.slice);
  return Placement{};
}

// Answers from host memory keep their place behind those that wait for copies.
void ReadAnswers::Answer(LaneFrame* frame, RegionPin region, std::uint32_t slice) {
  SentFrame record;
  record.reply = true;
  Stager* const stager = region.get()->stager;
  if (stager == nullptr && outbox_->empty()) {
    frame->may_splice = true;
    record.pin = std::move(region);
    frames_->memory().HoldRecord();
    window_->Add(std::move(record));
    FrameSender::Seal(frame);
    return frames_->Send(frame);
  }
  StagedFrame staged;
  staged.frame = frame;
  staged.stager = stager;
  staged.record = std::move(record);
  staged.record.slice = slice;
  (stager != nullptr ? staged.pin : staged.record.pin) = std::move(region);
  outbox_->Add(std::move(staged));
}

void ReadAnswers::Refuse(std::uint64_t operation_id, std::uint32_t slice, const Error& error) {
  LaneFrame* const refusal = frames_->NewReadRefusal(operation_id, slice, error);
  if (outbox_->empty()) return frames_->Send(refusal);
  outbox_->Add({.frame = refusal});
}

void ReadAnswers::RefuseWaiting(const RegionState* region) {
  for (StagedFrame* const staged : outbox_->WaitingFor(region)) {
    const std::uint64_t operation = OperationIn(*staged->frame);
    frames_->pool().Recycle(staged->frame);
    const Error error(Code::kRefused,
                      fmt::format("region {} was deregistered before it was read", region->id));
    LaneFrame* const refusal = frames_->NewReadRefusal(operation, staged->record.slice, error);
    *staged = StagedFrame{.frame = refusal};
  }
}

}  // namespace ferry::transfer
