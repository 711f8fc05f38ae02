// Detection of fork(2), so that a child leaves its parent's objects alone.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "ferry/core/result.h"

// A child of fork(2) has a copy of every object, but none of the threads that work for them, and
// mutexes that those threads may have held. So before it takes any lock, a child asks whether an
// object is its own; it neither uses nor destroys an object of its parent.
namespace ferry {

namespace internal {
// Incremented in each child of fork(2), by pthread_atfork(3).
inline std::atomic<std::uint32_t> process_generation{0};
// Keeps the object alive forever.
void Abandon(std::shared_ptr<const void> object);
}  // namespace internal

// Remembers the process that created an object; copies remember the same one. Does not detect a
// child created without fork(), for example by clone(2): POSIX allows such a child only system
// calls.
class ProcessMark {
 public:
  ProcessMark() noexcept;
  // Whether the object belongs to a parent of this process. One relaxed load. Any thread.
  bool forked() const noexcept {
    return generation_ != internal::process_generation.load(std::memory_order_relaxed);
  }

 private:
  std::uint32_t generation_;
};

// The error for a child's call on an object that its parent created; `object` is its kind:
// "connection".
Error MadeBeforeFork(std::string_view object);

// A shared_ptr to an object that only the process that created it may use and destroy. A forked
// child abandons its copy: nothing is destroyed, joined or waited for.
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

// For static storage: one T for each process, created at its first use and never destroyed. A
// forked child does not touch its parent's. Any thread.
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

// Forked children close this descriptor before fork() returns there, so that they keep no
// connection, port or pipe of their parent open. Call StopClosingInChildren() before the descriptor
// is closed. A fork() between the two, or before the first call, leaves the descriptor open in that
// child. Any thread.
void CloseInChildren(int fd) noexcept;
void StopClosingInChildren(int fd) noexcept;

}  // namespace ferry
