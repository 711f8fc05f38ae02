// Implements the host that drives the NCCL plugin.

#include "bindings/nccl_net/tests/testing/nccl_host.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include <cstdarg>
#include <cstdio>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "ferry/net/plugin/abi.h"

namespace ferry::nccl_net::testing {
namespace {

namespace abi = net::plugin::abi;

std::mutex log_mutex;
std::string& LogOfProcess() {
  static auto* const text = new std::string;
  return *text;
}

void KeepLine(int level, unsigned long /*flags*/, const char* /*file*/, int /*line*/,
              const char* format, ...) {
  char line[1024];
  va_list arguments;
  va_start(arguments, format);
  (void)std::vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  const std::lock_guard lock(log_mutex);
  LogOfProcess() += fmt::format("{} {}\n", level, line);
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

std::string LoggedText() {
  const std::lock_guard lock(log_mutex);
  return LogOfProcess();
}

NcclHost::NcclHost(const std::string& path, int version) {
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(::dlerror());
  void* const table = ::dlsym(library, fmt::format("ncclNetPlugin_v{}", version).c_str());
  if (table == nullptr) throw std::runtime_error(fmt::format("no table of version {}", version));
  driver_ = net::plugin::MakeDriver(version, table);
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
