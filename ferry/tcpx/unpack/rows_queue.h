// Launches of the kernel that checks rows and copies fragments.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ferry/copy/device_executor.h"
#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"
#include "ferry/tcpx/unpack/fragments.h"
#include "ferry/tcpx/unpack/rows_kernel.h"
#include "ferry/tcpx/unpack/unpacker.h"

namespace ferry::tcpx {

// Memory for the rows kernel and its launches on one stream. Batches have slots, which the caller
// uses in turn. Allocates only at creation. One thread at a time.
class RowsQueue {
 public:
  // Loads the kernel, which may block until the device is idle. A launch lists at least
  // `most_pieces` pieces, if there are so many.
  // Errors: those of DeviceApi.
  static Result<std::unique_ptr<RowsQueue>> Create(cuda::DeviceApi* api, cuda::StreamRef stream,
                                                   std::uint32_t slots, std::uint64_t most_pieces,
                                                   std::uint32_t groups);

  // Whether the requests can be one batch. Errors: kCorrupt for a message that does not fit its
  // receive; kInvalidArgument for too many messages, runs or pieces, and for addresses that are
  // none, or not aligned.
  Status Check(std::span<const RowsRequest> requests) const;
  // Queues checked requests. The slot's last batch must be done. Errors: those of DeviceApi; part
  // may be queued then.
  Status Enqueue(std::size_t slot, std::span<const RowsRequest> requests);
  // Thread blocks of the last Enqueue(), over its launches.
  std::uint32_t last_groups() const noexcept { return last_groups_; }
  // Appends the refused messages of the slot's batch, which must be done.
  void Collect(std::size_t slot, std::uint64_t ticket, std::vector<RefusedRows>* refused);

 private:
  RowsQueue(cuda::DeviceApi* api, cuda::StreamRef stream, std::uint64_t most_pieces)
      : api_(api), stream_(stream), most_pieces_(most_pieces) {}
  Status Allocate(std::uint32_t slots);
  // Queues the first requests that fit into one launch and returns their number.
  Result<std::size_t> Launch(std::size_t message, RowsRun** runs,
                             std::span<const RowsRequest> requests);
  void Fill(RowsMessage* message, RowsRun** runs, const RowsRequest& request) const;

  cuda::DeviceApi* const api_;
  const cuda::StreamRef stream_;
  const std::uint64_t most_pieces_;
  std::uint32_t groups_ = 1;
  std::uint32_t last_groups_ = 0;
  bool early_ = false;
  cuda::PinnedBuffer faults_;  // kMaxRowsMessages for each slot
  Place faults_place_;
  cuda::PinnedBuffer runs_;  // kMaxRowsRuns for each slot
  Place runs_place_;
  cuda::DeviceBuffer lists_;          // two, of most_pieces_ each, which launches use in turn
  cuda::DeviceBuffer words_;          // two sets of announcements, then the ticket
  std::uint32_t launch_ = 0;          // of the last launch; skips 0, which the words begin with
  std::vector<MessageFacts> facts_;   // as faults_
  std::vector<std::size_t> in_slot_;  // messages of each slot's batch
};

}  // namespace ferry::tcpx
