#include "ferry/transfer/matcher.h"

#include <algorithm>
#include <utility>

namespace ferry::transfer {
namespace {

// Tables of masks that no receive has at present are kept for the next one, up to so many masks.
constexpr std::size_t kIdleMasks = 8;

bool Takes(const OperationState& receive, std::uint64_t tag) {
  return ((receive.tag ^ tag) & receive.mask) == 0;
}

}  // namespace

// ---- receives -----------------------------------------------------------------------------------

std::optional<ArrivedMessage> Matcher::Post(const Receive& receive) {
  if (const auto message = FindMessage(*receive); message != arrived_.end()) return Take(message);
  receive->posted_as = ++last_posted_;
  Enqueue(receive);
  return std::nullopt;
}

void Matcher::Enqueue(const Receive& receive) {
  auto& queue = posted_[receive->mask][receive->tag & receive->mask];
  queue.emplace_hint(queue.end(), receive->posted_as, receive);
}

Matcher::Receive Matcher::TakeReceive(std::uint64_t tag) {
  const OperationState* oldest = nullptr;
  for (const auto& [mask, queues] : posted_) {
    const auto queue = queues.find(tag & mask);
    if (queue == queues.end()) continue;
    const auto& [sequence, receive] = *queue->second.begin();
    if (oldest == nullptr || sequence < oldest->posted_as) oldest = receive.get();
  }
  return oldest == nullptr ? nullptr : Dequeue(oldest);
}

bool Matcher::RemoveReceive(const OperationState* receive) { return Dequeue(receive) != nullptr; }

Matcher::Receive Matcher::Dequeue(const OperationState* receive) {
  const auto queues = posted_.find(receive->mask);
  if (queues == posted_.end()) return nullptr;
  const auto queue = queues->second.find(receive->tag & receive->mask);
  if (queue == queues->second.end()) return nullptr;
  auto node = queue->second.extract(receive->posted_as);
  if (node.empty()) return nullptr;
  if (queue->second.empty()) queues->second.erase(queue);
  if (queues->second.empty() && posted_.size() > kIdleMasks) posted_.erase(queues);
  return std::move(node.mapped());
}

// ---- messages -----------------------------------------------------------------------------------

void Matcher::Keep(ArrivedMessage message) {
  kept_bytes_ += message.data.size();
  const auto kept = arrived_.insert(arrived_.end(), {std::move(message), ++last_arrived_});
  for (Index& index : indexes_) AddTo(&index, kept);
  if (kept->message.offered) {
    offers_.emplace(std::make_pair(kept->message.peer_operation, kept->sequence), kept);
  }
}

Matcher::Arrived::iterator Matcher::FindMessage(const OperationState& receive) {
  Index* const index = arrived_.size() <= kFewMessages ? nullptr : IndexOf(receive.mask);
  if (index == nullptr) {
    return std::find_if(arrived_.begin(), arrived_.end(),
                        [&](const Kept& kept) { return Takes(receive, kept.message.tag); });
  }
  const auto queue = index->queues.find(receive.tag & receive.mask);
  return queue == index->queues.end() ? arrived_.end() : queue->second.begin()->second;
}

// Null where there are too many.
Matcher::Index* Matcher::IndexOf(std::uint64_t mask) {
  const auto found = std::find_if(indexes_.begin(), indexes_.end(),
                                  [&](const Index& index) { return index.mask == mask; });
  if (found != indexes_.end()) return &*found;
  if (indexes_.size() == kMaxIndexes) return nullptr;
  Index& index = indexes_.emplace_back();
  index.mask = mask;
  for (auto kept = arrived_.begin(); kept != arrived_.end(); ++kept) AddTo(&index, kept);
  return &index;
}

void Matcher::AddTo(Index* index, Arrived::iterator message) {
  auto& queue = index->queues[message->message.tag & index->mask];
  queue.emplace_hint(queue.end(), message->sequence, message);
}

ArrivedMessage Matcher::Take(Arrived::iterator message) {
  for (Index& index : indexes_) {
    const auto queue = index.queues.find(message->message.tag & index.mask);
    queue->second.erase(message->sequence);
    if (queue->second.empty()) index.queues.erase(queue);
  }
  ArrivedMessage taken = std::move(message->message);
  if (taken.offered) offers_.erase({taken.peer_operation, message->sequence});
  arrived_.erase(message);
  if (arrived_.empty()) indexes_.clear();
  kept_bytes_ -= taken.data.size();
  return taken;
}

bool Matcher::RemoveOffer(std::uint64_t peer_operation) {
  const auto offer = offers_.lower_bound({peer_operation, 0});
  if (offer == offers_.end() || offer->first.first != peer_operation) return false;
  (void)Take(offer->second);
  return true;
}

}  // namespace ferry::transfer
