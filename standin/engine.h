// The stand-in's process-wide state: memory, pools, live objects and faults.
#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "standin/memory/memory.h"
#include "standin/memory/pool.h"
#include "standin/report.h"
#include "standin/settings.h"

namespace ferry::standin {

// Objects that are never freed, because the host may come back with the pointer of one that has
// ended. Any thread.
template <class T>
class Kept {
 public:
  T* Add(std::unique_ptr<T> object) {
    const std::lock_guard lock(mutex_);
    T* const raw = object.get();
    objects_[raw] = std::move(object);
    return raw;
  }
  // Null for an unknown pointer.
  T* Find(const void* pointer) {
    const std::lock_guard lock(mutex_);
    const auto found = objects_.find(pointer);
    return found == objects_.end() ? nullptr : found->second.get();
  }
  template <class Predicate>
  T* FindIf(Predicate predicate) {
    const std::lock_guard lock(mutex_);
    for (const auto& [pointer, object] : objects_) {
      if (predicate(*object)) return object.get();
    }
    return nullptr;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<const void*, std::unique_ptr<T>> objects_;
};

// The objects that init() makes once in a process and never frees. Any thread.
class Engine {
 public:
  // Makes the engine, or adds a host, told by its logger, to the one that there is; returns an
  // Outcome and logs a failure.
  static int Start(abi::Logger logger);
  // Null before.
  static Engine* Running();

  const Settings& settings() const { return settings_; }
  Memory& memory() { return *memory_; }
  // The one pool of a device; null, with a log line, if there is no memory.
  Pool* PoolOf(int device);
  unsigned long pages_in_use();
  // Size of the pool that begins at this address; 0 if there is none.
  std::uint64_t PoolBytesAt(const void* base);

  // Whether the configured fault strikes this time. Each call counts.
  bool Hit(Fault fault);
  // A different one each time, the same in each run.
  std::uint64_t NextSeed();

 private:
  explicit Engine(const Settings& settings, std::unique_ptr<Memory> memory);

  const Settings settings_;
  const std::unique_ptr<Memory> memory_;
  std::atomic<std::uint64_t> hits_{0};
  std::atomic<std::uint64_t> seeds_{0};
  std::mutex mutex_;
  std::map<int, std::unique_ptr<Pool>> pools_;
};

}  // namespace ferry::standin
