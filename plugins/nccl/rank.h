// Settings that must be equal on all ranks.
#pragma once
#include <optional>
#include <string>

#include "plugins/nccl/nccl_request.h"
#include "plugins/nccl/setup/nccl_tuner.h"
#include "plugins/nccl/wire.h"

// Settings that must be equal on all ranks: NCCL does not compare them, and hangs where they
// differ. Each rank sends its own in its handles and hello frames.
namespace ferry::nccl_net {

// The values of this process, as NCCL will read its variables after `request` was applied.
RankWire RankOf(const NcclRequest& request, const NcclTuner& tuner, const Config::Getter& get);

// Returns nothing if the ranks agree, else an error with both values of each difference; `peer` is
// the other rank's address.
std::optional<Error> FindDifference(const RankWire& own, const RankWire& others,
                                    const std::string& peer);
// The error for a rank whose plugin uses another protocol version.
Error OtherVersion(std::uint16_t others, const std::string& peer);
// The reason with which a rank refuses a lane for a listen comm that it does not have.
inline constexpr const char* kUnknownListen = "unknown or closed listen comm";
// The error of the rank that was refused so.
Error ListenCommClosed(const std::string& peer);

}  // namespace ferry::nccl_net
