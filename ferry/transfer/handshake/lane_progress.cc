// Encodes and parses a lane's progress, which both sides exchange when a lane is replaced.
#include "ferry/transfer/handshake/lane_progress.h"

#include <fmt/core.h>

namespace ferry::transfer {

std::vector<std::byte> EncodeProgress(const LaneProgress& progress) {
  std::vector<std::byte> bytes;
  wire::Append(&bytes, wire::ResumeBody{progress.finished,
                                        static_cast<std::uint32_t>(progress.refused.size())});
  for (const wire::RefusalOnWire& refusal : progress.refused) wire::Append(&bytes, refusal);
  return bytes;
}

Result<LaneProgress> ParseProgress(wire::MetaReader* reader, const std::string& peer_name) {
  wire::ResumeBody body;
  if (!reader->Read(&body) ||
      reader->rest().size() != std::uint64_t{body.refusals} * sizeof(wire::RefusalOnWire)) {
    return Error(Code::kCorrupt,
                 fmt::format("{} resumed a lane with a malformed frame; use the same release on "
                             "both sides",
                             peer_name));
  }
  LaneProgress progress;
  progress.finished = body.finished;
  // No more than the frame holds, as has been checked.
  progress.refused.resize(body.refusals);
  for (wire::RefusalOnWire& refusal : progress.refused) reader->Read(&refusal);
  return progress;
}

}  // namespace ferry::transfer
