// What every part of one lane knows: its connection, loop, number and counters.
#pragma once
#include <cstddef>
#include <cstdint>

#include "ferry/core/event_loop.h"
#include "ferry/core/result.h"
#include "ferry/transfer/counters.h"
#include "ferry/transfer/lane/lane_owner.h"
#include "ferry/transfer/memory/region_openers.h"
#include "ferry/transfer/memory/region_table.h"

namespace ferry::transfer {

// Incremented on the lane's loop, read by any thread. Fields as in LaneTraffic.
struct LaneCounts {
  LoopCounter bytes_sent;
  LoopCounter bytes_received;
  LoopCounter frames_sent;
  LoopCounter frames_received;
  LoopCounter payload_bytes_sent;
  LoopCounter payload_bytes_received;
  LoopCounter retries;
  LoopCounter retransmits;
};

// Where a lane is. The same for all its parts, which outlive neither the lane nor its connection.
struct LaneSite {
  const LaneContext& context;
  LaneOwner* owner;
  MessageSink* messages;  // used by the first lane only
  EventLoop* loop;
  std::uint32_t index;
  LaneCounts* counts;
  OpenedRegions* opened;  // by this lane

  Accessor accessor() const {
    return {context.connection, context.peer, context.number, index, opened};
  }
  // Limit of the sequenced frames that a peer with our settings has in flight on this lane. The
  // first lane has the messages, too.
  std::size_t max_sequenced() const;
};

// The error that ends the connection because of a frame that no peer of this release sends.
Error MalformedFrame(const LaneSite& site, const char* what);

}  // namespace ferry::transfer
