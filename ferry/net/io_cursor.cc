// Walks a list of I/O vectors.
#include "ferry/net/io_cursor.h"

#include <algorithm>
#include <cstring>

#include "ferry/core/unordered_access.h"

namespace ferry::net {

std::size_t IoCursor::Collect(std::span<iovec> out, std::size_t* used,
                              std::size_t max_bytes) const {
  std::size_t total = 0;
  std::size_t offset = offset_;
  for (std::size_t i = index_; i < pieces_.size() && *used < out.size() && total < max_bytes; ++i) {
    const std::size_t length = std::min(pieces_[i].iov_len - offset, max_bytes - total);
    out[(*used)++] = {static_cast<std::byte*>(pieces_[i].iov_base) + offset, length};
    total += length;
    offset = 0;
  }
  return total;
}

void IoCursor::Advance(std::size_t bytes) {
  offset_ += bytes;
  // Passes empty pieces, too, so that at_end() is true as soon as no byte is left.
  while (index_ < pieces_.size() && offset_ >= pieces_[index_].iov_len) {
    offset_ -= pieces_[index_].iov_len;
    ++index_;
  }
}

std::size_t IoCursor::CopyIn(std::span<const std::byte> bytes) {
  const UnorderedAccess placing;
  std::size_t taken = 0;
  while (taken < bytes.size() && !at_end()) {
    const iovec& piece = pieces_[index_];
    const std::size_t n = std::min(piece.iov_len - offset_, bytes.size() - taken);
    std::memcpy(static_cast<std::byte*>(piece.iov_base) + offset_, bytes.data() + taken, n);
    taken += n;
    Advance(n);
  }
  return taken;
}

std::size_t IoCursor::CopyOut(std::span<std::byte> bytes) {
  std::size_t taken = 0;
  while (taken < bytes.size() && !at_end()) {
    const iovec& piece = pieces_[index_];
    const std::size_t n = std::min(piece.iov_len - offset_, bytes.size() - taken);
    std::memcpy(bytes.data() + taken, static_cast<const std::byte*>(piece.iov_base) + offset_, n);
    taken += n;
    Advance(n);
  }
  return taken;
}

}  // namespace ferry::net
