// The simulated form and the descriptor of the kernel that checks rows and copies fragments.
#include "ferry/tcpx/unpack/rows_kernel.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "ferry/cuda/address.h"

namespace ferry::tcpx {
namespace {

constexpr std::uint16_t kFreeRowSlot = 0xffff;

template <class T>
Result<std::vector<T>> TakeOnce(cuda::EmulatedMemory& memory, const T* from, std::size_t count) {
  std::vector<T> taken(count);
  if (count == 0) return taken;
  FERRY_TRY_ASSIGN(const std::byte* bytes, memory.At(cuda::AddressOf(from), count * sizeof(T)));
  std::memcpy(taken.data(), bytes, count * sizeof(T));
  return taken;
}

bool AreInOrder(std::span<const Fragment> rows, std::uint64_t message_bytes) {
  std::uint64_t end = 0;
  for (const Fragment& row : rows) {
    if (row.dst != end) return false;
    end += row.len;
  }
  return end == message_bytes;
}

// By a table, as the kernel does it: see SlotOf().
bool AreDisjoint(std::span<const Fragment> rows, std::uint64_t message_bytes) {
  std::vector<std::uint16_t> slots(kRowSlots, kFreeRowSlot);
  const auto find = [&](std::uint64_t dst) {
    std::uint32_t at = SlotOf(dst);
    while (slots[at] != kFreeRowSlot && rows[slots[at]].dst != dst) at = (at + 1) % kRowSlots;
    return at;
  };
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::uint16_t& slot = slots[find(rows[i].dst)];
    if (slot != kFreeRowSlot) return false;
    slot = static_cast<std::uint16_t>(i);
  }
  if (slots[find(0)] == kFreeRowSlot) return false;
  return std::all_of(rows.begin(), rows.end(), [&](const Fragment& row) {
    const std::uint64_t end = row.dst + row.len;
    return end == message_bytes || slots[find(end)] != kFreeRowSlot;
  });
}

// The first byte that is written twice, and the first two rows that write it.
FragmentFault OverlapOf(std::span<const Fragment> rows) {
  FragmentFault fault{.problem = FragmentProblem::kOverlap, .bytes = ~std::uint64_t{0}};
  const auto covering = [&](std::uint64_t byte, std::size_t from) {
    while (from < rows.size() && !Covers(rows[from], byte)) ++from;
    return from;
  };
  for (const Fragment& row : rows) {
    if (covering(row.dst, covering(row.dst, 0) + 1) < rows.size()) {
      fault.bytes = std::min(fault.bytes, row.dst);
    }
  }
  const std::size_t first = covering(fault.bytes, 0);
  const std::size_t second = covering(fault.bytes, first + 1);
  fault.first = static_cast<std::uint32_t>(first);
  fault.second = static_cast<std::uint32_t>(second);
  fault.first_value = rows[first];
  fault.second_value = rows[second];
  return fault;
}

FragmentFault Judge(std::span<const Fragment> rows, const RowsMessage& message) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const FragmentProblem problem = ProblemOf(rows[i], message.pool_bytes, message.bytes);
    if (problem == FragmentProblem::kNone) continue;
    return {.problem = problem, .first = static_cast<std::uint32_t>(i), .first_value = rows[i]};
  }
  if (AreInOrder(rows, message.bytes)) return {};
  FragmentFault fault;
  for (const Fragment& row : rows) fault.bytes += row.len;
  if (fault.bytes != message.bytes) {
    fault.problem = FragmentProblem::kTotal;
    return fault;
  }
  return AreDisjoint(rows, message.bytes) ? FragmentFault{} : OverlapOf(rows);
}

Status EmulateMessage(cuda::EmulatedMemory& memory, const RowsKernelArguments& given,
                      std::uint32_t index) {
  const RowsMessage& message = given.messages[index];
  FERRY_TRY_ASSIGN(const auto rows, TakeOnce(memory, message.rows, message.count));
  FERRY_TRY_ASSIGN(const auto runs, TakeOnce(memory, message.runs, message.run_count));
  const FragmentFault fault = Judge(rows, message);
  FERRY_TRY_ASSIGN(std::byte * told,
                   memory.At(cuda::AddressOf(given.faults + index), sizeof(FragmentFault)));
  std::memcpy(told, &fault, sizeof(fault));
  if (fault.problem != FragmentProblem::kNone) return Ok();
  std::vector<Block> pieces;
  for (const Fragment& row : rows) {
    ForEachPiece(row, runs.data(), given.longest, message.run_count,
                 [&](std::uint64_t dst, std::uint64_t src, std::uint32_t len) {
                   pieces.push_back({dst, message.pool + src, len});
                 });
  }
  // Where the kernel leaves them.
  FERRY_TRY_ASSIGN(std::byte * list, memory.At(cuda::AddressOf(given.list + message.list_begin),
                                               pieces.size() * sizeof(PackedBlock)));
  for (const Block& piece : pieces) {
    const PackedBlock packed = Pack(piece);
    std::memcpy(list, &packed, sizeof(packed));
    list += sizeof(packed);
    FERRY_TRY_ASSIGN(std::byte * dst, memory.At(piece.dst, piece.len));
    FERRY_TRY_ASSIGN(const std::byte* src, memory.At(piece.src, piece.len));
    std::memcpy(dst, src, piece.len);
  }
  return Ok();
}

Status EmulateRowsKernel(cuda::EmulatedMemory& memory, const void* arguments) {
  const auto& given = *static_cast<const RowsKernelArguments*>(arguments);
  for (std::uint32_t i = 0; i < given.count; ++i) FERRY_TRY(EmulateMessage(memory, given, i));
  return Ok();
}

}  // namespace

#ifdef FERRY_HAVE_CUDA
Status LaunchRowsKernel(cuda::StreamRef stream, const void* arguments);  // rows_kernel.cu
#else
constexpr Status (*LaunchRowsKernel)(cuda::StreamRef, const void*) = nullptr;
#endif

const cuda::Kernel kRowsKernel{
    .name = "rows", .launch = LaunchRowsKernel, .emulate = EmulateRowsKernel};

}  // namespace ferry::tcpx
