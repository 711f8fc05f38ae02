// mmap(2) regions, huge pages and the probe for readable memory.
#include "ferry/core/mapping.h"

#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <memory>

#include "ferry/core/fd.h"
#include "ferry/core/units.h"

namespace ferry {

void MappingTraits::Destroy(Handle mapping) noexcept { (void)::munmap(mapping.at, mapping.bytes); }

Result<HugeMemory> MapHugePages(std::size_t bytes) {
  constexpr std::size_t kHugePage = 2 * kMiB;
  // One huge page more, so that an aligned range of `bytes` lies inside; MAP_NORESERVE makes it
  // free.
  std::size_t space = bytes + kHugePage;
  void* at = ::mmap(nullptr, space, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return ErrnoError(fmt::format("mmap of {} bytes", space), errno);
  HugeMemory memory;
  memory.mapping = UniqueMapping(Mapping{at, space});
  (void)::madvise(at, space, MADV_HUGEPAGE);  // advisory
  (void)std::align(kHugePage, bytes, at, space);
  memory.bytes = {static_cast<std::byte*>(at), bytes};
  return memory;
}

bool IsReadable(const void* address) noexcept {
  constexpr std::uintptr_t kWord = 8;
  const auto word = reinterpret_cast<std::uintptr_t>(address) & ~(kWord - 1);  // read by the kernel
  if (word == 0) return false;  // the kernel would treat null as no signal set
  // The kernel reads the signal set before it rejects the invalid `how`.
  const long failed = ::syscall(SYS_rt_sigprocmask, -1, word, nullptr, kWord);
  return failed == 0 || errno != EFAULT;
}

}  // namespace ferry
