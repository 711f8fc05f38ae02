// Implements the request ring that both ends of a connection share.

#include "standin/comm.h"

#include <cstdint>
#include <utility>

namespace ferry::standin {

Comm::Comm(Engine& engine, int device, int operation)
    : engine_(engine), device_(device), operation_(operation) {}

int Comm::Register(void* data, std::size_t bytes, int kind, void** mr) {
  if (data == nullptr || bytes == 0) return Misuse("regMr of no memory");
  if (kind != abi::kPointerHost && kind != abi::kPointerCuda) {
    return Misuse("regMr of memory of the kind %d", kind);
  }
  if (engine_.memory().CurrentDevice() != device_) {
    return Misuse("regMr for a comm of GPU %d with GPU %d current", device_,
                  engine_.memory().CurrentDevice());
  }
  void* aligned = data;
  std::size_t room = bytes;
  const bool is_aligned = std::align(tcpx::kRegistrationAlignment, 1, aligned, room) == data;
  // The original demands this for GPU memory; host memory may begin anywhere.
  if (kind == abi::kPointerCuda && !is_aligned) {
    return Misuse("regMr at %p, which is not a multiple of 4096", data);
  }
  // The host's pointer is the key of a table of this comm, so a registration of another comm is not
  // found and is never dereferenced.
  auto one = std::make_unique<Registration>();
  *one = {static_cast<std::byte*>(data), bytes, kind};
  *mr = one.get();
  registrations_.emplace(*mr, std::move(one));
  return abi::kSuccess;
}

int Comm::Deregister(void* mr) {
  if (registrations_.erase(mr) == 0) return Misuse("deregMr of what this comm has not registered");
  return abi::kSuccess;
}

int Comm::Post(const Posting& posting, tcpx::Request** request) {
  const auto found = registrations_.find(posting.mr);
  const bool has_memory = found != registrations_.end();
  if (posting.bytes < 0) return Misuse("a request of %d bytes", posting.bytes);
  if (!has_memory && posting.bytes > 0)
    return Misuse("a request with memory that is not registered");
  if (has_memory && posting.bytes > 0) {
    const Registration& memory = *found->second;
    const auto bytes = static_cast<std::size_t>(posting.bytes);
    if (posting.data < memory.data || bytes > memory.bytes ||
        posting.data > memory.data + (memory.bytes - bytes)) {
      return Misuse("a request outside of the memory that was registered for it");
    }
  }
  // A receive keeps its request until irecvConsumed, so a host that consumes late gets here as
  // well. It is not counted as misuse, because the original notices it as well, with this result.
  if (posted_ - freed_ == kRequests) {
    Log(abi::kLogWarn, "standin: unable to allocate requests");
    return abi::kInternalError;
  }
  tcpx::Request& free = At(posted_);
  free = tcpx::Request{};
  free.comm = this;
  free.data = posting.data;
  free.operation = operation_;
  free.memory_kind = has_memory ? found->second->kind : abi::kPointerHost;
  free.size = posting.bytes;
  if (has_memory && posting.bytes > 0) {
    free.gpu_mem_off = static_cast<int>(posting.data - found->second->data);
  }
  *request = &free;
  ++posted_;
  return abi::kSuccess;
}

int Comm::Test(tcpx::Request* request, int* done) {
  if (failed_) return abi::kSystemError;
  // Unlike a failure of Progress(), the fault is not kept: the next call continues as usual.
  if (engine_.Hit(Fault::kTestRc2)) return abi::kSystemError;
  if (const int rc = Progress(); rc != abi::kSuccess) {
    failed_ = true;
    return rc;
  }
  // Order matters: Progress() may have moved the oldest request to the lanes, and only then does
  // the rule about the oldest apply to it.
  const bool transmitting = split_ > finished_;
  if (transmitting && request != &At(finished_)) {
    Log(abi::kLogWarn, "standin: test called with invalid request");
    return Misuse("test of a request that is not the oldest");
  }
  if (!IsInFlight(request)) return Misuse("test of a request that has been reported as done");
  if (!transmitting || request->size_pending != 0 || !Complete(finished_)) return abi::kSuccess;
  ++finished_;
  *done = 1;
  return abi::kSuccess;
}

void Comm::Close() {
  closed_ = true;
  // Joins the threads first: they use the staging memory, and the pages that Release() gives back.
  lanes_.clear();
  control_.reset();
  for (std::byte* staging : staging_) engine_.memory().FreePinned(device_, staging);
  staging_.clear();
  if (!registrations_.empty()) {
    (void)Misuse("close of a comm with %zu registrations", registrations_.size());
  }
  if (finished_ > freed_) {
    (void)Misuse("close of a comm with %llu receives that are not consumed",
                 static_cast<unsigned long long>(finished_ - freed_));
  }
  Release();
}

void Comm::StartLanes(Link link) {
  control_ = std::move(link.control);
  // All staging memory is there before the first lane, whose thread starts at once and finds its
  // own by index.
  for (std::size_t i = 0; i < link.data.size(); ++i) {
    staging_.push_back(engine_.memory().AllocatePinned(device_, kStagingBytes));
    if (staging_.back() == nullptr) failed_ = true;
  }
  if (failed_) return;
  for (Socket& socket : link.data) {
    auto work = [this](Lane& lane, const Task& task) { return Work(lane, task); };
    lanes_.push_back(std::make_unique<Lane>(std::move(socket), work, &done_));
  }
}

int Comm::Collect() {
  for (const Task& task : done_.TakeAll()) {
    if (task.failed) {
      Log(abi::kLogWarn, "standin: a data socket has failed");
      return abi::kSystemError;
    }
    // Requests are written by the host's thread only. A lane reads those whose tasks it has.
    requests_[task.slot].size_pending -= static_cast<int>(task.bytes);
    CollectedOne(task);
  }
  return abi::kSuccess;
}

bool Comm::IsInFlight(const tcpx::Request* request) {
  for (std::uint64_t number = finished_; number < posted_; ++number) {
    if (request == &At(number)) return true;
  }
  return false;
}

}  // namespace ferry::standin
