// Parses, stores, checks and describes settings.
#include "ferry/core/config.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <concepts>
#include <cstdlib>
#include <optional>
#include <system_error>
#include <type_traits>
#include <utility>
#include <variant>

#include "ferry/core/config_rows.h"
#include "ferry/core/units.h"

namespace ferry {
namespace {

using std::chrono::microseconds;
using Row = ConfigRow;

constexpr std::string_view kPrefix = "FERRY_";
constexpr std::string_view kFromEnvironment = "environment";

const Row* FindRow(std::string_view name) {
  const auto rows = ConfigRows();
  const auto row =
      std::find_if(rows.begin(), rows.end(), [&](const Row& r) { return r.name == name; });
  return row == rows.end() ? nullptr : &*row;
}

std::string VariableOf(const Row& row) {
  std::string variable(kPrefix);
  for (const char c : row.name) {
    variable += c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  }
  return variable;
}

template <class T>
const T& Load(const ConfigValues& values, T ConfigValues::*member) {
  return values.*member;
}
PortRange Load(const ConfigValues& values, PortRangeMember) {
  return {values.port_first, values.port_last};
}

template <class T>
void Store(ConfigValues& values, T ConfigValues::*member, T value) {
  values.*member = std::move(value);
}
void Store(ConfigValues& values, PortRangeMember, PortRange ports) {
  values.port_first = ports.first;
  values.port_last = ports.last;
}

template <class T>
concept Word = std::is_enum_v<T>;
// The texts of an enum's values, in their order.
template <Word T>
constexpr std::array<std::string_view, 0> kWords;
template <>
constexpr std::array<std::string_view, 2> kWords<OnOff> = {"off", "on"};
template <>
constexpr std::array<std::string_view, 2> kWords<AutoOff> = {"auto", "off"};
template <>
constexpr std::array<std::string_view, 3> kWords<AutoOnOff> = {"auto", "on", "off"};
template <>
constexpr std::array<std::string_view, 3> kWords<TlsMode> = {"off", "psk", "cert"};
template <>
constexpr std::array<std::string_view, 4> kWords<PluginUnpack> = {"auto", "kernel", "dma", "host"};
template <>
constexpr std::array<std::string_view, 6> kWords<LogLevel> = {"trace", "debug", "info",
                                                              "warn",  "error", "off"};
template <>
constexpr std::array<std::string_view, 2> kWords<LogFormat> = {"text", "json"};

// Values that are text, a word or begin with one; all others are numbers.
template <class T>
constexpr bool kIsText =
    Word<T> || std::is_same_v<T, std::string> || std::is_same_v<T, SecretText> ||
    std::is_same_v<T, CongestionControl> || std::is_same_v<T, DeviceChoice>;

// Parses `text` as a whole number; the entire text must be one.
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

Status Parse(std::string_view text, SecretText& value) {
  value = text;
  return Ok();
}

Error NotRecognised(std::string_view text) {
  return Error(Code::kInvalidArgument, fmt::format("'{}' is not recognised", text));
}

template <Word T>
Status Parse(std::string_view text, T& value) {
  const auto& words = kWords<T>;
  const auto word = std::find(words.begin(), words.end(), text);
  if (word == words.end()) return NotRecognised(text);
  value = static_cast<T>(word - words.begin());
  return Ok();
}

Status Parse(std::string_view text, CongestionControl& value) {
  using Choice = CongestionControl::Choice;
  const Choice choice = text == "auto"     ? Choice::kAuto
                        : text == "system" ? Choice::kSystem
                                           : Choice::kNamed;
  value = {choice, std::string(choice == Choice::kNamed ? text : "")};
  return Ok();
}

Status Parse(std::string_view text, DeviceChoice& value) {
  if (text == "auto") {
    value = DeviceChoice();
  } else if (text == "none") {
    value = DeviceChoice::None();
  } else if (text.substr(0, kSimulatedDevices.size()) == kSimulatedDevices) {
    value = DeviceChoice::Simulated(std::string(text.substr(kSimulatedDevices.size())));
  } else {
    return NotRecognised(text);
  }
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
// Shows the size alone.
std::string Format(const SecretText& secret) {
  return secret.empty() ? "" : fmt::format("({} bytes, not shown)", secret.size());
}
std::string Format(int count) { return fmt::format("{}", count); }
std::string Format(std::uint32_t count) { return fmt::format("{}", count); }
std::string Format(std::uint64_t bytes) { return FormatSize(bytes); }
std::string Format(microseconds duration) { return FormatDuration(duration); }
template <Word T>
std::string Format(T value) {
  const auto at = static_cast<std::size_t>(value);
  return at < kWords<T>.size() ? std::string(kWords<T>[at]) : fmt::format("{}", at);
}
std::string Format(const CongestionControl& value) {
  using Choice = CongestionControl::Choice;
  return value.choice == Choice::kAuto     ? "auto"
         : value.choice == Choice::kSystem ? "system"
                                           : value.name;
}
std::string Format(const DeviceChoice& value) {
  using Kind = DeviceChoice::Kind;
  return value.kind == Kind::kAuto   ? "auto"
         : value.kind == Kind::kNone ? "none"
                                     : std::string(kSimulatedDevices) + value.simulation;
}
std::string Format(PortRange ports) {
  return ports.first == ports.last ? fmt::format("{}", ports.first)
                                   : fmt::format("{}-{}", ports.first, ports.last);
}

template <class T>
bool InRange(const Row& row, const T& value) requires kIsText<T> {
  if constexpr (Word<T>)
    return static_cast<std::size_t>(value) < kWords<T>.size();
  else if constexpr (std::is_same_v<T, SecretText>)
    return row.accepts(value.view());
  else
    return row.accepts(Format(value));
}
template <std::integral T>
bool InRange(const Row& row, T value) {
  return std::cmp_greater_equal(value, row.low) && std::cmp_less_equal(value, row.high);
}
bool InRange(const Row& row, microseconds duration) { return InRange(row, duration.count()); }
bool InRange(const Row&, PortRange ports) {
  return ports.first <= ports.last && (ports.first != 0 || ports.last == 0);
}

template <class T>
std::string RangeOf(const Row& row, const T&) {
  if constexpr (kIsText<T> || std::is_same_v<T, PortRange>) {
    return std::string(row.form);
  } else {
    using Number = std::conditional_t<std::is_same_v<T, microseconds>, microseconds::rep, T>;
    const std::string range =
        Format(T(static_cast<Number>(row.low))) + ".." + Format(T(static_cast<Number>(row.high)));
    return row.zero.empty() ? range : fmt::format("{} (0: {})", range, row.zero);
  }
}

template <class T>
const char* UnitOf(const T&) requires kIsText<T> {
  return "text";
}
const char* UnitOf(int) { return "count"; }
const char* UnitOf(std::uint32_t) { return "count"; }
const char* UnitOf(std::uint64_t) { return "bytes"; }
const char* UnitOf(microseconds) { return "duration"; }
const char* UnitOf(PortRange) { return "ports"; }

// `subject` is the name that the value was given under: a variable or a field.
template <class T>
Error Refusal(const Row& row, std::string_view subject, std::string_view problem, const T& value) {
  return Error(Code::kInvalidArgument, fmt::format("{} cannot be used: {}; allowed is {}", subject,
                                                   problem, RangeOf(row, value)));
}

// How an error shows a value.
template <class T>
std::string Quoted(std::string_view text, const T&) {
  return fmt::format("'{}'", text);
}
std::string Quoted(std::string_view, const SecretText& secret) {
  return fmt::format("a value of {} bytes", secret.size());
}

template <class T>
Status CheckValue(const Row& row, std::string_view subject, std::string_view text, const T& value) {
  if (InRange(row, value)) return Ok();
  const char* fault = kIsText<T> ? "not recognised" : "out of range";
  return Refusal(row, subject, fmt::format("{} is {}", Quoted(text, value), fault), value);
}

Status CheckRow(const Row& row, const ConfigValues& values) {
  return std::visit(
      [&](auto member) {
        const auto& value = Load(values, member);
        return CheckValue(row, row.name, Format(value), value);
      },
      row.member);
}

// Stores the parsed value; on an error, stores nothing.
template <class M>
Status SetMember(ConfigValues& values, M member, const Row& row, std::string_view subject,
                 std::string_view text) {
  auto value = Load(std::as_const(values), member);
  if (const Status parsed = Parse(text, value); !parsed) {
    return Refusal(row, subject, parsed.error().message(), value);
  }
  FERRY_TRY(CheckValue(row, subject, text, value));
  Store(values, member, std::move(value));
  return Ok();
}

std::string ValueText(const Row& row, const ConfigValues& values) {
  return std::visit([&](auto member) { return Format(Load(values, member)); }, row.member);
}

// Whether a variable without a setting is read elsewhere.
bool HasOtherReader(std::string_view variable) {
  constexpr std::array<std::string_view, 3> kOthers = {"FERRY_STANDIN_", "FERRY_TEST_",
                                                       "FERRY_SOAK_"};
  return std::any_of(kOthers.begin(), kOthers.end(), [&](std::string_view prefix) {
    return variable.substr(0, prefix.size()) == prefix;
  });
}

Error UnknownName(std::string_view name) {
  std::string known;
  for (const Row& row : ConfigRows())
    known += fmt::format("{}{}", known.empty() ? "" : ", ", row.name);
  return Error(Code::kInvalidArgument,
               fmt::format("unknown setting '{}'; the settings are {}", name, known));
}

}  // namespace

Result<Config> Config::FromEnvironment() {
  return FromEnvironment([](const char* variable) { return std::getenv(variable); });
}

Result<Config> Config::FromEnvironment(const Getter& get) {
  Config config;
  for (const Row& row : ConfigRows()) {
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
  origins_.insert_or_assign(std::string(name), Origin{std::string(source), ValueText(*row, *this)});
  return Ok();
}

Status Config::Validate() const {
  for (const Row& row : ConfigRows()) FERRY_TRY(CheckRow(row, *this));
  if (window_bytes < slice_bytes) {
    return Error(Code::kInvalidArgument,
                 fmt::format("a window of {} cannot hold a slice of {}; raise window_bytes "
                             "(FERRY_WINDOW_BYTES) or lower slice_bytes (FERRY_SLICE_BYTES)",
                             FormatSize(window_bytes), FormatSize(slice_bytes)));
  }
  if (unexpected_bytes + notification_bytes > peer_memory) {
    return Error(Code::kInvalidArgument,
                 fmt::format("messages of {} and notifications of {} do not fit in the {} that are "
                             "held for a peer; raise peer_memory (FERRY_PEER_MEMORY) or lower "
                             "unexpected_bytes (FERRY_UNEXPECTED_BYTES)",
                             FormatSize(unexpected_bytes), FormatSize(notification_bytes),
                             FormatSize(peer_memory)));
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
  for (const Row& row : ConfigRows()) {
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
    const auto origin = origins_.find(row.name);
    entry.source = origin != origins_.end() && origin->second.value == entry.value
                       ? origin->second.source
                   : entry.value == entry.default_text ? "default"
                                                       : "set by caller";
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
    const auto rows = ConfigRows();
    const bool known = std::any_of(rows.begin(), rows.end(),
                                   [&](const Row& row) { return VariableOf(row) == name; });
    if (!known && !HasOtherReader(name)) unknown.emplace_back(name);
  }
  return unknown;
}

std::vector<std::string> UnknownVariables() { return UnknownVariables(environ); }

}  // namespace ferry
