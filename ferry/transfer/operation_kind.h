// The kinds of operations, and their names.
#pragma once
#include <cstdint>

namespace ferry::transfer {

enum class OperationKind : std::uint8_t { kWrite, kRead, kSend, kRecv, kNotify };
const char* OperationName(OperationKind kind) noexcept;

}  // namespace ferry::transfer
