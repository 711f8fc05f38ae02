// Receives the payloads of one lane over a comm of a plugin.
#pragma once
#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"
#include "ferry/net/io_cursor.h"
#include "ferry/tcpx/host/comm.h"
#include "ferry/tcpx/host/receiver.h"
#include "ferry/tcpx/lane/lane_buffers.h"
#include "ferry/tcpx/lane/lane_gpu.h"
#include "ferry/tcpx/lane/payload_out.h"
#include "ferry/tcpx/uccl_variables.h"

namespace ferry::net::plugin {

// One payload after the other, at most ReceiveComm::kWindow chunks posted. The plugin never has the
// address of a placement: it receives into its pool or, where it receives straight into memory,
// into slots of this object, which live until the comm is closed. From there this side copies: the
// GPU, if there is one, all chunks that have come in one launch, straight to the placement in its
// memory; a placement in host memory gets what the GPU does not reach from slots. So when
// DropRest() or the destructor returns, nothing touches the placement, although receives of a
// plugin cannot be cancelled. One thread at a time, with the GPU current; only DropRest() and the
// destructor block, until copies in flight have ended, for kCopyTimeout at most. After a wait that
// was not long enough no call waits until the GPU has ended those copies.
//
// A GPU that has not ended its copies by then is stuck, and an error is logged. Should it go on, it
// still writes what has come to the placement: the user must not use the placement before the GPU
// is idle or lost. What the copies read stays as it is, if the object goes by End().
class PayloadIn {
 public:
  // A GPU that has not copied what has come by then is considered stuck.
  static constexpr std::chrono::seconds kCopyTimeout{10};
  // Where a payload goes.
  struct Target {
    std::span<const iovec> memory;  // empty: the payload is dropped
    bool gpu = false;
  };

  // `api` may be null; `gpu` may be none. Errors: those of Receiver::Create(), of mmap(2) and of
  // DeviceApi; kUnsupported for a plugin that receives into GPU memory where there is no GPU.
  static Result<std::unique_ptr<PayloadIn>> Create(cuda::DeviceApi* api, const LaneGpu& gpu,
                                                   std::unique_ptr<ReceiveComm> comm,
                                                   const ChunkTerms& chunks);
  ~PayloadIn();
  // Destroys it. If the GPU is stuck, everything is kept open until its copies have ended and
  // another lane begins or ends, or the provider is destroyed; after that, for the life of the
  // process.
  static void End(std::unique_ptr<PayloadIn> in);
  PayloadIn(const PayloadIn&) = delete;
  PayloadIn& operator=(const PayloadIn&) = delete;

  // To be held during calls of the plugin, this object's and others, on this thread, whose own
  // device is current again afterwards. An error is ignored: a lost GPU ends what needs it, and not
  // what is in host memory.
  [[nodiscard]] cuda::CurrentDevice MakeGpuCurrent() const {
    auto current = gpu_.MakeCurrent();
    return current ? *std::move(current) : cuda::CurrentDevice();
  }
  // The next payload has this size and goes to the target, whose array and memory must stay valid
  // until it is in place or DropRest(). Not while busy(). Receives nothing yet. Errors:
  // kUnsupported for a target in GPU memory without a GPU.
  Status Begin(std::uint64_t bytes, const Target& target);
  // The same for a payload of at most a chunk that has come by other means.
  Status BeginCopy(std::span<const std::byte> payload, const Target& target);
  // The rest of the payload is received, but dropped.
  void DropRest();
  // Call repeatedly while busy(). Errors are final.
  Status Progress();
  bool busy() const noexcept { return left_ > 0; }
  // Bytes that are in place or dropped, since the creation.
  std::uint64_t received_bytes() const noexcept { return received_bytes_; }
  // Shared with the facts about the lane, which outlive it.
  std::shared_ptr<const LaunchCounts> launches() const { return launches_; }

 private:
  // How the wait for copies ended the last time.
  enum class Copies : std::uint8_t {
    kEnd,
    kStuck,   // some had not ended in time
    kFailed,  // the GPU is lost: there is nothing to wait for, and it was logged
  };

  PayloadIn(const LaneGpu& gpu, const ChunkTerms& chunks) : gpu_(gpu), chunks_(chunks) {}
  Status Init(cuda::DeviceApi* api, std::unique_ptr<ReceiveComm> comm);
  Status RegisterSlots();
  void PostSome();
  ChunkPlace TakePlace(std::size_t bytes);
  std::vector<PostedRun> TakeRuns(std::size_t bytes, std::uint64_t* lowest);
  void AwaitCopies();
  void CheckStuck();
  std::uint64_t SlotOf(std::uint64_t chunk) const {
    return chunk % ReceiveComm::kWindow * chunks_.bytes;
  }
  void CopyToHost(std::size_t bytes);
  void CountLaunches();
  void FinishPayload();
  Unpacker& unpacker() const noexcept { return *buffers_->unpacker; }

  const LaneGpu gpu_;
  const ChunkTerms chunks_;
  const bool logs_host_payloads_ = ReadUcclLogSwitches().each_host_payload;
  bool straight_ = false;
  Copies copies_ = Copies::kEnd;
  std::unique_ptr<LaneBuffers> buffers_;
  std::unique_ptr<Receiver> receiver_;  // closes its comm after the registrations below are gone
  std::optional<Registration> registration_;
  std::optional<Registration> gpu_registration_;
  std::uint64_t next_chunk_ = 0;
  std::uint64_t done_chunks_ = 0;
  std::uint64_t payload_ = 0;  // its number, over the comm
  // The current payload.
  std::span<const std::byte> host_begin_;  // for the log; empty for GPU memory
  IoCursor place_;  // where the next bytes go; at its end for a payload that is dropped
  bool to_gpu_ = false;
  bool from_slots_ = false;  // this thread copies each chunk when it is in its slot
  std::uint64_t total_ = 0;
  std::uint64_t unposted_ = 0;
  std::uint64_t left_ = 0;              // not in place yet
  std::uint64_t copied_by_ticket_ = 0;  // of BeginCopy(); 0: none
  std::uint64_t received_bytes_ = 0;
  // Shared as launches() says.
  const std::shared_ptr<LaunchCounts> launches_ = std::make_shared<LaunchCounts>();
  std::vector<std::uint64_t> done_;
};

}  // namespace ferry::net::plugin
