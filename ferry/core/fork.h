// Detection of fork(2), so that a child leaves its parent's objects alone.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "ferry/core/result.h"

// A child of fork(2) has a copy of every object, but none of the threads that work for them, and
// mutexes that one of those may have held. So a child asks, before it takes any lock, whether an
// object is its own, and neither uses nor destroys one of its parent.
namespace ferry {

namespace internal {
// Changed in each child of fork(2), by pthread_atfork(3).
inline std::atomic<std::uint32_t> process_generation{0};
// Keeps the object for good.
void Abandon(std::shared_ptr<const void> object);
}  // namespace internal

// Remembers the process that made an object; copies remember the same one. A child made otherwise
// than by fork(), say by clone(2), is not noticed: POSIX lets it only make system calls.
class ProcessMark {
 public:
  ProcessMark() noexcept;
  // Whether the object is that of a parent of this process. Costs one relaxed load. Any thread.
  bool forked() const noexcept {
    return generation_ != internal::process_generation.load(std::memory_order_relaxed);
  }

 private:
  std::uint32_t generation_;
};

// The error of a child's call on an object that its parent has made: "connection".
Error MadeBeforeFork(std::string_view object);

// A shared_ptr to an object that only the process which made it may use and destroy. A forked child
// abandons its copy: nothing is destroyed, joined or waited for.
template <class T>
class ProcessShared {
 public:
  ProcessShared() = default;
  explicit ProcessShared(std::shared_ptr<T> object) noexcept : object_(std::move(object)) {}
  ProcessShared(const ProcessShared&) = default;
  ProcessShared(ProcessShared&&) noexcept = default;
  ProcessShared& operator=(ProcessShared other) noexcept {
    std::swap(object_, other.object_);
    std::swap(mark_, other.mark_);
    return *this;
  }
  ~ProcessShared() {
    if (object_ != nullptr && forked()) internal::Abandon(std::move(object_));
  }

  bool forked() const noexcept { return mark_.forked(); }
  const std::shared_ptr<T>& get() const noexcept { return object_; }
  T* operator->() const noexcept { return object_.get(); }
  T& operator*() const noexcept { return *object_; }
  explicit operator bool() const noexcept { return object_ != nullptr; }

 private:
  std::shared_ptr<T> object_;  // with its other owners in this process
  ProcessMark mark_;
};

// For static memory: one T for each process, made at its first use. A forked child leaves its
// parent's alone. None is ever destroyed. Any thread.
template <class T>
class PerProcess {
 public:
  T& Get() {
    Made* made = made_.load(std::memory_order_acquire);
    if (made != nullptr && !made->mark.forked()) return made->object;
    auto fresh = std::make_unique<Made>();
    fresh->of_parent = made;
    if (made_.compare_exchange_strong(made, fresh.get(), std::memory_order_acq_rel)) {
      return fresh.release()->object;
    }
    return made->object;  // another thread was first
  }

 private:
  struct Made {
    T object;
    ProcessMark mark;
    Made* of_parent = nullptr;  // so that leak checkers find it
  };
  std::atomic<Made*> made_{nullptr};
};

// Forked children close this descriptor as their first act, so that they keep no connection, port
// or pipe of their parent open. StopClosingInChildren() comes before the descriptor is closed. A
// fork() between the two, or before the first call, leaves the descriptor to that child. Any
// thread.
void CloseInChildren(int fd) noexcept;
void StopClosingInChildren(int fd) noexcept;

}  // namespace ferry
