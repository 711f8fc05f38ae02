// Writes to NCCL's log and maps errors to its result codes.
#include "plugins/nccl/report.h"

#include <fmt/core.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "ferry/core/deadline.h"
#include "ferry/core/fork.h"
#include "ferry/core/loop/thread.h"
#include "ferry/core/stderr_line.h"

namespace ferry::nccl_net {
namespace {

namespace abi = net::nccl_abi;

constexpr unsigned long kInitFlag = 1;
constexpr unsigned long kNetFlag = 16;
constexpr milliseconds kMaxFlush{100};

std::atomic<abi::Logger> logger_in_use{nullptr};

struct Line {
  abi::Logger logger = nullptr;
  int level = 0;
  unsigned long flags = 0;
  std::string text;
};

// The lines on their way to NCCL's logger, which blocks for as long as the pipe that it writes to
// is full. Lines come from loops and from threads that hold locks, so a thread that may block calls
// the logger.
class LineQueue {
 public:
  void Add(Line line) {
    const std::lock_guard lock(mutex_);
    if (lines_.size() == kMaxLogLines || !StartLocked()) {
      ++lost_;
      return;
    }
    if (lost_ > 0) {
      line.text +=
          fmt::format(" ({} lines before this one were lost: NCCL's log took them too slowly)",
                      std::exchange(lost_, 0));
    }
    lines_.push_back(std::move(line));
    ++added_;
    changed_.notify_all();
  }

  void Flush() {
    std::unique_lock lock(mutex_);
    if (stuck_) return;
    const std::uint64_t last = added_;
    stuck_ = !changed_.wait_for(lock, kMaxFlush, [&] { return written_ >= last; });
  }

 private:
  // Nobody joins the thread, since it may be in the logger for good; the library stays loaded.
  bool StartLocked() {
    if (started_) return true;
    auto thread = StartThread("NCCL's log", [this] { Run(); });
    if (thread) thread->detach();
    started_ = thread.has_value();
    return started_;
  }

  void Run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return !lines_.empty(); });
      // The line keeps its place, and so its memory, until it is written.
      const Line& line = lines_.front();
      lock.unlock();
      line.logger(line.level, line.flags, "nccl_net", 0, "NET/Ferry : %s", line.text.c_str());
      lock.lock();
      lines_.pop_front();
      ++written_;
      stuck_ = false;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  std::deque<Line> lines_;
  std::uint64_t added_ = 0;
  std::uint64_t written_ = 0;
  std::uint64_t lost_ = 0;  // since the last line that was added
  bool started_ = false;
  bool stuck_ = false;  // a flush has waited in vain, and no line has been written since
};

// Never destroyed, as its thread is never joined. A forked child gets its own.
LineQueue& TheLines() {
  static PerProcess<LineQueue> lines;
  return lines.Get();
}

void Say(int level, unsigned long flags, const std::string& text) {
  const abi::Logger logger = logger_in_use.load();
  if (logger != nullptr) TheLines().Add({logger, level, flags, EscapeControls(text)});
}

}  // namespace

void SetLogger(abi::Logger logger) noexcept {
  // A null logger leaves the former one, whose address CodeOfNccl() needs as well.
  if (logger != nullptr) logger_in_use.store(logger);
}

// The address of a function as a data pointer, which dladdr(3) takes.
const void* CodeOfNccl() noexcept { return reinterpret_cast<const void*>(logger_in_use.load()); }

void Warn(const std::string& text) { Say(abi::kLogWarn, kNetFlag, text); }
void InformNet(const std::string& text) { Say(abi::kLogInfo, kNetFlag, text); }
void InformInit(const std::string& text) { Say(abi::kLogInfo, kInitFlag | kNetFlag, text); }
void FlushLog() { TheLines().Flush(); }

int OutcomeOf(Code code) noexcept {
  switch (code) {
    case Code::kInvalidArgument:
    case Code::kUnsupported: return abi::kInvalidUsage;
    case Code::kUnavailable:
    case Code::kDeviceLost: return abi::kSystemError;
    case Code::kRefused:
    case Code::kTimedOut:
    case Code::kPeerLost:
    case Code::kCorrupt: return abi::kRemoteError;
    case Code::kCancelled:
    case Code::kInternal: break;
  }
  return abi::kInternalError;
}

int Fail(const Error& error) {
  Warn(error.message());
  return OutcomeOf(error.code());
}

}  // namespace ferry::nccl_net
