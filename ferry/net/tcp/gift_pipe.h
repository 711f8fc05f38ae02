// Zero-copy sends of user pages through a pipe.
#pragma once
#include <sys/types.h>
#include <sys/uio.h>

#include <optional>
#include <span>

#include "ferry/core/fd.h"

namespace ferry::net::tcp {

// Hands pages of user memory to a socket by reference, through a pipe: vmsplice(2) takes them,
// splice(2) passes them on, and no byte is copied on the sending side. The memory must not change
// until the peer's application has said that it has the bytes: the kernel may read it until then.
class GiftPipe {
 public:
  // Nothing where the kernel gives no pipe of at least 256 KiB.
  static std::optional<GiftPipe> Create();

  // Takes references to the pieces' pages, as many as fit; the bytes taken, or -1 with errno.
  ssize_t Fill(std::span<const iovec> pieces);
  // Passes what the pipe holds to the socket; the bytes passed, or -1 with errno.
  ssize_t Drain(int socket);
  std::size_t held() const noexcept { return held_; }
  std::size_t capacity() const noexcept { return capacity_; }

 private:
  GiftPipe(UniqueFd read_end, UniqueFd write_end, std::size_t capacity)
      : read_end_(std::move(read_end)), write_end_(std::move(write_end)), capacity_(capacity) {}

  UniqueFd read_end_;
  UniqueFd write_end_;
  std::size_t capacity_;
  std::size_t held_ = 0;
};

}  // namespace ferry::net::tcp
