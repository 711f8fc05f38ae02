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

// `subject` is the name that the value was given under: a variable or a field.
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

// Stores the parsed value; on an error, stores nothing.
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
  origins.insert_or_assign(std::string(name), Origin{std::string(source), ValueText(*row, *this)});
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
    const auto rows = ConfigRows();
    const bool known = std::any_of(rows.begin(), rows.end(),
                                   [&](const Row& row) { return VariableOf(row) == name; });
    if (!known && !HasOtherReader(name)) unknown.emplace_back(name);
  }
  return unknown;
}

std::vector<std::string> UnknownVariables() { return UnknownVariables(environ); }

}  // namespace ferry
