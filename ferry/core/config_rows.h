// The form of the table of settings; internal to config.cc.
#pragma once
#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "ferry/core/config.h"

// For config.cc alone.
namespace ferry {

// What DeviceChoice::simulation follows in the setting `devices`.
inline constexpr std::string_view kSimulatedDevices = "simulated:";

// Two fields that form one setting.
struct PortRange {
  std::uint16_t first = 0;
  std::uint16_t last = 0;
};
struct PortRangeMember {};

template <class... T>
using MemberOf = std::variant<T ConfigValues::*..., PortRangeMember>;
using ConfigMember = MemberOf<std::string, SecretText, int, std::uint32_t, std::uint64_t,
                              std::chrono::microseconds, OnOff, AutoOff, AutoOnOff, TlsMode,
                              PluginUnpack, LogLevel, LogFormat, CongestionControl, DeviceChoice>;

// A setting. Its variable and unit follow from its name and member.
struct ConfigRow {
  std::string_view name;
  ConfigMember member;
  std::uint64_t low = 0;  // bytes, microseconds or a count; unused for text and ports
  std::uint64_t high = 0;
  std::string_view zero = {};  // meaning of 0
  std::string_view form = {};  // for text, words and ports: the allowed values
  bool (*accepts)(std::string_view text) = nullptr;
  std::string_view help;
};

// Every setting, in the order in which they are shown.
std::span<const ConfigRow> ConfigRows();

}  // namespace ferry
