// The table of settings: name, range, default and help of each.
#include "ferry/core/config_rows.h"

#include <algorithm>
#include <charconv>
#include <system_error>

#include "ferry/core/units.h"

namespace ferry {
namespace {

bool IsHost(std::string_view text) {
  return text.size() <= 253 && text.find_first_of(" \t\r\n") == std::string_view::npos;
}

bool IsCongestionControl(std::string_view text) {
  constexpr std::size_t kTcpCaNameMax = 16;  // with the final zero byte; linux/include/net/tcp.h
  return !text.empty() && text.size() < kTcpCaNameMax &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
         });
}

bool IsInterfaceList(std::string_view text) {
  return text.size() <= 1024 && text.find_first_of(" \t\r\n/") == std::string_view::npos &&
         text.find('^', 1) == std::string_view::npos && text != "^";
}

bool IsNumber(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// Simulated devices (simulated:N or simulated:N:SEED, then ":open" for memory that network cards
// reach, then ":no-kernels" for devices that run none) are for tests and not documented.
bool IsDevices(std::string_view text) {
  if (text == "auto" || text == "none") return true;
  if (!text.starts_with(kSimulatedDevices)) return false;
  text.remove_prefix(kSimulatedDevices.size());
  for (const std::string_view option : {":no-kernels", ":open"}) {
    if (text.ends_with(option)) text.remove_suffix(option.size());
  }
  const auto colon = std::min(text.find(':'), text.size());
  return IsNumber(text.substr(0, colon)) &&
         (colon == text.size() || IsNumber(text.substr(colon + 1)));
}

bool IsSecret(std::string_view text) {
  return text.empty() || (text.size() >= kMinSecretBytes && text.size() <= kMaxSecretBytes);
}

bool IsPath(std::string_view text) { return text.find('\0') == std::string_view::npos; }

bool IsProvider(std::string_view text) {
  return IsPath(text) && (text == "tcp" || text == "plugin" || text == "auto" ||
                          (text.rfind("plugin:", 0) == 0 && text.size() > 7));
}

// Port 0 means any free port.
bool IsListeningAddress(std::string_view text) {
  if (text.empty()) return true;
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos || !IsHost(text.substr(0, colon))) return false;
  const std::string_view port = text.substr(colon + 1);
  std::uint16_t number = 0;
  const auto [rest, failure] = std::from_chars(port.data(), port.data() + port.size(), number);
  return failure == std::errc() && rest == port.data() + port.size();
}

constexpr std::uint64_t kMillisecond = 1000;
constexpr std::uint64_t kSecond = 1000 * kMillisecond;
constexpr std::uint64_t kHour = 3600 * kSecond;

constexpr ConfigRow kRows[] = {
    {.name = "listen_host",
     .member = &ConfigValues::listen_host,
     .form = "an address or host name; empty for all addresses",
     .accepts = IsHost,
     .help = "where to listen; a name stands for all its addresses"},
    {.name = "interfaces",
     .member = &ConfigValues::interfaces,
     .form = "names or patterns like eth0,ens*, or ^ and those to leave out; empty for all",
     .accepts = IsInterfaceList,
     .help = "network interfaces whose addresses peers are told, and that lanes to other machines "
             "may use; a list must select an address"},
    {.name = "port_range",
     .member = PortRangeMember{},
     .form = "A-B or A within 1..65535; 0 for any free port",
     .help = "ports to listen on, both ends included; the first free one is taken"},
    {.name = "lanes",
     .member = &ConfigValues::lanes,
     .high = 64,
     .zero = "automatic",
     .help = "TCP connections per peer; with three or more, the first carries small messages only"},
    {.name = "workers",
     .member = &ConfigValues::workers,
     .high = 64,
     .zero = "automatic",
     .help = "progress threads"},
    {.name = "slice_bytes",
     .member = &ConfigValues::slice_bytes,
     .low = 4 * kKiB,
     .high = 64 * kMiB,
     .help = "size of the slices that are striped over lanes"},
    {.name = "window_bytes",
     .member = &ConfigValues::window_bytes,
     .low = 64 * kKiB,
     .high = kGiB,
     .help = "bytes in flight per lane; at least slice_bytes"},
    {.name = "congestion_control",
     .member = &ConfigValues::congestion_control,
     .form = "auto | system | a name listed in net.ipv4.tcp_available_congestion_control",
     .accepts = IsCongestionControl,
     .help = "TCP congestion control of the lanes; system leaves the kernel's default"},
    {.name = "send_buffer_bytes",
     .member = &ConfigValues::send_buffer_bytes,
     .high = kGiB,
     .zero = "kernel autotuning",
     .help = "SO_SNDBUF of a lane"},
    {.name = "recv_buffer_bytes",
     .member = &ConfigValues::recv_buffer_bytes,
     .high = kGiB,
     .zero = "kernel autotuning",
     .help = "SO_RCVBUF of a lane"},
    {.name = "lane_rate_bytes",
     .member = &ConfigValues::lane_rate_bytes,
     .high = 1024 * kGiB,
     .zero = "no limit",
     .help =
         "maximum send rate of a lane in bytes per second, so that other traffic keeps its share"},
    {.name = "spin",
     .member = &ConfigValues::spin,
     .high = kSecond,
     .zero = "sleep at once",
     .help = "how long a worker polls before it sleeps; trades CPU time for latency"},
    {.name = "zero_copy_send",
     .member = &ConfigValues::zero_copy_send,
     .form = "auto | on | off",
     .help =
         "whether sends are zero-copy: pages are spliced into the socket instead of being copied, "
         "where no other user can read them later"},
    {.name = "checksum",
     .member = &ConfigValues::checksum,
     .form = "on | off",
     .help = "whether slices carry a CRC32C that their receiver checks; on if either side says so"},
    {.name = "devices",
     .member = &ConfigValues::devices,
     .form = "auto | none",
     .accepts = IsDevices,
     .help = "GPUs that are used; auto: those that CUDA shows this process"},
    {.name = "cuda_ipc",
     .member = &ConfigValues::cuda_ipc,
     .form = "auto | off",
     .help = "whether GPU memory of two processes of one machine is copied directly, not over TCP"},
    {.name = "stage_slice_bytes",
     .member = &ConfigValues::stage_slice_bytes,
     .low = 4 * kKiB,
     .high = 16 * kMiB,
     .help = "size of slices from and into GPU memory, at most slice_bytes"},
    {.name = "stage_bytes",
     .member = &ConfigValues::stage_bytes,
     .low = 64 * kKiB,
     .high = 4 * kGiB,
     .help = "pinned memory between a GPU and the network, for each GPU in use and direction; at "
             "least 8 slices"},
    {.name = "connect_timeout",
     .member = &ConfigValues::connect_timeout,
     .low = kMillisecond,
     .high = kHour,
     .help = "timeout for connecting all lanes to a peer, over all of its addresses together"},
    {.name = "handshake_timeout",
     .member = &ConfigValues::handshake_timeout,
     .low = kMillisecond,
     .high = kHour,
     .help = "timeout for the handshake with a connected peer"},
    {.name = "operation_timeout",
     .member = &ConfigValues::operation_timeout,
     .low = kMillisecond,
     .high = 24 * kHour,
     .help = "timeout of an operation without a deadline of its own"},
    {.name = "peer_timeout",
     .member = &ConfigValues::peer_timeout,
     .low = kMillisecond,
     .high = kHour,
     .help = "silence after which a peer is lost; more than heartbeat_interval"},
    {.name = "lane_timeout",
     .member = &ConfigValues::lane_timeout,
     .low = kMillisecond,
     .high = kHour,
     .help =
         "silence on one lane, at least two heartbeats, after which another network path is tried"},
    {.name = "heartbeat_interval",
     .member = &ConfigValues::heartbeat_interval,
     .low = kMillisecond,
     .high = kHour,
     .help = "how often an idle connection shows that it is alive"},
    {.name = "drain_grace",
     .member = &ConfigValues::drain_grace,
     .high = kHour,
     .zero = "cancel at once",
     .help = "how long a closing endpoint waits for operations in flight"},
    {.name = "eager_bytes",
     .member = &ConfigValues::eager_bytes,
     .high = 64 * kKiB,
     .zero = "always ask first",
     .help = "largest message that is sent without waiting for its receive"},
    {.name = "unexpected_bytes",
     .member = &ConfigValues::unexpected_bytes,
     .low = 64 * kKiB,
     .high = 16 * kGiB,
     .help = "memory for eager messages that no receive has asked for yet"},
    {.name = "notification_bytes",
     .member = &ConfigValues::notification_bytes,
     .low = 4 * kKiB,
     .high = kGiB,
     .help = "memory for notifications that were not taken yet"},
    {.name = "peer_memory",
     .member = &ConfigValues::peer_memory,
     .low = kMiB,
     .high = 64 * kGiB,
     .help =
         "memory that the peer of one connection can make an endpoint hold; one that passes it "
         "by a tenth loses the connection; at least unexpected_bytes and notification_bytes, and "
         "in effect 256 KiB for each lane and 256 KiB more"},
    {.name = "peer_memory_total",
     .member = &ConfigValues::peer_memory_total,
     .low = kMiB,
     .high = 1024 * kGiB,
     .help = "memory that all peers together can make an endpoint hold; 256 KiB more for each"},
    {.name = "max_operations",
     .member = &ConfigValues::max_operations,
     .low = 1,
     .high = 1 << 24,
     .help = "operations in flight at once"},
    {.name = "max_connections",
     .member = &ConfigValues::max_connections,
     .high = 1 << 20,
     .zero = "any number",
     .help = "peers that have connected here at once; more are refused"},
    {.name = "max_pending_handshakes",
     .member = &ConfigValues::max_pending_handshakes,
     .low = 64,
     .high = 1 << 16,
     .help = "pending peers at once; a silent one is closed for the next, and where there is none, "
             "accepting pauses"},
    {.name = "secret",
     .member = &ConfigValues::secret,
     .form = "16 to 1024 bytes; empty for none",
     .accepts = IsSecret,
     .help = "secret that both sides must share to connect; better kept in a file"},
    {.name = "secret_file",
     .member = &ConfigValues::secret_file,
     .form = "a path; empty for none",
     .accepts = IsPath,
     .help = "file that holds the secret; a newline at its end is no part of it"},
    {.name = "insecure",
     .member = &ConfigValues::insecure,
     .form = "on | off",
     .help = "on: where there is no secret, peers of other machines and users are trusted, too"},
    {.name = "tls",
     .member = &ConfigValues::tls,
     .form = "off | psk | cert",
     .help = "TLS 1.3 on every lane: by a key made from the secret, or by certificates of both "
             "sides"},
    {.name = "tls_cert",
     .member = &ConfigValues::tls_cert,
     .form = "a path; empty for none",
     .accepts = IsPath,
     .help = "PEM file with this endpoint's certificate, then those between it and its authority"},
    {.name = "tls_key",
     .member = &ConfigValues::tls_key,
     .form = "a path; empty for none",
     .accepts = IsPath,
     .help = "PEM file with the key of tls_cert, without a password"},
    {.name = "tls_ca",
     .member = &ConfigValues::tls_ca,
     .form = "a path; empty for none",
     .accepts = IsPath,
     .help = "PEM file with the authorities that peers' certificates must come from"},
    {.name = "tls_name",
     .member = &ConfigValues::tls_name,
     .form = "a host name or address; empty for any",
     .accepts = IsHost,
     .help = "what every peer's certificate must be for, whatever was dialled; empty: anything"},
    {.name = "provider",
     .member = &ConfigValues::provider,
     .form = "tcp | plugin (the one of net_plugin) | plugin:PATH | auto",
     .accepts = IsProvider,
     .help = "what carries endpoints' lanes: TCP, or an NCCL network plugin; auto: GPUDirect-TCPX "
             "where the machine is set up for it, otherwise TCP; the same on both sides"},
    {.name = "net_plugin",
     .member = &ConfigValues::net_plugin,
     .form = "a path; empty for none",
     .accepts = IsPath,
     .help = "library with an NCCL network plugin, such as GPUDirect-TCPX's"},
    {.name = "plugin_chunk_bytes",
     .member = &ConfigValues::plugin_chunk_bytes,
     .low = 4 * kKiB,
     .high = 8 * kMiB,
     .help = "parts in which a plugin carries a payload; the same on both sides"},
    {.name = "plugin_unpack",
     .member = &ConfigValues::plugin_unpack,
     .form = "auto | kernel | dma | host",
     .help = "how pieces that a plugin has received are put into GPU memory; auto: kernel, or dma "
             "where kernels cannot read the plugin's pool; without a GPU, the host copies"},
    {.name = "plugin_tag_base",
     .member = &ConfigValues::plugin_tag_base,
     .high = 1'000'000'000,
     .help =
         "added to the tags of chunks, of which each payload has 10000; the same on both sides"},
    {.name = "nccl_channels",
     .member = &ConfigValues::nccl_channels,
     .high = 64,
     .zero = "NCCL decides",
     .help = "as NCCL's network: channels that NCCL is asked for; the same on all ranks"},
    {.name = "nccl_devices",
     .member = &ConfigValues::nccl_devices,
     .low = 1,
     .high = 32,
     .help = "as NCCL's network: devices as which the NIC is shown; the same on all ranks"},
    {.name = "metrics_address",
     .member = &ConfigValues::metrics_address,
     .form = "HOST:PORT, or :PORT for 127.0.0.1; empty for none",
     .accepts = IsListeningAddress,
     .help = "listening address for an endpoint's counters over HTTP, in Prometheus' text format"},
    {.name = "log_level",
     .member = &ConfigValues::log_level,
     .form = "trace | debug | info | warn | error | off",
     .help = "lowest level of messages that are logged"},
    {.name = "log_format",
     .member = &ConfigValues::log_format,
     .form = "text | json",
     .help = "how messages are logged; json: an object a line"},
};

}  // namespace

std::span<const ConfigRow> ConfigRows() { return kRows; }

}  // namespace ferry
