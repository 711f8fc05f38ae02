#include "ferry/core/config.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <concepts>
#include <cstdlib>
#include <optional>
#include <system_error>
#include <type_traits>
#include <utility>
#include <variant>

#include "ferry/core/log.h"
#include "ferry/core/units.h"

namespace ferry {
namespace {

using std::chrono::microseconds;

constexpr std::string_view kPrefix = "FERRY_";
constexpr std::string_view kFromEnvironment = "environment";

// Two fields that are one setting.
struct PortRange {
  std::uint16_t first = 0;
  std::uint16_t last = 0;
};
struct PortRangeMember {};

using Member = std::variant<std::string Config::*, int Config::*, std::uint32_t Config::*,
                            std::uint64_t Config::*, microseconds Config::*, PortRangeMember>;

// A setting. Its variable and unit follow from name and member.
struct Row {
  std::string_view name;
  Member member;
  std::uint64_t low = 0;  // bytes, microseconds or a count; unused for text and ports
  std::uint64_t high = 0;
  std::string_view zero = {};  // what 0 stands for
  std::string_view form = {};  // of text and ports: the values, in words
  bool (*accepts)(std::string_view text) = nullptr;
  bool hidden = false;  // its text is never shown
  std::string_view help;
};

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

bool IsAutoOnOff(std::string_view text) { return text == "auto" || text == "on" || text == "off"; }

bool IsInterfaceList(std::string_view text) {
  return text.size() <= 1024 && text.find_first_of(" \t\r\n/") == std::string_view::npos &&
         text.find('^', 1) == std::string_view::npos && text != "^";
}

bool IsAutoOff(std::string_view text) { return text == "auto" || text == "off"; }

bool IsOnOff(std::string_view text) { return text == "on" || text == "off"; }

// Simulated devices are for tests, and not told of: simulated:N or simulated:N:SEED.
bool IsDevices(std::string_view text) {
  constexpr std::string_view kSimulated = "simulated:";
  if (text == "auto" || text == "none") return true;
  return text.substr(0, kSimulated.size()) == kSimulated && text.size() > kSimulated.size() &&
         text.find_first_not_of("0123456789:", kSimulated.size()) == std::string_view::npos;
}

bool IsTls(std::string_view text) { return text == "off" || text == "psk" || text == "cert"; }

bool IsSecret(std::string_view text) {
  return text.empty() || (text.size() >= kMinSecretBytes && text.size() <= kMaxSecretBytes);
}

bool IsPath(std::string_view text) { return text.find('\0') == std::string_view::npos; }

bool IsLogLevel(std::string_view text) { return ParseLogLevel(text).has_value(); }

bool IsLogFormat(std::string_view text) { return ParseLogFormat(text).has_value(); }

// Port 0 is any free one.
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

constexpr Row kRows[] = {
    {.name = "listen_host",
     .member = &Config::listen_host,
     .form = "an address or host name; empty for all addresses",
     .accepts = IsHost,
     .help = "where to listen"},
    {.name = "interfaces",
     .member = &Config::interfaces,
     .form = "names or patterns like eth0,ens*, or ^ and those to leave out; empty for all",
     .accepts = IsInterfaceList,
     .help = "network interfaces that lanes to other machines may use"},
    {.name = "port_range",
     .member = PortRangeMember{},
     .form = "A-B or A within 1..65535; 0 for any free port",
     .help = "ports to listen on, both ends included; the first free one is taken"},
    {.name = "lanes",
     .member = &Config::lanes,
     .high = 64,
     .zero = "automatic",
     .help = "TCP connections per peer"},
    {.name = "workers",
     .member = &Config::workers,
     .high = 64,
     .zero = "automatic",
     .help = "progress threads"},
    {.name = "slice_bytes",
     .member = &Config::slice_bytes,
     .low = 4 * kKiB,
     .high = 64 * kMiB,
     .help = "size of the slices that are striped over lanes"},
    {.name = "window_bytes",
     .member = &Config::window_bytes,
     .low = 64 * kKiB,
     .high = kGiB,
     .help = "bytes in flight per lane; at least slice_bytes"},
    {.name = "congestion_control",
     .member = &Config::congestion_control,
     .form = "auto | system | a name listed in net.ipv4.tcp_available_congestion_control",
     .accepts = IsCongestionControl,
     .help = "TCP congestion control of the lanes; system leaves the kernel's default"},
    {.name = "send_buffer_bytes",
     .member = &Config::send_buffer_bytes,
     .high = kGiB,
     .zero = "kernel autotuning",
     .help = "SO_SNDBUF of a lane"},
    {.name = "recv_buffer_bytes",
     .member = &Config::recv_buffer_bytes,
     .high = kGiB,
     .zero = "kernel autotuning",
     .help = "SO_RCVBUF of a lane"},
    {.name = "lane_rate_bytes",
     .member = &Config::lane_rate_bytes,
     .high = 1024 * kGiB,
     .zero = "no limit",
     .help = "most that a lane sends in a second, so that other traffic keeps its share"},
    {.name = "spin",
     .member = &Config::spin,
     .high = kSecond,
     .zero = "sleep at once",
     .help = "how long a worker polls before it sleeps; trades CPU time for latency"},
    {.name = "gift",
     .member = &Config::gift,
     .form = "auto | on | off",
     .accepts = IsAutoOnOff,
     .help = "whether pages are given to the socket instead of being copied"},
    {.name = "checksum",
     .member = &Config::checksum,
     .form = "on | off",
     .accepts = IsOnOff,
     .help = "whether slices carry a CRC32C that their receiver checks; on if either side says so"},
    {.name = "devices",
     .member = &Config::devices,
     .form = "auto | none",
     .accepts = IsDevices,
     .help = "GPUs that are used; auto: those that CUDA shows this process"},
    {.name = "cuda_ipc",
     .member = &Config::cuda_ipc,
     .form = "auto | off",
     .accepts = IsAutoOff,
     .help = "whether GPU memory of two processes of one machine is copied directly, not over TCP"},
    {.name = "stage_slice_bytes",
     .member = &Config::stage_slice_bytes,
     .low = 4 * kKiB,
     .high = 16 * kMiB,
     .help = "size of slices from and into GPU memory, at most slice_bytes"},
    {.name = "stage_bytes",
     .member = &Config::stage_bytes,
     .low = 64 * kKiB,
     .high = 4 * kGiB,
     .help = "pinned memory between a GPU and the network, for each GPU in use and direction; at "
             "least 8 slices"},
    {.name = "connect_timeout",
     .member = &Config::connect_timeout,
     .low = kMillisecond,
     .high = kHour,
     .help = "for the lanes to a peer to be connected"},
    {.name = "handshake_timeout",
     .member = &Config::handshake_timeout,
     .low = kMillisecond,
     .high = kHour,
     .help = "for a connected peer to introduce and authenticate itself"},
    {.name = "operation_timeout",
     .member = &Config::operation_timeout,
     .low = kMillisecond,
     .high = 24 * kHour,
     .help = "for an operation that was given no deadline of its own"},
    {.name = "peer_timeout",
     .member = &Config::peer_timeout,
     .low = kMillisecond,
     .high = kHour,
     .help = "silence after which a peer is lost; more than heartbeat_interval"},
    {.name = "lane_timeout",
     .member = &Config::lane_timeout,
     .low = kMillisecond,
     .high = kHour,
     .help = "silence on one lane, at least two heartbeats, after which another way is tried"},
    {.name = "heartbeat_interval",
     .member = &Config::heartbeat_interval,
     .low = kMillisecond,
     .high = kHour,
     .help = "how often an idle connection shows that it is alive"},
    {.name = "drain_grace",
     .member = &Config::drain_grace,
     .high = kHour,
     .zero = "cancel at once",
     .help = "for operations in flight to finish when an endpoint closes"},
    {.name = "eager_bytes",
     .member = &Config::eager_bytes,
     .high = 64 * kKiB,
     .zero = "always ask first",
     .help = "largest message that is sent without waiting for its receive"},
    {.name = "unexpected_bytes",
     .member = &Config::unexpected_bytes,
     .low = 64 * kKiB,
     .high = 16 * kGiB,
     .help = "memory for eager messages that no receive has asked for yet"},
    {.name = "notification_bytes",
     .member = &Config::notification_bytes,
     .low = 4 * kKiB,
     .high = kGiB,
     .help = "memory for notifications that were not taken yet"},
    {.name = "max_operations",
     .member = &Config::max_operations,
     .low = 1,
     .high = 1 << 24,
     .help = "operations in flight at once"},
    {.name = "max_connections",
     .member = &Config::max_connections,
     .high = 1 << 20,
     .zero = "any number",
     .help = "peers that have connected here at once; more are refused"},
    {.name = "max_strangers",
     .member = &Config::max_strangers,
     .low = 64,
     .high = 1 << 16,
     .help = "lanes at once whose peer is not known yet; another takes the place of a silent one"},
    {.name = "secret",
     .member = &Config::secret,
     .form = "16 to 1024 bytes; empty for none",
     .accepts = IsSecret,
     .hidden = true,
     .help = "what both sides must know to connect; better kept in a file"},
    {.name = "secret_file",
     .member = &Config::secret_file,
     .form = "a path; empty for none",
     .accepts = IsPath,
     .help = "file that holds the secret; a newline at its end is no part of it"},
    {.name = "insecure",
     .member = &Config::insecure,
     .form = "on | off",
     .accepts = IsOnOff,
     .help = "on: where there is no secret, peers on other machines are trusted, too"},
    {.name = "tls",
     .member = &Config::tls,
     .form = "off | psk | cert",
     .accepts = IsTls,
     .help = "TLS 1.3 on every lane: by a key made from the secret, or by certificates of both "
             "sides"},
    {.name = "tls_cert",
     .member = &Config::tls_cert,
     .form = "a path; empty for none",
     .accepts = IsPath,
     .help = "PEM file with this endpoint's certificate, then those between it and its authority"},
    {.name = "tls_key",
     .member = &Config::tls_key,
     .form = "a path; empty for none",
     .accepts = IsPath,
     .help = "PEM file with the key of tls_cert, without a password"},
    {.name = "tls_ca",
     .member = &Config::tls_ca,
     .form = "a path; empty for none",
     .accepts = IsPath,
     .help = "PEM file with the authorities that peers' certificates must come from"},
    {.name = "tls_name",
     .member = &Config::tls_name,
     .form = "a host name or address; empty for any",
     .accepts = IsHost,
     .help = "what every peer's certificate must be for, whatever was dialled; empty: anything"},
    {.name = "net_plugin",
     .member = &Config::net_plugin,
     .form = "a path; empty for none",
     .accepts = IsPath,
     .help = "library with a NCCL network plugin, such as GPUDirect-TCPX's"},
    {.name = "metrics_address",
     .member = &Config::metrics_address,
     .form = "HOST:PORT, or :PORT for 127.0.0.1; empty for none",
     .accepts = IsListeningAddress,
     .help = "where an endpoint's counters can be had over HTTP, in Prometheus' text format"},
    {.name = "log_level",
     .member = &Config::log_level,
     .form = "trace | debug | info | warn | error | off",
     .accepts = IsLogLevel,
     .help = "lowest level of messages that are logged"},
    {.name = "log_format",
     .member = &Config::log_format,
     .form = "text | json",
     .accepts = IsLogFormat,
     .help = "how messages are logged; json: an object a line"},
};

const Row* FindRow(std::string_view name) {
  const auto* row = std::find_if(std::begin(kRows), std::end(kRows),
                                 [&](const Row& r) { return r.name == name; });
  return row == std::end(kRows) ? nullptr : row;
}

std::string VariableOf(const Row& row) {
  std::string variable(kPrefix);
  for (const char c : row.name) {
    variable += c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  }
  return variable;
}

template <class T>
const T& Load(const Config& config, T Config::*member) {
  return config.*member;
}
PortRange Load(const Config& config, PortRangeMember) {
  return {config.port_first, config.port_last};
}

template <class T>
void Store(Config& config, T Config::*member, T value) {
  config.*member = std::move(value);
}
void Store(Config& config, PortRangeMember, PortRange ports) {
  config.port_first = ports.first;
  config.port_last = ports.last;
}

// The whole number that `text` is, all of it.
template <class T>
std::optional<T> Number(std::string_view text) {
  T number = 0;
  const auto [rest, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc() || rest != text.data() + text.size()) return std::nullopt;
  return number;
}

Error NotA(const char* noun, std::string_view text) {
  return Error(Code::kInvalidArgument, fmt::format("'{}' is not {}", text, noun));
}

Status Parse(std::string_view text, std::string& value) {
  value = text;
  return Ok();
}

template <class T>
Status ParseCount(std::string_view text, T& count) {
  const auto number = Number<T>(text);
  if (!number) return NotA("a whole number of this range", text);
  count = *number;
  return Ok();
}
Status Parse(std::string_view text, int& count) { return ParseCount(text, count); }
Status Parse(std::string_view text, std::uint32_t& count) { return ParseCount(text, count); }

Status Parse(std::string_view text, std::uint64_t& bytes) {
  FERRY_TRY_ASSIGN(bytes, ParseSize(text));
  return Ok();
}

Status Parse(std::string_view text, microseconds& duration) {
  FERRY_TRY_ASSIGN(duration, ParseDuration(text));
  return Ok();
}

Status Parse(std::string_view text, PortRange& ports) {
  const std::size_t dash = text.find('-');
  const auto first = Number<std::uint16_t>(text.substr(0, dash));
  const auto last =
      dash == std::string_view::npos ? first : Number<std::uint16_t>(text.substr(dash + 1));
  if (!first || !last) return NotA("a range of ports", text);
  ports = {*first, *last};
  return Ok();
}

std::string Format(const std::string& text) { return text; }
std::string Format(int count) { return fmt::format("{}", count); }
std::string Format(std::uint32_t count) { return fmt::format("{}", count); }
std::string Format(std::uint64_t bytes) { return FormatSize(bytes); }
std::string Format(microseconds duration) { return FormatDuration(duration); }
std::string Format(PortRange ports) {
  return ports.first == ports.last ? fmt::format("{}", ports.first)
                                   : fmt::format("{}-{}", ports.first, ports.last);
}

bool InRange(const Row& row, const std::string& text) { return row.accepts(text); }
template <std::integral T>
bool InRange(const Row& row, T value) {
  return std::cmp_greater_equal(value, row.low) && std::cmp_less_equal(value, row.high);
}
bool InRange(const Row& row, microseconds duration) { return InRange(row, duration.count()); }
bool InRange(const Row&, PortRange ports) {
  return ports.first <= ports.last && (ports.first != 0 || ports.last == 0);
}

std::string RangeOf(const Row& row, const std::string&) { return std::string(row.form); }
std::string RangeOf(const Row& row, PortRange) { return std::string(row.form); }
template <class T>
std::string RangeOf(const Row& row, T) {
  std::string range;
  if constexpr (std::is_same_v<T, microseconds>) {
    using Rep = microseconds::rep;
    range = Format(microseconds(static_cast<Rep>(row.low))) + ".." +
            Format(microseconds(static_cast<Rep>(row.high)));
  } else {
    range = Format(static_cast<T>(row.low)) + ".." + Format(static_cast<T>(row.high));
  }
  return row.zero.empty() ? range : fmt::format("{} (0: {})", range, row.zero);
}

const char* UnitOf(const std::string&) { return "text"; }
const char* UnitOf(int) { return "count"; }
const char* UnitOf(std::uint32_t) { return "count"; }
const char* UnitOf(std::uint64_t) { return "bytes"; }
const char* UnitOf(microseconds) { return "duration"; }
const char* UnitOf(PortRange) { return "ports"; }

// `subject` is the name under which the value was given: a variable or a field.
template <class T>
Error Refusal(const Row& row, std::string_view subject, std::string_view problem, const T& value) {
  return Error(Code::kInvalidArgument, fmt::format("{} cannot be used: {}; allowed is {}", subject,
                                                   problem, RangeOf(row, value)));
}

template <class T>
Status CheckValue(const Row& row, std::string_view subject, std::string_view text, const T& value) {
  if (InRange(row, value)) return Ok();
  const char* fault = std::is_same_v<T, std::string> ? "not recognised" : "out of range";
  if (row.hidden) {
    return Refusal(row, subject, fmt::format("a value of {} bytes is {}", text.size(), fault),
                   value);
  }
  return Refusal(row, subject, fmt::format("'{}' is {}", text, fault), value);
}

Status CheckRow(const Row& row, const Config& config) {
  return std::visit(
      [&](auto member) {
        const auto& value = Load(config, member);
        return CheckValue(row, row.name, Format(value), value);
      },
      row.member);
}

// Stores the parsed text, or nothing.
template <class M>
Status SetMember(Config& config, M member, const Row& row, std::string_view subject,
                 std::string_view text) {
  auto value = Load(std::as_const(config), member);
  if (const Status parsed = Parse(text, value); !parsed) {
    return Refusal(row, subject, parsed.error().message(), value);
  }
  FERRY_TRY(CheckValue(row, subject, text, value));
  Store(config, member, std::move(value));
  return Ok();
}

std::string ValueText(const Row& row, const Config& config) {
  std::string text =
      std::visit([&](auto member) { return Format(Load(config, member)); }, row.member);
  if (!row.hidden || text.empty()) return text;
  return fmt::format("({} bytes, not shown)", text.size());
}

std::string SourceOf(const Row& row, const Config& config, const ConfigEntry& entry) {
  const auto origin = config.origins.find(row.name);
  if (origin != config.origins.end() && origin->second.value == entry.value) {
    return origin->second.source;
  }
  return entry.value == entry.default_text ? "default" : "set by caller";
}

Error UnknownName(std::string_view name) {
  std::string known;
  for (const Row& row : kRows) known += fmt::format("{}{}", known.empty() ? "" : ", ", row.name);
  return Error(Code::kInvalidArgument,
               fmt::format("no setting is called '{}'; there are {}", name, known));
}

}  // namespace

Result<Config> Config::FromEnvironment() {
  return FromEnvironment([](const char* variable) { return std::getenv(variable); });
}

Result<Config> Config::FromEnvironment(const Getter& get) {
  Config config;
  for (const Row& row : kRows) {
    const char* text = get(VariableOf(row).c_str());
    if (text == nullptr || *text == '\0') continue;
    FERRY_TRY(config.Set(row.name, text, kFromEnvironment));
  }
  FERRY_TRY(config.Validate());
  return config;
}

Status Config::Set(std::string_view name, std::string_view text, std::string_view source) {
  const Row* row = FindRow(name);
  if (row == nullptr) return UnknownName(name);
  const std::string subject = source == kFromEnvironment ? VariableOf(*row) : std::string(name);
  FERRY_TRY(std::visit([&](auto member) { return SetMember(*this, member, *row, subject, text); },
                       row->member));
  origins.insert_or_assign(std::string(name), Origin{std::string(source), ValueText(*row, *this)});
  return Ok();
}

Status Config::Validate() const {
  for (const Row& row : kRows) FERRY_TRY(CheckRow(row, *this));
  if (window_bytes < slice_bytes) {
    return Error(Code::kInvalidArgument,
                 fmt::format("a window of {} cannot hold a slice of {}; raise window_bytes "
                             "(FERRY_WINDOW_BYTES) or lower slice_bytes (FERRY_SLICE_BYTES)",
                             FormatSize(window_bytes), FormatSize(slice_bytes)));
  }
  if (heartbeat_interval >= peer_timeout) {
    return Error(Code::kInvalidArgument,
                 fmt::format("a heartbeat every {} loses idle peers after {} of silence; lower "
                             "heartbeat_interval (FERRY_HEARTBEAT_INTERVAL) or raise peer_timeout "
                             "(FERRY_PEER_TIMEOUT)",
                             FormatDuration(heartbeat_interval), FormatDuration(peer_timeout)));
  }
  return Ok();
}

std::vector<ConfigEntry> Config::Describe() const {
  const Config defaults;
  std::vector<ConfigEntry> entries;
  for (const Row& row : kRows) {
    ConfigEntry entry{.name = std::string(row.name),
                      .variable = VariableOf(row),
                      .unit = {},
                      .range = {},
                      .default_text = ValueText(row, defaults),
                      .value = ValueText(row, *this),
                      .source = {},
                      .help = std::string(row.help)};
    std::visit(
        [&](auto member) {
          const auto& value = Load(*this, member);
          entry.unit = UnitOf(value);
          entry.range = RangeOf(row, value);
        },
        row.member);
    entry.source = SourceOf(row, *this, entry);
    entries.push_back(std::move(entry));
  }
  return entries;
}

std::vector<std::string> UnknownVariables(const char* const* environment) {
  std::vector<std::string> unknown;
  for (; *environment != nullptr; ++environment) {
    const std::string_view line(*environment);
    const std::string_view name = line.substr(0, line.find('='));
    if (name.substr(0, kPrefix.size()) != kPrefix) continue;
    const bool known = std::any_of(std::begin(kRows), std::end(kRows),
                                   [&](const Row& row) { return VariableOf(row) == name; });
    if (!known) unknown.emplace_back(name);
  }
  return unknown;
}

std::vector<std::string> UnknownVariables() { return UnknownVariables(environ); }

}  // namespace ferry
