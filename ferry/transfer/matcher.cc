#include "ferry/transfer/matcher.h"

#include <algorithm>
#include <utility>

namespace ferry::transfer {
namespace {

bool Takes(const OperationState& receive, std::uint64_t tag) {
  return ((receive.tag ^ tag) & receive.mask) == 0;
}

}  // namespace

std::optional<ArrivedMessage> Matcher::Post(const Receive& receive) {
  const auto it = std::find_if(arrived_.begin(), arrived_.end(),
                               [&](const auto& message) { return Takes(*receive, message.tag); });
  if (it == arrived_.end()) {
    posted_.push_back(receive);
    return std::nullopt;
  }
  ArrivedMessage message = std::move(*it);
  arrived_.erase(it);
  kept_bytes_ -= message.data.size();
  return message;
}

Matcher::Receive Matcher::TakeReceive(std::uint64_t tag) {
  const auto it = std::find_if(posted_.begin(), posted_.end(),
                               [&](const auto& receive) { return Takes(*receive, tag); });
  if (it == posted_.end()) return nullptr;
  Receive receive = std::move(*it);
  posted_.erase(it);
  return receive;
}

void Matcher::Keep(ArrivedMessage message) {
  kept_bytes_ += message.data.size();
  arrived_.push_back(std::move(message));
}

bool Matcher::RemoveReceive(const OperationState* receive) {
  const auto it = std::find_if(posted_.begin(), posted_.end(),
                               [&](const auto& posted) { return posted.get() == receive; });
  if (it == posted_.end()) return false;
  posted_.erase(it);
  return true;
}

bool Matcher::RemoveOffer(std::uint64_t peer_operation) {
  const auto it = std::find_if(arrived_.begin(), arrived_.end(), [&](const auto& message) {
    return message.offered && message.peer_operation == peer_operation;
  });
  if (it == arrived_.end()) return false;
  arrived_.erase(it);
  return true;
}

}  // namespace ferry::transfer
