// Fragment lengths of a received message, and the faults of its metadata row.
#pragma once
#include <cstdint>
#include <random>
#include <vector>

#include "standin/original_layout.h"
#include "standin/settings.h"

namespace ferry::standin {

// Cuts a message of `total` bytes into fragment lengths as a network might: at most kMaxFragments,
// which are longer than configured if necessary.
std::vector<std::uint32_t> CutMessage(std::uint64_t total, const Settings& settings,
                                      std::mt19937_64& random);

// The metadata row of a received message.
struct Row {
  std::vector<tcpx::Fragment> fragments;
  std::uint64_t total = 0;  // what the request will say
};

// Applies a fault that concerns rows to a non-empty row; ignores other faults.
struct Bounds {
  std::uint64_t posted = 0;  // bytes of the receive
  std::uint64_t pool = 0;    // bytes
};
void Spoil(Fault fault, Bounds bounds, Row* row);

}  // namespace ferry::standin
