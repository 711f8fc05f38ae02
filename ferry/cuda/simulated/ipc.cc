// Shares simulated device memory between processes through /proc.
#include "ferry/cuda/simulated/ipc.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "ferry/core/fd.h"
#include "ferry/cuda/error.h"

namespace ferry::cuda {
namespace {

constexpr std::uint64_t kMagic = 0x6665727279697063;

// What stands in for a cudaIpcMemHandle_t: where the exporting process has the arena's file.
// Another process of the same user opens that through /proc.
struct Ticket {
  std::uint64_t magic = kMagic;
  std::int32_t pid = 0;
  std::int32_t fd = 0;
  std::uint64_t inode = 0;  // detects another file with the same descriptor number
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};
static_assert(sizeof(Ticket) <= sizeof(IpcExport::handle));

}  // namespace

IpcExport MakeSimulatedExport(const SimulatedArena& arena, std::size_t allocation_offset,
                              std::size_t allocation_bytes) {
  const Ticket ticket{.pid = ::getpid(),
                      .fd = arena.fd(),
                      .inode = arena.inode(),
                      .offset = allocation_offset,
                      .bytes = allocation_bytes};
  IpcExport exported;
  std::memcpy(exported.handle.data(), &ticket, sizeof ticket);
  exported.bytes = allocation_bytes;
  return exported;
}

Result<TwiceMapped> MapSimulatedExport(const IpcExport& exported) {
  Ticket ticket;
  std::memcpy(&ticket, exported.handle.data(), sizeof ticket);
  if (ticket.magic != kMagic || ticket.bytes != exported.bytes || ticket.bytes == 0) {
    return CudaError(Fault::kInvalidResourceHandle, "cudaIpcOpenMemHandle of bytes that are none");
  }
  // CUDA refuses this, too: a process has the memory already.
  if (ticket.pid == ::getpid()) {
    return CudaError(Fault::kDeviceUninitialized, "cudaIpcOpenMemHandle of this process's export");
  }
  const std::string path = fmt::format("/proc/{}/fd/{}", ticket.pid, ticket.fd);
  const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0 || status.st_ino != ticket.inode) {
    return CudaError(
        Fault::kMapBufferObjectFailed,
        fmt::format("cudaIpcOpenMemHandle of process {}, which is gone or not ours", ticket.pid));
  }
  return TwiceMapped::Map(fd.get(), ticket.offset, ticket.bytes);
}

}  // namespace ferry::cuda
