// Requesting and running deferred work.
#include "ferry/core/loop/deferred_lists.h"

namespace ferry {

void DeferredLists::Request(Defer when, Deferred* deferred) {
  auto& node = deferred->nodes_[Index(when)];
  if (!node.linked()) waiting_[Index(when)].PushBack(&node);
}

void DeferredLists::Cancel(Deferred* deferred) {
  for (auto& node : deferred->nodes_) node.Unlink();
}

bool DeferredLists::Run(Defer when) {
  Deferred::List& due = due_[Index(when)];
  due.TakeAll(&waiting_[Index(when)]);
  const bool any = !due.empty();
  while (!due.empty()) due.PopFront()->RunDeferredOnLoop(when);
  if (any && when != Defer::kTurnEnd) Run(Defer::kTurnEnd);
  return any;
}

void DeferredLists::Clear() {
  for (auto& list : waiting_) list.Clear();
}

}  // namespace ferry
