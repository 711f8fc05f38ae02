// Verifies the results of kernel benchmark cases.
#pragma once
#include <cstddef>
#include <functional>
#include <span>

#include "ferry/core/result.h"
#include "tools/bench/kernels/kernel_case.h"

namespace ferry::tools {

// Copies device memory to the host.
using ReadDevice = std::function<Status(const std::byte* from, std::span<std::byte> to)>;

// Compares the results of an op on a device with those of its CPU form for the same inputs: all
// units of a small case; the first, the last and some random units of a large one. Each element is
// compared on its own, within twice the error that docs/kernels/accuracy.md allows, because both
// sides round. Returns the number of compared elements, 0 for a case without units. Errors:
// kCorrupt with the element that is furthest off, or if there are units and the CPU wrote nothing;
// those of the device and of the op.
Result<std::size_t> CompareWithCpu(const KernelCase& one, KernelAddresses addresses,
                                   const ReadDevice& read);

}  // namespace ferry::tools
