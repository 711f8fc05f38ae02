// All settings of the library, with their defaults and their source.
#pragma once
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ferry/core/log_level.h"
#include "ferry/core/result.h"

namespace ferry {

// One setting as `ferry info` and the documentation show it. Config::Set() accepts each value text
// unchanged, except that of the secret, which is hidden.
struct ConfigEntry {
  std::string name;      // "slice_bytes"
  std::string variable;  // "FERRY_SLICE_BYTES"
  std::string unit;      // "bytes", "duration", "count", "text" or "ports"
  std::string range;     // "4 KiB..64 MiB"
  std::string default_text;
  std::string value;
  std::string source;  // "default", "environment", "set by caller" or the source passed to Set()
  std::string help;
};

inline constexpr std::size_t kMinSecretBytes = 16;
inline constexpr std::size_t kMaxSecretBytes = 1024;

// Values of settings that are words; the texts are in config.cc.
enum class OnOff : std::uint8_t { kOff, kOn };
enum class AutoOff : std::uint8_t { kAuto, kOff };
enum class AutoOnOff : std::uint8_t { kAuto, kOn, kOff };
enum class TlsMode : std::uint8_t { kOff, kPsk, kCert };
enum class PluginUnpack : std::uint8_t { kAuto, kKernel, kDma, kHost };

// The TCP congestion control of lanes.
struct CongestionControl {
  enum class Choice : std::uint8_t { kAuto, kSystem, kNamed };
  Choice choice = Choice::kAuto;
  std::string name = {};  // kNamed: as the kernel has it

  static CongestionControl System() { return {Choice::kSystem}; }
  static CongestionControl Named(std::string name) { return {Choice::kNamed, std::move(name)}; }
};

// The GPUs that are used: those that CUDA shows this process, none, or simulated ones.
struct DeviceChoice {
  enum class Kind : std::uint8_t { kAuto, kNone, kSimulated };
  Kind kind = Kind::kAuto;
  std::string simulation = {};  // kSimulated: "N" or "N:SEED"

  static DeviceChoice None() { return {Kind::kNone}; }
  static DeviceChoice Simulated(std::string text) { return {Kind::kSimulated, std::move(text)}; }
};

// The text of a secret. All copies of the object share it. It lies in pages of its own, which core
// dumps leave out, and is overwritten when the last copy is destroyed. Any thread may read it.
class SecretText {
 public:
  SecretText() = default;
  // Copies the text, which remains the caller's to overwrite. Throws std::bad_alloc.
  template <std::convertible_to<std::string_view> Text>
  SecretText(const Text& text)  // NOLINT: implicit, so that a text can be assigned
      : pages_(Keep(text)) {}

  // Valid while a copy of this object exists.
  std::string_view view() const noexcept;
  std::size_t size() const noexcept { return view().size(); }
  bool empty() const noexcept { return pages_ == nullptr; }
  void clear() noexcept { pages_.reset(); }
  friend bool operator==(const SecretText& a, const SecretText& b) noexcept {
    return a.view() == b.view();
  }

 private:
  struct Pages;
  static std::shared_ptr<const Pages> Keep(std::string_view text);

  std::shared_ptr<const Pages> pages_;  // shared by the copies; null if empty
};

// Settings of listeners and lanes.
struct NetSettings {
  std::string listen_host;  // empty: all addresses
  std::string interfaces;   // interfaces to use: "eth0,ens*", or all but "^docker*"; empty: all
  std::uint16_t port_first = 0;  // inclusive; 0 and 0: any free port
  std::uint16_t port_last = 0;   // inclusive; the two are one setting, port_range
  CongestionControl congestion_control;
  std::uint64_t send_buffer_bytes = 0;  // 0: the kernel tunes it
  std::uint64_t recv_buffer_bytes = 0;  // 0: the kernel tunes it
  std::uint64_t lane_rate_bytes = 0;  // maximum send rate of a lane, bytes per second; 0: no limit
  AutoOnOff zero_copy_send = AutoOnOff::kAuto;
  // Pending peers: accepted lanes that are not authenticated.
  std::uint32_t max_pending_handshakes = 256;
  // For endpoints that are given none: "tcp", "plugin", "plugin:PATH" or "auto".
  std::string provider = "tcp";
  std::string net_plugin;                        // path of an NCCL network plugin; empty: none
  std::uint64_t plugin_chunk_bytes = 512 << 10;  // of a payload over a plugin, at a time
  // How what a plugin has left in pieces is put into GPU memory; kAuto: kKernel.
  PluginUnpack plugin_unpack = PluginUnpack::kAuto;
  std::uint32_t plugin_tag_base = 0;  // added to the tag of each chunk
};

// Who is let in, and TLS.
struct SecuritySettings {
  SecretText secret;             // shared with every peer; empty: none
  std::string secret_file;       // file that contains the secret
  OnOff insecure = OnOff::kOff;  // on: without a secret, trusts everybody
  TlsMode tls = TlsMode::kOff;   // on every lane: kPsk from the secret, or kCert
  std::string tls_cert;          // PEM files: this endpoint's certificate with its chain,
  std::string tls_key;           // its key, without a password,
  std::string tls_ca;            // and the authorities that verify peers' certificates
  std::string tls_name;          // required name in a peer's certificate; empty: any
  friend bool operator==(const SecuritySettings&, const SecuritySettings&) = default;
};

struct DeviceSettings {
  DeviceChoice devices;
  AutoOff cuda_ipc = AutoOff::kAuto;            // copies between GPUs of one machine
  std::uint64_t stage_slice_bytes = 256 << 10;  // slices from and into GPU memory
  std::uint64_t stage_bytes = 64 << 20;         // pinned, for each GPU in use and direction
};

// Settings of endpoints, connections and operations.
struct TransferSettings {
  int lanes = 0;                          // TCP connections per peer; 0: automatic
  int workers = 0;                        // progress threads; 0: automatic
  std::uint64_t slice_bytes = 1 << 20;    // the unit that is striped over lanes
  std::uint64_t window_bytes = 16 << 20;  // in flight per lane; at least a slice
  std::chrono::microseconds spin{0};      // how long a worker polls before it sleeps
  OnOff checksum = OnOff::kOff;           // CRC32C of every slice's bytes

  std::chrono::microseconds connect_timeout = std::chrono::seconds(10);
  std::chrono::microseconds handshake_timeout = std::chrono::seconds(5);
  std::chrono::microseconds operation_timeout = std::chrono::seconds(300);
  // Silence after which a peer is lost.
  std::chrono::microseconds peer_timeout = std::chrono::seconds(10);
  // Silence after which another network path is tried.
  std::chrono::microseconds lane_timeout = std::chrono::seconds(3);
  std::chrono::microseconds heartbeat_interval = std::chrono::seconds(1);
  std::chrono::microseconds drain_grace = std::chrono::seconds(1);

  std::uint64_t eager_bytes = 32 << 10;         // largest message sent without a rendezvous
  std::uint64_t unexpected_bytes = 16 << 20;    // memory for messages without a matching receive
  std::uint64_t notification_bytes = 4 << 20;   // memory for notifications that were not taken yet
  std::uint64_t peer_memory = 32 << 20;         // memory that one connection's peer may occupy here
  std::uint64_t peer_memory_total = 256 << 20;  // of all peers, beyond each one's guarantee
  std::uint32_t max_operations = 65536;         // in flight at once
  std::uint32_t max_connections = 1024;         // connections accepted here; 0: any number
};

struct ReportSettings {
  // Listening address for Prometheus: "host:port" or ":port"; empty: none.
  std::string metrics_address;
  LogLevel log_level = LogLevel::kWarn;
  LogFormat log_format = LogFormat::kText;
};

// Settings of the library as NCCL's network.
struct NcclSettings {
  int nccl_channels = 8;  // channels to ask NCCL for; 0: NCCL decides
  int nccl_devices = 1;   // devices that NCCL sees the NIC as
};

// Every setting of the library; plain data. Config::Describe() has the variable, range and help of
// each.
struct ConfigValues : NetSettings,
                      SecuritySettings,
                      DeviceSettings,
                      TransferSettings,
                      ReportSettings,
                      NcclSettings {};

// The settings with their names: parses, checks and describes them. Read once and passed down by
// const reference. Assign fields freely, then call Validate(). Copyable; not for two threads at
// once.
class Config : public ConfigValues {
 public:
  // Returns a variable's text, or null where it is not set; like getenv(3).
  using Getter = std::function<const char*(const char* variable)>;

  // Defaults overridden by FERRY_* variables; an empty variable counts as not set. Errors:
  // kInvalidArgument naming the variable, its value and the range.
  static Result<Config> FromEnvironment();
  static Result<Config> FromEnvironment(const Getter& get);

  // Parses and stores one setting. Sizes and durations have the forms of units.h; port_range is
  // "A-B", "A" or "0". Does not check how settings fit together; Validate() does. Errors:
  // kInvalidArgument for an unknown name or a value out of range; the config is then unchanged.
  Status Set(std::string_view name, std::string_view text,
             std::string_view source = "set by caller");
  // Whether Set() or a variable has set it, whatever was assigned since.
  bool IsSet(std::string_view name) const { return origins_.find(name) != origins_.end(); }

  // Checks the range of every field, that a slice fits into a window, and that a heartbeat_interval
  // fits into a peer_timeout. Errors: kInvalidArgument naming the first field that fails.
  Status Validate() const;

  // Every setting, in the order of the documentation.
  std::vector<ConfigEntry> Describe() const;

 private:
  // The text and source of a setting when it was last set by name; ignored if the field was
  // assigned since.
  struct Origin {
    std::string source;
    std::string value;
  };
  std::map<std::string, Origin, std::less<>> origins_;
};

// Names of FERRY_* variables that no setting has, so that a tool can warn about misspellings.
// `environment` is a null-terminated array of "NAME=value", as environ(7).
std::vector<std::string> UnknownVariables(const char* const* environment);
// The same for the environment of this process.
std::vector<std::string> UnknownVariables();

}  // namespace ferry
