// Sending payloads over a comm of a plugin.
#include "ferry/net/plugin/payload_out.h"

#include <algorithm>
#include <span>
#include <utility>

#include "ferry/core/log.h"

namespace ferry::net::plugin {
namespace {

std::vector<std::unique_ptr<SendComm>> OneOf(std::unique_ptr<SendComm> comm) {
  std::vector<std::unique_ptr<SendComm>> comms;
  comms.push_back(std::move(comm));
  return comms;
}

}  // namespace

Result<std::unique_ptr<PayloadOut>> PayloadOut::Create(std::unique_ptr<SendComm> comm,
                                                       std::uint64_t chunk_bytes) {
  std::unique_ptr<PayloadOut> out(new PayloadOut(std::move(comm), chunk_bytes));
  FERRY_TRY_ASSIGN(out->slots_, MapHugePages(SendComm::kWindow * chunk_bytes));
  FERRY_TRY_ASSIGN(Registration registration,
                   out->sender_.comm(0).Register(out->slots_.bytes.data(), out->slots_.bytes.size(),
                                                 /*on_gpu=*/false));
  out->slots_registration_.emplace(std::move(registration));
  return out;
}

PayloadOut::PayloadOut(std::unique_ptr<SendComm> comm, std::uint64_t chunk_bytes)
    : chunk_bytes_(chunk_bytes), sender_(OneOf(std::move(comm)), kNoChunkTimeout) {}

std::uint64_t PayloadOut::Push(const OutFrame& frame) {
  frames_.push_back({.frame = &frame, .payload = IoCursor(frame.payload)});
  if (frame.registered.memory != nullptr) ++uses_[frame.registered.memory].frames;
  return ++pushed_frames_;
}

Status PayloadOut::Progress() {
  CutSome();
  done_.clear();
  FERRY_TRY(sender_.Progress(&done_));
  sent_chunks_ += done_.size();
  while (cut_frames_ > 0 && frames_.front().end_chunk <= sent_chunks_) {
    Forget(frames_.front());
    frames_.pop_front();
    --cut_frames_;
    ++sent_frames_;
  }
  return Ok();
}

// Chunks are done in order, so the slot of a chunk is free when fewer than the window are in
// flight.
void PayloadOut::CutSome() {
  while (cut_frames_ < frames_.size() && sender_.in_flight() < SendComm::kWindow) {
    Frame& frame = frames_[cut_frames_];
    const std::uint64_t left = frame.frame->payload_bytes - frame.cut;
    const auto bytes = static_cast<std::size_t>(std::min(left, chunk_bytes_));
    sender_.Send(0, {next_chunk_, frame.cut, MessageOf(&frame, bytes)});
    ++next_chunk_;
    frame.cut += bytes;
    if (bytes < left) continue;
    frame.end_chunk = next_chunk_;
    ++cut_frames_;
  }
}

Message PayloadOut::MessageOf(Frame* frame, std::size_t bytes) {
  const int tag = static_cast<int>(next_chunk_ % kTags);
  const auto slot = slots_.bytes.subspan(
      static_cast<std::size_t>(next_chunk_ % SendComm::kWindow * chunk_bytes_), bytes);
  const RegisteredRange& range = frame->frame->registered;
  if (range.memory == nullptr) {
    (void)frame->payload.CopyOut(slot);
    return {slot.data(), bytes, tag, slots_registration_->mr()};
  }
  const PluginMemory& memory = PluginMemoryOf(range);
  const auto part = memory.memory.subspan(range.offset + frame->cut, bytes);
  if (void* const mr = RegistrationOf(memory)) return {part.data(), bytes, tag, mr};
  std::copy(part.begin(), part.end(), slot.begin());
  return {slot.data(), bytes, tag, slots_registration_->mr()};
}

void* PayloadOut::RegistrationOf(const PluginMemory& memory) {
  Use& use = uses_.at(&memory);
  if (!std::exchange(use.tried, true)) {
    auto registered = sender_.comm(0).Register(memory.memory.data(), memory.memory.size(),
                                               /*on_gpu=*/false);
    if (registered) {
      use.registration.emplace(*std::move(registered));
    } else {
      Log(LogLevel::kDebug, "plugin", "memory is copied, because it cannot be registered: {}",
          registered.error().message());
    }
  }
  return use.registration ? use.registration->mr() : nullptr;
}

// The user may destroy registered memory as soon as no frame names it.
void PayloadOut::Forget(const Frame& frame) {
  const RegisteredMemory* const memory = frame.frame->registered.memory;
  if (memory == nullptr) return;
  const auto use = uses_.find(memory);
  if (--use->second.frames == 0) uses_.erase(use);
}

}  // namespace ferry::net::plugin
