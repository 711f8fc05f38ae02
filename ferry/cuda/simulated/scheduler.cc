// Runs the queued work of simulated streams.
#include "ferry/cuda/simulated/scheduler.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "ferry/core/check.h"
#include "ferry/core/loop/thread.h"
#include "ferry/core/units.h"
#include "ferry/cuda/address.h"

namespace ferry::cuda {
namespace {

// A copy runs in pieces, in random order, so that a reader that does not wait sees it half done.
constexpr std::size_t kLongestPiece = 256 * kKiB;
// Poll interval: the host writes flags without notifying anybody.
constexpr auto kFlagPoll = microseconds(50);
// Handles are neither null nor small numbers like ordinals.
constexpr std::uint64_t kHandleStep = 0x100;

// The default stream of a device has the null handle.
std::uint64_t KeyOf(StreamRef stream) noexcept {
  return stream.native() != nullptr ? AddressOf(stream.native())
                                    : static_cast<std::uint64_t>(stream.ordinal());
}

Reach ReachOfSource(CopyKind kind) noexcept {
  return kind == CopyKind::kHostToDevice ? Reach::kHost : Reach::kDevice;
}
Reach ReachOfDestination(CopyKind kind) noexcept {
  return kind == CopyKind::kDeviceToHost ? Reach::kHost : Reach::kDevice;
}

SimulatedFailure IllegalAccess(std::string tried) {
  return SimulatedFailure{Fault::kIllegalAddress, std::move(tried)};
}

// Holds the memory that a kernel accesses until the kernel ends.
class KernelMemory final : public EmulatedMemory {
 public:
  KernelMemory(SimulatedMemory& memory, int ordinal) : memory_(memory), ordinal_(ordinal) {}

  Result<std::byte*> At(std::uint64_t address, std::uint64_t bytes) override {
    FERRY_TRY_ASSIGN(auto held, memory_.Hold(Reach::kKernel, ordinal_, address, bytes));
    std::byte* const at = held.data();
    held_.push_back(std::move(held));
    return at;
  }

 private:
  SimulatedMemory& memory_;
  const int ordinal_;
  std::vector<SimulatedMemory::Held> held_;
};

}  // namespace

// ---- streams ------------------------------------------------------------------------------------

SimulatedScheduler::SimulatedScheduler(SimulatedMemory& memory, int devices, const Options& options)
    : memory_(memory),
      options_(options),
      random_(options.seed),
      broken_(static_cast<std::size_t>(devices)),
      next_stream_(kHandleStep) {
  for (int i = 0; i < devices; ++i) lanes_[static_cast<std::uint64_t>(i)].ordinal = i;
}

Status SimulatedScheduler::Start() {
  for (int i = 0; i < options_.workers; ++i) {
    FERRY_TRY_ASSIGN(std::thread worker, StartThread("simulated devices", [this] { Run(); }));
    workers_.push_back(std::move(worker));
  }
  return Ok();
}

SimulatedScheduler::~SimulatedScheduler() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void* SimulatedScheduler::AddStream(int ordinal) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t handle = next_stream_;
  next_stream_ += kHandleStep;
  lanes_[handle].ordinal = ordinal;
  return reinterpret_cast<void*>(handle);
}

void SimulatedScheduler::RemoveStream(void* native) {
  const std::lock_guard lock(mutex_);
  const auto lane = lanes_.find(AddressOf(native));
  FERRY_CHECK(lane != lanes_.end(), native);
  lane->second.closing = true;
  Tidy(lane);
}

bool SimulatedScheduler::Knows(StreamRef stream) {
  const std::lock_guard lock(mutex_);
  const auto lane = lanes_.find(KeyOf(stream));
  return lane != lanes_.end() && !lane->second.closing && lane->second.ordinal == stream.ordinal();
}

SimulatedScheduler::Lane& SimulatedScheduler::LaneOf(StreamRef stream) {
  const auto lane = lanes_.find(KeyOf(stream));
  FERRY_CHECK(lane != lanes_.end(), stream.native());
  return lane->second;
}

void SimulatedScheduler::Push(StreamRef stream, SimulatedWork work, std::optional<Fault> fault) {
  std::unique_lock lock(mutex_);
  const auto lane = lanes_.find(KeyOf(stream));
  FERRY_CHECK(lane != lanes_.end(), stream.native());
  // Then no queued work can read the destination any more, so it is poisoned before Push() returns;
  // otherwise when the stream comes to the copy (docs/gotchas.md).
  const bool idle = lane->second.queue.empty() && !lane->second.busy;
  std::uniform_int_distribution<microseconds::rep> delay(0, options_.max_delay.count());
  lane->second.queue.push_back(
      Queued{std::move(work), fault, Clock::now() + microseconds(delay(random_))});
  // References into a deque stay valid when elements are appended; nobody removes work from a busy
  // lane.
  auto* const copy = std::get_if<SimulatedCopy>(&lane->second.queue.back().work);
  if (idle && copy != nullptr) {
    // Keeps the workers away from the lane while its destination is written without the mutex.
    lane->second.busy = true;
    lock.unlock();
    const Outcome outcome = Poison(*copy);
    lock.lock();
    copy->poisoned = true;
    if (outcome.failure) BreakDevice(lane->second.ordinal, *outcome.failure);
    lane->second.busy = false;
  }
  Tidy(lane);
  changed_.notify_all();
}

// The work that runs is the first of the queue until it has ended, so an empty queue is an idle
// stream.
bool SimulatedScheduler::IsIdle(StreamRef stream) {
  const std::lock_guard lock(mutex_);
  return LaneOf(stream).queue.empty();
}

bool SimulatedScheduler::IsDone(const SharedRecord& record) {
  const std::lock_guard lock(mutex_);
  return record->done;
}

std::chrono::nanoseconds SimulatedScheduler::Between(const SharedRecord& from,
                                                     const SharedRecord& to) {
  const std::lock_guard lock(mutex_);
  return to->when - from->when;
}

void SimulatedScheduler::Pause() {
  const std::lock_guard lock(mutex_);
  paused_ = true;
}

void SimulatedScheduler::Resume() {
  {
    const std::lock_guard lock(mutex_);
    paused_ = false;
  }
  changed_.notify_all();
}

// ---- failures -----------------------------------------------------------------------------------

void SimulatedScheduler::Break(int ordinal, const SimulatedFailure& failure) {
  std::unique_lock lock(mutex_);
  BreakDevice(ordinal, failure);
  AwaitSteps(lock, ordinal);
}

std::optional<SimulatedFailure> SimulatedScheduler::broken(int ordinal) {
  std::unique_lock lock(mutex_);
  const auto& broken = broken_[static_cast<std::size_t>(ordinal)];
  if (broken) AwaitSteps(lock, ordinal);
  return broken;
}

// Callers reuse the memory of a lost device's copies, so running copies must end first.
void SimulatedScheduler::AwaitSteps(std::unique_lock<std::mutex>& lock, int ordinal) {
  changed_.wait(lock, [&] {
    return std::none_of(lanes_.begin(), lanes_.end(), [&](const auto& entry) {
      const Lane& lane = entry.second;
      // A lane that is busy and empty is just being tidied, and touches no memory.
      return lane.busy && lane.ordinal == ordinal && !lane.queue.empty();
    });
  });
}

void SimulatedScheduler::BreakDevice(int ordinal, const SimulatedFailure& failure) {
  auto& broken = broken_[static_cast<std::size_t>(ordinal)];
  if (!broken) broken = failure;
  for (auto lane = lanes_.begin(); lane != lanes_.end();) Tidy(lane++);
  changed_.notify_all();
}

// Waits for these recordings, on other devices, must not last for ever: `dropped` ends them.
void SimulatedScheduler::Drop(Lane& lane) {
  for (Queued& queued : lane.queue) {
    if (auto* const recording = std::get_if<SimulatedRecording>(&queued.work)) {
      recording->record->dropped = true;
    }
  }
  lane.queue.clear();
}

void SimulatedScheduler::Tidy(std::map<std::uint64_t, Lane>::iterator lane) {
  if (lane->second.busy) return;
  if (broken_[static_cast<std::size_t>(lane->second.ordinal)]) Drop(lane->second);
  if (lane->second.closing && lane->second.queue.empty()) lanes_.erase(lane);
}

// ---- work ---------------------------------------------------------------------------------------

bool SimulatedScheduler::FlagIsUp(const SimulatedFlagWait& wait, int ordinal) {
  const auto held = memory_.Hold(Reach::kKernel, ordinal, wait.flag, sizeof wait.value);
  if (!held) return true;                                        // fails when the step runs
  auto& word = *reinterpret_cast<std::uint32_t*>(held->data());  // aligned: checked when queued
  const std::uint32_t now = std::atomic_ref<std::uint32_t>(word).load(std::memory_order_acquire);
  // As CU_STREAM_WAIT_VALUE_GEQ, which compares modulo 2^32. Acquire: what the host wrote before it
  // raised the flag is visible to the work behind the wait.
  return static_cast<std::int32_t>(now - wait.value) >= 0;
}

bool SimulatedScheduler::CanBegin(const Lane& lane, Clock::time_point now,
                                  Clock::time_point* wake) {
  if (lane.busy || lane.queue.empty()) return false;
  const Queued& first = lane.queue.front();
  if (first.not_before > now) {
    *wake = std::min(*wake, first.not_before);
    return false;
  }
  // It fails instead of waiting.
  if (first.fault) return true;
  if (const auto* const wait = std::get_if<SimulatedWait>(&first.work)) {
    return wait->record->done || wait->record->dropped;
  }
  if (const auto* const wait = std::get_if<SimulatedFlagWait>(&first.work)) {
    if (FlagIsUp(*wait, lane.ordinal)) return true;
    *wake = std::min(*wake, now + kFlagPoll);
    return false;
  }
  return true;
}

std::map<std::uint64_t, SimulatedScheduler::Lane>::iterator SimulatedScheduler::PickLane(
    Clock::time_point* wake) {
  *wake = Clock::time_point::max();
  if (paused_) return lanes_.end();
  const auto now = Clock::now();
  std::vector<std::map<std::uint64_t, Lane>::iterator> ready;
  for (auto lane = lanes_.begin(); lane != lanes_.end(); ++lane) {
    if (CanBegin(lane->second, now, wake)) ready.push_back(lane);
  }
  if (ready.empty()) return lanes_.end();
  // Any stream that can go on, so that an order that the program does not enforce is not kept.
  return ready[random_() % ready.size()];
}

void SimulatedScheduler::Run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    Clock::time_point wake;
    const auto lane = PickLane(&wake);
    if (lane == lanes_.end()) {
      if (wake == Clock::time_point::max()) {
        changed_.wait(lock);
      } else {
        changed_.wait_until(lock, wake);
      }
      continue;
    }
    lane->second.busy = true;
    // Map entries stay where they are, and a busy lane is not erased (Tidy), so the reference
    // survives the release of the mutex.
    const Outcome outcome = Step(lock, lane->second);
    if (outcome.failure) BreakDevice(lane->second.ordinal, *outcome.failure);
    if (outcome.finished) lane->second.queue.pop_front();
    lane->second.busy = false;
    Tidy(lane);
    changed_.notify_all();
  }
}

SimulatedScheduler::Outcome SimulatedScheduler::Step(std::unique_lock<std::mutex>& lock,
                                                     Lane& lane) {
  Queued& first = lane.queue.front();
  const int ordinal = lane.ordinal;
  if (first.fault) {
    return {.failure = SimulatedFailure{*first.fault, "work that was told to fail"}};
  }
  if (auto* const recording = std::get_if<SimulatedRecording>(&first.work)) {
    recording->record->done = true;
    recording->record->when = Clock::now();
    return {};
  }
  if (std::holds_alternative<SimulatedWait>(first.work)) return {};
  // The generator is under the mutex.
  const std::uint64_t choice = random_();
  lock.unlock();
  Outcome outcome;
  if (auto* const copy = std::get_if<SimulatedCopy>(&first.work)) {
    outcome = copy->poisoned ? CopyPiece(*copy, choice) : Poison(*copy);
    copy->poisoned = true;
  } else if (const auto* const launch = std::get_if<SimulatedLaunch>(&first.work)) {
    outcome = RunKernel(*launch, ordinal);
  } else if (const auto* const write = std::get_if<SimulatedFlagWrite>(&first.work)) {
    outcome = WriteFlag(*write, ordinal);
  } else if (const auto* const wait = std::get_if<SimulatedFlagWait>(&first.work)) {
    const auto held = memory_.Hold(Reach::kKernel, ordinal, wait->flag, sizeof wait->value);
    if (!held) outcome.failure = IllegalAccess("waiting for a flag: " + held.error().message());
  }
  lock.lock();
  return outcome;
}

SimulatedScheduler::Outcome SimulatedScheduler::Poison(const SimulatedCopy& copy) {
  for (const CopyItem& item : copy.left) {
    const auto dst =
        memory_.Hold(ReachOfDestination(copy.kind), 0, AddressOf(item.dst), item.bytes);
    if (!dst) return {.failure = IllegalAccess("copying to " + dst.error().message())};
    std::memset(dst->data(), static_cast<int>(kPoisonPending), item.bytes);
  }
  return {.finished = copy.left.empty(), .failure = {}};
}

SimulatedScheduler::Outcome SimulatedScheduler::CopyPiece(SimulatedCopy& copy,
                                                          std::uint64_t choice) {
  // The bits of `choice` are used for three decisions: the low ones for the item, the highest for
  // whole or partial pieces, those in the middle for the length.
  std::swap(copy.left[choice % copy.left.size()], copy.left.back());
  CopyItem& item = copy.left.back();
  const std::size_t most = std::min(item.bytes, kLongestPiece);
  // Half of the pieces have the maximum length, or large copies would take too long.
  const std::size_t piece = choice >> 63 == 0 ? most : 1 + (choice >> 20) % most;
  {
    const auto dst = memory_.Hold(ReachOfDestination(copy.kind), 0, AddressOf(item.dst), piece);
    if (!dst) return {.failure = IllegalAccess("copying to " + dst.error().message())};
    const auto src = memory_.Hold(ReachOfSource(copy.kind), 0, AddressOf(item.src), piece);
    if (!src) return {.failure = IllegalAccess("copying from " + src.error().message())};
    std::memcpy(dst->data(), src->data(), piece);
  }
  item.dst = static_cast<std::byte*>(item.dst) + piece;
  item.src = static_cast<const std::byte*>(item.src) + piece;
  item.bytes -= piece;
  if (item.bytes == 0) copy.left.pop_back();
  return {.finished = copy.left.empty(), .failure = {}};
}

SimulatedScheduler::Outcome SimulatedScheduler::RunKernel(const SimulatedLaunch& launch,
                                                          int ordinal) {
  KernelMemory memory(memory_, ordinal);
  const Status status = launch.kernel.emulate(memory, launch.arguments.data());
  if (status) return {};
  return {.failure = IllegalAccess(fmt::format("kernel {} on device {}, {}", launch.kernel.name,
                                               ordinal, status.error().message()))};
}

SimulatedScheduler::Outcome SimulatedScheduler::WriteFlag(const SimulatedFlagWrite& write,
                                                          int ordinal) {
  const auto held = memory_.Hold(Reach::kKernel, ordinal, write.flag, sizeof write.value);
  if (!held) return {.failure = IllegalAccess("writing a flag: " + held.error().message())};
  auto& word = *reinterpret_cast<std::uint32_t*>(held->data());  // aligned: checked when queued
  std::atomic_ref<std::uint32_t>(word).store(write.value, std::memory_order_release);
  return {};
}

}  // namespace ferry::cuda
