// Address space of a simulated device, on a memfd.
#include "ferry/cuda/simulated/arena.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

namespace ferry::cuda {
namespace {

// Size of the address space; only the used part has memory.
constexpr std::size_t kArenaBytes = std::size_t{32} << 30;

// Allocations are whole pages with one unused page between them, so that an access beyond the end
// is never within the next one.
std::size_t WholePages(std::size_t bytes) {
  return (bytes + kSimulatedPage - 1) / kSimulatedPage * kSimulatedPage;
}

Result<UniqueMapping> MapShared(int fd, std::size_t offset, std::size_t bytes, int protection) {
  void* const at = ::mmap(nullptr, bytes, protection, MAP_SHARED | MAP_NORESERVE, fd,
                          static_cast<off_t>(offset));
  if (at == MAP_FAILED) {
    return ErrnoError(fmt::format("mapping {} bytes of a simulated device", bytes), errno);
  }
  return UniqueMapping(Mapping{at, bytes});
}

}  // namespace

// The same pages twice: the address that the program sees usually has no access rights, so that the
// CPU faults on device memory; the simulator works through the alias.
Result<TwiceMapped> TwiceMapped::Map(int fd, std::size_t offset, std::size_t bytes, bool open) {
  const int protection = open ? PROT_READ | PROT_WRITE : PROT_NONE;
  FERRY_TRY_ASSIGN(UniqueMapping visible, MapShared(fd, offset, bytes, protection));
  FERRY_TRY_ASSIGN(UniqueMapping alias, MapShared(fd, offset, bytes, PROT_READ | PROT_WRITE));
  return TwiceMapped(std::move(visible), std::move(alias));
}

Result<std::unique_ptr<SimulatedArena>> SimulatedArena::Create(bool open) {
  UniqueFd fd = ClosedInChildren(UniqueFd(::memfd_create("ferry_simulated_device", MFD_CLOEXEC)));
  if (!fd) return ErrnoError("memfd_create for a simulated device", errno);
  struct stat status {};
  if (::ftruncate(fd.get(), static_cast<off_t>(kArenaBytes)) != 0 ||
      ::fstat(fd.get(), &status) != 0) {
    return ErrnoError("sizing the memory of a simulated device", errno);
  }
  FERRY_TRY_ASSIGN(TwiceMapped mapped, TwiceMapped::Map(fd.get(), 0, kArenaBytes, open));
  return std::unique_ptr<SimulatedArena>(
      new SimulatedArena(std::move(fd), status.st_ino, std::move(mapped)));
}

Result<std::size_t> SimulatedArena::Take(std::size_t bytes) {
  if (bytes > kArenaBytes) return Error(Code::kUnavailable, "more than all addresses of an arena");
  const std::size_t needed = WholePages(bytes) + kSimulatedPage;
  // Fresh addresses first: an address is reused as late as possible, which exposes stale pointers.
  if (needed <= kArenaBytes - fresh_) {
    const std::size_t offset = fresh_;
    fresh_ += needed;
    return offset;
  }
  const auto found = std::find_if(recycled_.begin(), recycled_.end(),
                                  [needed](const auto& run) { return run.second >= needed; });
  if (found == recycled_.end()) {
    return Error(Code::kUnavailable, "no run of addresses of an arena is long enough");
  }
  const auto [offset, length] = *found;
  recycled_.erase(found);
  if (length > needed) recycled_.emplace(offset + needed, length - needed);
  return offset;
}

void SimulatedArena::Give(std::size_t offset, std::size_t bytes) {
  std::size_t length = WholePages(bytes) + kSimulatedPage;
  // Gives the memory back to the system; the addresses stay mapped.
  (void)::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    static_cast<off_t>(offset), static_cast<off_t>(length));
  // Joined with its free neighbours, so that the arena does not fall into pieces.
  auto next = recycled_.lower_bound(offset);
  if (next != recycled_.end() && next->first == offset + length) {
    length += next->second;
    next = recycled_.erase(next);
  }
  if (next != recycled_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += length;
      return;
    }
  }
  recycled_.emplace(offset, length);
}

}  // namespace ferry::cuda
