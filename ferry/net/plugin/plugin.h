// A loaded NCCL network plugin.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ferry/core/result.h"
#include "ferry/net/plugin/driver.h"

namespace ferry::net::plugin {

// A library with a network plugin, loaded and initialised. Plugins have threads of their own that
// nobody can end, and most may be initialised once only: so a plugin stays for the life of the
// process, and is the same object for all who open its file.
class Plugin {
 public:
  // Loads the newest version that both sides know. A path with a slash is that file; others are
  // looked for as dlopen(3) does. Any thread; a plugin may take seconds. Errors name the file and
  // the next step: kInvalidArgument (no such file, no library), kUnsupported (no plugin in it, or
  // only of other versions), kUnavailable (it would not start, or has no devices; with its own
  // words).
  static Result<Plugin*> Open(const std::string& path);

  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;

  const std::string& path() const noexcept { return path_; }
  const std::string& name() const noexcept { return name_; }  // by which it calls itself
  int version() const noexcept { return driver_->version(); }
  // Whether its requests are those of GPUDirect-TCPX (tcpx::Request), as its name says.
  bool has_tcpx_requests() const;
  const std::vector<NicFacts>& nics() const noexcept { return nics_; }
  // The bytes of the bounce pool that begins there, as far as the plugin tells (see
  // kPoolBytesName); 0: it does not.
  std::uint64_t PoolBytes(const void* pool) const;
  Driver& driver() noexcept { return *driver_; }

  // What a call that failed says: "isend of libnccl-net.so (GPUDirectTCPX_v7) failed: 3
  // (ncclInternalError): its last words: ...; <next step>". `mark` is PluginLogMark() before the
  // call.
  Error CallError(Code code, const std::string& call, int outcome, std::uint64_t mark,
                  const std::string& next_step) const;

 private:
  friend class PluginRegistry;
  using PoolBytesFunction = unsigned long long (*)(const void* pool);
  Plugin(std::string path, std::unique_ptr<Driver> driver, PoolBytesFunction pool_bytes);
  Status Start();  // does nothing where it has been
  Status Initialise();
  Status FindNics();
  Status CheckSettings() const;

  const std::string path_;
  const std::unique_ptr<Driver> driver_;
  const PoolBytesFunction pool_bytes_;  // null: it has none
  std::string name_;
  std::vector<NicFacts> nics_;
  bool initialised_ = false;
  bool started_ = false;
};

// A function that a plugin may export beside its table, unsigned long long (const void* pool): how
// large the bounce pool is that begins there, 0 for an address that is none. NCCL's interface says
// nothing of that. GPUDirect-TCPX has no such function: its pools are GPU memory, whose size CUDA
// tells. A plugin with pools in host memory needs one.
inline constexpr const char* kPoolBytesName = "ferry_net_pool_bytes";

// Where GPUDirect-TCPX machines have it.
inline constexpr const char* kUsualPluginPath = "/usr/local/tcpx/lib64/libnccl-net-tcpx.so";

}  // namespace ferry::net::plugin
