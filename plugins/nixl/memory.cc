// Sorts descriptors into parts between two regions, with neighbours merged.
#include "plugins/nixl/memory.h"

#include <fmt/core.h>

#include <map>
#include <utility>

namespace ferry::nixl {
namespace {

using Regions = std::pair<const LocalMemory*, const RemoteMemory*>;

// Collects the parts. `open` of each is its last block, which the next may continue.
class Collector {
 public:
  explicit Collector(abi::Direction direction) : writing_(direction == abi::Direction::kWrite) {}

  void Add(Regions regions, std::uint64_t local, std::uint64_t remote, std::uint64_t bytes) {
    if (regions != last_regions_) Switch(regions);
    Block& open = open_[last_];
    const std::uint64_t dst = writing_ ? remote : local;
    const std::uint64_t src = writing_ ? local : remote;
    if (open.len != 0 && open.dst + open.len == dst && open.src + open.len == src) {
      open.len += bytes;
      return;
    }
    if (open.len != 0) parts_[last_].blocks.Add(open);
    open = {.dst = dst, .src = src, .len = bytes};
  }

  std::vector<Part> Take() {
    // None of the open blocks is empty: descriptors without bytes do not come here.
    for (std::size_t i = 0; i < parts_.size(); ++i) parts_[i].blocks.Add(open_[i]);
    return std::move(parts_);
  }

 private:
  void Switch(Regions regions) {
    const auto [found, inserted] = index_.try_emplace(regions, parts_.size());
    if (inserted) {
      parts_.push_back({regions.first->region, regions.second->region, {}});
      open_.emplace_back();
    }
    last_ = found->second;
    last_regions_ = regions;
  }

  const bool writing_;
  std::vector<Part> parts_;
  std::vector<Block> open_;
  std::map<Regions, std::size_t> index_;
  std::size_t last_ = 0;
  Regions last_regions_{nullptr, nullptr};
};

}  // namespace

bool Covers(std::uintptr_t base, std::uint64_t size, const abi::Descriptor& part) {
  // Without sums, which numbers from a peer could overflow.
  return part.address >= base && part.address - base <= size &&
         part.length <= size - (part.address - base);
}

Result<std::vector<Part>> PartsOf(abi::Direction direction, const abi::MetaList& local,
                                  const abi::MetaList& remote) {
  if (local.items.size() != remote.items.size()) {
    return Error(Code::kInvalidArgument,
                 fmt::format("{} local and {} remote descriptors; there must be as many",
                             local.items.size(), remote.items.size()));
  }
  Collector collector(direction);
  for (std::size_t i = 0; i < local.items.size(); ++i) {
    const abi::MetaDescriptor& mine = local.items[i];
    const abi::MetaDescriptor& theirs = remote.items[i];
    if (mine.at.length != theirs.at.length || mine.metadata == nullptr ||
        theirs.metadata == nullptr) {
      return Error(Code::kInvalidArgument,
                   fmt::format("descriptor {} has {} local and {} remote bytes, or no registered "
                               "memory",
                               i, mine.at.length, theirs.at.length));
    }
    if (mine.at.length == 0) continue;
    // The agent only has pointers that this back end gave it.
    const auto* const from = static_cast<const LocalMemory*>(mine.metadata);
    const auto* const to = static_cast<const RemoteMemory*>(theirs.metadata);
    const std::uint64_t local_size = from->region->memory().size();
    if (!Covers(from->base(), local_size, mine.at) ||
        !Covers(to->base, to->region->length, theirs.at)) {
      return Error(Code::kInvalidArgument,
                   fmt::format("descriptor {} is not inside its registered memory: local {:#x} + "
                               "{} in {:#x} + {}, remote {:#x} in {:#x} + {}",
                               i, mine.at.address, mine.at.length, from->base(), local_size,
                               theirs.at.address, to->base, to->region->length));
    }
    collector.Add({from, to}, mine.at.address - from->base(), theirs.at.address - to->base,
                  mine.at.length);
  }
  return collector.Take();
}

std::vector<transfer::TransferPart> TransferParts(std::vector<Part>* parts) {
  std::vector<transfer::TransferPart> out;
  out.reserve(parts->size());
  for (Part& part : *parts) {
    out.push_back({part.local.get(), part.remote.get(), std::move(part.blocks)});
  }
  return out;
}

}  // namespace ferry::nixl
