// Implements the pool of bounce buffers.

#include "standin/memory/pool.h"

#include <algorithm>

namespace ferry::standin {

Pool::Pool(Memory& memory, int device, const Shape& shape, std::uint64_t seed)
    : memory_(memory),
      device_(device),
      together_(shape.together),
      spread_(shape.spread),
      used_(shape.bytes / kPageBytes),
      random_(seed) {
  base_ = memory_.AllocateDevice(device, shape.bytes);
}

std::optional<Landing> Pool::Take(std::span<const std::uint32_t> lengths) {
  const std::lock_guard lock(mutex_);
  Reclaim();
  Landing landing;
  bool fits = true;
  while (fits && !lengths.empty()) {
    std::size_t taken = TakeTogether(lengths, &landing);
    if (taken == 0) {
      fits = TakeFragment(lengths.front(), &landing);
      taken = 1;
    }
    // The caller's lengths respect the limit, but pieces of those that found no run add to them.
    fits = fits && landing.fragments.size() <= kMaxFragments;
    lengths = lengths.subspan(taken);
  }
  if (fits) return landing;
  MarkFree(landing);
  return std::nullopt;
}

void Pool::Give(const Landing& landing) {
  if (landing.runs.empty()) return;
  std::vector<std::span<std::byte>> pages;
  pages.reserve(landing.runs.size());
  for (const Landing::Run& run : landing.runs) {
    pages.emplace_back(base_ + std::size_t{run.page} * kPageBytes,
                       std::size_t{run.pages} * kPageBytes);
  }
  // Without the mutex, since a device may block. Until MarkFree() nobody else gets the pages.
  void* const poisoning = memory_.Poison(device_, pages);
  const std::lock_guard lock(mutex_);
  if (poisoning == nullptr) {
    MarkFree(landing);
  } else {
    poisoned_.push_back({poisoning, landing});
  }
}

void Pool::Reclaim() {
  while (!poisoned_.empty() && memory_.IsPoisoned(device_, poisoned_.front().poisoning)) {
    MarkFree(poisoned_.front().landing);
    poisoned_.pop_front();
  }
}

unsigned long Pool::pages_in_use() {
  const std::lock_guard lock(mutex_);
  while (!poisoned_.empty()) Reclaim();
  return in_use_;
}

std::size_t Pool::TakeTogether(std::span<const std::uint32_t> lengths, Landing* landing) {
  if (together_ < 2 || lengths.size() < together_) return 0;
  const auto some = lengths.first(together_);
  const auto is_whole = [](std::uint32_t bytes) { return bytes == kPageBytes; };
  if (!std::all_of(some.begin(), some.end(), is_whole)) return 0;
  // With the pages between them, which nobody else gets.
  const std::uint32_t pages = together_ * spread_;
  const auto page = FindRun(pages, pages);
  if (!page) return 0;
  landing->runs.push_back({*page, pages});
  for (std::uint32_t i = 0; i < together_; ++i) {
    Append((*page + i * spread_) * kPageBytes, kPageBytes, landing);
  }
  return together_;
}

bool Pool::TakeFragment(std::uint32_t bytes, Landing* landing) {
  const bool fits_a_page = bytes <= kPageBytes;
  const std::uint32_t at = Below(fits_a_page ? kPageBytes - bytes + 1 : kPageBytes);
  const std::uint32_t pages = (at + bytes + kPageBytes - 1) / kPageBytes;
  const auto page = FindRun(pages);
  if (!page) return !fits_a_page && TakePieces(bytes, landing);
  landing->runs.push_back({*page, pages});
  Append(*page * kPageBytes + at, bytes, landing);
  return true;
}

bool Pool::TakePieces(std::uint32_t bytes, Landing* landing) {
  for (std::uint32_t left = bytes; left > 0;) {
    const std::uint32_t piece = std::min(left, kPageBytes);
    // What was taken so far is in the landing, by which Take() frees it.
    if (!TakeFragment(piece, landing)) return false;
    left -= piece;
  }
  return true;
}

void Pool::Append(std::uint32_t src, std::uint32_t bytes, Landing* landing) {
  auto& fragments = landing->fragments;
  const std::uint64_t dst = fragments.empty() ? 0 : fragments.back().dst + fragments.back().len;
  fragments.push_back({src, bytes, dst});
}

// Marks what it has found.
std::optional<std::uint32_t> Pool::FindRun(std::uint32_t pages, std::uint32_t step) {
  const std::size_t places = used_.size() / step;
  if (used_.size() - in_use_ < pages || places == 0) return std::nullopt;
  // A random start and then every place once: a free run is found if there is one. Places are
  // multiples of `step`, so runs of one size leave no gaps between them.
  const std::uint32_t begin = Below(places);
  for (std::size_t i = 0; i < places; ++i) {
    const auto page = static_cast<std::uint32_t>((begin + i) % places * step);
    if (!IsFree(page, pages)) continue;
    for (std::uint32_t j = 0; j < pages; ++j) used_[page + j] = true;
    in_use_ += pages;
    return page;
  }
  return std::nullopt;
}

bool Pool::IsFree(std::uint32_t page, std::uint32_t pages) const {
  if (page + pages > used_.size()) return false;
  for (std::uint32_t j = 0; j < pages; ++j) {
    if (used_[page + j]) return false;
  }
  return true;
}

std::uint32_t Pool::Below(std::uint64_t limit) {
  return static_cast<std::uint32_t>(random_() % limit);
}

void Pool::MarkFree(const Landing& landing) {
  for (const Landing::Run& run : landing.runs) {
    for (std::uint32_t j = 0; j < run.pages; ++j) used_[run.page + j] = false;
    in_use_ -= run.pages;
  }
}

}  // namespace ferry::standin
