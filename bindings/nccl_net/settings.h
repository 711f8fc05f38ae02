// The plugin's settings.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "bindings/nccl_net/wire.h"
#include "ferry/core/config.h"
#include "ferry/core/result.h"

namespace ferry::nccl_net {

// How the plugin runs: FERRY_* variables, and what follows from them here.
struct Settings {
  Config config;
  std::size_t bulk_lanes = 0;     // of a comm, beside the one for small messages (FERRY_LANES)
  std::size_t workers = 0;        // that carry bulk lanes (FERRY_WORKERS)
  std::size_t swift_loops = 0;    // for what is small
  std::uint64_t small_bytes = 0;  // a message of at most so many is small (FERRY_EAGER_BYTES)
  int spinners = 0;               // workers that may poll at once (FERRY_SPIN)
  std::size_t devices = 1;        // as which NCCL sees the NIC (NcclRequest)
  RankWire rank;                  // what other ranks must have, too
  std::uint64_t piece_bytes = 0;  // least piece of a message on a bulk lane (FERRY_SLICE_BYTES)
};

// Errors: kInvalidArgument naming variable, value and range.
Result<Settings> LoadSettings(const Config::Getter& get);

// Lets the process have as many descriptors as its hard limit allows, up to 65536: two ranks that
// send to each other have 80 lanes over eight channels, and soft limits of 1024 are common. Returns
// the soft limit from now on, 0 where it is not known.
std::uint64_t RaiseDescriptorLimit();

// FERRY_INTERFACES for a text of NCCL_SOCKET_IFNAME's: prefixes, or names after "="; those that are
// left out after "^".
std::string InterfacesOf(std::string_view socket_ifname);

}  // namespace ferry::nccl_net
