// Drives libnccl-net-ferry.so as NCCL does: through its function tables, by polling, with handles
// copied as bytes.
#pragma once
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/net/nccl_abi/abi.h"
#include "ferry/tcpx/host/comm.h"
#include "ferry/tcpx/host/driver.h"

namespace ferry::nccl_net::testing {

using tcpx::Driver;
using tcpx::Handle;
using tcpx::Message;

// A failure of a call that a test depends on throws std::runtime_error.
void Require(int outcome, const char* call);

// The use of the plugin that one communicator makes: from init() to finalize().
class NcclHost {
 public:
  // `path` is loaded as NCCL does it; once initialised, up to v10 it stays so.
  NcclHost(const std::string& path, int version);
  ~NcclHost();
  NcclHost(const NcclHost&) = delete;
  NcclHost& operator=(const NcclHost&) = delete;

  Driver& driver() noexcept { return *driver_; }
  Driver* operator->() noexcept { return driver_.get(); }
  // Without another at the end.
  void Finalize();

 private:
  std::unique_ptr<Driver> driver_;
  bool finalized_ = false;
};

// Set, or not set for an empty value, while processes are started, and as before afterwards.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const std::string& value) : name_(name) {
    if (const char* const before = std::getenv(name)) before_ = before;
    if (value.empty()) {
      (void)::unsetenv(name);
    } else {
      (void)::setenv(name, value.c_str(), 1);
    }
  }
  ~ScopedVariable() {
    if (before_) {
      (void)::setenv(name_, before_->c_str(), 1);
    } else {
      (void)::unsetenv(name_);
    }
  }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  const char* const name_;
  std::optional<std::string> before_;
};

// The logger that hosts give the plugin: it keeps lines for the functions below.
net::nccl_abi::Logger LoggerOfTests();
// Lines that the plugin has given to NCCL's logger, in this process. Its thread may be about to
// give it others.
std::string LoggedText();
// Waits until LoggedText() has the text at `from` or later; false after the tests' deadline.
bool Logged(std::string_view text, std::size_t from = 0);

// Blocks NCCL's logger while it exists, as a full pipe does.
class HeldLog {
 public:
  HeldLog();
  ~HeldLog();
  HeldLog(const HeldLog&) = delete;
  HeldLog& operator=(const HeldLog&) = delete;
  // Waits until a line is blocked. Returns false if the logger has stopped waiting for it.
  static bool Blocks();
};

// One listen comm.
class NcclListen {
 public:
  explicit NcclListen(NcclHost* host, int device = 0);
  ~NcclListen() { Close(); }
  NcclListen(const NcclListen&) = delete;
  NcclListen& operator=(const NcclListen&) = delete;

  const Handle& handle() const noexcept { return handle_; }
  // Polls. Throws where it takes too long, or fails.
  void* Accept(Deadline deadline);
  int TryAccept(void** recv_comm);
  void Close();

 private:
  NcclHost* const host_;
  Handle handle_{};
  void* comm_ = nullptr;
};

// One connect() that is polled.
class NcclConnect {
 public:
  NcclConnect(NcclHost* host, const Handle& handle, int device = 0)
      : host_(host), handle_(handle), device_(device) {}
  int TryConnect(void** send_comm);
  void* Connect(Deadline deadline);

 private:
  NcclHost* const host_;
  alignas(8) Handle handle_;
  const int device_;
};

// A connection whose two ends are in this process; either may be taken out.
struct CommPair {
  CommPair(NcclHost* from, NcclHost* to);
  ~CommPair() { Close(); }
  CommPair(const CommPair&) = delete;
  CommPair& operator=(const CommPair&) = delete;
  void Close();

  NcclHost* from = nullptr;
  NcclHost* to = nullptr;
  void* send = nullptr;
  void* recv = nullptr;
};

// Polls until the request is done; returns its outcome, kSuccess with sizes in `bytes`. Throws
// where it takes too long.
int WaitFor(NcclHost& host, void* request, int* bytes, Deadline deadline);

// Bytes that tell where they belong.
std::vector<std::byte> PatternOf(std::size_t bytes, std::uint64_t seed);

}  // namespace ferry::nccl_net::testing
