// The plugin's settings.
#pragma once
#include <cstdint>
#include <limits>
#include <string>

#include "ferry/core/config.h"
#include "ferry/core/result.h"
#include "ferry/net/machine/local_addresses.h"
#include "plugins/nccl/nic.h"
#include "plugins/nccl/wire.h"

namespace ferry::nccl_net {

// The plugin's settings: FERRY_* variables, and values derived from them.
struct Settings {
  Config config;
  net::IpFamily family = net::IpFamily::kAny;  // of addresses that peers are told
  std::string selection;                       // what has chosen these, with its value
  std::size_t bulk_lanes = 0;                  // per comm, in addition to lane 0 (FERRY_LANES)
  std::size_t workers = 0;                     // threads for the bulk lanes (FERRY_WORKERS)
  std::size_t swift_loops = 0;                 // loops for small messages
  std::uint64_t small_bytes = 0;               // largest small message (FERRY_EAGER_BYTES)
  int spinners = 0;  // workers that may poll at the same time (FERRY_SPIN)
  Nic nic;
  std::size_t devices = 1;  // devices as which NCCL sees the NIC (NcclRequest)
  int max_megabits = std::numeric_limits<int>::max();  // that a device states
  RankWire rank;                                       // values that must be equal on all ranks
  std::uint64_t piece_bytes = 0;  // smallest piece of a message on a bulk lane (FERRY_SLICE_BYTES)
};

// `cores` that this rank may use. Errors: kInvalidArgument naming variable, value and range.
Result<Settings> LoadSettings(const Config::Getter& get, unsigned cores);

// Bulk lanes of each comm where FERRY_LANES is not set: a peer has a comm per channel, and together
// these have 16 bulk lanes in each direction, but a comm has no more than there are workers.
std::size_t BulkLanes(int channels, std::size_t workers);

// Raises the descriptor limit to the hard limit, at most 65536: two ranks that send to each other
// have 48 lanes over eight channels, and soft limits of 1024 are common. Returns the new soft
// limit, 0 where it is unknown.
std::uint64_t RaiseDescriptorLimit();

}  // namespace ferry::nccl_net
