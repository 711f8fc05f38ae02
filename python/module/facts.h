// Converts the library's plain data to Python objects.
#pragma once
#include <nanobind/nanobind.h>

#include <cstddef>
#include <span>
#include <vector>

#include "ferry/transfer/endpoint.h"

namespace ferry::python {

nanobind::bytes ToPython(std::span<const std::byte> bytes);
// Valid as long as the object.
std::span<const std::byte> BytesOf(const nanobind::bytes& bytes);

nanobind::dict FactsOf(const transfer::ConnectionInfo& info);
nanobind::dict FactsOf(const transfer::ConnectionCounters& counters);
nanobind::dict FactsOf(const transfer::EndpointCounters& counters);
nanobind::list FactsOf(const std::vector<transfer::ConnectionEvent>& events);

}  // namespace ferry::python
