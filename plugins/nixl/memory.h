// Registered memory and memory of peers, as the agent keeps them.
#pragma once
#include <compare>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ferry/copy/block_list.h"
#include "ferry/core/result.h"
#include "ferry/transfer/connection.h"
#include "ferry/transfer/region.h"
#include "plugins/nixl/abi.h"

namespace ferry::nixl {

// A registered range.
struct MemoryRange {
  std::uintptr_t address = 0;
  std::uint64_t length = 0;
  abi::Memory kind = abi::Memory::kDram;

  // clang-tidy 14 takes the 0 of the comparison for a pointer.
  // NOLINTNEXTLINE(modernize-use-nullptr)
  friend auto operator<=>(const MemoryRange&, const MemoryRange&) = default;
};

struct LocalMemory final : abi::Metadata {
  LocalMemory(std::shared_ptr<transfer::Region> registered, abi::Memory memory_kind)
      : Metadata(true), region(std::move(registered)), kind(memory_kind) {}
  MemoryRange range() const { return {base(), region->memory().size(), kind}; }
  std::uintptr_t base() const {
    return reinterpret_cast<std::uintptr_t>(region->memory().data());  // as descriptors have it
  }

  // Shared with transfers that were prepared with it, and registrations of the same range.
  std::shared_ptr<transfer::Region> region;
  abi::Memory kind;
};

// Whether the descriptor lies within a range.
bool Covers(std::uintptr_t base, std::uint64_t size, const abi::Descriptor& part);

struct RemoteMemory final : abi::Metadata {
  RemoteMemory(transfer::RemoteRegion imported, std::uintptr_t address)
      : Metadata(false),
        region(std::make_shared<transfer::RemoteRegion>(std::move(imported))),
        base(address) {}

  // Shared with transfers that were prepared with it.
  std::shared_ptr<const transfer::RemoteRegion> region;
  std::uintptr_t base;  // in the peer
};

// Blocks between two regions, which live as long as the part.
struct Part {
  std::shared_ptr<transfer::Region> local;               // as in LocalMemory
  std::shared_ptr<const transfer::RemoteRegion> remote;  // as in RemoteMemory
  BlockList blocks;
};

// The parts of a transfer between two lists of equal size. Neighbours that continue each other on
// both sides become one block; descriptors of no bytes are left out. Errors: kInvalidArgument
// naming the descriptor that is out of its memory, or whose lengths differ.
Result<std::vector<Part>> PartsOf(abi::Direction direction, const abi::MetaList& local,
                                  const abi::MetaList& remote);

// For PrepareWrite() and PrepareRead(); refers to the regions of `parts`.
std::vector<transfer::TransferPart> TransferParts(std::vector<Part>* parts);

}  // namespace ferry::nixl
