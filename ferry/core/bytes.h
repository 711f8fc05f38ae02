// Bounds-checked reading and writing of little-endian fields.
#pragma once
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace ferry {

static_assert(std::endian::native == std::endian::little,
              "the wire is little-endian and so is every machine with a GPU that we know of");

// Fixed-width little-endian integers at any alignment.
template <std::unsigned_integral T>
T LoadLe(std::span<const std::byte, sizeof(T)> from) noexcept {
  T value;
  std::memcpy(&value, from.data(), sizeof value);
  return value;
}
template <std::unsigned_integral T>
void StoreLe(std::span<std::byte, sizeof(T)> to, T value) noexcept {
  std::memcpy(to.data(), &value, sizeof value);
}

// Reads fields from the front of untrusted bytes and never past their end. A method returns false
// when too few bytes are left, and all later calls then return false too: a sequence of calls may
// be checked once, with ok(). A failed read sets its output to zero or empty.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) noexcept : left_(bytes) {}

  bool U8(std::uint8_t& value) noexcept { return Get(value); }
  bool U16(std::uint16_t& value) noexcept { return Get(value); }
  bool U32(std::uint32_t& value) noexcept { return Get(value); }
  bool U64(std::uint64_t& value) noexcept { return Get(value); }
  // The next `count` bytes without copying; valid as long as the underlying bytes.
  bool View(std::size_t count, std::span<const std::byte>& view) noexcept {
    ok_ = ok_ && count <= left_.size();
    view = ok_ ? left_.first(count) : std::span<const std::byte>();
    if (ok_) left_ = left_.subspan(count);
    return ok_;
  }
  // Fills all of `to`; on failure sets it to zero.
  bool Copy(std::span<std::byte> to) noexcept {
    std::span<const std::byte> view;
    if (to.empty()) return ok_;
    if (View(to.size(), view)) {
      std::memcpy(to.data(), view.data(), to.size());
    } else {
      std::memset(to.data(), 0, to.size());
    }
    return ok_;
  }

  bool ok() const noexcept { return ok_; }
  // Bytes that were not read yet.
  std::size_t left() const noexcept { return left_.size(); }

 private:
  template <std::unsigned_integral T>
  bool Get(T& value) noexcept {
    std::span<const std::byte> view;
    value = View(sizeof(T), view) ? LoadLe<T>(view.template first<sizeof(T)>()) : T{0};
    return ok_;
  }

  std::span<const std::byte> left_;
  bool ok_ = true;
};

// Writes fields one after another into a buffer and never past its end. A method that finds no room
// writes nothing and returns false, and all later calls then return false too.
class ByteWriter {
 public:
  explicit ByteWriter(std::span<std::byte> buffer) noexcept : buffer_(buffer) {}

  bool U8(std::uint8_t value) noexcept { return Put(value); }
  bool U16(std::uint16_t value) noexcept { return Put(value); }
  bool U32(std::uint32_t value) noexcept { return Put(value); }
  bool U64(std::uint64_t value) noexcept { return Put(value); }
  bool Bytes(std::span<const std::byte> bytes) noexcept {
    if (!Fits(bytes.size())) return false;
    if (!bytes.empty()) std::memcpy(buffer_.data() + size_, bytes.data(), bytes.size());
    size_ += bytes.size();
    return true;
  }

  bool ok() const noexcept { return ok_; }
  // The bytes written so far.
  std::span<const std::byte> written() const noexcept { return buffer_.first(size_); }
  // Bytes of the buffer that are still free.
  std::size_t left() const noexcept { return buffer_.size() - size_; }

 private:
  bool Fits(std::size_t count) noexcept { return ok_ = ok_ && count <= left(); }

  template <std::unsigned_integral T>
  bool Put(T value) noexcept {
    if (!Fits(sizeof(T))) return false;
    StoreLe<T>(buffer_.subspan(size_).template first<sizeof(T)>(), value);
    size_ += sizeof(T);
    return true;
  }

  std::span<std::byte> buffer_;
  std::size_t size_ = 0;
  bool ok_ = true;
};

}  // namespace ferry
