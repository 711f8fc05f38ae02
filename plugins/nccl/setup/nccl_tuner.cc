// Finds the tuner library that NCCL will load.
#include "plugins/nccl/setup/nccl_tuner.h"

#include <strings.h>
#include <sys/stat.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <string_view>

#include "plugins/nccl/setup/library_search.h"

namespace ferry::nccl_net {
namespace {

constexpr const char* kUsualTuner = "libnccl-tuner.so";

// Tries the names in NCCL's order (src/plugin/plugin_open.cc of NCCL).
std::optional<std::string> FindTunerFile(const std::string& name, const void* nccl) {
  if (auto found = FindLibrary(name, nccl)) return found;
  const bool is_file_name = name.starts_with("lib") && name.ends_with(".so");
  if (is_file_name || name.find('/') != std::string::npos) return std::nullopt;
  return FindLibrary("libnccl-tuner-" + name + ".so", nccl);
}

struct FreeText {
  void operator()(char* text) const noexcept { std::free(text); }
};

// FNV-1a, folded to 8 bits.
std::uint8_t HashOf(std::string_view text) {
  std::uint32_t hash = 2166136261U;
  for (const char each : text) hash = (hash ^ static_cast<unsigned char>(each)) * 16777619U;
  hash ^= hash >> 16;
  return static_cast<std::uint8_t>(hash ^ (hash >> 8));
}

// The same on nodes that have the file in different folders, or behind different links.
std::uint8_t HashOfFile(const std::string& path) {
  const std::unique_ptr<char, FreeText> real(::realpath(path.c_str(), nullptr));
  const std::string file = real != nullptr ? real.get() : path;
  struct stat state {};
  const auto bytes = ::stat(file.c_str(), &state) == 0 ? state.st_size : 0;
  return HashOf(file.substr(file.rfind('/') + 1) + ':' + std::to_string(bytes));
}

}  // namespace

NcclTuner FindNcclTuner(const Config::Getter& get, const void* nccl) {
  const char* const text = get("NCCL_TUNER_PLUGIN");
  const std::string name = text == nullptr ? "" : text;
  if (::strcasecmp(name.c_str(), "none") == 0) return {RankTuner::kNone, {}, 0};
  const auto found = FindTunerFile(name.empty() ? kUsualTuner : name, nccl);
  if (found && IsThisLibrary(*found)) return {};
  // NCCL may find it in another way, for example linked into the program, so this is not the
  // default.
  if (!found && !name.empty()) return {RankTuner::kNotFound, name, HashOf(name)};
  return found ? NcclTuner{RankTuner::kOther, *found, HashOfFile(*found)} : NcclTuner{};
}

}  // namespace ferry::nccl_net
