// Reads facts about this machine's paths, kernel and network interfaces.
#include "ferry/net/machine/machine_view.h"

#include <dirent.h>
#include <fmt/core.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>

#include "ferry/core/fd.h"

namespace ferry::net {
namespace {

constexpr std::uint32_t kPrivateFlagBits = 32;  // of ethtool_value::data

struct FolderCloser {
  void operator()(DIR* folder) const noexcept { ::closedir(folder); }
};

PathState::Kind KindOfMode(mode_t mode) {
  if (S_ISREG(mode)) return PathState::Kind::kFile;
  if (S_ISDIR(mode)) return PathState::Kind::kFolder;
  return S_ISSOCK(mode) ? PathState::Kind::kSocket : PathState::Kind::kOther;
}

// SIOCETHTOOL: `command` begins with the number of what is asked, and gets the answer. 0, or errno.
int Ethtool(int socket, const std::string& interface, void* command) {
  ifreq request{};
  interface.copy(request.ifr_name, IFNAMSIZ - 1);
  request.ifr_data = static_cast<char*>(command);
  return ::ioctl(socket, SIOCETHTOOL, &request) == 0 ? 0 : errno;
}

// Headers of ethtool that have an array behind them.
template <class Header>
class Sized {
 public:
  Sized(const Header& header, std::size_t behind) : bytes_(sizeof header + behind) {
    std::memcpy(bytes_.data(), &header, sizeof header);
  }
  void* data() { return bytes_.data(); }
  Header header() const {
    Header header{};
    std::memcpy(&header, bytes_.data(), sizeof header);
    return header;
  }
  const std::byte* behind() const { return bytes_.data() + sizeof(Header); }

 private:
  std::vector<std::byte> bytes_;
};

std::uint32_t CountPrivateFlags(int socket, const std::string& interface) {
  constexpr std::uint64_t kFlags = std::uint64_t{1} << ETH_SS_PRIV_FLAGS;
  ethtool_sset_info header{};
  header.cmd = ETHTOOL_GSSET_INFO;
  header.sset_mask = kFlags;
  std::uint32_t count = 0;
  Sized<ethtool_sset_info> info(header, sizeof count);
  if (Ethtool(socket, interface, info.data()) != 0) return 0;
  if (info.header().sset_mask != kFlags) return 0;
  std::memcpy(&count, info.behind(), sizeof count);
  return count;
}

// As ethtool --show-priv-flags: the number of flags, their names, then a bit for each.
std::map<std::string, bool> PrivateFlags(int socket, const std::string& interface) {
  std::map<std::string, bool> flags;
  const std::uint32_t count = CountPrivateFlags(socket, interface);
  if (count == 0) return flags;
  ethtool_gstrings header{};
  header.cmd = ETHTOOL_GSTRINGS;
  header.string_set = ETH_SS_PRIV_FLAGS;
  header.len = count;
  // The kernel writes as many as there are, whatever was asked for.
  Sized<ethtool_gstrings> names(header, std::size_t{count} * ETH_GSTRING_LEN);
  ethtool_value values{};
  values.cmd = ETHTOOL_GPFLAGS;
  if (Ethtool(socket, interface, names.data()) != 0) return flags;
  if (Ethtool(socket, interface, &values) != 0) return flags;
  const std::uint32_t named = std::min({names.header().len, count, kPrivateFlagBits});
  for (std::uint32_t bit = 0; bit < named; ++bit) {
    std::array<char, ETH_GSTRING_LEN + 1> name{};
    std::memcpy(name.data(), names.behind() + bit * ETH_GSTRING_LEN, ETH_GSTRING_LEN);
    flags[name.data()] = (values.data >> bit & 1) != 0;
  }
  return flags;
}

class ThisMachine final : public MachineView {
 public:
  Result<PathState> StateOf(const std::string& path) override { return FindPathState(path); }
  Result<std::vector<std::string>> List(const std::string& folder) override {
    return ListFolder(folder);
  }
  std::map<std::string, std::string> Environment() override { return ReadEnvironment(); }
  Result<bool> TakesTokens(int option) override { return ProbeTokenOption(option); }
  Result<NicSwitches> SwitchesOf(const std::string& interface) override {
    return AskNic(interface);
  }
};

}  // namespace

std::unique_ptr<MachineView> CreateMachineView() { return std::make_unique<ThisMachine>(); }

Result<PathState> FindPathState(const std::string& path) {
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) return ErrnoError(path, errno);
  struct statvfs mount {};
  if (::statvfs(path.c_str(), &mount) != 0) return ErrnoError(path, errno);
  return PathState{.kind = KindOfMode(found.st_mode),
                   .readable = ::access(path.c_str(), R_OK) == 0,
                   .writable = ::access(path.c_str(), W_OK) == 0,
                   .noexec = (mount.f_flag & ST_NOEXEC) != 0};
}

Result<std::vector<std::string>> ListFolder(const std::string& folder) {
  const std::unique_ptr<DIR, FolderCloser> open(::opendir(folder.c_str()));
  if (open == nullptr) return ErrnoError(folder, errno);
  std::vector<std::string> names;
  while (const dirent* const entry = ::readdir(open.get())) {
    const std::string name = &entry->d_name[0];
    if (name != "." && name != "..") names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::map<std::string, std::string> ReadEnvironment() {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view line(*entry);
    const auto equals = line.find('=');
    if (equals == std::string_view::npos) continue;
    variables.emplace(line.substr(0, equals), line.substr(equals + 1));
  }
  return variables;
}

Result<bool> ProbeTokenOption(int option) {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return ErrnoError("a TCP socket", errno);
  // Returns no token, so nothing changes where the option exists; a kernel without it says
  // ENOPROTOOPT.
  const std::array<std::uint32_t, 2> none{};  // first token, count
  if (::setsockopt(fd.get(), SOL_SOCKET, option, none.data(), sizeof none) >= 0) return true;
  if (errno == ENOPROTOOPT) return false;
  return ErrnoError(fmt::format("option {} of a TCP socket", option), errno);
}

Result<NicSwitches> AskNic(const std::string& interface) {
  const UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd) return ErrnoError("a UDP socket", errno);
  NicSwitches switches;
  ethtool_value flags{};
  flags.cmd = ETHTOOL_GFLAGS;
  const int error = Ethtool(fd.get(), interface, &flags);
  if (error != 0 && error != EOPNOTSUPP) {
    return ErrnoError(fmt::format("asking {} as ethtool does", interface), error);
  }
  if (error == 0) switches.ntuple = (flags.data & ETH_FLAG_NTUPLE) != 0;
  switches.private_flags = PrivateFlags(fd.get(), interface);
  return switches;
}

}  // namespace ferry::net
