// Sends the payloads of one lane over a comm of a plugin.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "ferry/core/mapping.h"
#include "ferry/core/result.h"
#include "ferry/net/io_cursor.h"
#include "ferry/net/provider.h"
#include "ferry/tcpx/host/comm.h"
#include "ferry/tcpx/host/registered_memory.h"
#include "ferry/tcpx/lane/chunk.h"
#include "ferry/tcpx/lane/step_log.h"

namespace ferry::tcpx {

// Sends one payload after the other over a comm, in chunks, at most SendComm::kWindow of them in
// flight. What frames name by address is copied into slots that are registered with the comm;
// registered memory, of the host or of the GPU, is sent from where it lies. The GPU, if any, must
// be current for all calls. One thread at a time; nothing blocks, except that a plugin may take
// time to register memory. Destruction closes the comm, after which the plugin reads no memory any
// more.
class PayloadOut {
 public:
  // Errors: those of SendComm and of mmap(2).
  static Result<std::unique_ptr<PayloadOut>> Create(std::unique_ptr<SendComm> comm,
                                                    const ChunkTerms& chunks);
  PayloadOut(const PayloadOut&) = delete;
  PayloadOut& operator=(const PayloadOut&) = delete;

  // Queues the payload of the frame, which must stay unchanged until it is sent. Returns its
  // number, from 1.
  std::uint64_t Push(const net::OutFrame& frame);
  // Call repeatedly while busy(): a plugin makes no progress by itself. Errors name the chunk;
  // after one this may only be destroyed.
  Status Progress();
  bool busy() const noexcept { return !frames_.empty(); }
  // The plugin has sent the payloads up to this number, and reads their memory no longer.
  std::uint64_t sent_frames() const noexcept { return sent_frames_; }
  std::uint64_t sent_chunks() const noexcept { return sent_chunks_; }
  // Those that the plugin has and has not sent.
  std::uint64_t bytes_in_flight() const noexcept { return begun_bytes_; }
  // The chunk that has been the oldest for how long, for errors; empty where there is none.
  std::string Waits() const { return reporter_.Waits(); }
  // The chunks of the payload with this number, from 1, which may have been sent.
  std::string NameOf(std::uint64_t number, std::uint64_t bytes) const {
    return reporter_.NameOfPayload(number - 1, bytes);
  }

 private:
  struct Frame {
    const net::OutFrame* frame = nullptr;
    std::uint64_t number = 0;
    std::uint64_t cut = 0;        // bytes that are in chunks
    net::IoCursor payload;        // what is named by address, from there on
    std::uint64_t end_chunk = 0;  // the chunk after its last one, once it is cut
  };
  // Memory that frames have named. Registered for as long as it lives, because registering GPU
  // memory is slow.
  struct Use {
    std::weak_ptr<const std::byte> life;
    std::optional<Registration> registration;  // none where the plugin has refused it
  };

  PayloadOut(std::unique_ptr<SendComm> comm, const ChunkTerms& chunks);
  Status Begin();
  Status Test();
  Result<Chunk> CutNext();
  Result<Message> MessageOf(Frame* frame, std::size_t bytes);
  // Null: to be copied.
  Result<void*> RegistrationOf(const PluginMemory& memory);
  void ForgetDead();

  const ChunkTerms chunks_;
  HugeMemory slots_;
  const std::unique_ptr<SendComm> comm_;  // closed after the registrations below are gone
  std::optional<Registration> slots_registration_;
  std::map<const std::byte*, Use> uses_;  // by PluginMemory::life
  std::deque<Frame> frames_;
  std::size_t cut_frames_ = 0;    // of frames_, from the first on
  std::optional<Chunk> waiting_;  // the next one, where the plugin had no capacity for it
  std::deque<Chunk> begun_;
  std::uint64_t begun_bytes_ = 0;
  std::uint64_t next_chunk_ = 0;
  std::uint64_t sent_chunks_ = 0;
  std::uint64_t pushed_frames_ = 0;
  std::uint64_t sent_frames_ = 0;
  const LoggedChunks logged_;
  ChunkReporter reporter_;
};

}  // namespace ferry::tcpx
