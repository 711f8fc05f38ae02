// Measures the rate of one plain TCP connection between two network namespaces.
#pragma once
#include <string>

#include "ferry/core/deadline.h"

namespace ferry::tests {

// What one plain TCP connection from the network namespace `from` to the address `host` (without
// brackets) of the namespace `to` moves, in bytes per second, for so long. Throws where it cannot.
double PlainRate(const std::string& from, const std::string& to, const std::string& host,
                 milliseconds time);

}  // namespace ferry::tests
