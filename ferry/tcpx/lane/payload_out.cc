// Sending payloads over a comm of a plugin.
#include "ferry/tcpx/lane/payload_out.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "ferry/core/log.h"
#include "ferry/cuda/profile_range.h"

namespace ferry::tcpx {
Result<std::unique_ptr<PayloadOut>> PayloadOut::Create(std::unique_ptr<SendComm> comm,
                                                       const ChunkTerms& chunks) {
  std::unique_ptr<PayloadOut> out(new PayloadOut(std::move(comm), chunks));
  FERRY_TRY_ASSIGN(out->slots_, MapHugePages(SendComm::kWindow * chunks.bytes));
  FERRY_TRY_ASSIGN(Registration registration,
                   out->comm_->Register(out->slots_.bytes.data(), out->slots_.bytes.size(),
                                        /*on_gpu=*/false));
  out->slots_registration_.emplace(std::move(registration));
  Log(LogLevel::kInfo, "plugin", "registered {} bytes of host memory to send from",
      out->slots_.bytes.size());
  return out;
}

PayloadOut::PayloadOut(std::unique_ptr<SendComm> comm, const ChunkTerms& chunks)
    : chunks_(chunks),
      comm_(std::move(comm)),
      // At level info, because the user of the peer's lane may have paused it.
      reporter_("sending", LogLevel::kInfo, comm_->device(), chunks) {}

std::uint64_t PayloadOut::Push(const net::OutFrame& frame) {
  frames_.push_back(
      {.frame = &frame, .number = pushed_frames_, .payload = net::IoCursor(frame.payload)});
  return ++pushed_frames_;
}

Status PayloadOut::Progress() {
  FERRY_TRY(Begin());
  FERRY_TRY(Test());
  while (cut_frames_ > 0 && frames_.front().end_chunk <= sent_chunks_) {
    frames_.pop_front();
    --cut_frames_;
    ++sent_frames_;
  }
  if (begun_.empty() && !waiting_) reporter_.AwaitNothing();
  ForgetDead();
  return Ok();
}

Status PayloadOut::Begin() {
  while (comm_->room() > 0) {
    if (!waiting_) {
      if (cut_frames_ == frames_.size()) break;
      FERRY_TRY_ASSIGN(waiting_, CutNext());
    }
    const cuda::ProfileRange range("isend");
    auto begun = comm_->Send(waiting_->message);
    if (!begun) return reporter_.Named(*waiting_, begun.error());
    if (!*begun) {
      if (begun_.empty()) reporter_.Await(*waiting_, "the plugin has not begun to send it", 0);
      break;
    }
    if (logged_.Have(*waiting_)) {
      const Message& message = waiting_->message;
      Log(LogLevel::kInfo, "plugin", "sending {} bytes with tag {}: {}", message.bytes, message.tag,
          reporter_.NameOf(*waiting_));
    }
    begun_bytes_ += waiting_->message.bytes;
    begun_.push_back(*waiting_);
    waiting_.reset();
  }
  return Ok();
}

Status PayloadOut::Test() {
  while (!begun_.empty()) {
    const Chunk& oldest = begun_.front();
    auto sent = comm_->Test();
    if (!sent) return reporter_.Named(oldest, sent.error());
    if (!*sent) {
      reporter_.Await(oldest, "it has not left", begun_.size());
      break;
    }
    if (logged_.Have(oldest)) {
      Log(LogLevel::kInfo, "plugin", "send completed: {}", reporter_.NameOf(oldest));
    }
    begun_bytes_ -= oldest.message.bytes;
    begun_.pop_front();
    ++sent_chunks_;
  }
  return Ok();
}

// The slot of the next chunk is free: the comm has room, so fewer chunks than the window are in
// flight, and they are done in order.
Result<Chunk> PayloadOut::CutNext() {
  Frame& frame = frames_[cut_frames_];
  const std::uint64_t left = frame.frame->payload_bytes - frame.cut;
  const auto bytes = static_cast<std::size_t>(std::min(left, chunks_.bytes));
  FERRY_TRY_ASSIGN(const Message message, MessageOf(&frame, bytes));
  const Chunk chunk{next_chunk_++, frame.number, frame.cut / chunks_.bytes, frame.cut, message};
  frame.cut += bytes;
  if (bytes == left) {
    frame.end_chunk = next_chunk_;
    ++cut_frames_;
  }
  return chunk;
}

Result<Message> PayloadOut::MessageOf(Frame* frame, std::size_t bytes) {
  const int tag = chunks_.Tag(frame->number, frame->cut / chunks_.bytes);
  const auto slot = slots_.bytes.subspan(
      static_cast<std::size_t>(next_chunk_ % SendComm::kWindow * chunks_.bytes), bytes);
  const net::RegisteredRange& range = frame->frame->registered;
  if (range.memory == nullptr) {
    (void)frame->payload.CopyOut(slot);
    return Message{slot.data(), bytes, tag, slots_registration_->mr()};
  }
  const PluginMemory& memory = PluginMemoryOf(range);
  const auto part = memory.memory.subspan(range.offset + frame->cut, bytes);
  FERRY_TRY_ASSIGN(void* const mr, RegistrationOf(memory));
  if (mr != nullptr) return Message{part.data(), bytes, tag, mr};
  std::copy(part.begin(), part.end(), slot.begin());
  return Message{slot.data(), bytes, tag, slots_registration_->mr()};
}

Result<void*> PayloadOut::RegistrationOf(const PluginMemory& memory) {
  const auto [found, is_new] = uses_.try_emplace(memory.life.get());
  Use& use = found->second;
  if (is_new) {
    use.life = memory.life;
    auto registered = comm_->Register(memory.memory.data(), memory.memory.size(), memory.on_gpu);
    if (registered) {
      use.registration.emplace(*std::move(registered));
      Log(LogLevel::kInfo, "plugin", "registered {} bytes of {} memory to send from",
          memory.memory.size(), memory.on_gpu ? "GPU" : "host");
    } else if (memory.on_gpu) {
      return registered.error();  // the CPU cannot copy it
    } else {
      Log(LogLevel::kDebug, "plugin", "memory is copied, because it cannot be registered: {}",
          registered.error().message());
    }
  }
  return use.registration ? use.registration->mr() : nullptr;
}

// No frame names such memory.
void PayloadOut::ForgetDead() {
  for (auto use = uses_.begin(); use != uses_.end();) {
    use = use->second.life.expired() ? uses_.erase(use) : std::next(use);
  }
}

}  // namespace ferry::tcpx
