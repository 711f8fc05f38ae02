// Opens real or simulated GPUs as the setting `devices` says.
#include "ferry/cuda/open_devices.h"

#include <dlfcn.h>
#include <fmt/core.h>
#include <link.h>

#include <atomic>
#include <charconv>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "ferry/core/fork.h"
#include "ferry/cuda/simulated/devices.h"
#ifdef FERRY_HAVE_CUDA
#include "ferry/cuda/real/factory.h"
#endif

namespace ferry::cuda {
namespace {

// Parses the number at the front of the text and removes it.
template <class T>
std::optional<T> TakeNumber(std::string_view* text) {
  T number = 0;
  const auto [rest, failure] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (failure != std::errc()) return std::nullopt;
  text->remove_prefix(static_cast<std::size_t>(rest - text->data()));
  return number;
}

Result<SimulationOptions> ParseSimulated(const std::string& text) {
  std::string_view rest = text;
  SimulationOptions options;
  constexpr std::string_view kNoKernels = ":no-kernels";
  if (rest.ends_with(kNoKernels)) {
    options.kernels = false;
    rest.remove_suffix(kNoKernels.size());
  }
  constexpr std::string_view kOpen = ":open";
  if (rest.size() > kOpen.size() && rest.substr(rest.size() - kOpen.size()) == kOpen) {
    options.network_access = true;
    rest.remove_suffix(kOpen.size());
  }
  const auto devices = TakeNumber<int>(&rest);
  if (devices) options.devices = *devices;
  if (devices && !rest.empty() && rest.front() == ':') {
    rest.remove_prefix(1);
    const auto seed = TakeNumber<std::uint64_t>(&rest);
    if (seed) {
      options.seed = *seed;
    } else {
      rest = "?";
    }
  }
  if (devices && rest.empty()) return options;
  return Error(
      Code::kInvalidArgument,
      fmt::format(
          "devices (FERRY_DEVICES) is 'simulated:{}'; write simulated:N or simulated:N:SEED, "
          "with :open behind it for memory that network cards reach",
          text));
}

struct SimulatedSets {
  std::mutex mutex;
  std::map<std::string, DeviceApi*> opened;  // under mutex
};

// One set of devices for each value, never destroyed. A forked child gets its own sets, with
// threads.
Result<DeviceApi*> OpenSimulated(const std::string& text) {
  // The same value means the same devices, so that all parts of a program share memory and streams.
  static PerProcess<SimulatedSets> all;
  SimulatedSets& sets = all.Get();
  const std::lock_guard lock(sets.mutex);
  const auto found = sets.opened.find(text);
  if (found != sets.opened.end()) return found->second;
  FERRY_TRY_ASSIGN(const SimulationOptions options, ParseSimulated(text));
  FERRY_TRY_ASSIGN(auto devices, SimulatedDevices::Create(options));
  return sets.opened[text] = devices.release();
}

#ifdef FERRY_HAVE_CUDA
// How many objects were ever loaded (dl_iterate_phdr(3)).
std::uint64_t LoadedObjects() {
  std::uint64_t adds = 0;
  const auto first = [](dl_phdr_info* info, std::size_t /*size*/, void* out) {
    *static_cast<std::uint64_t*>(out) = info->dlpi_adds;
    return 1;
  };
  (void)::dl_iterate_phdr(first, &adds);
  return adds;
}

// Called for each message in host memory. Looking for a library that is not there searches the file
// system (17 us), so that happens only if something was loaded since.
bool IsDriverLoaded() {
  constexpr std::uint64_t kItIs = ~std::uint64_t{0};
  static std::atomic<std::uint64_t> without{0};  // LoadedObjects() when the driver was not loaded
  const std::uint64_t seen = without.load(std::memory_order_relaxed);
  if (seen == kItIs) return true;
  const std::uint64_t loaded = LoadedObjects();
  if (loaded == seen) return false;
  // Code that allocates GPU memory has loaded the driver, with whichever CUDA runtime.
  void* const driver = ::dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY);
  if (driver != nullptr) (void)::dlclose(driver);
  without.store(driver != nullptr ? kItIs : loaded, std::memory_order_relaxed);
  return driver != nullptr;
}
#else
bool IsDriverLoaded() { return false; }
#endif

}  // namespace

Result<DeviceApi*> RealDevices() {
#ifdef FERRY_HAVE_CUDA
  // Once for the process, also where it fails. Never destroyed, since owners of GPU memory in
  // static storage may outlive it.
  static const Result<DeviceApi*> devices = real::CreateDevices();
  return devices;
#else
  return Error(Code::kUnsupported,
               "this program was built without CUDA; build it where nvcc is, or with "
               "-DFERRY_CUDA=ON, which says what is missing");
#endif
}

Result<DeviceApi*> OpenDevices(const Config& config) {
  switch (config.devices.kind) {
    case DeviceChoice::Kind::kAuto: break;
    case DeviceChoice::Kind::kNone:
      return Error(Code::kUnsupported, "GPUs are turned off by devices=none (FERRY_DEVICES)");
    case DeviceChoice::Kind::kSimulated: return OpenSimulated(config.devices.simulation);
  }
  return RealDevices();
}

// Answers without loading the driver: a program without GPU memory must not create a CUDA context.
bool MayHaveDeviceMemory(const Config& config) {
  using Kind = DeviceChoice::Kind;
  return config.devices.kind == Kind::kSimulated ||
         (config.devices.kind == Kind::kAuto && IsDriverLoaded());
}

const char* DeviceCodeTargets() noexcept {
#ifdef FERRY_DEVICE_CODE
  return FERRY_DEVICE_CODE;
#else
  return "";
#endif
}

}  // namespace ferry::cuda
