#include "ferry/tools/mapping.h"

#include <fmt/core.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "ferry/core/fd.h"
#include "ferry/core/units.h"
#include "ferry/tools/process.h"

namespace ferry::tools {
namespace {
constexpr std::uint64_t kHugePage = 2 * kMiB;
}

void MappingTraits::Destroy(Handle mapping) noexcept { (void)::munmap(mapping.at, mapping.bytes); }

Result<HostBuffer> HostBuffer::Allocate(std::uint64_t bytes) {
  const std::uint64_t available = AvailableMemory();
  if (bytes > available && available != 0) {
    return Error(Code::kUnavailable,
                 fmt::format("a buffer of {} does not fit: {} MiB of memory are available",
                             FormatSize(bytes), available / kMiB));
  }
  const std::size_t mapped = bytes + kHugePage;
  void* const at = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return ErrnoError(fmt::format("mmap of {} bytes", mapped), errno);
  UniqueMapping mapping(Mapping{at, mapped});
  auto* const first = static_cast<std::byte*>(at);
  void* aligned = at;
  std::size_t space = mapped;
  (void)std::align(kHugePage, bytes, aligned, space);
  const std::span<std::byte> memory(static_cast<std::byte*>(aligned), bytes);
  (void)::madvise(first, mapped, MADV_HUGEPAGE);  // a wish
  std::memset(memory.data(), 0x5A, memory.size());
  return HostBuffer(std::move(mapping), memory);
}

}  // namespace ferry::tools
