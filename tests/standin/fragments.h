// Fragment lengths of a received message, and the faults of its metadata row.
#pragma once
#include <cstdint>
#include <random>
#include <vector>

#include "tests/standin/original_layout.h"
#include "tests/standin/settings.h"

namespace ferry::standin {

// The lengths into which a message of `total` bytes is cut, as the network might: at most
// kMostFragments, which are longer than asked for where that takes it.
std::vector<std::uint32_t> CutMessage(std::uint64_t total, const Settings& settings,
                                      std::mt19937_64& random);

// What a row of the metadata will say of a received message.
struct Row {
  std::vector<tcpx::Fragment> fragments;
  std::uint64_t total = 0;  // what the request will say
};

// Spoils a row, which is not empty, for those of the faults that lie in it; leaves it alone for
// others.
struct Bounds {
  std::uint64_t posted = 0;  // bytes of the receive
  std::uint64_t pool = 0;    // bytes
};
void Spoil(Fault fault, Bounds bounds, Row* row);

}  // namespace ferry::standin
