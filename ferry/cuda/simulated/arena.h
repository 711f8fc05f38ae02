// Address space of a simulated device.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "ferry/core/fd.h"
#include "ferry/core/mapping.h"
#include "ferry/core/result.h"

namespace ferry::cuda {

inline constexpr std::size_t kSimulatedPage = 4096;

// A range of a memfd that is mapped twice: at the address that users see, which no CPU may access
// unless it is `open`, and at the address that the simulator uses.
class TwiceMapped {
 public:
  // `offset` must be a multiple of the page size.
  static Result<TwiceMapped> Map(int fd, std::size_t offset, std::size_t bytes, bool open = false);

  std::byte* visible() const noexcept { return static_cast<std::byte*>(visible_.get().at); }
  std::byte* alias() const noexcept { return static_cast<std::byte*>(alias_.get().at); }
  std::size_t bytes() const noexcept { return visible_.get().bytes; }

 private:
  TwiceMapped(UniqueMapping visible, UniqueMapping alias)
      : visible_(std::move(visible)), alias_(std::move(alias)) {}

  UniqueMapping visible_;
  UniqueMapping alias_;
};

// The addresses of a simulated device. There are far more of them than memory, so that an address
// is not soon reused. Not thread-safe.
class SimulatedArena {
 public:
  static Result<std::unique_ptr<SimulatedArena>> Create(bool open = false);

  // Takes an offset for `bytes` bytes: whole pages followed by an unused page. Errors:
  // kUnavailable.
  Result<std::size_t> Take(std::size_t bytes);
  // Drops the contents. The offset is reused only after all unused ones.
  void Give(std::size_t offset, std::size_t bytes);

  int fd() const noexcept { return fd_.get(); }
  std::uint64_t inode() const noexcept { return inode_; }
  std::byte* visible(std::size_t offset) const noexcept { return mapped_.visible() + offset; }
  std::byte* alias(std::size_t offset) const noexcept { return mapped_.alias() + offset; }

 private:
  SimulatedArena(UniqueFd fd, std::uint64_t inode, TwiceMapped mapped)
      : fd_(std::move(fd)), inode_(inode), mapped_(std::move(mapped)) {}

  UniqueFd fd_;
  std::uint64_t inode_;
  TwiceMapped mapped_;
  std::size_t fresh_ = 0;                        // offsets from here on are unused so far
  std::map<std::size_t, std::size_t> recycled_;  // offset, bytes
};

}  // namespace ferry::cuda
