#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "ferry/core/result.h"
#include "ferry/core/unique_handle.h"

namespace ferry::tools {

struct Mapping {
  void* at = nullptr;
  std::size_t bytes = 0;
  bool operator==(const Mapping&) const = default;
};
struct MappingTraits {
  using Handle = Mapping;
  static constexpr Handle kInvalid{};
  static void Destroy(Handle mapping) noexcept;
};
// Owns pages from mmap(2).
using UniqueMapping = UniqueHandle<MappingTraits>;

// Host memory for measurements: huge pages where there are any, aligned to them, and every page in
// place.
class HostBuffer {
 public:
  HostBuffer() = default;
  // Errors: kUnavailable for more than the machine has left.
  static Result<HostBuffer> Allocate(std::uint64_t bytes);

  std::span<std::byte> bytes() const noexcept { return bytes_; }

 private:
  HostBuffer(UniqueMapping mapping, std::span<std::byte> bytes)
      : mapping_(std::move(mapping)), bytes_(bytes) {}

  UniqueMapping mapping_;
  std::span<std::byte> bytes_;
};

}  // namespace ferry::tools
