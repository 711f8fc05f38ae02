// The NCCL variables that this plugin sets, and why.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "bindings/nccl_net/nccl_tuner.h"
#include "ferry/core/config.h"

namespace ferry::nccl_net {

// The requests to NCCL that this plugin makes through NCCL's own environment variables, which NCCL
// reads after it has called `init`. From the properties of ordinary interfaces NCCL creates two
// channels, each with at most 8 messages in flight, and cuts messages into 128 KiB;
// bench/nccl_collectives measures what that costs, and what these variables gain. All ranks must
// arrive at the same values.
struct NcclRequest {
  // To set in this process; none of them is set already.
  std::vector<std::pair<std::string, std::string>> variables;
  // The NIC is shown as this many devices (FERRY_NCCL_DEVICES, 1), which share its speed. Up to
  // 2.28 NCCL creates as many channels between two ranks as a GPU needs devices to fill its PCIe
  // link, up to the next power of two, and two for one device; later versions create one for each
  // device, or for each 14 GB/s. Collectives get two channels for each device, with 9 MiB of pinned
  // memory in each direction. Never chosen automatically: NCCL before 2.29 does not compare what
  // nodes chose, and ranks that differ hang. An explicit setting always applies, whatever else is
  // set.
  std::size_t devices = 1;
  // The number of channels that NCCL will create, whoever asked for them; the tuner may choose
  // among them. 0: the tuner does nothing.
  int tuned_channels = 0;
  // Why fewer variables are set than FERRY_NCCL_CHANNELS asks for, unless the user chose that.
  std::string warning;
};

// Asks for FERRY_NCCL_CHANNELS channels (8, since more take more of the GPU; 0: asks for none).
// Asks for nothing if the user bounds NCCL's channels, uses another tuner or uses another network.
NcclRequest RequestOf(const NcclSettings& settings, const Config::Getter& get,
                      const NcclTuner& tuner);

// Sets the variables and reports them in NCCL's log. No other thread may read the environment
// meanwhile (docs/gotchas.md).
void Ask(const NcclRequest& request);

}  // namespace ferry::nccl_net
