// Stores refusal codes by sequence number.
#include "ferry/transfer/lane/refusal_log.h"

#include <algorithm>

namespace ferry::transfer {
namespace {

bool IsBefore(std::uint32_t a, std::uint32_t b) { return static_cast<std::int32_t>(a - b) < 0; }

}  // namespace

void RefusalLog::Add(std::uint32_t sequence, std::uint8_t code, bool said) {
  if (codes_.empty() ||
      (unsaid_ == 0 && sequence - base_ > 2 * kept_ && !IsBefore(sequence, base_))) {
    codes_.clear();
    base_ = sequence;
  }
  // A frame whose payload was still being received when a later one was refused.
  while (IsBefore(sequence, base_)) {
    codes_.push_front(0);
    --base_;
    ++first_unsaid_;
  }
  const std::size_t at = sequence - base_;
  if (at >= codes_.size()) codes_.resize(at + 1, 0);
  codes_[at] = said ? code : static_cast<std::uint8_t>(code | kUnsaid);
  if (said) return;
  first_unsaid_ = unsaid_ == 0 ? at : std::min(first_unsaid_, at);
  ++unsaid_;
}

std::optional<wire::RefusalOnWire> RefusalLog::NextUnsaid() const {
  if (unsaid_ == 0) return std::nullopt;
  const auto code = static_cast<std::uint8_t>(codes_[first_unsaid_] & ~kUnsaid);
  return wire::RefusalOnWire{base_ + static_cast<std::uint32_t>(first_unsaid_), code};
}

void RefusalLog::SaidNext() {
  std::uint8_t& code = codes_[first_unsaid_];
  code = static_cast<std::uint8_t>(code & ~kUnsaid);
  --unsaid_;
  while (unsaid_ > 0 && (codes_[first_unsaid_] & kUnsaid) == 0) ++first_unsaid_;
}

void RefusalLog::MarkAllSaid() {
  for (std::uint8_t& code : codes_) code = static_cast<std::uint8_t>(code & ~kUnsaid);
  unsaid_ = 0;
}

std::uint32_t RefusalLog::Acknowledgeable(std::uint32_t finished) const noexcept {
  if (unsaid_ == 0) return finished;
  const std::uint32_t first = base_ + static_cast<std::uint32_t>(first_unsaid_);
  return IsBefore(first, finished) ? first : finished;
}

std::size_t RefusalLog::UnsaidSpan(std::uint32_t finished) const noexcept {
  return finished - Acknowledgeable(finished);
}

void RefusalLog::Forget(std::uint32_t finished) {
  while (!codes_.empty() && IsBefore(base_, finished)) {
    const bool needless = codes_.front() == 0 || finished - base_ > kept_;
    if (!needless || (unsaid_ > 0 && first_unsaid_ == 0)) return;
    codes_.pop_front();
    ++base_;
    if (unsaid_ > 0) --first_unsaid_;
  }
}

std::vector<wire::RefusalOnWire> RefusalLog::Latest(std::size_t most) const {
  std::vector<wire::RefusalOnWire> latest;
  for (std::size_t at = codes_.size(); at-- > 0 && latest.size() < most;) {
    const auto code = static_cast<std::uint8_t>(codes_[at] & ~kUnsaid);
    if (code != 0) latest.push_back({base_ + static_cast<std::uint32_t>(at), code});
  }
  std::reverse(latest.begin(), latest.end());
  return latest;
}

void RefusalLog::Clear() {
  std::deque<std::uint8_t>().swap(codes_);
  unsaid_ = 0;
}

}  // namespace ferry::transfer
