#pragma once
#include <string>
#include <utility>
#include <vector>

#include "ferry/core/config.h"
#include "ferry/core/result.h"

namespace ferry::nccl_net {

// What NCCL is asked for by variables of its own, which it reads when it has called `init`. By what
// interfaces of ordinary machines say of themselves it makes two channels, of which each has at
// most 8 messages under way, and cuts what is sent into 128 KiB: between two H200 7.3 GB/s each
// way, and 13 to 21 with these (docs/results.md). All ranks must come to the same.
struct NcclRequest {
  std::vector<std::pair<std::string, std::string>> variables;  // for this process: nobody has them
  // As so many devices (FERRY_NCCL_DEVICES, 1) the NIC is shown, each with its part of the speed:
  // between two ranks NCCL makes as many channels as a GPU needs devices to fill its PCIe link, up
  // to the next power of two, and no more than two of one. Send/recv of 64 MiB took 6.4 ms over one
  // device (two channels), 4.0 over four and 3.4 over eight. Collectives have two channels for each
  // device, with 9 MiB of pinned memory each way. Not by itself: NCCL before 2.29 does not compare
  // what nodes come to, which differs where they do.
  std::size_t devices = 1;
  // There are as many channels as are asked for, whoever has asked, so that the tuner may choose
  // among them. 0: it says nothing.
  int tuned_channels = 0;
};

// FERRY_NCCL_CHANNELS channels (8; 0: nothing is asked for). Whoever bounds NCCL's channels, has a
// tuner or uses another network is left alone. Errors: kInvalidArgument naming variable and range.
Result<NcclRequest> RequestOf(const Config::Getter& get);

// Sets them, and tells NCCL's log. Other threads must not look for variables meanwhile, as with
// everything that sets one (docs/gotchas.md).
void Ask(const NcclRequest& request);

}  // namespace ferry::nccl_net
