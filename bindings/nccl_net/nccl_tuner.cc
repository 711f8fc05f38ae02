#include "bindings/nccl_net/nccl_tuner.h"

#include <strings.h>

#include <optional>
#include <string_view>

#include "bindings/nccl_net/library_search.h"

namespace ferry::nccl_net {
namespace {

constexpr const char* kUsualTuner = "libnccl-tuner.so";

// As NCCL tries the names (src/plugin/plugin_open.cc of NCCL's).
std::optional<std::string> FindTunerFile(const std::string& name, const void* nccl) {
  if (auto found = FindLibrary(name, nccl)) return found;
  const bool is_file_name = name.starts_with("lib") && name.ends_with(".so");
  if (is_file_name || name.find('/') != std::string::npos) return std::nullopt;
  return FindLibrary("libnccl-tuner-" + name + ".so", nccl);
}

}  // namespace

NcclTuner FindNcclTuner(const Config::Getter& get, const void* nccl) {
  const char* const text = get("NCCL_TUNER_PLUGIN");
  const std::string name = text == nullptr ? "" : text;
  if (::strcasecmp(name.c_str(), "none") == 0) return {RankTuner::kNone, {}};
  const auto found = FindTunerFile(name.empty() ? kUsualTuner : name, nccl);
  if (found && IsThisLibrary(*found)) return {};
  // A name that is not found may be one that NCCL finds otherwise: linked into the program.
  if (!found && !name.empty()) return {RankTuner::kOther, name};
  return found ? NcclTuner{RankTuner::kOther, *found} : NcclTuner{};
}

}  // namespace ferry::nccl_net
