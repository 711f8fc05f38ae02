// Read-only interface to what GPUDirect-TCPX needs of a machine; tests replace it.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ferry/core/result.h"

namespace ferry::net {

// The file type at a path, and this process's permissions for it.
struct PathState {
  enum class Kind { kFile, kFolder, kSocket, kOther };

  Kind kind = Kind::kFile;
  bool readable = false;
  bool writable = false;
  bool noexec = false;  // the mount that it is on lets nothing be executed (mount(8))
};

// Facts that ethtool(8) shows for an interface.
struct NicSwitches {
  std::map<std::string, bool> private_flags;  // of its driver; most have none
  std::optional<bool>
      ntuple;  // filtering by addresses and ports; empty if the driver does not report it
};

// No call changes anything. For one thread.
class MachineView {
 public:
  virtual ~MachineView() = default;

  // Follows symbolic links. Errors: as ErrnoError.
  virtual Result<PathState> StateOf(const std::string& path) = 0;
  // Names in a folder, sorted. Errors: as ErrnoError.
  virtual Result<std::vector<std::string>> List(const std::string& folder) = 0;
  // Variables of this process: name, value.
  virtual std::map<std::string, std::string> Environment() = 0;
  // Whether TCP sockets have the SOL_SOCKET option that returns fragments of device memory; tested
  // by returning none. Errors: as ErrnoError.
  virtual Result<bool> TakesTokens(int option) = 0;
  // Errors: as ErrnoError if the interface does not exist or cannot be queried.
  virtual Result<NicSwitches> SwitchesOf(const std::string& interface) = 0;
};

// The machine that this process runs on.
std::unique_ptr<MachineView> CreateMachineView();

// The parts of it.
Result<PathState> FindPathState(const std::string& path);
Result<std::vector<std::string>> ListFolder(const std::string& folder);
std::map<std::string, std::string> ReadEnvironment();
Result<bool> ProbeTokenOption(int option);
Result<NicSwitches> AskNic(const std::string& interface);

}  // namespace ferry::net
