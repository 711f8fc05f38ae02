// Owned mmap(2) regions, huge pages and a probe for readable memory.
#pragma once
#include <cstddef>
#include <span>

#include "ferry/core/result.h"
#include "ferry/core/unique_handle.h"

namespace ferry {

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

// Whole pages, aligned to huge pages and backed by them where the system has any.
struct HugeMemory {
  UniqueMapping mapping;
  std::span<std::byte> bytes;
};
// Pages are allocated at first touch. Errors: those of mmap(2).
Result<HugeMemory> MapHugePages(std::size_t bytes);

// Whether the CPU can read the aligned eight bytes that contain the address. Reads them in the
// kernel, so it needs no signal handler.
bool IsReadable(const void* address) noexcept;

}  // namespace ferry
