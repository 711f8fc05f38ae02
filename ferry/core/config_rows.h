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

// Two fields that form one setting.
struct PortRange {
  std::uint16_t first = 0;
  std::uint16_t last = 0;
};
struct PortRangeMember {};

using ConfigMember =
    std::variant<std::string Config::*, int Config::*, std::uint32_t Config::*,
                 std::uint64_t Config::*, std::chrono::microseconds Config::*, PortRangeMember>;

// A setting. Its variable and unit follow from its name and member.
struct ConfigRow {
  std::string_view name;
  ConfigMember member;
  std::uint64_t low = 0;  // bytes, microseconds or a count; unused for text and ports
  std::uint64_t high = 0;
  std::string_view zero = {};  // meaning of 0
  std::string_view form = {};  // for text and ports: the allowed values, in words
  bool (*accepts)(std::string_view text) = nullptr;
  bool hidden = false;  // the value is never shown
  std::string_view help;
};

// Every setting, in the order of Config's fields.
std::span<const ConfigRow> ConfigRows();

}  // namespace ferry
