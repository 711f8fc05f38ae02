// Implements the sending end of a stand-in connection.

#include "standin/send_comm.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace ferry::standin {
namespace {

constexpr int kTasksPerSocket = 6;

}  // namespace

SendComm::SendComm(Engine& engine, int device, std::shared_ptr<Attempt> attempt)
    : Comm(engine, device, 0), attempt_(std::move(attempt)) {}

int SendComm::Send(const Posting& posting, void** request) {
  *request = nullptr;
  if (engine_.Hit(Fault::kIsendRc2)) return abi::kSystemError;
  if (attempt_ != nullptr) {
    switch (attempt_->state()) {
      case Attempt::State::kRunning: return abi::kSuccess;
      case Attempt::State::kFailed: return abi::kSystemError;
      case Attempt::State::kReady: break;
    }
    StartLanes(attempt_->TakeLink());
    in_flight_.resize(lanes_.size());
    attempt_.reset();
  }
  if (failed_) return abi::kSystemError;
  tcpx::Request* taken = nullptr;
  if (const int rc = Post(posting, &taken); rc != abi::kSuccess) return rc;
  taken->size_pending = taken->size;
  Fault& fault = faults_[SlotOf(posted_ - 1)];
  fault = Fault::kNone;
  if (taken->size > 0 && engine_.Hit(Fault::kHalfClose)) fault = Fault::kHalfClose;
  if (engine_.settings().fault == Fault::kSlowPeer) fault = Fault::kSlowPeer;
  *request = taken;
  return abi::kSuccess;
}

int SendComm::Progress() {
  if (const int rc = Collect(); rc != abi::kSuccess) return rc;
  // A chunk is split off only when the control socket has taken all records, so that at most one
  // record waits.
  while (Flush() && split_ < posted_ && SplitOne(split_)) {
    if (At(split_).offset == At(split_).size) ++split_;
  }
  return control_failed_ ? abi::kSystemError : abi::kSuccess;
}

// Hands the next chunk of a request to the next lane in turn, if that has room.
bool SendComm::SplitOne(std::uint64_t number) {
  tcpx::Request& request = At(number);
  if (request.size == 0) return Announce({.type = 1});
  // Strictly in turn, as in the original: a full lane holds up the others.
  if (in_flight_[next_lane_] == kTasksPerSocket) return false;
  const std::size_t lane = std::exchange(next_lane_, (next_lane_ + 1) % lanes_.size());
  const auto left = static_cast<std::uint32_t>(request.size - request.offset);
  const auto offset = static_cast<std::uint32_t>(request.offset);
  const std::uint32_t bytes = std::min(left, engine_.settings().chunk);
  ++in_flight_[lane];
  request.offset += static_cast<int>(bytes);
  lanes_[lane]->Push({.slot = SlotOf(number), .lane = lane, .offset = offset, .bytes = bytes});
  return Announce({.socket = static_cast<std::uint16_t>(lane),
                   .bytes = bytes,
                   .offset = offset,
                   .total = static_cast<std::uint32_t>(request.size)});
}

bool SendComm::Announce(const ControlRecord& record) {
  const auto* const bytes = static_cast<const std::byte*>(static_cast<const void*>(&record));
  unsent_.insert(unsent_.end(), bytes, bytes + sizeof(record));
  return true;
}

// Whether the control socket has taken everything.
bool SendComm::Flush() {
  while (!unsent_.empty()) {
    const ssize_t sent =
        ::send(control_.get(), unsent_.data(), unsent_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent <= 0) {
      control_failed_ = control_failed_ || (errno != EAGAIN && errno != EINTR);
      return false;
    }
    unsent_.erase(unsent_.begin(), unsent_.begin() + sent);
  }
  return true;
}

bool SendComm::Complete(std::uint64_t /*number*/) {
  // Records are sent only in test(), which the host may never call again once its last send is
  // reported.
  if (!unsent_.empty()) return false;
  ++freed_;
  return true;
}

void SendComm::CollectedOne(const Task& task) { --in_flight_[task.lane]; }

bool SendComm::Work(Lane& lane, const Task& task) {
  const Fault fault = faults_[task.slot];
  if (fault == Fault::kSlowPeer && task.offset == 0 &&
      !lane.Sleep(std::chrono::milliseconds(engine_.settings().delay_ms))) {
    return false;
  }
  if (fault == Fault::kHalfClose) {
    (void)SendBytes(lane, task, task.offset, task.bytes / 2);
    lane.HalfClose();
    return false;
  }
  return SendBytes(lane, task, task.offset, task.bytes);
}

bool SendComm::SendBytes(Lane& lane, const Task& task, std::uint64_t from, std::uint64_t bytes) {
  const tcpx::Request& request = At(task.slot);
  const auto* const data = static_cast<const std::byte*>(request.data);
  if (request.memory_kind == abi::kPointerHost) return SendAll(lane.fd(), data + from, bytes);
  std::byte* const staging = StagingOf(task);
  for (std::uint64_t done = 0; done < bytes;) {
    const std::uint64_t piece = std::min<std::uint64_t>(bytes - done, kStagingBytes);
    if (!engine_.memory().Fetch(device_, staging, data + from + done, piece)) return false;
    if (!SendAll(lane.fd(), staging, piece)) return false;
    done += piece;
  }
  return true;
}

}  // namespace ferry::standin
