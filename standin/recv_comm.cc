// Implements the receiving end of a stand-in connection.

#include "standin/recv_comm.h"

#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <utility>

namespace ferry::standin {

std::unique_ptr<RecvComm> RecvComm::Make(Engine& engine, int device, Link link) {
  Pool* const pool = engine.PoolOf(device);
  if (pool == nullptr) return nullptr;
  std::unique_ptr<RecvComm> comm(new RecvComm(engine, device, pool));
  if (!comm->SetUp()) return nullptr;
  comm->StartLanes(std::move(link));
  return comm;
}

RecvComm::RecvComm(Engine& engine, int device, Pool* pool)
    : Comm(engine, device, 1), pool_(pool), random_(engine.NextSeed()) {}

bool RecvComm::SetUp() {
  Memory& memory = engine_.memory();
  std::byte* const meta = memory.AllocatePinned(device_, sizeof(tcpx::UnpackMeta));
  std::byte* const staged = memory.AllocatePinned(device_, sizeof(tcpx::UnpackHandle));
  handle_ = memory.AllocateDevice(device_, sizeof(tcpx::UnpackHandle));
  meta_ = static_cast<tcpx::UnpackMeta*>(static_cast<void*>(meta));
  const bool placed =
      meta != nullptr && staged != nullptr && handle_ != nullptr && PlaceHandle(meta, staged);
  // The copy has ended.
  if (staged != nullptr) memory.FreePinned(device_, staged);
  if (!placed) Release();
  return placed;
}

bool RecvComm::PlaceHandle(std::byte* meta, std::byte* staged) {
  Memory& memory = engine_.memory();
  std::byte* const meta_there = memory.DeviceAddress(device_, meta);
  new (staged)
      tcpx::UnpackHandle{.meta = static_cast<tcpx::UnpackMeta*>(static_cast<void*>(meta_there)),
                         .bounce_pool = pool_->base(),
                         .head = ~std::uint64_t{0}};
  const Placement placement = {handle_, staged, sizeof(tcpx::UnpackHandle)};
  return memory.Place(device_, {&placement, 1});
}

abi::DeviceHandle RecvComm::Handle() const {
  return {.type = abi::kDeviceTypeUnpack,
          .version = abi::kDeviceVersionUnpack,
          .handle = handle_,
          .size = sizeof(tcpx::UnpackHandle),
          .needs_proxy_progress = 1};
}

int RecvComm::Receive(const Posting& posting, void** request) {
  *request = nullptr;
  if (engine_.Hit(Fault::kIrecvRc3)) return abi::kInternalError;
  if (engine_.memory().CurrentDevice() != device_) {
    return Misuse("irecv for a comm of GPU %d with GPU %d current", device_,
                  engine_.memory().CurrentDevice());
  }
  if (failed_) return abi::kSystemError;
  tcpx::Request* taken = nullptr;
  if (const int rc = Post(posting, &taken); rc != abi::kSuccess) return rc;
  if (taken->memory_kind != abi::kPointerCuda && taken->size > 0) {
    // Gives the request back that Post() has taken.
    --posted_;
    return Misuse("irecv into memory of the host's, which the original cannot do");
  }
  Arrival& arrival = arrivals_[SlotOf(posted_ - 1)];
  arrival = {};
  arrival.posted = static_cast<std::uint64_t>(taken->size);
  *request = taken;
  return abi::kSuccess;
}

int RecvComm::Progress() {
  if (const int rc = Collect(); rc != abi::kSuccess) return rc;
  // A record without a receive stays in record_, and those behind it in the socket: the sender is
  // held back by TCP. The same holds while the pool has no room, so one message blocks its comm, as
  // in the original.
  while (ReadRecord() && split_ < posted_) {
    tcpx::Request& request = At(split_);
    if (!RecordIsSane(request)) {
      Log(abi::kLogWarn, "standin: the peer's control record makes no sense");
      return abi::kSystemError;
    }
    if (request.size_pending < 0 && !Begin(split_)) break;
    if (record_.bytes > 0) {
      request.next_sock_id = record_.socket;
      request.next_size = static_cast<int>(record_.bytes);
      lanes_[record_.socket]->Push({.slot = SlotOf(split_),
                                    .lane = record_.socket,
                                    .offset = record_.offset,
                                    .bytes = record_.bytes});
    }
    request.offset += static_cast<int>(record_.bytes);
    if (request.offset == request.size) ++split_;
    record_bytes_ = 0;
  }
  // Announced bytes may still arrive.
  const bool has_record = record_bytes_ == sizeof(record_);
  if (!control_ended_ || has_record || split_ == posted_ || split_ > finished_) {
    return abi::kSuccess;
  }
  Log(abi::kLogWarn, "standin: the peer has closed the connection");
  return abi::kSystemError;
}

// Whether there is a whole record.
bool RecvComm::ReadRecord() {
  while (record_bytes_ < sizeof(record_)) {
    auto* const at = static_cast<std::byte*>(static_cast<void*>(&record_)) + record_bytes_;
    const ssize_t received =
        ::recv(control_.get(), at, sizeof(record_) - record_bytes_, MSG_DONTWAIT);
    if (received < 0 && errno == EINTR) continue;
    if (received <= 0) {
      control_ended_ = control_ended_ || received == 0 || errno != EAGAIN;
      return false;
    }
    record_bytes_ += static_cast<std::size_t>(received);
  }
  return true;
}

bool RecvComm::RecordIsSane(const tcpx::Request& request) const {
  // Sizes and offsets of the original's requests are 32-bit and signed. Chunks of a message come in
  // order, whatever sockets carry them.
  constexpr std::uint32_t kMax = 0x7fffffff;
  const bool first = request.size_pending < 0;
  const bool fits = record_.total <= kMax && record_.bytes <= record_.total &&
                    record_.offset == static_cast<std::uint32_t>(request.offset) &&
                    record_.bytes <= record_.total - record_.offset;
  return fits && record_.socket < lanes_.size() &&
         (first || record_.total == static_cast<std::uint32_t>(request.size)) &&
         (record_.bytes > 0) == (record_.total > 0);
}

// The sender's total is known. False while the pool has no room for it.
bool RecvComm::Begin(std::uint64_t number) {
  tcpx::Request& request = At(number);
  Arrival& arrival = arrivals_[SlotOf(number)];
  if (record_.total > 0) {
    auto landing = pool_->Take(CutMessage(record_.total, engine_.settings(), random_));
    if (!landing && record_.total > pool_->bytes() && !std::exchange(has_complained_, true)) {
      Log(abi::kLogWarn, "standin: a message of %u bytes will wait for good: the pool has %llu",
          record_.total, static_cast<unsigned long long>(pool_->bytes()));
    }
    if (!landing) return false;
    arrival.landing = std::move(*landing);
    arrival.fault = FaultOfNext();
  }
  // The original does not compare it with what was posted either.
  request.size = static_cast<int>(record_.total);
  request.size_pending = request.size;
  TakeRow(&request);
  if (arrival.fault == Fault::kBadRow) {
    // Only the pointer that the host follows is wrong. The row itself is what Consumed() compares.
    request.fragments = meta_->rows[(request.row + 1) % tcpx::kRows];
  }
  return true;
}

void RecvComm::TakeRow(tcpx::Request* request) {
  request->row = rows_taken_++ % tcpx::kRows;
  request->fragments = meta_->rows[request->row];
  request->count = &meta_->counts[request->row];
  request->count_so_far = 0;
  request->active = true;
  std::atomic_ref(*request->count).store(0, std::memory_order_relaxed);
}

// Applies the faults that affect a receive.
Fault RecvComm::FaultOfNext() {
  switch (const Fault fault = engine_.settings().fault) {
    case Fault::kExitNoCmsg:
    case Fault::kStuckCount:
    case Fault::kCountStaysZero:
    case Fault::kOversize:
    case Fault::kShort:
    case Fault::kOverlap:
    case Fault::kOutOfPool:
    case Fault::kWrap:
    case Fault::kZeroLength:
    case Fault::kBadRow: return engine_.Hit(fault) ? fault : Fault::kNone;
    default: return Fault::kNone;
  }
}

bool RecvComm::Complete(std::uint64_t number) {
  const Arrival& arrival = arrivals_[SlotOf(number)];
  if (arrival.fault == Fault::kStuckCount) return false;
  Publish(&At(number), arrival);
  return true;
}

void RecvComm::Publish(tcpx::Request* request, const Arrival& arrival) {
  Row row = {arrival.landing.fragments, static_cast<std::uint64_t>(request->size)};
  if (!row.fragments.empty()) {
    Spoil(arrival.fault, {.posted = arrival.posted, .pool = pool_->bytes()}, &row);
  }
  std::shuffle(row.fragments.begin(), row.fragments.end(), random_);
  request->size = static_cast<int>(row.total);
  request->count_so_far = row.fragments.size();
  std::copy(row.fragments.begin(), row.fragments.end(), meta_->rows[request->row]);
  const std::uint64_t count = arrival.fault == Fault::kCountStaysZero ? 0 : row.fragments.size();
  // Last: a device that sees the count must see all fragments, and their bytes, which Place() has
  // finished before the lane reported them.
  std::atomic_ref(*request->count).store(count, std::memory_order_release);
}

int RecvComm::Consumed(const void* request) {
  if (request == nullptr) return Misuse("irecvConsumed of no request");
  if (freed_ == finished_) {
    return Misuse("irecvConsumed of a request that is not done, or was consumed before");
  }
  tcpx::Request& oldest = At(freed_);
  if (request != &oldest) return Misuse("irecvConsumed of a request that is not the oldest");
  if (!oldest.active) return Misuse("irecvConsumed of a request without a row");
  if (rows_freed_ == rows_taken_) return Misuse("irecvConsumed without a row in use");
  if (rows_freed_ % tcpx::kRows != oldest.row) {
    return Misuse("irecvConsumed of row %llu, not of the oldest",
                  static_cast<unsigned long long>(oldest.row));
  }
  // A reported receive has no task on a lane any more, so nothing else uses its pages.
  pool_->Give(std::exchange(arrivals_[SlotOf(freed_)], {}).landing);
  oldest.active = false;
  ++rows_freed_;
  ++freed_;
  return abi::kSuccess;
}

// Reads a chunk and spreads it over the fragments in which it lies.
bool RecvComm::Work(Lane& lane, const Task& task) {
  // Written before the task was pushed, and unchanged until all tasks of the receive were
  // collected.
  const Arrival& arrival = arrivals_[task.slot];
  if (arrival.fault == Fault::kExitNoCmsg) {
    Log(abi::kLogWarn, "fatal, 127.0.0.1 socket %zu rx no cmsg", task.lane);
    std::exit(1);
  }
  const auto& fragments = arrival.landing.fragments;
  auto ends_before = [](const tcpx::Fragment& one, std::uint64_t at) {
    return one.dst + one.len <= at;
  };
  std::byte* const staging = StagingOf(task);
  std::uint64_t at = task.offset;
  const std::uint64_t end = at + task.bytes;
  while (at < end) {
    const std::uint64_t bytes = std::min<std::uint64_t>(end - at, kStagingBytes);
    if (!ReceiveAll(lane.fd(), staging, bytes)) return false;
    std::vector<Placement> placements;
    auto one = std::lower_bound(fragments.begin(), fragments.end(), at, ends_before);
    for (std::uint64_t done = 0; done < bytes; ++one) {
      const std::uint64_t skip = at + done - one->dst;
      const std::uint64_t piece = std::min<std::uint64_t>(one->len - skip, bytes - done);
      placements.push_back({pool_->base() + one->src + skip, staging + done, piece});
      done += piece;
    }
    if (!engine_.memory().Place(device_, placements)) return false;
    at += bytes;
  }
  return true;
}

void RecvComm::Release() {
  for (Arrival& arrival : arrivals_) pool_->Give(std::exchange(arrival, {}).landing);
  auto* const meta = static_cast<std::byte*>(static_cast<void*>(std::exchange(meta_, nullptr)));
  if (meta != nullptr) engine_.memory().FreePinned(device_, meta);
  if (handle_ != nullptr) engine_.memory().FreeDevice(device_, std::exchange(handle_, nullptr));
}

}  // namespace ferry::standin
