// Fragmented messages in GPU memory, for the benchmarks of `ferry copy-bench --unpack`.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "ferry/copy/device_executor.h"
#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"
#include "ferry/tcpx/unpack/fragments.h"
#include "tools/bench/unpack/unpack.h"

namespace ferry::tools {

// A message in the pool, and what an unpacker is told of it.
struct PooledMessage {
  std::vector<tcpx::Fragment> fragments;
  tcpx::PostedRun run;
  std::vector<Block> blocks;  // of the last Read()
};

// The order of a message's fragments. Packets arrive in any.
enum class FragmentOrder : unsigned char { kOfMessage, kShuffled };

// Messages whose fragments lie in random places of a pool, and the memory to which they are
// unpacked. Places and orders are the same in every run, so that results can be compared.
class UnpackBed {
 public:
  // job.bytes in messages of `message_bytes`, a multiple of `fragment_bytes`; the last message may
  // be shorter. Blocks until the pool is filled. Errors: those of DeviceApi.
  static Result<std::unique_ptr<UnpackBed>> Create(cuda::DeviceApi* api, const BenchJob& job,
                                                   std::uint64_t message_bytes,
                                                   std::uint64_t fragment_bytes,
                                                   FragmentOrder order = FragmentOrder::kShuffled);

  std::vector<PooledMessage>& messages() noexcept { return messages_; }
  tcpx::PostedReceive ReceiveOf(const PooledMessage& message) const noexcept {
    return {pool_.size(), message.run.bytes, {&message.run, 1}};
  }
  // With the blocks of the last Read().
  PlacedList ListOf(const PooledMessage& message) const noexcept {
    return {message.blocks, Place::OnDevice(target_.data()), Place::OnDevice(pool_.data())};
  }
  // Makes blocks of the message's fragments.
  Status Read(PooledMessage* message);
  // Reads every message; returns the list of each.
  Result<std::vector<PlacedList>> ReadAll();

  // Overwrites the destinations, so that old contents are not taken for unpacked bytes.
  Status Spoil();
  // Whether all fragments of all messages are in place.
  Result<bool> IsUnpacked();

 private:
  UnpackBed(cuda::DeviceApi* api, const BenchJob& job) : api_(api), job_(job) {}
  void Scatter(std::uint64_t message_bytes, std::uint64_t fragment_bytes, FragmentOrder order,
               std::mt19937_64* random);
  Status MakeMemory(std::uint64_t pool_bytes, std::mt19937_64* random);
  Status Move(cuda::CopyKind kind, void* dst, const void* src, std::uint64_t bytes);

  cuda::DeviceApi* const api_;
  const BenchJob job_;
  std::vector<PooledMessage> messages_;
  tcpx::FragmentReader reader_;
  std::vector<std::byte> source_;  // what the pool holds
  cuda::Stream stream_;
  cuda::DeviceBuffer pool_;
  cuda::DeviceBuffer target_;
  cuda::PinnedBuffer host_;
};

}  // namespace ferry::tools
