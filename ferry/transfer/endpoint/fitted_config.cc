// Fits slices to a provider.
#include "ferry/transfer/endpoint/fitted_config.h"

#include <algorithm>
#include <bit>
#include <string_view>

namespace ferry::transfer {
namespace {

constexpr std::uint64_t kSlicesInWindow = 4;

void Raise(const Config& config, std::string_view name, std::uint64_t usual, std::uint64_t wanted,
           std::uint64_t* value) {
  // Set by name or as a field.
  if (!config.IsSet(name) && *value == usual) *value = std::max(usual, wanted);
}

}  // namespace

Config FittedTo(const net::Capabilities& capabilities, Config config) {
  const ConfigValues usual;
  std::uint64_t wanted = capabilities.busy_payload_bytes;
  Raise(config, "window_bytes", usual.window_bytes, kSlicesInWindow * wanted, &config.window_bytes);
  // A window must hold a slice.
  wanted = std::min(wanted, config.window_bytes);
  Raise(config, "slice_bytes", usual.slice_bytes, wanted, &config.slice_bytes);
  // Pinned memory must hold eight. Of 256 KiB each, 64 MiB between two GPUs go at a twelfth.
  Raise(config, "stage_slice_bytes", usual.stage_slice_bytes,
        std::min({wanted, config.slice_bytes, std::bit_floor(config.stage_bytes / 8)}),
        &config.stage_slice_bytes);
  return config;
}

}  // namespace ferry::transfer
