// Turns the fuzzer's bytes into a sequence of decisions.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace ferry::fuzz {

// The fuzzer's bytes as a row of decisions, taken from the front. Zeros once they are used up, so
// every input is a whole script.
class Script {
 public:
  Script(const std::uint8_t* data, std::size_t size) : left_(data, size) {}

  bool empty() const noexcept { return left_.empty(); }
  std::uint8_t U8() { return Take<std::uint8_t>(); }
  std::uint16_t U16() { return Take<std::uint16_t>(); }
  std::uint32_t U32() { return Take<std::uint32_t>(); }
  std::uint64_t U64() { return Take<std::uint64_t>(); }
  // 0..count-1, of a byte.
  std::size_t Below(std::size_t count) { return count == 0 ? 0 : U8() % count; }
  // At most `count`: what there is.
  std::vector<std::byte> Bytes(std::size_t count) {
    const auto taken = std::as_bytes(left_.first(std::min(count, left_.size())));
    left_ = left_.subspan(taken.size());
    return {taken.begin(), taken.end()};
  }
  std::vector<std::byte> Rest() { return Bytes(left_.size()); }

 private:
  template <class T>
  T Take() {
    T value = 0;
    const std::size_t n = std::min(sizeof value, left_.size());
    if (n > 0) std::memcpy(&value, left_.data(), n);
    left_ = left_.subspan(n);
    return value;
  }

  std::span<const std::uint8_t> left_;
};

}  // namespace ferry::fuzz
