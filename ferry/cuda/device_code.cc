// Which GPUs the compiled device code runs on.
#include "ferry/cuda/device_code.h"

#include <fmt/core.h>

#include <charconv>
#include <optional>

namespace ferry::cuda {
namespace {

constexpr int kTen = 10;  // the last digit of an architecture is the minor number

struct Target {
  int number = 0;      // 90 of "90a"
  bool exact = false;  // for this compute capability only
  bool machine_code = true;
  bool ptx = true;
};

std::optional<Target> ParseTarget(std::string_view text) {
  Target target;
  const auto [rest, failure] =
      std::from_chars(text.data(), text.data() + text.size(), target.number);
  if (failure != std::errc() || target.number < kTen) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(rest - text.data()));
  if (text.starts_with('a')) {
    target.exact = true;
    text.remove_prefix(1);
  }
  if (text == "-real") {
    target.ptx = false;
  } else if (text == "-virtual") {
    target.machine_code = false;
  } else if (!text.empty()) {
    return std::nullopt;
  }
  return target;
}

CodeKind KindOf(const Target& target, int capability) {
  if (target.exact ? capability != target.number : capability < target.number) {
    return CodeKind::kNone;
  }
  if (target.machine_code && capability / kTen == target.number / kTen) return CodeKind::kNative;
  return target.ptx ? CodeKind::kByPtx : CodeKind::kNone;
}

}  // namespace

const char* CodeKindName(CodeKind kind) noexcept {
  switch (kind) {
    case CodeKind::kNone: return "none";
    case CodeKind::kByPtx: return "PTX";
    case CodeKind::kNative: return "native";
  }
  return "none";
}

DeviceCode CodeFor(std::string_view targets, int major, int minor) {
  DeviceCode best;
  Target best_target;
  while (!targets.empty()) {
    const std::size_t end = targets.find_first_of(",;");
    const auto target = ParseTarget(targets.substr(0, end));
    targets.remove_prefix(end == std::string_view::npos ? targets.size() : end + 1);
    if (!target) continue;
    const CodeKind kind = KindOf(*target, major * kTen + minor);
    if (kind == CodeKind::kNone || kind < best.kind) continue;
    const bool later = target->number > best_target.number ||
                       (target->number == best_target.number && target->exact);
    if (kind == best.kind && !later) continue;
    best_target = *target;
    best.kind = kind;
    best.target = fmt::format("{}{}-{}", target->number, target->exact ? "a" : "",
                              kind == CodeKind::kNative ? "real" : "virtual");
  }
  return best;
}

bool SaysNoCode(std::string_view message) noexcept {
  return message.find(kBuildForThisGpu) != std::string_view::npos;
}

std::string TargetFor(int major, int minor) {
  constexpr int kFirstMajor = 8;
  if (major < kFirstMajor) return "";
  const bool hopper = major == 9 && minor == 0;
  return fmt::format("{}{}{}-real", major, minor, hopper ? "a" : "");
}

}  // namespace ferry::cuda
