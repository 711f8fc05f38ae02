// A loaded NCCL network plugin.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ferry/core/result.h"
#include "ferry/tcpx/host/driver.h"

namespace ferry::tcpx {

// A loaded and initialised network plugin. Plugins have threads that cannot be stopped, and most
// may be initialised only once: so a plugin stays for the life of the process, and all callers that
// open its file share one object. Any thread.
class Plugin {
 public:
  // Loads the newest version that both sides support. A path with a slash names the file; other
  // names are searched as dlopen(3) does. Blocks while the plugin initialises, which may take
  // seconds. Errors name the file and the fix: kInvalidArgument (no such file, not a
  // library), kUnsupported (no plugin in it, or only other versions), kUnavailable (initialisation
  // failed, or there are no devices; with the plugin's own message).
  static Result<Plugin*> Open(const std::string& path);

  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;

  const std::string& path() const noexcept { return path_; }
  const std::string& name() const noexcept { return name_; }  // as reported by the plugin
  int version() const noexcept { return driver_->version(); }
  // All devices send and receive GPU memory.
  bool takes_gpu_memory() const;
  // Whether its requests have the layout of GPUDirect-TCPX (layout::Request), judged by its name.
  bool has_tcpx_requests() const;
  const std::vector<NicFacts>& nics() const noexcept { return nics_; }
  // The size of the bounce pool that starts at `pool`, as reported by the plugin (kPoolBytesName);
  // 0 where it does not report it.
  std::uint64_t PoolBytes(const void* pool) const;
  // The plugin's functions themselves, for what comms (comm.h) do not do.
  Driver& driver() noexcept { return *driver_; }

  // The error for a failed call: "isend of libnccl-net.so (GPUDirectTCPX_v7) failed: 3
  // (ncclInternalError): its last words: ...; <fix>". `mark` is PluginLogMark() before the call.
  Error CallError(Code code, const std::string& call, int outcome, std::uint64_t mark,
                  const std::string& next_step) const;

 private:
  friend class PluginRegistry;
  using PoolBytesFunction = unsigned long long (*)(const void* pool);
  Plugin(std::string path, std::unique_ptr<Driver> driver, PoolBytesFunction pool_bytes);
  Status Start();  // does nothing if it was started
  Status Initialise();
  Status FindNics();
  Status CheckSettings() const;

  const std::string path_;
  const std::unique_ptr<Driver> driver_;
  const PoolBytesFunction pool_bytes_;  // null: not exported
  std::string name_;
  std::vector<NicFacts> nics_;
  bool initialised_ = false;
  bool started_ = false;
};

// A function that a plugin may export beside its table, unsigned long long (const void* pool): the
// size of the bounce pool that starts at `pool`, 0 for any other address. NCCL's interface has no
// such query. GPUDirect-TCPX does not export it: its pools are GPU memory, whose size CUDA reports.
// A plugin with pools in host memory needs it.
inline constexpr const char* kPoolBytesName = "ferry_net_pool_bytes";

// The path on machines prepared for GPUDirect-TCPX.
inline constexpr const char* kUsualPluginPath = "/usr/local/tcpx/lib64/libnccl-net-tcpx.so";

}  // namespace ferry::tcpx
