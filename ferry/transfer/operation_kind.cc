// Names of the kinds of operations.
#include "ferry/transfer/operation_kind.h"

namespace ferry::transfer {

const char* OperationName(OperationKind kind) noexcept {
  switch (kind) {
    case OperationKind::kWrite: return "write";
    case OperationKind::kRead: return "read";
    case OperationKind::kSend: return "send";
    case OperationKind::kRecv: return "receive";
    case OperationKind::kNotify: return "notification";
  }
  return "operation";
}

}  // namespace ferry::transfer
