// A bounded lock-free queue between two threads.
#pragma once
#include <atomic>
#include <bit>
#include <cstddef>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>

#include "ferry/core/check.h"

namespace ferry {

// A bounded, lock-free, wait-free queue from one producer thread to one consumer thread. T must be
// default constructible and move assignable; a slot keeps its moved-from T until it is overwritten.
// Index is the type of the free-running positions; types other than size_t are for tests of
// wrap-around.
template <class T, class Index = std::size_t>
class SpscQueue {
  static_assert(std::is_unsigned_v<Index>, "positions wrap around");

 public:
  // Twice this many positions must be distinct.
  static constexpr std::size_t kMaxCapacity = std::numeric_limits<Index>::max() / 2 + 1;

  // Capacity: items; a power of two up to kMaxCapacity.
  explicit SpscQueue(std::size_t capacity) : capacity_(capacity) {
    FERRY_CHECK(std::has_single_bit(capacity) && capacity <= kMaxCapacity, capacity, kMaxCapacity);
    slots_ = std::make_unique<T[]>(capacity);
  }
  SpscQueue(const SpscQueue&) = delete;
  SpscQueue& operator=(const SpscQueue&) = delete;

  std::size_t capacity() const noexcept { return capacity_; }

  // Producer thread. False when full; the value is moved from only on success.
  [[nodiscard]] bool TryPush(T&& value) {
    const Index tail = producer_.tail.load(std::memory_order_relaxed);
    if (Distance(producer_.seen_head, tail) == capacity_) {
      // Acquire: the consumer has moved out of the slots up to this head.
      producer_.seen_head = consumer_.head.load(std::memory_order_acquire);
      if (Distance(producer_.seen_head, tail) == capacity_) return false;
    }
    slots_[SlotOf(tail)] = std::move(value);
    producer_.tail.store(static_cast<Index>(tail + 1), std::memory_order_release);
    return true;
  }
  [[nodiscard]] bool TryPush(const T& value) {
    T copy = value;
    return TryPush(std::move(copy));
  }

  // Consumer thread. False when empty; the value is assigned only on success.
  [[nodiscard]] bool TryPop(T& value) {
    const Index head = consumer_.head.load(std::memory_order_relaxed);
    if (head == consumer_.seen_tail) {
      // Acquire: the producer has filled the slots up to this tail.
      consumer_.seen_tail = producer_.tail.load(std::memory_order_acquire);
      if (head == consumer_.seen_tail) return false;
    }
    value = std::move(slots_[SlotOf(head)]);
    consumer_.head.store(static_cast<Index>(head + 1), std::memory_order_release);
    return true;
  }

  // Consumer thread: whether TryPop() would fail now.
  [[nodiscard]] bool empty() const noexcept {
    return consumer_.head.load(std::memory_order_relaxed) ==
           producer_.tail.load(std::memory_order_acquire);
  }

 private:
  static constexpr std::size_t kCacheLine = 64;

  static std::size_t Distance(Index from, Index to) noexcept {
    return static_cast<Index>(to - from);
  }
  std::size_t SlotOf(Index position) const noexcept { return position & (capacity_ - 1); }

  // Each side writes one cache line, and caches there the other side's position, so that the
  // other's line is read once per lap and not once per item.
  struct alignas(kCacheLine) Producer {
    std::atomic<Index> tail{0};
    Index seen_head = 0;
  };
  struct alignas(kCacheLine) Consumer {
    std::atomic<Index> head{0};
    Index seen_tail = 0;
  };

  std::size_t capacity_;
  std::unique_ptr<T[]> slots_;
  Producer producer_;
  Consumer consumer_;
};

}  // namespace ferry
