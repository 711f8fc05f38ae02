// Slices that the region's owner copies between GPUs of one machine, without the socket.
#include <fmt/core.h>

#include <memory>
#include <utility>
#include <vector>

#include "ferry/cuda/address.h"
#include "ferry/transfer/gpu/gpu_sharing.h"
#include "ferry/transfer/lane/frame_receiver.h"

// The frame describes the copy, and the owner of the region performs it. The frame counts as
// processed once the bytes are in place, in either direction, so acknowledgements, refusals,
// cancelling and lost lanes work as for writes.
namespace ferry::transfer {
namespace {

// Checks the blocks (CopyOnWire[]) against both memories, and adds up their lengths. Errors:
// kRefused for a block outside, kCorrupt for more bytes than one frame may request.
Result<std::vector<Block>> PlaceCopies(const RegionState& region, const PeerMemory& peer, bool into,
                                       std::span<const std::byte> blocks, std::uint64_t* bytes) {
  std::vector<Block> placed;
  placed.reserve(blocks.size() / sizeof(wire::CopyOnWire));
  wire::MetaReader reader(blocks);
  std::uint64_t left = wire::kMaxCopyBytes;
  const std::uint64_t size = region.memory.size();
  const std::uint64_t base = cuda::AddressOf(region.memory.data());
  for (wire::CopyOnWire block; reader.Read(&block);) {
    if (block.length > size || block.offset > size - block.length) {
      return BlockOutside(region, placed.size(), block.offset, block.length);
    }
    if (block.length > peer.bytes() || block.shared > peer.bytes() - block.length) {
      return Error(Code::kRefused,
                   fmt::format("block {} covers {} bytes from offset {} of the memory that was "
                               "shared for it, which has {} bytes",
                               placed.size(), block.length, block.shared, peer.bytes()));
    }
    if (block.length == 0 || block.length > left) {
      return Error(Code::kCorrupt, "a copy of no bytes, or of more than one frame may request");
    }
    left -= block.length;
    const std::uint64_t here = base + block.offset;
    const std::uint64_t there = peer.address() + block.shared;
    placed.push_back({into ? here : there, into ? there : here, block.length});
  }
  *bytes = wire::kMaxCopyBytes - left;
  return placed;
}

}  // namespace

Result<net::Placement> FrameReceiver::OnCopy(wire::MetaReader* reader) {
  wire::CopyBody body;
  if (!reader->Read(&body) || body.into > 1 || body.blocks == 0 ||
      reader->rest().size() != body.blocks * sizeof(wire::CopyOnWire)) {
    return MalformedFrame(site_, "copy");
  }
  if (!inbox_->MayCopy()) return Pause(Wait::kCopies);
  const bool into = body.into == 1;
  auto region = site_.context.regions->Open(body.key, into ? Rights::kWrite : Rights::kRead,
                                            site_.accessor());
  if (!region) return Refuse(region.error());
  Stager* const stager = region->get()->stager;
  auto peer = site_.context.sharing->Find(body.share);
  if (peer == nullptr || stager == nullptr || stager->ordinal() != peer->gpu()) {
    return Refuse(Error(Code::kRefused,
                        fmt::format("share {} is not mapped for the GPU of region {}; prepare "
                                    "the transfer anew",
                                    body.share, region->get()->id)));
  }
  const auto copy = std::make_shared<StagedCopy>();  // shared with the stager
  std::uint64_t bytes = 0;
  auto blocks = PlaceCopies(*region->get(), *peer, into, reader->rest(), &bytes);
  if (blocks && !peer->Keep(&copy->region_owner)) {
    blocks = Error(Code::kRefused, "the memory that was shared is deregistered");
  }
  if (!blocks) return Refuse(blocks.error());
  copy->pin = *std::move(region);
  copy->peer = std::move(peer);
  inbox_->AddCopy({.bytes = 0,
                   .operation = arrival_.operation,
                   .read = nullptr,
                   .copy = copy,
                   .copied = bytes,
                   .blocks = body.blocks});
  // If this process was stopped and resumes, it must not write into memory that the peer has given
  // up in the meantime.
  const auto begin_by = Clock::now() + site_.context.config->drain_grace;
  BeginMove(stager, copy, *std::move(blocks), begin_by, events_->WhenCopied());
  return net::Placement{};
}

}  // namespace ferry::transfer
