// Implements the host that drives the NCCL plugin.

#include "plugins/nccl/tests/testing/nccl_host.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include <chrono>
#include <condition_variable>
#include <cstdarg>
#include <cstdio>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "ferry/core/fork.h"

namespace ferry::nccl_net::testing {
namespace {

namespace abi = net::nccl_abi;

// How long a logger that a test holds blocks at most.
constexpr std::chrono::seconds kMaxHeld{20};

struct KeptLog {
  std::mutex mutex;  // guards the rest
  std::condition_variable changed;
  std::string text;
  bool held = false;
  int waiting = 0;  // calls of the logger
};
// A forked child begins anew: the thread that writes lines may be in the logger at the fork.
KeptLog& TheLog() {
  static PerProcess<KeptLog> log;
  return log.Get();
}

void KeepLine(int level, unsigned long /*flags*/, const char* /*file*/, int /*line*/,
              const char* format, ...) {
  char line[1024];
  va_list arguments;
  va_start(arguments, format);
  (void)std::vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  KeptLog& log = TheLog();
  std::unique_lock lock(log.mutex);
  ++log.waiting;
  log.changed.notify_all();
  // Not for good: a caller that must not be blocked here is to fail its test, not to hang it.
  if (!log.changed.wait_for(lock, kMaxHeld, [&] { return !log.held; })) log.held = false;
  --log.waiting;
  log.text += fmt::format("{} {}\n", level, line);
  log.changed.notify_all();
}

// Polls as NCCL's proxy does; lets others of a machine with few cores go on.
template <class Step>
void PollUntil(const char* what, Deadline deadline, Step done) {
  while (!done()) {
    if (deadline.expired()) throw std::runtime_error(fmt::format("{} took too long", what));
    std::this_thread::yield();
  }
}

}  // namespace

void Require(int outcome, const char* call) {
  if (outcome == abi::kSuccess) return;
  throw std::runtime_error(
      fmt::format("{} failed: {} ({})", call, abi::OutcomeName(outcome), LoggedText()));
}

abi::Logger LoggerOfTests() { return KeepLine; }

std::string LoggedText() {
  KeptLog& log = TheLog();
  const std::lock_guard lock(log.mutex);
  return log.text;
}

bool Logged(std::string_view text, std::size_t from) {
  KeptLog& log = TheLog();
  std::unique_lock lock(log.mutex);
  return log.changed.wait_for(lock, kMaxHeld,
                              [&] { return log.text.find(text, from) != std::string::npos; });
}

HeldLog::HeldLog() {
  KeptLog& log = TheLog();
  const std::lock_guard lock(log.mutex);
  log.held = true;
}

HeldLog::~HeldLog() {
  KeptLog& log = TheLog();
  const std::lock_guard lock(log.mutex);
  log.held = false;
  log.changed.notify_all();
}

bool HeldLog::Blocks() {
  KeptLog& log = TheLog();
  std::unique_lock lock(log.mutex);
  return log.changed.wait_for(lock, kMaxHeld, [&] { return log.waiting > 0 || !log.held; }) &&
         log.held;
}

NcclHost::NcclHost(const std::string& path, int version) {
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(::dlerror());
  void* const table = ::dlsym(library, fmt::format("ncclNetPlugin_v{}", version).c_str());
  if (table == nullptr) throw std::runtime_error(fmt::format("no table of version {}", version));
  driver_ = tcpx::MakeDriver(version, table);
  Require(driver_->Init(KeepLine), "init");
}

NcclHost::~NcclHost() { Finalize(); }

void NcclHost::Finalize() {
  if (!std::exchange(finalized_, true)) Require(driver_->Finalize(), "finalize");
}

NcclListen::NcclListen(NcclHost* host, int device) : host_(host) {
  handle_.fill(std::byte{0xE5});
  Require((*host_)->Listen(device, handle_.data(), &comm_), "listen");
}

int NcclListen::TryAccept(void** recv_comm) {
  abi::DeviceHandle* none = nullptr;
  return (*host_)->Accept(comm_, recv_comm, &none);
}

void* NcclListen::Accept(Deadline deadline) {
  void* comm = nullptr;
  PollUntil("accept", deadline, [&] {
    Require(TryAccept(&comm), "accept");
    return comm != nullptr;
  });
  return comm;
}

void NcclListen::Close() {
  if (comm_ != nullptr)
    Require((*host_)->CloseListen(std::exchange(comm_, nullptr)), "closeListen");
}

int NcclConnect::TryConnect(void** send_comm) {
  abi::DeviceHandle* none = nullptr;
  return (*host_)->Connect(device_, handle_.data(), send_comm, &none);
}

void* NcclConnect::Connect(Deadline deadline) {
  void* comm = nullptr;
  PollUntil("connect", deadline, [&] {
    Require(TryConnect(&comm), "connect");
    return comm != nullptr;
  });
  return comm;
}

CommPair::CommPair(NcclHost* the_sender, NcclHost* the_receiver)
    : from(the_sender), to(the_receiver) {
  const Deadline deadline = Deadline::After(std::chrono::seconds(30));
  NcclListen listen(to);
  NcclConnect connect(from, listen.handle());
  send = connect.Connect(deadline);
  recv = listen.Accept(deadline);
}

void CommPair::Close() {
  if (send != nullptr) Require((*from)->CloseSend(std::exchange(send, nullptr)), "closeSend");
  if (recv != nullptr) Require((*to)->CloseReceive(std::exchange(recv, nullptr)), "closeRecv");
}

int WaitFor(NcclHost& host, void* request, int* bytes, Deadline deadline) {
  int outcome = abi::kSuccess;
  PollUntil("test", deadline, [&] {
    int done = 0;
    outcome = host->Test(request, &done, bytes);
    return outcome != abi::kSuccess || done != 0;
  });
  return outcome;
}

std::vector<std::byte> PatternOf(std::size_t bytes, std::uint64_t seed) {
  std::vector<std::byte> pattern(bytes);
  std::uint64_t state = seed * 0x9E3779B97F4A7C15U + 1;
  for (std::byte& each : pattern) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    each = static_cast<std::byte>(state >> 56);
  }
  return pattern;
}

}  // namespace ferry::nccl_net::testing
