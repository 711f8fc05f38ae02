// Reads the PCI devices in /sys.
#include "plugins/nccl/setup/gpus.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

namespace ferry::nccl_net {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kNvidia = "0x10de";
constexpr std::string_view kDisplayClass = "0x03";
constexpr std::ptrdiff_t kDirectDepth = 2;  // the GPU and its root port

std::string WordIn(const fs::path& file) {
  std::ifstream in(file);
  std::string word;
  in >> word;
  return word;
}

// "0000:3b:00.0"
bool IsPciAddress(const std::string& name) {
  return std::count(name.begin(), name.end(), ':') == 2 && name.find('.') != std::string::npos;
}

}  // namespace

Gpus FindGpus(const std::string& root) {
  Gpus gpus;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(root + "/sys/bus/pci/devices", error)) {
    if (WordIn(entry.path() / "vendor") != kNvidia) continue;
    if (WordIn(entry.path() / "class").substr(0, kDisplayClass.size()) != kDisplayClass) continue;
    const fs::path device = fs::canonical(entry.path(), error);
    const auto depth = std::count_if(device.begin(), device.end(), [](const fs::path& part) {
      return IsPciAddress(part.string());
    });
    ++gpus.count;
    if (depth > kDirectDepth || depth == 0) {
      gpus.link = GpuLink::kSwitch;
    } else if (gpus.link == GpuLink::kUnknown) {
      gpus.link = GpuLink::kDirect;
    }
  }
  return gpus;
}

}  // namespace ferry::nccl_net
