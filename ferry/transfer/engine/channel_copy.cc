// Slices that the region's owner copies between GPUs of one machine, without the socket.
#include <fmt/core.h>

#include <utility>

#include "ferry/cuda/address.h"
#include "ferry/transfer/engine/lane_engine.h"
#include "ferry/transfer/gpu/gpu_sharing.h"

// Slices between GPU memory on one machine: the frame describes the copy, and the owner of the
// region performs it. The frame counts as processed once the bytes are in place, in either
// direction, so acknowledgements, refusals, cancelling and lost lanes work as for writes.
namespace ferry::transfer {
namespace {

using net::Placement;

// Limits per lane, of copies in flight. A peer of this release has fewer bytes in flight: the limit
// only bounds what another peer can make us hold, and for how long it can occupy the GPU.
constexpr std::size_t kMaxLandings = 256;
constexpr std::size_t kMaxCopiedBlocks = 4 * wire::kMaxCopiesPerFrame;
constexpr std::uint64_t kMaxCopied = 4 * wire::kMaxCopyBytes;

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

void LaneEngine::SendCopy(const OperationRef& operation, std::uint32_t slice) {
  Frame* const frame = NewFrame(wire::Type::kCopy, operation->id);
  AppendCopy(*operation->plan, slice, &frame->meta);
  frame->sequenced = true;
  unacked_.push_back({operation, 0, slice});
  unacked_.back().copied = operation->plan->slices[slice].range.bytes;
  copying_bytes_ += unacked_.back().copied;
  SendFrame(frame);
}

Result<Placement> LaneEngine::OnCopy(const wire::MessageHeader& header, wire::MetaReader* reader) {
  wire::CopyBody body;
  if (!reader->Read(&body) || body.into > 1 || body.blocks == 0 ||
      reader->rest().size() != body.blocks * sizeof(wire::CopyOnWire)) {
    return Malformed("copy");
  }
  if (landings_.size() >= kMaxLandings || copied_here_bytes_ >= kMaxCopied ||
      copied_here_blocks_ >= kMaxCopiedBlocks) {
    waits_for_copies_ = true;
    return Placement{Placement::Action::kPause, {}};
  }
  const bool into = body.into == 1;
  auto region = context_.regions->Open(body.key, into ? Rights::kWrite : Rights::kRead, accessor());
  if (!region) return RefuseSequenced(header.operation, region.error(), 0);
  Stager* const stager = region->get()->stager;
  auto peer = context_.sharing->Find(body.share);
  if (peer == nullptr || stager == nullptr || stager->ordinal() != peer->gpu()) {
    return RefuseSequenced(
        header.operation,
        Error(Code::kRefused,
              fmt::format("share {} is not mapped for the GPU of region {}; prepare "
                          "the transfer anew",
                          body.share, region->get()->id)),
        0);
  }
  const auto copy = std::make_shared<StagedCopy>();  // shared with the stager
  std::uint64_t bytes = 0;
  auto blocks = PlaceCopies(*region->get(), *peer, into, reader->rest(), &bytes);
  if (blocks && !peer->Keep(&copy->region_owner)) {
    blocks = Error(Code::kRefused, "the memory that was shared is deregistered");
  }
  if (!blocks) return RefuseSequenced(header.operation, blocks.error(), 0);
  copy->pin = *std::move(region);
  copy->peer = std::move(peer);
  landings_.push_back({0, header.operation, nullptr, copy, bytes, body.blocks});
  copied_here_bytes_ += bytes;
  copied_here_blocks_ += body.blocks;
  // If this process was stopped and resumes, it must not write into memory that the peer has given
  // up in the meantime.
  const auto begin_by = Clock::now() + context_.config->drain_grace;
  BeginMove(stager, copy, *std::move(blocks), begin_by, TellOfCopies());
  return Placement{};
}

Result<Placement> LaneEngine::OnSharing(const wire::MessageHeader& header,
                                        wire::MetaReader* reader) {
  if (index_ != 0) return Malformed("a share on a lane other than the first");
  const Status taken = context_.sharing->OnSharingFrame(header, reader);
  if (!taken) return Malformed(taken.error().message().c_str());
  FinishedFrame(0);
  return Placement{};
}

}  // namespace ferry::transfer
