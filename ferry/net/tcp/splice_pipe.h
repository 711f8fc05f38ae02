// Zero-copy sends of user pages through a pipe.
#pragma once
#include <sys/types.h>
#include <sys/uio.h>

#include <optional>
#include <span>

#include "ferry/core/fd.h"

namespace ferry::net::tcp {

// Zero-copy sends: passes pages of user memory to a socket by reference, through a pipe.
// vmsplice(2) takes the pages and splice(2) passes them on, so the sending side copies nothing. The
// kernel may read the memory until the peer's TCP has acknowledged the bytes and, within a machine,
// until the peer's application has read them; the memory must not change until then. One thread at
// a time.
class SplicePipe {
 public:
  // Returns nothing where the kernel gives no pipe of at least 256 KiB.
  static std::optional<SplicePipe> Create();

  // Splices references to the pieces' pages into the pipe, as many as fit; returns their bytes, or
  // -1 with errno.
  ssize_t Fill(std::span<const iovec> pieces);
  // Passes the pipe's contents to the socket; returns the bytes passed, or -1 with errno.
  ssize_t Drain(int socket);
  std::size_t held() const noexcept { return held_; }
  std::size_t capacity() const noexcept { return capacity_; }

 private:
  SplicePipe(UniqueFd read_end, UniqueFd write_end, std::size_t capacity)
      : read_end_(std::move(read_end)), write_end_(std::move(write_end)), capacity_(capacity) {}

  UniqueFd read_end_;
  UniqueFd write_end_;
  std::size_t capacity_;
  std::size_t held_ = 0;
};

}  // namespace ferry::net::tcp
