// Hands the ends of operations to whoever polls one descriptor.
#include <utility>

#include "ferry/transfer/lane/operation_state.h"
#include "ferry/transfer/operation.h"

namespace ferry::transfer {

CompletionQueue::CompletionQueue(std::shared_ptr<CompletionSink> sink) : sink_(std::move(sink)) {}

Result<CompletionQueue> CompletionQueue::Create() {
  FERRY_TRY_ASSIGN(UniqueFd event, MakeEventFd());
  // Shared with the operations that are watched.
  return CompletionQueue(std::make_shared<CompletionSink>(std::move(event)));
}

Result<int> CompletionQueue::fd() const {
  if (sink_.forked()) return MadeBeforeFork("completion queue");
  return sink_->fd();
}

Status CompletionQueue::Watch(const Operation& operation, std::uint64_t cookie) {
  if (sink_.forked()) return MadeBeforeFork("completion queue");
  return operation.TellEnd(sink_.get(), cookie);
}

Result<std::vector<std::uint64_t>> CompletionQueue::Take() {
  if (sink_.forked()) return MadeBeforeFork("completion queue");
  return sink_->Take();
}

}  // namespace ferry::transfer
