// Settings that must be equal on all ranks.
#pragma once
#include <optional>
#include <string>

#include "bindings/nccl_net/nccl_request.h"
#include "bindings/nccl_net/nccl_tuner.h"
#include "bindings/nccl_net/wire.h"

// The values that must be equal on all ranks: NCCL does not compare these, and hangs where they
// differ. Each rank's are in its handles and in the hellos of its lanes.
namespace ferry::nccl_net {

// The values of this process, as NCCL reads its variables once `request` has set its own.
RankWire RankOf(const NcclRequest& request, const NcclTuner& tuner, const Config::Getter& get);

// Nothing where they are alike. Else an error with both values of each that differs; `peer` is
// where the other rank is.
std::optional<Error> FindDifference(const RankWire& own, const RankWire& others,
                                    const std::string& peer);
// The same for a rank whose plugin speaks another version.
Error OtherVersion(std::uint16_t others, const std::string& peer);

}  // namespace ferry::nccl_net
