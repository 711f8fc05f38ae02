// What the two sides of a lost lane tell each other before they go on over a new one.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ferry/core/result.h"
#include "ferry/transfer/handshake/wire.h"

namespace ferry::transfer {

// How far one side has processed the other's sequenced frames when a lane was given up: what each
// needs to know to go on over another.
struct LaneProgress {
  std::uint32_t finished = 0;
  std::vector<wire::RefusalOnWire> refused;  // of those, the latest
};

std::vector<std::byte> EncodeProgress(const LaneProgress& progress);
// Errors: kCorrupt.
Result<LaneProgress> ParseProgress(wire::MetaReader* reader, const std::string& peer_name);

}  // namespace ferry::transfer
