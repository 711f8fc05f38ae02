// Scatters messages over a pool in GPU memory, and checks what was unpacked.
#include "tools/bench/unpack/unpack_bed.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "ferry/core/deadline.h"

namespace ferry::tools {
namespace {

using cuda::CopyKind;

constexpr auto kMoveTimeout = std::chrono::seconds(60);
constexpr int kOldContents = 0xE5;

}  // namespace

Result<std::unique_ptr<UnpackBed>> UnpackBed::Create(cuda::DeviceApi* api, const BenchJob& job,
                                                     std::uint64_t message_bytes,
                                                     std::uint64_t fragment_bytes,
                                                     FragmentOrder order) {
  std::unique_ptr<UnpackBed> bed(new UnpackBed(api, job));
  std::mt19937_64 random(fragment_bytes);
  bed->Scatter(message_bytes, fragment_bytes, order, &random);
  const std::uint64_t count = (job.bytes + fragment_bytes - 1) / fragment_bytes;
  FERRY_TRY(bed->MakeMemory(count * fragment_bytes, &random));
  return bed;
}

void UnpackBed::Scatter(std::uint64_t message_bytes, std::uint64_t fragment_bytes,
                        FragmentOrder order, std::mt19937_64* random) {
  std::vector<std::uint64_t> places((job_.bytes + fragment_bytes - 1) / fragment_bytes);
  std::iota(places.begin(), places.end(), 0);
  std::shuffle(places.begin(), places.end(), *random);
  auto place = places.begin();
  for (std::uint64_t offset = 0; offset < job_.bytes; offset += message_bytes) {
    PooledMessage message;
    message.run = {offset, std::min(message_bytes, job_.bytes - offset)};
    for (std::uint64_t dst = 0; dst < message.run.bytes; dst += fragment_bytes) {
      message.fragments.push_back(
          {static_cast<std::uint32_t>(*place++ * fragment_bytes),
           static_cast<std::uint32_t>(std::min(fragment_bytes, message.run.bytes - dst)), dst});
    }
    if (order == FragmentOrder::kShuffled) {
      std::shuffle(message.fragments.begin(), message.fragments.end(), *random);
    }
    messages_.push_back(std::move(message));
  }
}

Status UnpackBed::MakeMemory(std::uint64_t pool_bytes, std::mt19937_64* random) {
  FERRY_TRY_ASSIGN(stream_, api_->CreateStream(job_.ordinal, cuda::StreamPriority::kNormal));
  FERRY_TRY_ASSIGN(pool_, api_->AllocateDevice(job_.ordinal, pool_bytes));
  FERRY_TRY_ASSIGN(target_, api_->AllocateDevice(job_.ordinal, job_.bytes));
  FERRY_TRY_ASSIGN(host_, api_->AllocatePinned(job_.ordinal, pool_bytes));
  source_.resize(pool_bytes);
  for (std::byte& byte : source_) byte = static_cast<std::byte>((*random)());
  std::memcpy(host_.data(), source_.data(), pool_bytes);
  return Move(CopyKind::kHostToDevice, pool_.data(), host_.data(), pool_bytes);
}

Status UnpackBed::Move(CopyKind kind, void* dst, const void* src, std::uint64_t bytes) {
  const cuda::CopyItem item{dst, src, bytes};
  FERRY_TRY(api_->Copy(stream_, kind, {&item, 1}));
  return api_->Wait(stream_, Deadline::After(kMoveTimeout));
}

Status UnpackBed::Read(PooledMessage* message) {
  message->blocks.clear();
  return reader_.Read(message->fragments, ReceiveOf(*message), &message->blocks);
}

Result<std::vector<PlacedList>> UnpackBed::ReadAll() {
  std::vector<PlacedList> lists;
  for (PooledMessage& message : messages_) {
    FERRY_TRY(Read(&message));
    lists.push_back(ListOf(message));
  }
  return lists;
}

Status UnpackBed::Spoil() {
  std::memset(host_.data(), kOldContents, job_.bytes);
  return Move(CopyKind::kHostToDevice, target_.data(), host_.data(), job_.bytes);
}

Result<bool> UnpackBed::IsUnpacked() {
  std::memset(host_.data(), kOldContents, job_.bytes);
  FERRY_TRY(Move(CopyKind::kDeviceToHost, host_.data(), target_.data(), job_.bytes));
  for (const PooledMessage& message : messages_) {
    const std::byte* const begin = host_.bytes().data() + message.run.offset;
    for (const tcpx::Fragment& fragment : message.fragments) {
      if (std::memcmp(begin + fragment.dst, source_.data() + fragment.src, fragment.len) != 0) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace ferry::tools
