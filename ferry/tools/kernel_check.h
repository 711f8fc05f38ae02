// Verifies the results of kernel benchmark cases.
#pragma once
#include <cstddef>
#include <functional>
#include <span>

#include "ferry/core/result.h"
#include "ferry/tools/kernel_case.h"

namespace ferry::tools {

// Copies device memory to the host.
using ReadDevice = std::function<Status(const std::byte* from, std::span<std::byte> to)>;

// Compares what an op has written on a device with what its form for the CPU says of the same
// inputs: all units of a small case; of a large one the first, the last, and some in between by
// chance. Each element by itself, within what docs/kernels/accuracy.md allows, twice, as both have
// rounded. Returns how many elements were compared, 0 for a case without units. Errors: kCorrupt,
// naming the element that is furthest off, or where there are units and the CPU wrote nothing;
// those of the device and of the op.
Result<std::size_t> CompareWithCpu(const KernelCase& one, KernelAddresses addresses,
                                   const ReadDevice& read);

}  // namespace ferry::tools
