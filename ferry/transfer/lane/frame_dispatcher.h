// Routes the peer's frames on a lane to the parts that they concern.
#pragma once
#include <cstdint>
#include <span>

#include "ferry/net/provider.h"
#include "ferry/transfer/lane/frame_receiver.h"
#include "ferry/transfer/lane/frame_sender.h"
#include "ferry/transfer/lane/lane_site.h"
#include "ferry/transfer/lane/lane_staging.h"
#include "ferry/transfer/lane/read_answers.h"
#include "ferry/transfer/lane/slice_sender.h"

namespace ferry::transfer {

// Checks a frame's metadata, processes its acknowledgement, and hands the rest to the receiving
// half, to the sending half if it concerns what this side has sent, or to the connection. Ends
// frames whose payloads have been copied into GPU memory. Lives on the lane's loop.
class FrameDispatcher {
 public:
  FrameDispatcher(const LaneSite& site, FrameSender* frames, LaneStaging* staging,
                  SliceSender* sender);

  // As in net::LaneHandler.
  Result<net::Placement> OnFrame(std::span<const std::byte> meta, std::uint64_t payload_bytes);
  void OnPayload();
  // Counts the frames whose copies have ended as processed.
  void SettleLandings();
  // Waits for all copies in flight. Their slots and memory are no longer used afterwards.
  void AwaitCopies();

  // Whether a frame has arrived since the last Restart(), or ever.
  bool heard() const noexcept { return heard_; }
  // Another lane is used from now on.
  void Restart() { heard_ = false; }

  FrameReceiver& receiver() noexcept { return receiver_; }
  ReadAnswers& answers() noexcept { return answers_; }

 private:
  bool MayHoldTooMuch() const;
  Status CheckHeld() const;
  Result<net::Placement> Dispatch(const wire::MessageHeader& header, wire::MetaReader* reader,
                                  std::uint64_t payload_bytes);
  Result<net::Placement> OnPlainFrame(const wire::MessageHeader& header, wire::MetaReader* reader);
  Status OnLaneLost(wire::MetaReader* reader);
  Status OnMessage(const wire::MessageHeader& header, wire::MetaReader* reader);
  Status OnSharing(const wire::MessageHeader& header, wire::MetaReader* reader);
  void EndLanding(const Landing& landing, const Status& landed);

  const LaneSite& site_;
  FrameSender* const frames_;
  LaneStaging* const staging_;
  SliceSender* const sender_;
  ReadAnswers answers_;
  FrameReceiver receiver_;
  bool heard_ = true;  // the first lane carried the handshake
};

}  // namespace ferry::transfer
