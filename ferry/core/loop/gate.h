// A gate that stops new work and waits for the work in flight.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <utility>

#include "ferry/core/check.h"
#include "ferry/core/deadline.h"

namespace ferry {

// Stops work in two steps: Close() rejects new entries, WaitDrained() waits for those inside. Any
// thread may call any member; entering and leaving an open gate takes no lock. Once WaitDrained()
// has returned true, the gate may be destroyed.
class Gate {
 public:
  Gate() = default;
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  // False once closed. A true must be paired with one Leave(); GateHold does that.
  [[nodiscard]] bool TryEnter() noexcept {
    std::uint64_t state = state_.load(std::memory_order_relaxed);
    do {
      if ((state & kClosed) != 0) return false;
    } while (!state_.compare_exchange_weak(state, state + 1, std::memory_order_acquire,
                                           std::memory_order_relaxed));
    return true;
  }

  void Leave() {
    // Release: what was done inside happens before WaitDrained() returns.
    const std::uint64_t before = state_.fetch_sub(1, std::memory_order_acq_rel);
    FERRY_CHECK((before & ~kClosed) != 0, before);
    if (before == (kClosed | 1)) MarkDrained();
  }

  // May be repeated; only the first call has an effect.
  void Close() {
    if (state_.fetch_or(kClosed, std::memory_order_acq_rel) == 0) MarkDrained();
  }

  bool closed() const noexcept { return (state_.load(std::memory_order_acquire) & kClosed) != 0; }
  // The number of holders inside; may be stale on return.
  std::uint64_t inside() const noexcept {
    return state_.load(std::memory_order_relaxed) & ~kClosed;
  }

  // True when the gate is closed and empty, false when the deadline passes first. Blocks.
  [[nodiscard]] bool WaitDrained(Deadline deadline) {
    std::unique_lock lock(mutex_);
    const auto drained = [this] { return drained_; };
    if (!deadline.never()) return changed_.wait_until(lock, deadline.when(), drained);
    changed_.wait(lock, drained);
    return true;
  }

 private:
  static constexpr std::uint64_t kClosed = std::uint64_t{1} << 63;

  // The waiter checks drained_ and not state_, and is notified under the lock: so it cannot return,
  // and destroy the gate, before this thread has released the last member it touches.
  void MarkDrained() {
    const std::lock_guard lock(mutex_);
    drained_ = true;
    changed_.notify_all();
  }

  std::atomic<std::uint64_t> state_{0};  // kClosed and the number inside
  std::mutex mutex_;
  std::condition_variable changed_;
  bool drained_ = false;  // under mutex_; becomes true once
};

// Is inside the gate while it lives; converts to false if the gate was already closed. The gate
// must outlive the wait for it to drain, which this hold delays.
class [[nodiscard]] GateHold {
 public:
  GateHold() = default;
  explicit GateHold(Gate& gate) noexcept : gate_(gate.TryEnter() ? &gate : nullptr) {}
  GateHold(GateHold&& other) noexcept : gate_(std::exchange(other.gate_, nullptr)) {}
  GateHold& operator=(GateHold&& other) noexcept {
    GateHold moved(std::move(other));
    std::swap(gate_, moved.gate_);
    return *this;
  }
  ~GateHold() {
    if (gate_ != nullptr) gate_->Leave();
  }

  explicit operator bool() const noexcept { return gate_ != nullptr; }

 private:
  Gate* gate_ = nullptr;
};

}  // namespace ferry
