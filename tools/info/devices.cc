// Collects and prints the facts about GPUs for `ferry info`.

#include "tools/info/devices.h"

#include <fmt/core.h>

#include <string>

#include "ferry/core/units.h"
#include "ferry/cuda/device_code.h"
#include "ferry/cuda/open_devices.h"
#include "tools/support/report.h"

namespace ferry::tools {
namespace {

// As CUDA's own tools write it; "" for 0, which is none.
std::string VersionText(int version) {
  return version == 0 ? "" : fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

// Simulated GPUs run each kernel's form for the CPU, whatever was compiled.
Json CodeOf(const Config& config, const cuda::DeviceFacts& facts) {
  if (config.devices.kind == DeviceChoice::Kind::kSimulated) {
    return Json{{"kind", "emulated"}, {"target", ""}, {"fix", ""}};
  }
  return CodeInfo(cuda::DeviceCodeTargets(), facts.compute_major, facts.compute_minor);
}

Json DescribeDevice(const Config& config, cuda::DeviceApi& api, int ordinal) {
  const auto facts = api.Describe(ordinal);
  if (!facts) {
    Json failed = ErrorToJson(facts.error());
    failed["ordinal"] = ordinal;
    return failed;
  }
  return Json{
      {"ordinal", ordinal},
      {"name", facts->name},
      {"compute_capability", fmt::format("{}.{}", facts->compute_major, facts->compute_minor)},
      {"code", CodeOf(config, *facts)},
      {"multiprocessors", facts->multiprocessors},
      {"copy_engines", facts->copy_engines},
      {"memory_bytes", facts->memory_bytes},
      {"pci_bus_id", facts->pci_bus_id},
      {"numa_node", facts->numa_node < 0 ? Json() : Json(facts->numa_node)}};
}

// The other GPUs whose memory it can copy from and to by itself.
Json Reached(cuda::DeviceApi& api, int ordinal) {
  Json reached = Json::array();
  for (int other = 0; other < api.count(); ++other) {
    const auto can = other == ordinal ? Result<bool>(false) : api.CanAccessPeer(ordinal, other);
    if (can && *can) reached.push_back(other);
  }
  return reached;
}

std::string DeviceLine(const Json& device) {
  if (device.contains("error")) return device["error"]["message"].get<std::string>();
  return fmt::format("{}, compute capability {}, {} SMs, {:.1f} GiB, PCI {}, NUMA node {}",
                     device["name"].get<std::string>(),
                     device["compute_capability"].get<std::string>(),
                     DumpJson(device["multiprocessors"]),
                     device["memory_bytes"].get<double>() / static_cast<double>(kGiB),
                     device["pci_bus_id"].get<std::string>(),
                     device["numa_node"].is_null() ? "unknown" : DumpJson(device["numa_node"]));
}

// The line below a device that DescribeDevice() has described.
std::string CodeText(const Json& code) {
  const auto kind = code["kind"].get<std::string>();
  if (kind == "none") return "no code for it: " + code["fix"].get<std::string>();
  const auto target = code["target"].get<std::string>();
  return target.empty() ? kind + " code" : fmt::format("{} code, {}", kind, target);
}

}  // namespace

Json CodeInfo(std::string_view targets, int major, int minor) {
  const cuda::DeviceCode code = cuda::CodeFor(targets, major, minor);
  Json info{{"kind", cuda::CodeKindName(code.kind)}, {"target", code.target}, {"fix", ""}};
  if (code.kind == cuda::CodeKind::kNone) {
    const std::string target = cuda::TargetFor(major, minor);
    info["fix"] = "copies go by its copy engine and ops do not run on it; " +
                  (target.empty() ? "kernels need compute capability 8.0 or later"
                                  : "build with -DFERRY_CUDA_ARCH=" + target);
  }
  return info;
}

Json DeviceInfo(const Config& config) {
  Json info{{"found", Json::array()}, {"why_none", ""}};
  const auto api = cuda::OpenDevices(config);
  if (!api) {
    info["why_none"] = api.error().message();
    return info;
  }
  for (int i = 0; i < (*api)->count(); ++i) {
    info["found"].push_back(DescribeDevice(config, **api, i));
    info["found"].back()["reaches"] = Reached(**api, i);
  }
  // To another process of this machine, whose GPU reaches the memory's.
  info["path_within_machine"] = config.cuda_ipc == AutoOff::kOff ? "network" : "gpu-copy";
  const cuda::Versions versions = (*api)->versions();
  info["driver"] = versions.kernel_module;
  info["driver_cuda"] = VersionText(versions.driver_api);
  info["runtime_cuda"] = VersionText(versions.runtime);
  return info;
}

void PrintDevices(const Json& devices) {
  if (devices["found"].empty()) {
    PrintLine("  none: " + devices["why_none"].get<std::string>());
    return;
  }
  for (const Json& one : devices["found"]) {
    const std::string reached =
        one["reaches"].empty() ? "" : fmt::format(", reaches GPUs {}", DumpJson(one["reaches"]));
    PrintLine(fmt::format("  {}  {}{}", DumpJson(one["ordinal"]), DeviceLine(one), reached));
    if (one.contains("code")) PrintLine("     " + CodeText(one["code"]));
  }
  PrintLine(fmt::format("  between GPUs of processes of this machine: {} (FERRY_CUDA_IPC)",
                        devices["path_within_machine"].get<std::string>()));
  PrintLine(fmt::format(
      "  driver {}, up to CUDA {}; runtime {}", devices["driver"].get<std::string>(),
      devices["driver_cuda"].get<std::string>(), devices["runtime_cuda"].get<std::string>()));
}

}  // namespace ferry::tools
