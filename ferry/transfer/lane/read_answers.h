// Answers the peer's reads of registered memory.
#pragma once
#include <cstddef>
#include <cstdint>

#include "ferry/net/provider.h"
#include "ferry/transfer/lane/frame_sender.h"
#include "ferry/transfer/lane/lane_site.h"
#include "ferry/transfer/lane/send_window.h"
#include "ferry/transfer/lane/staging_outbox.h"

namespace ferry::transfer {

// Answers reads with the region's data, or with a refusal, in the order of the requests: the peer
// expects them so. Lives on the lane's loop.
class ReadAnswers {
 public:
  ReadAnswers(const LaneSite& site, FrameSender* frames, SendWindow* window, StagingOutbox* outbox)
      : site_(site), frames_(frames), window_(window), outbox_(outbox) {}

  // Serves a kReadRequest. kPause: there is no memory
  // for the answer now; the request is offered again and starts over. An error ends the connection.
  Result<net::Placement> OnRequest(const wire::MessageHeader& header, wire::MetaReader* reader);
  // Refuses answers from the region that wait for a staging slot.
  void RefuseWaiting(const RegionState* region);

 private:
  void Answer(LaneFrame* frame, RegionPin region, std::uint32_t slice);
  void Refuse(std::uint64_t operation_id, std::uint32_t slice, const Error& error);

  const LaneSite& site_;
  FrameSender* const frames_;
  SendWindow* const window_;
  StagingOutbox* const outbox_;
};

}  // namespace ferry::transfer
