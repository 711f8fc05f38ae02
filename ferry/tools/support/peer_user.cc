// Implements the lookup of a local peer's user in the kernel's tables of TCP sockets.

#include "ferry/tools/support/peer_user.h"

#include <fmt/core.h>
#include <netinet/in.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstring>
#include <fstream>
#include <iterator>
#include <span>
#include <sstream>
#include <system_error>
#include <vector>

#include "ferry/net/address.h"

namespace ferry::tools {
namespace {

// A connection may be missed by one reading of a table that changes meanwhile.
constexpr int kReadings = 3;
// The kernel shows this id for every user that the reader's user namespace does not know.
constexpr uid_t kAnyUnknownUser = 65534;

// An address in the form of /proc/net/tcp or tcp6: its 32-bit words as this machine reads them.
std::string TableForm(std::span<const std::byte> address, std::uint16_t port) {
  std::string form;
  for (std::size_t i = 0; i < address.size(); i += 4) {
    std::uint32_t word = 0;
    std::memcpy(&word, &address[i], sizeof word);
    form += fmt::format("{:08X}", word);
  }
  return form + fmt::format(":{:04X}", port);
}

// An IPv4 address stands in tcp6 where the peer's socket is an IPv6 one.
struct TableForms {
  std::string tcp;  // "" for an IPv6 address
  std::string tcp6;
};

std::optional<TableForms> FormsOf(const std::string& text) {
  const auto address = net::ParseAddress(text, 0);
  if (!address) return std::nullopt;
  const auto raw = net::ToRaw(*address);
  if (!raw) return std::nullopt;
  if (raw->family() == AF_INET6) {
    sockaddr_in6 v6{};
    std::memcpy(&v6, raw->get(), sizeof v6);
    return TableForms{"", TableForm(std::as_bytes(std::span(v6.sin6_addr.s6_addr)), address->port)};
  }
  sockaddr_in v4{};
  std::memcpy(&v4, raw->get(), sizeof v4);
  std::array<std::byte, 16> mapped{};
  mapped[10] = mapped[11] = std::byte{0xFF};
  std::memcpy(&mapped[12], &v4.sin_addr, sizeof v4.sin_addr);
  return TableForms{TableForm(std::span(mapped).subspan(12), address->port),
                    TableForm(mapped, address->port)};
}

// Cells of a row, from 0.
constexpr std::size_t kLocal = 1;
constexpr std::size_t kRemote = 2;
constexpr std::size_t kState = 3;
constexpr std::size_t kUser = 7;
constexpr std::size_t kInode = 9;
constexpr const char* kEstablished = "01";

// The owner of the socket that is connected from `local` to `remote`, if a process holds it: the
// kernel shows one that was closed as root's, and without an inode.
std::optional<uid_t> FindOwner(const char* table, const std::string& local,
                               const std::string& remote) {
  std::ifstream file(table);
  std::string line;
  while (std::getline(file, line)) {
    if (line.find(local) == std::string::npos || line.find(remote) == std::string::npos) continue;
    std::istringstream row(line);
    const std::vector<std::string> cells{std::istream_iterator<std::string>(row), {}};
    if (cells.size() <= kInode || cells[kLocal] != local || cells[kRemote] != remote) continue;
    uid_t user = 0;
    const std::string& text = cells[kUser];
    const bool is_number =
        std::from_chars(text.data(), text.data() + text.size(), user).ec == std::errc();
    if (is_number && cells[kState] == kEstablished && cells[kInode] != "0") return user;
  }
  return std::nullopt;
}

}  // namespace

std::optional<uid_t> UserOfPeer(const std::string& local, const std::string& remote) {
  const auto near = FormsOf(local);
  const auto far = FormsOf(remote);
  if (!near || !far) return std::nullopt;
  for (int reading = 0; reading < kReadings; ++reading) {
    if (!near->tcp.empty() && !far->tcp.empty()) {
      if (const auto user = FindOwner("/proc/net/tcp", far->tcp, near->tcp)) return user;
    }
    if (const auto user = FindOwner("/proc/net/tcp6", far->tcp6, near->tcp6)) return user;
  }
  return std::nullopt;
}

Status CheckUser(const transfer::ConnectionInfo& info, const Config& config) {
  const bool has_secret = !config.secret.empty() || !config.secret_file.empty();
  if (has_secret || config.insecure == OnOff::kOn) return Ok();
  const uid_t own = ::geteuid();
  for (const net::LaneInfo& lane : info.lanes) {
    if (lane.authenticated) continue;
    const auto user = UserOfPeer(lane.local, lane.remote);
    if (user == own && own != kAnyUnknownUser) continue;
    return Error(
        Code::kRefused,
        fmt::format("{} belongs to {}, and this server serves user {} alone as it has no "
                    "secret; give both sides --secret-file, or the server --insecure",
                    lane.remote, user ? fmt::format("user {}", *user) : "no known process", own));
  }
  return Ok();
}

}  // namespace ferry::tools
