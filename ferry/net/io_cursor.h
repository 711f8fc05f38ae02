// A read or write position in a list of I/O vectors.
#pragma once
#include <sys/uio.h>

#include <cstddef>
#include <span>

namespace ferry::net {

// A position in a list of memory pieces.
class IoCursor {
 public:
  IoCursor() = default;
  explicit IoCursor(std::span<const iovec> pieces) : pieces_(pieces) {}

  bool at_end() const noexcept { return index_ == pieces_.size(); }
  // Appends the I/O vectors ahead to `out`, until it is full or they hold `max_bytes`; returns the
  // bytes appended.
  std::size_t Collect(std::span<iovec> out, std::size_t* used, std::size_t max_bytes) const;
  void Advance(std::size_t bytes);
  // Copies into the memory ahead and advances; returns the bytes copied.
  std::size_t CopyIn(std::span<const std::byte> bytes);
  // Copies from the memory ahead and advances; returns the bytes copied.
  std::size_t CopyOut(std::span<std::byte> bytes);

 private:
  std::span<const iovec> pieces_;
  std::size_t index_ = 0;
  std::size_t offset_ = 0;
};

}  // namespace ferry::net
