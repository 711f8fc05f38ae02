// Measures the rate of one plain TCP connection between two network namespaces.
#pragma once
#include <string>

#include "ferry/core/deadline.h"

namespace ferry::tests {

// Measures for the given time the rate of one plain TCP connection from the network namespace
// `from` to the address `host` (without brackets) of the namespace `to`, in bytes per second.
// Blocks; throws on failure.
double PlainRate(const std::string& from, const std::string& to, const std::string& host,
                 milliseconds time);

}  // namespace ferry::tests
