// Implements GPU memory with pinned host memory beside it.

#include "tools/support/gpu_mirror.h"

#include <memory>
#include <utility>

namespace ferry::tools {
namespace {

constexpr std::size_t kPage = 4096;
constexpr auto kCopyTimeout = std::chrono::seconds(60);

}  // namespace

Result<GpuMirror> GpuMirror::Allocate(MemoryChoice choice, std::uint64_t bytes,
                                      const Config& config) {
  GpuMirror mirror;
  FERRY_TRY_ASSIGN(mirror.api_, choice.Open(config));
  FERRY_TRY_ASSIGN(mirror.device_, mirror.api_->AllocateDevice(choice.ordinal, bytes + kPage - 1));
  FERRY_TRY_ASSIGN(mirror.host_, HostBuffer::Allocate(bytes));
  FERRY_TRY_ASSIGN(mirror.pinned_,
                   mirror.api_->RegisterHost(choice.ordinal, mirror.host().data(), bytes));
  FERRY_TRY_ASSIGN(mirror.stream_,
                   mirror.api_->CreateStream(choice.ordinal, cuda::StreamPriority::kNormal));
  return mirror;
}

GpuMirror& GpuMirror::operator=(GpuMirror&& other) noexcept {
  api_ = other.api_;
  stream_ = std::move(other.stream_);
  device_ = std::move(other.device_);
  pinned_ = std::move(other.pinned_);  // before the memory that it pins
  host_ = std::move(other.host_);
  return *this;
}

std::span<std::byte> GpuMirror::device() const noexcept {
  if (!device_) return {};
  void* begin = device_.data();
  std::size_t room = device_.size();
  (void)std::align(kPage, host().size(), begin, room);
  return {static_cast<std::byte*>(begin), host().size()};
}

Status GpuMirror::Move(cuda::CopyKind kind, std::uint64_t at, std::uint64_t bytes) {
  const bool up = kind == cuda::CopyKind::kHostToDevice;
  void* const there = device().subspan(at, bytes).data();
  void* const here = host().subspan(at, bytes).data();
  const cuda::CopyItem item{up ? there : here, up ? here : there, bytes};
  FERRY_TRY(api_->Copy(stream_, kind, {&item, 1}));
  return api_->Wait(stream_, Deadline::After(kCopyTimeout));
}

}  // namespace ferry::tools
