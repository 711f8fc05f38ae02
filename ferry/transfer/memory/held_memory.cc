// Counts held memory against the limits of a connection and its pool.
#include "ferry/transfer/memory/held_memory.h"

namespace ferry::transfer {

HeldMemory::~HeldMemory() {
  if (pool_ != nullptr) pool_->held_.fetch_sub(held(), std::memory_order_relaxed);
}

void HeldMemory::Add(std::uint64_t bytes) noexcept {
  held_.fetch_add(bytes, std::memory_order_relaxed);
  if (pool_ != nullptr) pool_->held_.fetch_add(bytes, std::memory_order_relaxed);
}

void HeldMemory::Remove(std::uint64_t bytes) noexcept {
  held_.fetch_sub(bytes, std::memory_order_relaxed);
  if (pool_ != nullptr) pool_->held_.fetch_sub(bytes, std::memory_order_relaxed);
}

bool HeldMemory::Fits(std::uint64_t more) const noexcept {
  // Limits are not exact: counts are relaxed and several threads add, so a limit may be passed by
  // what is added at the same moment. Nothing else depends on them.
  return pool_ == nullptr ||
         (held() + more < pool_->most_each_ && pool_->held() + more < pool_->most_);
}

bool HeldMemory::HasRoom(std::uint64_t bytes) const noexcept {
  // Every connection may hold a little whatever the others hold, so that one peer cannot starve
  // another.
  return tried_.load(std::memory_order_relaxed) + bytes <= kGuaranteed || Fits(bytes);
}

void HeldMemory::AddTried(std::uint64_t bytes) noexcept {
  tried_.fetch_add(bytes, std::memory_order_relaxed);
  Add(bytes);
}

// Adds first and then checks, so that threads that ask at the same time do not all get the last
// bytes.
bool HeldMemory::TryAdd(std::uint64_t bytes) noexcept {
  AddTried(bytes);
  if (HasRoom(0)) return true;
  RemoveTried(bytes);
  return false;
}

void HeldMemory::RemoveTried(std::uint64_t bytes) noexcept {
  tried_.fetch_sub(bytes, std::memory_order_relaxed);
  Remove(bytes);
}

}  // namespace ferry::transfer
