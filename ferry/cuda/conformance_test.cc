// Runs the DeviceApi conformance suite on simulated devices and GPUs.
#include "ferry/cuda/testing/conformance.h"

namespace ferry::cuda {

INSTANTIATE_TEST_SUITE_P(Simulated, DeviceConformance, ::testing::ValuesIn(kSimulatedCases),
                         DeviceCaseName);
INSTANTIATE_TEST_SUITE_P(Gpu, DeviceConformance, ::testing::Values(kRealCase), DeviceCaseName);

}  // namespace ferry::cuda
