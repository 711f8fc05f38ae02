// One end of a stand-in connection: its request ring and misuse checks.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "standin/engine.h"
#include "standin/lane.h"
#include "standin/link.h"
#include "standin/original_layout.h"

namespace ferry::standin {

// 16 bytes on the control socket before each chunk; the layout is the original's.
struct ControlRecord {
  std::uint16_t type = 0;  // 1: no bytes follow
  std::uint16_t socket = 0;
  std::uint32_t bytes = 0;
  std::uint32_t offset = 0;
  std::uint32_t total = 0;  // of the message
};
static_assert(sizeof(ControlRecord) == 16);

// The arguments of isend() and irecv().
struct Posting {
  std::byte* data = nullptr;
  int bytes = 0;
  void* mr = nullptr;
};

// One end of a connection. The host may use it from one thread at a time; concurrent calls are
// reported as misuse. Its memory outlives Close(), see Kept.
//
// Its 16 requests are a ring. Of all that were ever posted those below freed_ are free again, those
// below finished_ have been reported (and wait for irecvConsumed), those below split_ are with the
// lanes ("transmitting"), those below posted_ are only posted. Requests move on only in Test().
class Comm {
 public:
  Comm(Engine& engine, int device, int operation);
  virtual ~Comm() = default;
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  int device() const { return device_; }
  bool closed() const { return closed_; }
  // Whether the calling thread is the only one in the comm; if true, Leave() must follow.
  bool Enter() { return !busy_.exchange(true, std::memory_order_relaxed); }
  void Leave() { busy_.store(false, std::memory_order_relaxed); }

  int Register(void* data, std::size_t bytes, int kind, void** mr);
  int Deregister(void* mr);
  // `request` is one of this comm's by its first field.
  int Test(tcpx::Request* request, int* done);
  // All calls of the comm after this one are misuse.
  void Close();

 protected:
  static constexpr std::uint64_t kRequests = 16;
  static constexpr std::size_t kStagingBytes = 512 * 1024;

  void StartLanes(Link link);
  // Checks `posting` and takes the next request for it.
  int Post(const Posting& posting, tcpx::Request** request);
  tcpx::Request& At(std::uint64_t number) { return requests_[number % kRequests]; }
  std::size_t SlotOf(std::uint64_t number) const { return number % kRequests; }
  // Subtracts what the lanes have done from what their requests lack.
  int Collect();
  std::byte* StagingOf(const Task& task) { return staging_[task.lane]; }

  // Moves what can be moved without waiting.
  virtual int Progress() = 0;
  // All bytes are there. False if that is not to be said.
  virtual bool Complete(std::uint64_t number) = 0;
  // On the lane's thread.
  virtual bool Work(Lane& lane, const Task& task) = 0;
  virtual void CollectedOne(const Task& /*task*/) {}
  virtual void Release() {}  // at the end, after the lanes

  Engine& engine_;
  const int device_;
  Socket control_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::uint64_t freed_ = 0;
  std::uint64_t finished_ = 0;
  std::uint64_t split_ = 0;
  std::uint64_t posted_ = 0;
  bool failed_ = false;

 private:
  struct Registration {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
    int kind = 0;
  };

  bool IsInFlight(const tcpx::Request* request);

  const int operation_;
  std::array<tcpx::Request, kRequests> requests_;
  std::unordered_map<void*, std::unique_ptr<Registration>> registrations_;
  std::vector<std::byte*> staging_;
  DoneTasks done_;
  bool closed_ = false;
  std::atomic<bool> busy_{false};
};

}  // namespace ferry::standin
