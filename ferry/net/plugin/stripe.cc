// Cuts messages into chunks and distributes them over channels.
#include "ferry/net/plugin/stripe.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "ferry/core/check.h"

namespace ferry::net::plugin {
namespace {

constexpr std::chrono::seconds kCopiesEnd{60};

// Numbered as users of GPUDirect-TCPX do: a fixed range of tags for each message, one message after
// another.
constexpr std::uint64_t kTagsOfMessage = kMaxChunksOfMessage;
constexpr std::uint64_t kTaggedMessages = 100'000;

int DeviceOf(const Plugin& plugin, std::size_t channel) {
  // Channels in turn over the interfaces; both sides compute the same, so nothing is negotiated.
  return static_cast<int>(channel % plugin.nics().size());
}

Chunk In(const StripeMemory& memory, const Registration& registration, Chunk chunk) {
  chunk.message.data = memory.bytes.data() + chunk.offset;
  chunk.message.mr = registration.mr();
  return chunk;
}

}  // namespace

Status CheckOptions(const StripeOptions& options) {
  if (options.channels == 0 || options.channels > kMaxChannels) {
    return Error(Code::kInvalidArgument, fmt::format("{} channels cannot be used; give 1 to {}",
                                                     options.channels, kMaxChannels));
  }
  if (options.chunk_bytes == 0 || options.chunk_bytes > kMaxChunkBytes) {
    return Error(Code::kInvalidArgument,
                 fmt::format("chunks of {} bytes cannot be used; give 1 to {}", options.chunk_bytes,
                             kMaxChunkBytes));
  }
  return Ok();
}

// ---- chunks -------------------------------------------------------------------------------------

std::vector<Chunk> ChunkCount::Cut(std::uint64_t offset, std::uint64_t bytes) {
  const std::uint64_t message = begun_++;
  // An empty message is one empty chunk.
  const std::uint64_t count =
      std::max<std::uint64_t>((bytes + options_.chunk_bytes - 1) / options_.chunk_bytes, 1);
  // Ids are consecutive, so a chunk's message is found by its id, and the channel by id modulo
  // channels.
  open_.push_back({next_id_, count, count});
  std::vector<Chunk> chunks;
  chunks.reserve(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t at = i * options_.chunk_bytes;
    Chunk chunk;
    chunk.id = next_id_++;
    chunk.offset = offset + at;
    chunk.message.bytes = std::min(options_.chunk_bytes, bytes - at);
    chunk.message.tag =
        static_cast<int>(message % kTaggedMessages * kTagsOfMessage + i % kTagsOfMessage);
    chunks.push_back(chunk);
  }
  return chunks;
}

void ChunkCount::Done(std::span<const std::uint64_t> ids) {
  for (const std::uint64_t id : ids) {
    const auto after = std::upper_bound(
        open_.begin(), open_.end(), id,
        [](std::uint64_t wanted, const Open& message) { return wanted < message.first; });
    FERRY_CHECK(after != open_.begin(), id);
    --std::prev(after)->left;
  }
  // Messages are reported as done in their order only, as done() promises.
  while (!open_.empty() && open_.front().left == 0) open_.pop_front();
}

// ---- the sending side ---------------------------------------------------------------------------

Result<std::unique_ptr<OutStripe>> OutStripe::Connect(Plugin* plugin,
                                                      std::span<const Handle> handles,
                                                      const StripeMemory& memory,
                                                      const StripeOptions& options,
                                                      Deadline deadline) {
  FERRY_TRY(CheckOptions(options));
  if (handles.size() != options.channels) {
    return Error(Code::kInvalidArgument,
                 fmt::format("the other side has {} channels, and this one {}; give both the same",
                             handles.size(), options.channels));
  }
  std::unique_ptr<OutStripe> stripe(new OutStripe(memory, options));
  std::vector<std::unique_ptr<SendComm>> comms;
  for (std::size_t i = 0; i < handles.size(); ++i) {
    // One after another: the other side accepts in the same order (InStripe::Accept).
    Connecting connecting(plugin, DeviceOf(*plugin, i), handles[i]);
    FERRY_TRY_ASSIGN(auto comm, connecting.Connect(deadline));
    comms.push_back(std::move(comm));
  }
  stripe->sender_ = std::make_unique<Sender>(std::move(comms), options.chunk_timeout);
  for (std::size_t i = 0; i < handles.size(); ++i) {
    FERRY_TRY_ASSIGN(auto registered, stripe->sender_->comm(i).Register(
                                          memory.bytes.data(), memory.bytes.size(), memory.on_gpu));
    stripe->registrations_.push_back(std::move(registered));
  }
  return stripe;
}

void OutStripe::Send(std::uint64_t offset, std::uint64_t bytes) {
  FERRY_CHECK(offset <= memory_.bytes.size() && bytes <= memory_.bytes.size() - offset, offset,
              bytes);
  for (const Chunk& chunk : count_.Cut(offset, bytes)) {
    const std::size_t channel = count_.ChannelOf(chunk);
    sender_->Send(channel, In(memory_, registrations_[channel], chunk));
  }
}

Status OutStripe::Progress() {
  done_.clear();
  FERRY_TRY(sender_->Progress(&done_));
  count_.Done(done_);
  return Ok();
}

// ---- the receiving side -------------------------------------------------------------------------

Result<std::unique_ptr<InStripe>> InStripe::Listen(Plugin* plugin, const StripeOptions& options) {
  FERRY_TRY(CheckOptions(options));
  std::unique_ptr<InStripe> stripe(new InStripe(options));
  for (std::size_t i = 0; i < options.channels; ++i) {
    FERRY_TRY_ASSIGN(auto listening, Listening::Open(plugin, DeviceOf(*plugin, i)));
    stripe->listening_.push_back(std::move(listening));
  }
  return stripe;
}

// Copies that are queued read the pool and write the caller's memory.
InStripe::~InStripe() { (void)Drain(Deadline::After(kCopiesEnd)); }

std::vector<Handle> InStripe::handles() const {
  std::vector<Handle> handles;
  handles.reserve(listening_.size());
  for (const auto& listening : listening_) handles.push_back(listening->handle());
  return handles;
}

Status InStripe::Accept(cuda::DeviceApi* api, Unpacker* unpacker, const StripeMemory& memory,
                        Deadline deadline) {
  memory_ = memory;
  std::vector<std::unique_ptr<ReceiveComm>> comms;
  for (const auto& listening : listening_) {
    FERRY_TRY_ASSIGN(auto comm, listening->Accept(deadline));
    comms.push_back(std::move(comm));
  }
  listening_.clear();
  ReceiverOptions options;
  options.chunk_timeout = options_.chunk_timeout;
  options.watcher = watcher_;
  FERRY_TRY_ASSIGN(receiver_, Receiver::Create(api, unpacker, std::move(comms), options, deadline));
  for (std::size_t i = 0; i < options_.channels; ++i) {
    FERRY_TRY_ASSIGN(auto registered,
                     receiver_->comm(i).Register(memory.bytes.data(), memory.bytes.size(),
                                                 /*on_gpu=*/true));
    registrations_.push_back(std::move(registered));
  }
  return Ok();
}

void InStripe::Receive(std::uint64_t offset, std::uint64_t bytes) {
  FERRY_CHECK(offset <= memory_.bytes.size() && bytes <= memory_.bytes.size() - offset, offset,
              bytes);
  for (const Chunk& chunk : count_.Cut(offset, bytes)) {
    const std::size_t channel = count_.ChannelOf(chunk);
    ChunkPlace place{Place::OnDevice(memory_.bytes.data()), {}};
    // An empty message has no runs: a run of 0 bytes would be an empty block.
    if (chunk.message.bytes > 0) place.runs.push_back({chunk.offset, chunk.message.bytes});
    receiver_->Receive(channel, In(memory_, registrations_[channel], chunk), std::move(place));
  }
}

Status InStripe::Progress() {
  done_.clear();
  FERRY_TRY(receiver_->Progress(&done_));
  count_.Done(done_);
  return Ok();
}

}  // namespace ferry::net::plugin
