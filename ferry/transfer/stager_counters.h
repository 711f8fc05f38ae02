// Counters of a stager.
#pragma once
#include <cstdint>

namespace ferry::transfer {

// Counters of one direction of the slots between a GPU's memory and the network.
struct StagerCounters {
  std::uint64_t launches = 0;  // kernel launches that copy, so far
  std::uint64_t slots = 0;     // slots that they copied
  std::uint64_t bytes = 0;     // bytes that they copied
  std::uint64_t free = 0;      // slots that are free now
  std::uint64_t waiting = 0;   // requests that wait for a slot now
};

// Counters of one GPU whose memory is used. When all connections have ended all its slots are free.
struct StagingCounters {
  int ordinal = -1;
  std::uint64_t slots = 0;  // per direction
  StagerCounters to_network;
  StagerCounters from_network;
};

}  // namespace ferry::transfer
