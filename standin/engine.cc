// Implements the stand-in's process-wide state.

#include "standin/engine.h"

#include <string>
#include <utility>

#include "standin/standin.h"

namespace ferry::standin {
namespace {

std::atomic<Engine*> running_engine{nullptr};

std::unique_ptr<Memory> MemoryFor(const Settings& settings) {
  switch (settings.memory) {
    case Where::kGpu: return GpuMemory(settings.driver);
    case Where::kMapped: return MappedMemory(settings.driver);
    case Where::kHost: break;
  }
  return HostMemory();
}

const char* NameOf(Where where) {
  switch (where) {
    case Where::kGpu: return "the GPU";
    case Where::kMapped: return "the host, mapped for the GPU";
    case Where::kHost: break;
  }
  return "the host";
}

// A program and a plug-in of it may each contain a host. One host must not come twice.
int AddHost(abi::Logger logger) {
  switch (AddLogger(logger)) {
    case NewHost::kAdded: return abi::kSuccess;
    case NewHost::kKnown: return Misuse("init was called twice by the same host");
    case NewHost::kTooMany: break;
  }
  // Not a misuse, but a limit of the stand-in. The others get the line, too.
  constexpr const char* kText = "standin: init was called by another host, and %zu are the most";
  constexpr unsigned long kNet = 16;
  logger(abi::kLogWarn, kNet, "standin", 0, kText, kMaxHosts);
  Log(abi::kLogWarn, kText, kMaxHosts);
  return abi::kInternalError;
}

}  // namespace

int Engine::Start(abi::Logger logger) {
  static std::mutex starting;
  const std::lock_guard lock(starting);
  if (Running() != nullptr) return AddHost(logger);
  std::string problem;
  const auto settings = ReadSettings(&problem);
  // Before anything is logged, and also if the settings are wrong, since their error must reach the
  // host. A failed init() leaves no engine behind and may be repeated.
  BeginReporting(logger, settings && settings->abort);
  if (!settings) {
    Log(abi::kLogWarn, "standin: %s", problem.c_str());
    return abi::kInvalidArgument;
  }
  if (settings->fault == Fault::kInitFail) {
    Log(abi::kLogWarn, "standin: init fails, as FERRY_STANDIN_FAULT asks for");
    return abi::kSystemError;
  }
  auto memory = MemoryFor(*settings);
  if (memory == nullptr) return abi::kSystemError;
  // Pairs with the acquire in Running(): threads that find the engine see its settings and memory.
  running_engine.store(new Engine(*settings, std::move(memory)), std::memory_order_release);
  Log(abi::kLogInfo, "standin: a stand-in for GPUDirectTCPX, over 127.0.0.1, memory of %s",
      NameOf(settings->memory));
  return abi::kSuccess;
}

Engine* Engine::Running() { return running_engine.load(std::memory_order_acquire); }

Engine::Engine(const Settings& settings, std::unique_ptr<Memory> memory)
    : settings_(settings), memory_(std::move(memory)) {}

Pool* Engine::PoolOf(int device) {
  const std::lock_guard lock(mutex_);
  // Made by the first comm of the device. One without memory stays in the table, so that the
  // allocation is not repeated for each comm.
  auto& pool = pools_[device];
  if (pool == nullptr) {
    pool = std::make_unique<Pool>(*memory_, device,
                                  Pool::Shape{settings_.pool, settings_.together, settings_.spread},
                                  NextSeed());
  }
  return pool->base() == nullptr ? nullptr : pool.get();
}

unsigned long Engine::pages_in_use() {
  const std::lock_guard lock(mutex_);
  // Lock order: the engine's mutex before a pool's. Pools do not call the engine.
  unsigned long sum = 0;
  for (const auto& [device, pool] : pools_) sum += pool->pages_in_use();
  return sum;
}

std::uint64_t Engine::PoolBytesAt(const void* base) {
  const std::lock_guard lock(mutex_);
  for (const auto& [device, pool] : pools_) {
    if (pool->base() == base) return pool->bytes();
  }
  return 0;
}

// Only calls for the configured fault count, and exactly one of them is the N-th, whatever threads
// make them.
bool Engine::Hit(Fault fault) { return settings_.fault == fault && ++hits_ == settings_.fault_at; }

// The factor keeps neighbouring values of FERRY_STANDIN_SEED apart: they share no seed among the
// first million.
std::uint64_t Engine::NextSeed() { return settings_.seed * 1'000'003 + ++seeds_; }

}  // namespace ferry::standin

// NOLINTNEXTLINE(readability-identifier-naming): a C name
extern "C" __attribute__((visibility("default"))) unsigned long ferry_standin_pages_in_use() {
  auto* const engine = ferry::standin::Engine::Running();
  return engine == nullptr ? 0 : engine->pages_in_use();
}

extern "C" __attribute__((visibility("default"))) unsigned long long
// NOLINTNEXTLINE(readability-identifier-naming): a C name
ferry_net_pool_bytes(const void* pool) {
  auto* const engine = ferry::standin::Engine::Running();
  return engine == nullptr ? 0 : engine->PoolBytesAt(pool);
}
