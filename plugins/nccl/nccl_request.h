// The NCCL variables that this plugin sets, and why.
#pragma once
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ferry/core/config.h"
#include "plugins/nccl/setup/gpus.h"
#include "plugins/nccl/setup/nccl_tuner.h"

namespace ferry::nccl_net {

// What a request depends on, other than settings and variables.
struct NcclFacts {
  int version = 0;  // of NCCL, as ncclGetVersion() states it: 22809 for 2.28.9
  int megabits = 0;
  Gpus gpus;
  unsigned local_ranks = 0;  // 0: unknown
};

// The requests to NCCL that this plugin makes through NCCL's own environment variables, which NCCL
// reads after it has called `init`. From the properties of ordinary interfaces NCCL creates one or
// two channels, each with at most 8 messages in flight, and cuts messages into 128 KiB;
// bench/nccl_collectives measures what that costs, and what these variables gain. All ranks must
// arrive at the same values.
struct NcclRequest {
  // To set in this process; none of them is set already.
  std::vector<std::pair<std::string, std::string>> variables;
  // The NIC is shown as this many devices, which share its speed. An explicit FERRY_NCCL_DEVICES
  // always applies, whatever else is set. Otherwise it is one, but with NCCL 2.28, which reads
  // NCCL_NCHANNELS_PER_NET_PEER before it loads a plugin: it creates as many channels between two
  // ranks as a GPU needs devices to fill its PCIe link, up to the next power of two. It does not
  // compare the numbers of two nodes, so several devices are shown only where every node computes
  // the same: one rank per machine, and GPUs that are connected to the CPU directly. Collectives
  // get two channels for each device, with 9 MiB of pinned memory in each direction.
  std::size_t devices = 1;
  // The highest speed that a device may state: several must not fill a GPU's link, whose speed may
  // differ between nodes.
  int max_megabits = std::numeric_limits<int>::max();
  // The connection of the GPUs, where NCCL computes channels by it.
  GpuLink gpu_link = GpuLink::kUnknown;
  // The number of channels that NCCL will probably create between two ranks; lanes depend on it.
  int peer_channels = 2;
  // The number of channels that NCCL will create, whoever asked for them; the tuner may choose
  // among them. 0: the tuner does nothing.
  int tuned_channels = 0;
  // Why fewer variables are set than FERRY_NCCL_CHANNELS asks for, unless the user chose that.
  std::string warning;
  std::string hint;  // how to get more channels, where this plugin cannot ask for them
};

// `nccl_net`: the value of NCCL_NET, empty where it is not set.
bool AllowsThisPlugin(std::string_view nccl_net);

// Asks for FERRY_NCCL_CHANNELS channels (8, since more take more of the GPU; 0: asks for none), for
// collectives and between two ranks. Asks for nothing if the user bounds NCCL's channels, uses
// another tuner or uses another network.
NcclRequest RequestOf(const Config& settings, const Config::Getter& get, const NcclTuner& tuner,
                      const NcclFacts& facts);

// Sets the variables (set_variables.h) and reports them in NCCL's log.
void Ask(const NcclRequest& request);

// What ncclGetVersion() returns, of the library that contains the code at `nccl`. Returns nothing
// where it has no such function.
std::optional<int> VersionOfNccl(const void* nccl);

}  // namespace ferry::nccl_net
