// All settings of the library, with their defaults and their source.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ferry/core/result.h"

namespace ferry {

// One setting as `ferry info` and the documentation show it. Texts of values can be given to
// Config::Set() unchanged, but for that of the secret, which is not shown.
struct ConfigEntry {
  std::string name;      // "slice_bytes"
  std::string variable;  // "FERRY_SLICE_BYTES"
  std::string unit;      // "bytes", "duration", "count", "text" or "ports"
  std::string range;     // "4 KiB..64 MiB"
  std::string default_text;
  std::string value;
  std::string source;  // "default", "environment", "set by caller" or what Set() was told
  std::string help;
};

inline constexpr std::size_t kMinSecretBytes = 16;
inline constexpr std::size_t kMaxSecretBytes = 1024;

// Every setting of the library: read once, checked, and passed down by const reference. Assign the
// fields freely, then Validate(). Variable, range and help of each are in Describe().
struct Config {
  std::string listen_host;       // empty: all addresses
  std::string net_plugin;        // a NCCL network plugin; empty: none
  std::string interfaces;        // those that are used: "eth0,ens*", or "^docker*"; empty: all
  std::uint16_t port_first = 0;  // inclusive; 0 and 0: any free port
  std::uint16_t port_last = 0;   // inclusive; the two are one setting, port_range

  int lanes = 0;                            // TCP connections per peer; 0: automatic
  int workers = 0;                          // progress threads; 0: automatic
  std::uint64_t slice_bytes = 1 << 20;      // the unit that is striped over lanes
  std::uint64_t window_bytes = 16 << 20;    // in flight per lane; at least a slice
  std::string congestion_control = "auto";  // "auto", "system" or a name the kernel knows
  std::uint64_t send_buffer_bytes = 0;      // 0: the kernel tunes it
  std::uint64_t recv_buffer_bytes = 0;      // 0: the kernel tunes it
  std::uint64_t lane_rate_bytes = 0;        // per second that a lane sends; 0: no limit
  std::chrono::microseconds spin{0};        // polling before a worker sleeps
  std::string gift = "auto";                // pages given to the socket: "auto", "on" or "off"
  std::string checksum = "off";             // "on": CRC32C of every slice's bytes
  std::string devices = "auto";             // GPUs: "auto" (all), "none", or "simulated:N[:SEED]"
  std::string cuda_ipc = "auto";            // copies between GPUs of one machine: "auto" or "off"
  std::uint64_t stage_slice_bytes = 256 << 10;  // slices from and into GPU memory
  std::uint64_t stage_bytes = 64 << 20;         // pinned, for each GPU in use and direction

  std::chrono::microseconds connect_timeout = std::chrono::seconds(10);
  std::chrono::microseconds handshake_timeout = std::chrono::seconds(5);
  std::chrono::microseconds operation_timeout = std::chrono::seconds(300);
  std::chrono::microseconds peer_timeout = std::chrono::seconds(10);  // of silence
  std::chrono::microseconds lane_timeout = std::chrono::seconds(3);   // of silence on one lane
  std::chrono::microseconds heartbeat_interval = std::chrono::seconds(1);
  std::chrono::microseconds drain_grace = std::chrono::seconds(1);

  std::uint64_t eager_bytes = 32 << 10;        // largest message sent without asking first
  std::uint64_t unexpected_bytes = 16 << 20;   // kept for messages that nobody has asked for yet
  std::uint64_t notification_bytes = 4 << 20;  // kept for notifications not yet taken
  std::uint64_t peer_memory = 32 << 20;        // that one connection's peer makes an endpoint hold,
  std::uint64_t peer_memory_total = 256 << 20;  // and all together, beyond what each is guaranteed
  std::uint32_t max_operations = 65536;         // in flight at once
  std::uint32_t max_connections = 1024;         // from peers that connected here; 0: any number
  std::uint32_t max_strangers = 256;            // accepted lanes whose peer is not known yet
  std::string secret;                           // shared with every peer; empty: none
  std::string secret_file;                      // that holds it
  std::string insecure = "off";  // "on": without a secret, trusts peers beyond loopback, too
  std::string tls = "off";       // of every lane: "off", "psk" (from the secret) or "cert"
  std::string tls_cert;          // PEM files: this endpoint's certificate with its chain,
  std::string tls_key;           // its key, without a password,
  std::string tls_ca;            // and the authorities that peers' certificates must chain to
  std::string tls_name;          // that a peer's certificate must be for; empty: any
  int nccl_channels = 8;         // that NCCL is asked for, as its network; 0: NCCL decides
  int nccl_devices = 1;          // as which it is shown the NIC
  std::string metrics_address;   // where Prometheus may ask: "host:port" or ":port"; empty: nowhere
  std::string log_level = "warn";
  std::string log_format = "text";  // or "json"

  // What last set a field by name; a field assigned directly since then has another value text.
  struct Origin {
    std::string source;
    std::string value;
  };
  std::map<std::string, Origin, std::less<>> origins;

  // Gives a variable's text, or null where it is not set; like getenv(3).
  using Getter = std::function<const char*(const char* variable)>;

  // Defaults overridden by FERRY_* variables; an empty variable counts as not set. Errors:
  // kInvalidArgument naming variable, value and range.
  static Result<Config> FromEnvironment();
  static Result<Config> FromEnvironment(const Getter& get);

  // Parses and stores one setting. Sizes and durations are as in units.h; port_range is "A-B", "A"
  // or "0". Errors: kInvalidArgument for an unknown name or a value out of range; the config is
  // unchanged then. How settings fit together is left to Validate().
  Status Set(std::string_view name, std::string_view text,
             std::string_view source = "set by caller");

  // Checks every field's range, and that a slice fits a window and a heartbeat a peer_timeout.
  // Errors: kInvalidArgument naming the first field that fails.
  Status Validate() const;

  // Every setting, in the order above.
  std::vector<ConfigEntry> Describe() const;
};

// Names of FERRY_* variables that no setting has, so that a tool can warn of a misspelling.
// `environment` is a null-terminated array of "NAME=value", as environ(7).
std::vector<std::string> UnknownVariables(const char* const* environment);
// Of this process.
std::vector<std::string> UnknownVariables();

}  // namespace ferry
