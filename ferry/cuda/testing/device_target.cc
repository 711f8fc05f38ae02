// The simulated and real devices that suites run on.
#include "ferry/cuda/testing/device_target.h"

#include <utility>

#include "ferry/cuda/open_devices.h"

namespace ferry::cuda {
namespace {

class SimulatedTarget final : public DeviceTarget {
 public:
  explicit SimulatedTarget(Result<std::unique_ptr<SimulatedDevices>> devices)
      : devices_(std::move(devices)) {}

  std::string Unavailable() override { return devices_ ? "" : devices_.error().ToString(); }
  DeviceApi& api() override { return **devices_; }
  SimulatedDevices* simulated() override { return devices_->get(); }

 private:
  Result<std::unique_ptr<SimulatedDevices>> devices_;
};

class RealTarget final : public DeviceTarget {
 public:
  std::string Unavailable() override { return devices_ ? "" : devices_.error().message(); }
  DeviceApi& api() override { return **devices_; }

 private:
  const Result<DeviceApi*> devices_ = RealDevices();
};

}  // namespace

std::unique_ptr<DeviceTarget> MakeSimulatedTarget(const SimulationOptions& options) {
  return std::make_unique<SimulatedTarget>(SimulatedDevices::Create(options));
}

std::unique_ptr<DeviceTarget> MakeRealTarget() { return std::make_unique<RealTarget>(); }

void PrintTo(const DeviceCase& parameter, std::ostream* out) { *out << parameter.name; }

std::string DeviceCaseName(const ::testing::TestParamInfo<DeviceCase>& info) {
  return info.param.name;
}

const DeviceCase kSimulatedCases[3] = {
    {"One", [] { return MakeSimulatedTarget({}); }},
    {"Two", [] { return MakeSimulatedTarget({.devices = 2, .seed = 7, .workers = 3}); }},
    {"TwoAtOnce",
     [] { return MakeSimulatedTarget({.devices = 2, .seed = 3, .max_delay = microseconds(0)}); }},
};
const DeviceCase kRealCase = {"Real", [] { return MakeRealTarget(); }};

}  // namespace ferry::cuda
