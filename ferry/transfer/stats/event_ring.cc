// Stores and formats a connection's latest events.
#include "ferry/transfer/stats/event_ring.h"

#include <fmt/core.h>

#include <algorithm>

namespace ferry::transfer {

void EventRing::Add(std::string_view text) {
  const std::lock_guard lock(mutex_);
  Slot& slot = slots_[added_++ % kEvents];
  slot.at = std::chrono::system_clock::now();
  slot.when = Clock::now();
  // Fixed slots: an event allocates nothing, also where a flood of refusals causes it.
  slot.bytes = std::min(text.size(), kTextBytes);
  std::copy_n(text.data(), slot.bytes, slot.text.data());
}

std::vector<ConnectionEvent> EventRing::Events() const {
  const std::lock_guard lock(mutex_);
  std::vector<ConnectionEvent> events;
  for (std::uint64_t i = added_ - std::min<std::uint64_t>(added_, kEvents); i < added_; ++i) {
    const Slot& slot = slots_[i % kEvents];
    events.push_back({slot.at, slot.when, std::string(slot.text.data(), slot.bytes)});
  }
  return events;
}

std::string EventRing::Describe(std::size_t most) const {
  const auto events = Events();
  const auto now = Clock::now();
  std::string text;
  for (std::size_t i = events.size() - std::min(events.size(), most); i < events.size(); ++i) {
    const double age = std::chrono::duration<double>(now - events[i].when).count();
    text += fmt::format("{}{:.1f} s ago: {}", text.empty() ? "" : "; ", age, events[i].text);
  }
  return text;
}

}  // namespace ferry::transfer
