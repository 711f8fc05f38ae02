// Notifications of the peer that the application has not taken yet.
#pragma once
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "ferry/core/config.h"
#include "ferry/core/fd.h"
#include "ferry/core/result.h"
#include "ferry/transfer/connection/ready_flag.h"
#include "ferry/transfer/memory/held_memory.h"

namespace ferry::transfer {

// Notifications of the peer, in their order, until the application takes them. Any thread.
class NotificationQueue {
 public:
  // `memory` is charged for what is kept. Both must outlive the queue.
  NotificationQueue(const Config* config, HeldMemory* memory) : config_(config), memory_(memory) {}

  // Whether there is room for a notification of this size.
  bool HasRoom(std::uint64_t bytes) const;
  void Add(std::vector<std::byte> bytes);
  // Returns false if there is none.
  bool Take(std::vector<std::byte>* bytes);
  // Readable while Take() would return true, and for good after Close(). Errors: kUnavailable
  // (descriptors).
  Result<UniqueFd> Descriptor();
  // None will come any more.
  void Close();

 private:
  const Config* const config_;
  HeldMemory* const memory_;
  mutable std::mutex mutex_;
  std::deque<std::vector<std::byte>> queue_;  // this and the following: under mutex_
  std::uint64_t bytes_ = 0;
  bool closed_ = false;
  ReadyFlag ready_;
};

}  // namespace ferry::transfer
