// Sends the payloads of one lane over a comm of a plugin.
#pragma once
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "ferry/core/mapping.h"
#include "ferry/core/result.h"
#include "ferry/net/io_cursor.h"
#include "ferry/net/provider.h"
#include "ferry/tcpx/host/comm.h"
#include "ferry/tcpx/host/registered_memory.h"
#include "ferry/tcpx/host/sender.h"

namespace ferry::net::plugin {

// How payloads are cut into chunks and tagged; the same on both sides. Tags are those that users of
// GPUDirect-TCPX have: a fixed range for each payload, one payload after another, so that they
// differ for all chunks in flight.
struct ChunkTerms {
  std::uint64_t bytes = 512 * 1024;
  std::uint32_t tag_base = 0;  // at most 10^9, so that tags fit into an int

  // The tag of a chunk of a payload, both counted from 0.
  int Tag(std::uint64_t payload, std::uint64_t chunk) const noexcept {
    constexpr std::uint64_t kTags = 10'000;
    constexpr std::uint64_t kPayloads = 100'000;
    return static_cast<int>(tag_base + payload % kPayloads * kTags + chunk % kTags);
  }
};
// The time limits of Sender and Receiver are for transfers whose two sides both wait. A lane may be
// paused for any time by its user, and the engine finds out about a peer that is silent.
inline constexpr std::chrono::milliseconds kNoChunkTimeout = std::chrono::hours(24 * 365);

// One payload after the other, in order, at most SendComm::kWindow chunks in flight. What frames
// name by address is copied into slots that are registered with the comm; registered memory, of the
// host or of the GPU, is sent from where it lies. The GPU, if any, must be current for all calls.
// One thread at a time; nothing blocks, except that a plugin may take time to register memory.
// Destruction closes the comm, after which the plugin reads no memory any more.
class PayloadOut {
 public:
  // Errors: those of SendComm and of mmap(2).
  static Result<std::unique_ptr<PayloadOut>> Create(std::unique_ptr<SendComm> comm,
                                                    const ChunkTerms& chunks);
  PayloadOut(const PayloadOut&) = delete;
  PayloadOut& operator=(const PayloadOut&) = delete;

  // Queues the payload of the frame, which must stay unchanged until it is sent. Returns its
  // number, from 1.
  std::uint64_t Push(const OutFrame& frame);
  // Call repeatedly while busy(). Errors are final.
  Status Progress();
  bool busy() const noexcept { return !frames_.empty(); }
  // The plugin has sent the payloads up to this number, and reads their memory no longer.
  std::uint64_t sent_frames() const noexcept { return sent_frames_; }
  std::uint64_t sent_chunks() const noexcept { return sent_chunks_; }

 private:
  struct Frame {
    const OutFrame* frame = nullptr;
    std::uint64_t number = 0;
    std::uint64_t cut = 0;        // bytes that are in chunks
    IoCursor payload;             // what is named by address, from there on
    std::uint64_t end_chunk = 0;  // the chunk after its last one, once it is cut
  };
  // Memory that frames have named. Registered for as long as it lives, because registering GPU
  // memory is slow.
  struct Use {
    std::weak_ptr<const std::byte> life;
    std::optional<Registration> registration;  // none where the plugin has refused it
  };

  PayloadOut(std::unique_ptr<SendComm> comm, const ChunkTerms& chunks);
  Status CutSome();
  Result<Message> MessageOf(Frame* frame, std::size_t bytes);
  // Null: to be copied.
  Result<void*> RegistrationOf(const PluginMemory& memory);
  void ForgetDead();

  const ChunkTerms chunks_;
  HugeMemory slots_;
  Sender sender_;  // closes its comm after the registrations below are gone
  std::optional<Registration> slots_registration_;
  std::map<const std::byte*, Use> uses_;  // by PluginMemory::life
  std::deque<Frame> frames_;
  std::size_t cut_frames_ = 0;  // of frames_, from the first on
  std::uint64_t next_chunk_ = 0;
  std::uint64_t sent_chunks_ = 0;
  std::uint64_t pushed_frames_ = 0;
  std::uint64_t sent_frames_ = 0;
  std::vector<std::uint64_t> done_;
};

}  // namespace ferry::net::plugin
