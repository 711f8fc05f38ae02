// Loads NCCL network plugins and finds their devices.
#include "ferry/tcpx/host/plugin.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <utility>

#include "ferry/core/log.h"
#include "ferry/tcpx/host/plugin_log.h"

namespace ferry::tcpx {
namespace {

// All versions that NCCL has had or may have, to tell an unsupported plugin from a library that is
// not a plugin.
constexpr int kFirstVersionEver = 2;
constexpr int kLastVersionLookedFor = 20;

constexpr const char* kTcpxName = "GPUDirectTCPX";
constexpr const char* kChunkSetting = "NCCL_DYNAMIC_CHUNK_SIZE";

std::string SymbolOf(int version) { return fmt::format("ncclNetPlugin_v{}", version); }

void* TableOf(void* library, int version) { return dlsym(library, SymbolOf(version).c_str()); }

std::string LoaderError() {
  const char* const text = dlerror();
  return text == nullptr ? "no reason told" : text;
}

Error NoPluginError(const std::string& path, void* library) {
  for (int version = kLastVersionLookedFor; version >= kFirstVersionEver; --version) {
    if (TableOf(library, version) == nullptr) continue;
    const bool newer = version > kNewestVersion;
    return Error(
        Code::kUnsupported,
        fmt::format("{} is a network plugin of version {}, and versions {} to {} are "
                    "supported here; use {} of it, or a {} release of this library",
                    path, version, kOldestVersion, kNewestVersion,
                    newer ? "an older build" : "a newer one", newer ? "newer" : "much older"));
  }
  return Error(Code::kUnsupported,
               fmt::format("{} is a library but not a network plugin: it exports none of "
                           "ncclNetPlugin_v{} to v{}; 'nm -D {}' shows what it exports",
                           path, kOldestVersion, kNewestVersion, path));
}

Result<void*> LoadLibrary(const std::string& path) {
  if (path.empty()) {
    return Error(Code::kInvalidArgument,
                 "no network plugin is named; set FERRY_NET_PLUGIN to its file");
  }
  std::error_code ignored;
  // A name without a slash is looked up by the loader along its search path.
  if (path.find('/') != std::string::npos && !std::filesystem::exists(path, ignored)) {
    return Error(
        Code::kInvalidArgument,
        fmt::format("there is no network plugin {}; set FERRY_NET_PLUGIN to its file", path));
  }
  dlerror();
  // Never closed: see Plugin.
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return Error(Code::kInvalidArgument,
                 fmt::format("loading network plugin {}: {}; look with 'ldd {}' whether it is a "
                             "library of this machine, and what it needs",
                             path, LoaderError(), path));
  }
  return library;
}

std::string LastWords(std::uint64_t mark) {
  std::string words;
  for (const PluginLine& line : PluginWarnings(mark)) {
    words += fmt::format("{}\"{}\"", words.empty() ? "" : ", ", line.text);
  }
  return words.empty() ? "it gave no reason" : "its words: " + words;
}

}  // namespace

// All plugins of the process.
class PluginRegistry {
 public:
  Result<Plugin*> Open(const std::string& path) {
    const std::lock_guard lock(mutex_);
    FERRY_TRY_ASSIGN(void* const library, LoadLibrary(path));
    // dlopen() returns the same handle for the same file, by whatever path, so the map finds a
    // plugin again. Most plugins fail if init() is called twice in a process.
    std::unique_ptr<Plugin>& plugin = plugins_[library];
    for (int version = kNewestVersion; plugin == nullptr && version >= kOldestVersion; --version) {
      void* const table = TableOf(library, version);
      if (table != nullptr) plugin.reset(MakePlugin(path, library, version, table));
    }
    if (plugin == nullptr) return NoPluginError(path, library);
    // Again if it has failed before: its interfaces may be up by now.
    FERRY_TRY(plugin->Start());
    return plugin.get();
  }

 private:
  static Plugin* MakePlugin(const std::string& path, void* library, int version, void* table) {
    // dlsym() returns functions as data pointers.
    auto* const pool_bytes =
        reinterpret_cast<Plugin::PoolBytesFunction>(dlsym(library, kPoolBytesName));
    return new Plugin(path, MakeDriver(version, table), pool_bytes);
  }

  std::mutex mutex_;
  std::map<void*, std::unique_ptr<Plugin>> plugins_;  // by library; null: not a plugin
};

Result<Plugin*> Plugin::Open(const std::string& path) {
  static auto* const registry = new PluginRegistry;
  return registry->Open(path);
}

Plugin::Plugin(std::string path, std::unique_ptr<Driver> driver, PoolBytesFunction pool_bytes)
    : path_(std::move(path)),
      driver_(std::move(driver)),
      pool_bytes_(pool_bytes),
      name_(driver_->name() == nullptr ? "unnamed" : driver_->name()) {}

std::uint64_t Plugin::PoolBytes(const void* pool) const {
  return pool_bytes_ == nullptr ? 0 : pool_bytes_(pool);
}

bool Plugin::takes_gpu_memory() const {
  return std::all_of(nics_.begin(), nics_.end(),
                     [](const NicFacts& nic) { return nic.cuda_memory; });
}

bool Plugin::has_tcpx_requests() const { return name_.rfind(kTcpxName, 0) == 0; }

// The plugin reads its settings only once, when it starts.
Status Plugin::CheckSettings() const {
  if (!has_tcpx_requests()) return Ok();
  const char* const chunk = std::getenv(kChunkSetting);
  // The default is 0, with which nothing can be sent (docs/tcpx.md).
  if (chunk != nullptr && std::strtol(chunk, nullptr, 10) > 0) return Ok();
  return Error(
      Code::kInvalidArgument,
      fmt::format("{} is {}, and nothing can be sent with {}; set {}=524288 before the "
                  "program starts",
                  kChunkSetting, chunk == nullptr ? "not set" : "0", name_, kChunkSetting));
}

// Up to v10 nothing undoes init(), and a second call is an error: its result is kept for the next
// attempt.
Status Plugin::Start() {
  if (started_) return Ok();
  if (!initialised_) FERRY_TRY(Initialise());
  if (Status found = FindNics(); !found) {
    // Where finalize exists, the next attempt begins with init() again; before, init() stays done.
    initialised_ = version() < abi::kFirstWithFinalize;
    (void)driver_->Finalize();
    return found;
  }
  started_ = true;
  Log(LogLevel::kInfo, "plugin", "loaded {} ({}, version {}, {} devices)", path_, name_, version(),
      nics_.size());
  return Ok();
}

Status Plugin::Initialise() {
  FERRY_TRY(CheckSettings());
  ExplainEndOfProcess();
  const std::uint64_t mark = PluginLogMark();
  if (const int outcome = driver_->Init(PluginLogger()); outcome != abi::kSuccess) {
    return CallError(Code::kUnavailable, "init", outcome, mark,
                     "see that its interfaces are up and, for GPUDirect-TCPX, that the "
                     "receive-datapath daemon runs; 'ferry doctor' looks for both");
  }
  initialised_ = true;
  return Ok();
}

Status Plugin::FindNics() {
  nics_.clear();
  int count = 0;
  std::uint64_t mark = PluginLogMark();
  const int outcome = driver_->Devices(&count);
  if (outcome != abi::kSuccess) {
    return CallError(Code::kUnavailable, "devices", outcome, mark, "see 'ferry doctor'");
  }
  if (count <= 0) {
    return Error(Code::kUnavailable,
                 fmt::format("network plugin {} ({}) finds no interface that it can use; {}; look "
                             "at its settings of interfaces (NCCL_GPUDIRECTTCPX_SOCKET_IFNAME, "
                             "NCCL_SOCKET_IFNAME)",
                             path_, name_, LastWords(mark)));
  }
  for (int device = 0; device < count; ++device) {
    NicFacts facts;
    mark = PluginLogMark();
    if (const int failed = driver_->Describe(device, &facts); failed != abi::kSuccess) {
      return CallError(Code::kUnavailable, fmt::format("getProperties of device {}", device),
                       failed, mark, "see 'ferry doctor'");
    }
    nics_.push_back(std::move(facts));
  }
  return Ok();
}

Error Plugin::CallError(Code code, const std::string& call, int outcome, std::uint64_t mark,
                        const std::string& next_step) const {
  std::string meaning;
  for (const PluginLine& line : PluginWarnings(mark)) {
    // The last line that is known wins: it is nearest to the failure.
    if (std::string known = MeaningOf(line.text); !known.empty()) meaning = std::move(known);
  }
  return Error(code, fmt::format("{} of network plugin {} ({}) failed with {} ({}); {}; {}", call,
                                 path_, name_, outcome, abi::OutcomeName(outcome), LastWords(mark),
                                 meaning.empty() ? next_step : meaning));
}

}  // namespace ferry::tcpx
