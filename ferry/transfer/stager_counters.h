#pragma once
#include <cstdint>

namespace ferry::transfer {

// Of the slots between one GPU's memory and the network, one way.
struct StagerCounters {
  std::uint64_t launches = 0;  // of kernels that copy, so far
  std::uint64_t slots = 0;     // that they copied
  std::uint64_t bytes = 0;     // likewise
  std::uint64_t free = 0;      // slots that nobody has now
  std::uint64_t waiting = 0;   // who would have one, now
};

// Of one GPU whose memory is used. When all connections have ended all its slots are free.
struct StagingCounters {
  int ordinal = -1;
  std::uint64_t slots = 0;  // for each way
  StagerCounters to_network;
  StagerCounters from_network;
};

}  // namespace ferry::transfer
