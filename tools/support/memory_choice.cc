// Parses `--memory` and opens the GPU that it names.

#include "tools/support/memory_choice.h"

#include <fmt/core.h>

#include <charconv>
#include <system_error>

#include "ferry/cuda/open_devices.h"

namespace ferry::tools {

Result<MemoryChoice> MemoryChoice::Parse(std::string_view text) {
  constexpr std::string_view kCuda = "cuda";
  if (text == "host") return MemoryChoice{};
  if (text == kCuda) return MemoryChoice{0};
  if (text.substr(0, kCuda.size()) == kCuda && text.size() > kCuda.size() + 1 &&
      text[kCuda.size()] == ':') {
    MemoryChoice choice;
    const char* const end = text.data() + text.size();
    const auto [rest, failure] =
        std::from_chars(text.data() + kCuda.size() + 1, end, choice.ordinal);
    if (failure == std::errc() && rest == end && choice.ordinal >= 0) return choice;
  }
  return Error(Code::kInvalidArgument,
               fmt::format("unknown memory \"{}\"; choose host, cuda or cuda:N", text));
}

std::string MemoryChoice::ToString() const {
  return is_host() ? "host" : fmt::format("cuda:{}", ordinal);
}

Result<cuda::DeviceApi*> MemoryChoice::Open(const Config& config) const {
  if (is_host()) return nullptr;
  FERRY_TRY_ASSIGN(cuda::DeviceApi* const api, cuda::OpenDevices(config));
  if (ordinal < api->count()) return api;
  return Error(
      Code::kInvalidArgument,
      fmt::format("GPU {} does not exist: {} are visible, numbered from 0", ordinal, api->count()));
}

Result<cuda::CurrentDevice> MemoryChoice::MakeCurrent(const Config& config) const {
  FERRY_TRY_ASSIGN(cuda::DeviceApi* const api, Open(config));
  if (api == nullptr) return cuda::CurrentDevice();
  return api->MakeCurrent(ordinal);
}

}  // namespace ferry::tools
