// Fills the arguments of the rows kernel and reads its verdicts.
#include "ferry/tcpx/unpack/rows_queue.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "ferry/core/units.h"
#include "ferry/cuda/address.h"

namespace ferry::tcpx {
namespace {

constexpr auto kSetupTimeout = std::chrono::seconds(60);
constexpr int kFirstEarlyRows = 9;  // compute capability

// A warp moves 4 KiB in one round trip to memory; longer pieces only where all warps have one.
constexpr std::uint64_t kShortestPiece = 4 * kKiB;
constexpr std::uint64_t kLongestPiece = 16 * kKiB;
// Even where few pieces may be in flight, a list has room for many messages: 1 MiB of GPU memory.
constexpr std::uint64_t kMinListed = std::uint64_t{1} << 16;
constexpr std::uint32_t kWarpsOfGroup = kRowsThreads / 32;

// So few rows in flight fill the bus; with more, the first messages would wait for the last ones.
constexpr std::uint64_t kRowsInFlight = 8192;
constexpr std::uint64_t kMinReaders = 4;

// The size of both sets of announcements; the ticket is behind them.
constexpr std::size_t kWordBytes = 2 * kAnnouncedWords * sizeof(std::uint64_t);

std::uint64_t CountRuns(const PostedReceive& receive) {
  std::uint64_t runs = 0;
  std::uint64_t at = 0;
  for (const PostedRun& run : receive.runs) {
    if (at == receive.message_bytes) break;
    at += std::min(run.bytes, receive.message_bytes - at);
    runs += run.bytes > 0 ? 1 : 0;
  }
  return runs;
}

std::uint64_t RoomOf(const RowsRequest& request) {
  return MostPieces(request.count, CountRuns(request.receive), request.receive.message_bytes,
                    kShortestPiece);
}

MessageFacts FactsOf(const RowsRequest& request) {
  return {request.count, request.receive.pool_bytes, request.receive.message_bytes,
          TotalBytes(request.receive.runs)};
}

bool AreAddresses(const RowsRequest& request) {
  const auto fits = [](std::uint64_t base, std::uint64_t offset, std::uint64_t bytes) {
    return base < kAddressLimit && offset <= kAddressLimit - base &&
           bytes <= kAddressLimit - base - offset;
  };
  const PostedReceive& receive = request.receive;
  return cuda::AddressOf(request.rows) % sizeof(Fragment) == 0 &&
         fits(request.src.mapped, 0, std::min(receive.pool_bytes, std::uint64_t{1} << 32)) &&
         std::all_of(receive.runs.begin(), receive.runs.end(), [&](const PostedRun& run) {
           return fits(request.dst.mapped, run.offset, std::min(run.bytes, receive.message_bytes));
         });
}

// The thread blocks of a launch: some that read rows, and as many others as there are pieces for.
void Share(RowsKernelArguments* launch, std::uint64_t bytes, std::uint64_t rows,
           std::uint64_t pieces, std::uint32_t groups) {
  const std::uint64_t readers =
      std::max(kMinReaders, kRowsInFlight * launch->count / std::max<std::uint64_t>(rows, 1));
  launch->readers = static_cast<std::uint32_t>(
      std::min<std::uint64_t>({readers, std::max(groups / 4, 1U), std::uint64_t{launch->count}}));
  const std::uint64_t copiers = std::min<std::uint64_t>(
      (pieces + kWarpsOfGroup - 1) / kWarpsOfGroup, groups - launch->readers);
  launch->groups = launch->readers + static_cast<std::uint32_t>(copiers);
  const std::uint64_t even = bytes / (copiers * kWarpsOfGroup) + kShortestPiece - 1;
  launch->longest = static_cast<std::uint32_t>(
      std::clamp(even / kShortestPiece * kShortestPiece, kShortestPiece, kLongestPiece));
}

}  // namespace

Result<std::unique_ptr<RowsQueue>> RowsQueue::Create(cuda::DeviceApi* api, cuda::StreamRef stream,
                                                     std::uint32_t slots, std::uint64_t most_pieces,
                                                     std::uint32_t groups) {
  std::unique_ptr<RowsQueue> queue(new RowsQueue(api, stream, std::max(most_pieces, kMinListed)));
  FERRY_TRY_ASSIGN(const auto device, api->Describe(stream.ordinal()));
  queue->groups_ = std::max(groups > 0 ? groups : DeviceGroups(device), 2U);
  queue->early_ = device.compute_major >= kFirstEarlyRows;
  FERRY_TRY(queue->Allocate(slots));
  RowsKernelArguments nothing;
  nothing.ticket =
      cuda::PointerTo<std::uint32_t>(cuda::AddressOf(queue->words_.data()) + kWordBytes);
  FERRY_TRY(cuda::LaunchKernel(*api, stream, kRowsKernel, nothing));
  FERRY_TRY(api->Wait(stream, Deadline::After(kSetupTimeout)));
  return queue;
}

Status RowsQueue::Allocate(std::uint32_t slots) {
  const int ordinal = stream_.ordinal();
  facts_.resize(slots * kMaxRowsMessages);
  in_slot_.resize(slots);
  FERRY_TRY_ASSIGN(faults_, api_->AllocatePinned(ordinal, facts_.size() * sizeof(FragmentFault)));
  FERRY_TRY_ASSIGN(faults_place_, Place::OnHost(*api_, ordinal, faults_.data()));
  FERRY_TRY_ASSIGN(runs_, api_->AllocatePinned(ordinal, slots * kMaxRowsRuns * sizeof(RowsRun)));
  FERRY_TRY_ASSIGN(runs_place_, Place::OnHost(*api_, ordinal, runs_.data()));
  FERRY_TRY_ASSIGN(lists_, api_->AllocateDevice(ordinal, 2 * most_pieces_ * sizeof(PackedBlock)));
  const std::size_t bytes = kWordBytes + sizeof(std::uint64_t);
  FERRY_TRY_ASSIGN(words_, api_->AllocateDevice(ordinal, bytes));
  FERRY_TRY_ASSIGN(const auto zeros, api_->AllocatePinned(ordinal, bytes));
  std::memset(zeros.data(), 0, bytes);
  const cuda::CopyItem item{words_.data(), zeros.data(), bytes};
  FERRY_TRY(api_->Copy(stream_, cuda::CopyKind::kHostToDevice, {&item, 1}));
  return api_->Wait(stream_, Deadline::After(kSetupTimeout));
}

Status RowsQueue::Check(std::span<const RowsRequest> requests) const {
  std::uint64_t runs = 0;
  for (const RowsRequest& request : requests) {
    FERRY_TRY(CheckMessage(FactsOf(request)));
    const std::uint64_t of_this = CountRuns(request.receive);
    const std::uint64_t pieces = RoomOf(request);
    if (of_this > kMaxMessageRuns || pieces > most_pieces_ || !AreAddresses(request)) {
      return Error(
          Code::kInvalidArgument,
          fmt::format("a message of {} bytes for {} runs of memory cannot be unpacked "
                      "from its rows: at most {} runs, {} pieces and 48 bits of address; "
                      "give its blocks",
                      request.receive.message_bytes, of_this, kMaxMessageRuns, most_pieces_));
    }
    runs += of_this;
  }
  if (requests.size() <= kMaxRowsMessages && runs <= kMaxRowsRuns) return Ok();
  return Error(Code::kInvalidArgument,
               fmt::format("a batch of {} messages with {} runs cannot be unpacked at once, {} and "
                           "{} are the most; give fewer messages at a time",
                           requests.size(), runs, kMaxRowsMessages, kMaxRowsRuns));
}

Status RowsQueue::Enqueue(std::size_t slot, std::span<const RowsRequest> requests) {
  const std::size_t first = slot * kMaxRowsMessages;
  auto* const faults = static_cast<FragmentFault*>(faults_.data()) + first;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    facts_[first + i] = FactsOf(requests[i]);
    // A message of no bytes has no rows, and nothing reads it.
    faults[i].problem = requests[i].count > 0 ? FragmentProblem::kUnseen : FragmentProblem::kNone;
  }
  in_slot_[slot] = requests.size();
  last_groups_ = 0;
  RowsRun* runs = static_cast<RowsRun*>(runs_.data()) + slot * kMaxRowsRuns;
  for (std::size_t done = 0; done < requests.size();) {
    FERRY_TRY_ASSIGN(const std::size_t taken, Launch(first + done, &runs, requests.subspan(done)));
    done += taken;
  }
  return Ok();
}

Result<std::size_t> RowsQueue::Launch(std::size_t message, RowsRun** runs,
                                      std::span<const RowsRequest> requests) {
  RowsKernelArguments launch;
  std::uint64_t room = 0;
  std::uint64_t bytes = 0;
  std::uint64_t rows = 0;
  std::size_t taken = 0;
  // Messages without rows keep their entry, so that message i has fault i: they end the launch.
  for (; taken < requests.size() && taken < kRowsMessages; ++taken) {
    const RowsRequest& request = requests[taken];
    const std::uint64_t more = RoomOf(request);
    if (request.count == 0 || room + more > most_pieces_) break;
    RowsMessage& filled = launch.messages[taken];
    Fill(&filled, runs, request);
    filled.list_begin = static_cast<std::uint32_t>(room);
    room += more;
    bytes += request.receive.message_bytes;
    rows += request.count;
  }
  if (taken == 0) return std::size_t{1};
  launch.count = static_cast<std::uint32_t>(taken);
  if (++launch_ == 0) launch_ = 2;  // even: the last launch was an odd one
  const std::uint64_t turn = launch_ % 2;
  const std::uint64_t words = cuda::AddressOf(words_.data());
  launch.launch = launch_;
  launch.faults =
      cuda::PointerTo<FragmentFault>(faults_place_.mapped + message * sizeof(FragmentFault));
  launch.list = static_cast<PackedBlock*>(lists_.data()) + turn * most_pieces_;
  launch.announced = cuda::PointerTo<std::uint64_t>(words + turn * kWordBytes / 2);
  launch.ticket = cuda::PointerTo<std::uint32_t>(words + kWordBytes);
  launch.early = early_;
  Share(&launch, bytes, rows, room, groups_);
  FERRY_TRY(cuda::LaunchKernel(*api_, stream_, kRowsKernel, launch));
  last_groups_ += launch.groups;
  return taken;
}

void RowsQueue::Fill(RowsMessage* message, RowsRun** runs, const RowsRequest& request) const {
  const PostedReceive& receive = request.receive;
  RowsRun* const first = *runs;
  std::uint64_t at = 0;
  for (const PostedRun& run : receive.runs) {
    if (at == receive.message_bytes) break;
    if (run.bytes == 0) continue;
    const std::uint64_t begin = at;
    at += std::min(run.bytes, receive.message_bytes - at);
    *(*runs)++ = {at, request.dst.mapped + run.offset - begin};
  }
  const auto* const base = static_cast<const RowsRun*>(runs_.data());
  message->rows = request.rows;
  message->runs = cuda::PointerTo<const RowsRun>(
      runs_place_.mapped + static_cast<std::uint64_t>(first - base) * sizeof(RowsRun));
  message->pool = request.src.mapped;
  message->pool_bytes = receive.pool_bytes;
  message->bytes = receive.message_bytes;
  message->count = static_cast<std::uint16_t>(request.count);
  message->run_count = static_cast<std::uint16_t>(*runs - first);
}

void RowsQueue::Collect(std::size_t slot, std::uint64_t ticket, std::vector<RefusedRows>* refused) {
  const std::size_t first = slot * kMaxRowsMessages;
  const auto* const faults = static_cast<const FragmentFault*>(faults_.data()) + first;
  const std::size_t count = std::exchange(in_slot_[slot], 0);
  for (std::size_t i = 0; i < count; ++i) {
    if (faults[i].problem == FragmentProblem::kNone) continue;
    refused->push_back({ticket, i, ErrorOf(faults[i], facts_[first + i])});
  }
}

}  // namespace ferry::tcpx
