// The NCCL variables that this plugin sets, and why.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "bindings/nccl_net/nccl_tuner.h"
#include "ferry/core/config.h"

namespace ferry::nccl_net {

// What NCCL is asked for by variables of its own, which it reads when it has called `init`. By what
// interfaces of ordinary machines say of themselves it makes two channels, of which each has at
// most 8 messages under way, and cuts what is sent into 128 KiB: what that costs, and what these
// gain, bench/nccl_collectives measures. All ranks must come to the same.
struct NcclRequest {
  std::vector<std::pair<std::string, std::string>> variables;  // for this process: nobody has them
  // As so many devices (FERRY_NCCL_DEVICES, 1) the NIC is shown, each with its part of the speed.
  // Up to 2.28 NCCL makes as many channels between two ranks as a GPU needs devices to fill its
  // PCIe link, up to the next power of two, and two of one device; later ones one for each device,
  // or 14 GB/s of them. Collectives have two channels for each device, with 9 MiB of pinned memory
  // each way. Not by itself: NCCL before 2.29 does not compare what nodes come to, which differs
  // where they do. What was asked for is done, whatever else is set: ranks that differ hang.
  std::size_t devices = 1;
  // There are as many channels as are asked for, whoever has asked, so that the tuner may choose
  // among them. 0: it says nothing.
  int tuned_channels = 0;
  // Why there are fewer variables than FERRY_NCCL_CHANNELS asks for, where nobody has said so.
  std::string warning;
};

// FERRY_NCCL_CHANNELS channels (8, since more take more of the GPU; 0: nothing is asked for).
// Whoever bounds NCCL's channels, has another tuner or uses another network is left alone.
NcclRequest RequestOf(const Config& config, const Config::Getter& get, const NcclTuner& tuner);

// Sets them, and tells NCCL's log. Other threads must not look for variables meanwhile, as with
// everything that sets one (docs/gotchas.md).
void Ask(const NcclRequest& request);

}  // namespace ferry::nccl_net
