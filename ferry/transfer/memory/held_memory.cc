// Counts held memory against the limits of a connection and its pool.
#include "ferry/transfer/memory/held_memory.h"

#include <algorithm>
#include <utility>

namespace ferry::transfer {

HeldMemory::~HeldMemory() {
  if (pool_ == nullptr) return;
  pool_->held_.fetch_sub(held_.load(kRelaxed), kRelaxed);
  pool_->guaranteed_.fetch_sub(kGuaranteed, kRelaxed);
}

void HeldMemory::SetPool(std::shared_ptr<HeldMemoryPool> pool, std::uint64_t reserve) noexcept {
  pool_ = std::move(pool);
  pool_->guaranteed_.fetch_add(kGuaranteed, kRelaxed);
  reserve_ = reserve;
  limit_ = std::max(pool_->most_each_, reserve + kGuaranteed);
}

void HeldMemory::Add(std::uint64_t bytes) noexcept {
  held_.fetch_add(bytes, kRelaxed);
  if (pool_ != nullptr) pool_->held_.fetch_add(bytes, kRelaxed);
}

void HeldMemory::Remove(std::uint64_t bytes) noexcept {
  held_.fetch_sub(bytes, kRelaxed);
  if (pool_ != nullptr) pool_->held_.fetch_sub(bytes, kRelaxed);
}

void HeldMemory::AddLateAnswer() noexcept {
  late_answers_.fetch_add(1, kRelaxed);
  Add(kLateAnswerBytes);
}

void HeldMemory::RemoveLateAnswers(std::uint64_t count) noexcept {
  late_answers_.fetch_sub(count, kRelaxed);
  Remove(count * kLateAnswerBytes);
}

// Counts are relaxed and several threads add, so a limit may be passed by what is added at the same
// moment.
bool HeldMemory::Fits(std::uint64_t more) const noexcept {
  const std::uint64_t all = held();
  const std::uint64_t optional = tried_.load(kRelaxed);
  const std::uint64_t mandatory = all > optional ? all - optional : 0;
  return optional + more + std::max(mandatory, reserve_) <= limit_;
}

// Every connection may hold a little whatever the others hold, so that one peer cannot starve
// another.
bool HeldMemory::HasRoom(std::uint64_t bytes) const noexcept {
  return Fits(bytes) && (tried_.load(kRelaxed) + bytes <= kGuaranteed || PoolFits(bytes));
}

std::optional<HeldMemory::Excess> HeldMemory::FindExcess(std::uint64_t answers) const noexcept {
  if (pool_ == nullptr) return std::nullopt;
  if (held() > limit_ + limit_ / 10) return Excess{held(), limit_, "FERRY_PEER_MEMORY"};
  const std::uint64_t most = pool_->most_ + pool_->guaranteed_.load(kRelaxed);
  if (answers <= kGuaranteed || pool_->held() <= most + most / 10) return std::nullopt;
  return Excess{pool_->held(), most, "FERRY_PEER_MEMORY_TOTAL and 256 KiB for each connection"};
}

void HeldMemory::AddTried(std::uint64_t bytes) noexcept {
  tried_.fetch_add(bytes, kRelaxed);
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
  tried_.fetch_sub(bytes, kRelaxed);
  Remove(bytes);
}

}  // namespace ferry::transfer
