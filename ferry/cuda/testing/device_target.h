// Devices as a test parameter: simulated everywhere, real where present.
#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <ostream>
#include <string>

#include "ferry/cuda/device_api.h"
#include "ferry/cuda/simulated/devices.h"

// Devices for test suites that run on simulated devices everywhere, and on GPUs where there are
// any:
//
// INSTANTIATE_TEST_SUITE_P(Simulated, MySuite, ::testing::ValuesIn(kSimulatedCases),
// DeviceCaseName); INSTANTIATE_TEST_SUITE_P(Gpu, MySuite, ::testing::Values(kRealCase),
// DeviceCaseName);
//
// and `GPU_TESTS` in the layer's CMakeLists.txt labels the latter.
namespace ferry::cuda {

// Created anew for each test.
class DeviceTarget {
 public:
  virtual ~DeviceTarget() = default;
  // Why tests cannot run on it; empty if they can.
  virtual std::string Unavailable() { return {}; }
  virtual DeviceApi& api() = 0;
  // Null for GPUs.
  virtual SimulatedDevices* simulated() { return nullptr; }
};

std::unique_ptr<DeviceTarget> MakeSimulatedTarget(const SimulationOptions& options);
std::unique_ptr<DeviceTarget> MakeRealTarget();

struct DeviceCase {
  const char* name;  // letters and digits
  std::unique_ptr<DeviceTarget> (*make)();
};
void PrintTo(const DeviceCase& parameter, std::ostream* out);
std::string DeviceCaseName(const ::testing::TestParamInfo<DeviceCase>& info);

// One device; two devices with different stream orders; two devices without delays.
extern const DeviceCase kSimulatedCases[3];
extern const DeviceCase kRealCase;

}  // namespace ferry::cuda
