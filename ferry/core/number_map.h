// An open-addressing hash table keyed by 64-bit numbers.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "ferry/core/seeded_hash.h"

namespace ferry {

// A hash table from 64-bit numbers, which a peer may choose, to small values that are cheap to
// move. Open addressing in one allocation, at most half full, with each key at its home slot or a
// few after it: a look-up among many costs one cache miss, where std::unordered_map costs three or
// more, and it allocates nothing. Pointers to values are valid until the next change. Not
// thread-safe.
template <class Value, class Hash = SeededHash>
class NumberMap {
 public:
  NumberMap() = default;
  NumberMap(NumberMap&& other) noexcept
      : slots_(std::move(other.slots_)), size_(std::exchange(other.size_, 0)) {}
  NumberMap& operator=(NumberMap&& other) noexcept {
    slots_ = std::move(other.slots_);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }

  // Null if the key is absent.
  const Value* Find(std::uint64_t key) const noexcept {
    if (size_ == 0) return nullptr;
    const Slot& slot = slots_[PlaceOf(key)];
    return slot.used ? &slot.value : nullptr;
  }
  Value* Find(std::uint64_t key) noexcept {
    return const_cast<Value*>(std::as_const(*this).Find(key));
  }
  // Inserts a default value if the key is absent.
  Value& operator[](std::uint64_t key) {
    if (2 * (size_ + 1) > slots_.size()) Grow();
    Slot& slot = slots_[PlaceOf(key)];
    if (!slot.used) {
      slot.used = true;
      slot.key = key;
      ++size_;
    }
    return slot.value;
  }
  // Returns false if the key was absent.
  bool Erase(std::uint64_t key) {
    if (size_ == 0) return false;
    std::size_t hole = PlaceOf(key);
    if (!slots_[hole].used) return false;
    // Moves up later entries that the empty slot would hide from look-ups.
    for (std::size_t at = After(hole); slots_[at].used; at = After(at)) {
      if (Distance(HomeOf(slots_[at].key), at) < Distance(hole, at)) continue;
      slots_[hole] = std::move(slots_[at]);
      hole = at;
    }
    slots_[hole] = Slot();
    if (--size_ == 0 && slots_.size() > kMaxIdleSlots) std::vector<Slot>().swap(slots_);
    return true;
  }
  // Calls `each(key, value)` for all entries, in no particular order.
  template <class Each>
  void ForEach(Each&& each) const {
    for (const Slot& slot : slots_) {
      if (slot.used) each(slot.key, slot.value);
    }
  }
  bool empty() const noexcept { return size_ == 0; }
  std::size_t size() const noexcept { return size_; }
  // Memory of the table.
  std::size_t bytes() const noexcept { return slots_.capacity() * sizeof(Slot); }

 private:
  static constexpr std::size_t kMinSlots = 16;
  static constexpr std::size_t kMaxIdleSlots = 1024;  // larger tables are freed once empty

  struct Slot {
    std::uint64_t key = 0;
    bool used = false;
    Value value{};
  };

  // The number of slots is a power of two.
  std::size_t HomeOf(std::uint64_t key) const noexcept { return Hash()(key) & (slots_.size() - 1); }
  std::size_t After(std::size_t at) const noexcept { return (at + 1) & (slots_.size() - 1); }
  std::size_t Distance(std::size_t from, std::size_t to) const noexcept {
    return (to - from) & (slots_.size() - 1);
  }
  // The slot of the key, or the slot where it would be inserted.
  std::size_t PlaceOf(std::uint64_t key) const noexcept {
    std::size_t at = HomeOf(key);
    while (slots_[at].used && slots_[at].key != key) at = After(at);
    return at;
  }
  void Grow() {
    std::vector<Slot> old(slots_.empty() ? kMinSlots : 2 * slots_.size());
    old.swap(slots_);
    for (Slot& slot : old) {
      if (slot.used) slots_[PlaceOf(slot.key)] = std::move(slot);
    }
  }

  std::vector<Slot> slots_;
  std::size_t size_ = 0;
};

}  // namespace ferry
