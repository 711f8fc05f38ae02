// Queues and tables that match receives with messages.
#include "ferry/transfer/lane/matcher.h"

#include <algorithm>
#include <utility>

namespace ferry::transfer {
namespace {

// Limit of mask tables that are kept for reuse although no receive has their mask at present.
constexpr std::size_t kIdleMasks = 8;

bool Takes(const OperationState& receive, std::uint64_t tag) {
  return ((receive.tag ^ tag) & receive.mask) == 0;
}

}  // namespace

// ---- queues -------------------------------------------------------------------------------------

template <class T>
void Matcher::Queue<T>::Add(Sequence sequence, T item) {
  if (empty()) {
    first_sequence_ = sequence;
    first_ = std::move(item);
    return;
  }
  if (sequence < first_sequence_) {
    std::swap(sequence, first_sequence_);
    std::swap(item, first_);
  }
  if (!rest_) rest_ = std::make_unique<Rest>();
  rest_->emplace_hint(rest_->end(), sequence, std::move(item));
}

template <class T>
T Matcher::Queue<T>::Take(Sequence sequence) {
  T taken{};
  if (sequence == first_sequence_) {
    taken = std::exchange(first_, T());
    first_sequence_ = 0;
    if (!rest_) return taken;
    first_sequence_ = rest_->begin()->first;
    first_ = std::move(rest_->begin()->second);
    rest_->erase(rest_->begin());
  } else if (rest_) {
    if (auto node = rest_->extract(sequence)) taken = std::move(node.mapped());
  }
  if (rest_ && rest_->empty()) rest_.reset();
  return taken;
}

// ---- receives -----------------------------------------------------------------------------------

std::optional<ArrivedMessage> Matcher::Post(const Receive& receive, bool may_index) {
  const auto message = FindMessage(*receive, may_index);
  if (message != arrived_.end()) return Take(message);
  receive->receiving.posted_as = ++last_posted_;
  Enqueue(receive);
  return std::nullopt;
}

void Matcher::Enqueue(const Receive& receive) {
  posted_[receive->mask][receive->tag & receive->mask].Add(receive->receiving.posted_as, receive);
}

Matcher::Receive Matcher::TakeReceive(std::uint64_t tag) {
  const Queue<Receive>* oldest = nullptr;
  for (auto& [mask, queues] : posted_) {
    const Queue<Receive>* const queue = queues.Find(tag & mask);
    if (queue == nullptr) continue;
    if (oldest == nullptr || queue->first_sequence() < oldest->first_sequence()) oldest = queue;
  }
  return oldest == nullptr ? nullptr : Dequeue(oldest->first().get());
}

bool Matcher::RemoveReceive(const OperationState* receive) { return Dequeue(receive) != nullptr; }

Matcher::Receive Matcher::Dequeue(const OperationState* receive) {
  const auto queues = posted_.find(receive->mask);
  if (queues == posted_.end()) return nullptr;
  const std::uint64_t key = receive->tag & receive->mask;
  Queue<Receive>* const queue = queues->second.Find(key);
  if (queue == nullptr) return nullptr;
  Receive taken = queue->Take(receive->receiving.posted_as);
  if (queue->empty()) queues->second.Erase(key);
  if (queues->second.empty() && posted_.size() > kIdleMasks) posted_.erase(queues);
  return taken;
}

// ---- messages -----------------------------------------------------------------------------------

void Matcher::Keep(ArrivedMessage message) {
  kept_bytes_ += message.data.size();
  const auto kept = arrived_.insert(arrived_.end(), {std::move(message), ++last_arrived_});
  for (Index& index : indexes_) AddTo(&index, kept);
  if (kept->message.announced) {
    ++announced_;
    rts_[kept->message.peer_operation].Add(kept->sequence, kept);
  }
}

Matcher::Arrived::iterator Matcher::FindMessage(const OperationState& receive, bool may_index) {
  Index* const index = arrived_.size() <= kFewMessages ? nullptr : IndexOf(receive.mask, may_index);
  if (index == nullptr) {
    return std::find_if(arrived_.begin(), arrived_.end(),
                        [&](const Kept& kept) { return Takes(receive, kept.message.tag); });
  }
  const auto* const queue = index->queues.Find(receive.tag & receive.mask);
  return queue == nullptr ? arrived_.end() : queue->first();
}

// Null if there are too many masks. The first one's table is paid for by each message.
Matcher::Index* Matcher::IndexOf(std::uint64_t mask, bool may_index) {
  const auto found = std::find_if(indexes_.begin(), indexes_.end(),
                                  [&](const Index& index) { return index.mask == mask; });
  if (found != indexes_.end()) return &*found;
  if (indexes_.size() == kMaxIndexes || (!indexes_.empty() && !may_index)) return nullptr;
  Index& index = indexes_.emplace_back();
  index.mask = mask;
  for (auto kept = arrived_.begin(); kept != arrived_.end(); ++kept) AddTo(&index, kept);
  return &index;
}

void Matcher::AddTo(Index* index, Arrived::iterator message) {
  index->queues[message->message.tag & index->mask].Add(message->sequence, message);
}

void Matcher::RemoveFrom(Queues<Arrived::iterator>* queues, std::uint64_t key, Sequence sequence) {
  auto* const queue = queues->Find(key);
  (void)queue->Take(sequence);
  if (queue->empty()) queues->Erase(key);
}

ArrivedMessage Matcher::Take(Arrived::iterator message) {
  for (Index& index : indexes_) {
    RemoveFrom(&index.queues, message->message.tag & index.mask, message->sequence);
  }
  ArrivedMessage taken = std::move(message->message);
  if (taken.announced) {
    --announced_;
    RemoveFrom(&rts_, taken.peer_operation, message->sequence);
  }
  arrived_.erase(message);
  if (arrived_.empty()) indexes_.clear();
  kept_bytes_ -= taken.data.size();
  return taken;
}

std::uint64_t Matcher::CostOf(std::uint64_t messages, std::uint64_t announced) const {
  const std::size_t indexes = std::max<std::size_t>(1, indexes_.size());
  return kKeptRecordBytes * messages + kTableEntryBytes * (indexes * messages + announced);
}

std::uint64_t Matcher::CostOfNext(bool announced) const { return CostOf(1, announced ? 1 : 0); }

// A table keeps its size until it is empty.
std::uint64_t Matcher::held_bytes() const {
  static_assert(sizeof(Kept) + 64 <= kKeptRecordBytes);  // list node, data, and their allocation
  static_assert(4 * (2 * sizeof(std::uint64_t) + sizeof(Queue<Arrived::iterator>)) <=
                kTableEntryBytes);
  if (arrived_.empty()) return 0;
  std::uint64_t tables = rts_.bytes();
  for (const Index& index : indexes_) tables += index.queues.bytes();
  return kept_bytes_ +
         std::max(CostOf(arrived_.size(), announced_), kKeptRecordBytes * arrived_.size() + tables);
}

bool Matcher::RemoveRts(std::uint64_t peer_operation) {
  const auto* const announced = rts_.Find(peer_operation);
  if (announced == nullptr) return false;
  (void)Take(announced->first());
  return true;
}

}  // namespace ferry::transfer
