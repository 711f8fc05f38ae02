// A minimal host for tests of the stand-in, which knows only the plugin interface.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "ferry/net/nccl_abi/abi_v7.h"
#include "ferry/tcpx/host/tcpx_layout.h"
#include "standin/testing/library_copy.h"
#include "standin/testing/pages.h"

namespace ferry::standin::testing {

namespace abi = net::nccl_abi;
namespace layout = ferry::tcpx::layout;
using ferry::tcpx::Fragment;

// A library of its own, from a copy of the file: it has read its own variables, and shares nothing
// with others. It stays loaded, because its threads do.
class Instance {
 public:
  // Variables without their FERRY_STANDIN_. Does not call init().
  explicit Instance(const Variables& variables);
  // With init(), which succeeds.
  static Instance Initialized(const Variables& variables);

  abi::TableV7* operator->() const { return table_; }
  int Init() const;
  unsigned long Misuses() const { return misuses_(); }
  std::string LastMisuse() const { return last_misuse_(); }
  void Reset() const { reset_(); }
  unsigned long PagesInUse() const { return pages_in_use_(); }

 private:
  Variables variables_;
  abi::TableV7* table_ = nullptr;
  unsigned long (*misuses_)() = nullptr;
  const char* (*last_misuse_)() = nullptr;
  void (*reset_)() = nullptr;
  unsigned long (*pages_in_use_)() = nullptr;
};

// The lines that all instances have logged, at WARN.
std::string Warnings();

// Where a Pair's buffers and the bounce pool are, if not in the host's memory. Aborts when it
// fails.
class Device {
 public:
  virtual ~Device() = default;
  // At a boundary of 4 KiB; never freed.
  virtual std::byte* Allocate(std::size_t bytes) = 0;
  virtual void Write(std::byte* to, const std::byte* from, std::size_t bytes) = 0;
  virtual void Read(std::byte* to, const std::byte* from, std::size_t bytes) = 0;
};

// Both ends of a connection, each with a registered buffer, in one thread.
class Pair {
 public:
  // Polls until both ends are there. `device` is the current one.
  Pair(const Instance& plugin, std::size_t bytes, Device* device = nullptr);
  // Two instances that stand for two processes.
  Pair(const Instance& sender, const Instance& receiver, std::size_t bytes, Device* device);
  // Deregisters and closes what is not closed yet.
  ~Pair();
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  // Null is a failed expectation; nothing is waited for but a comm that is not ready.
  layout::Request* Send(std::size_t offset, std::size_t bytes);
  layout::Request* Receive(std::size_t offset, std::size_t bytes);
  // 1 done, 0 not yet; minus the outcome if that is bad.
  int Test(layout::Request* request) const;
  // Tests `mine`, and the peer's request if there is one, until they are done. What Test() said of
  // `mine`.
  int Wait(layout::Request* mine, layout::Request* peers = nullptr) const;
  int Consume(layout::Request* request) const;

  // One message, sent and received, not consumed. Null if that fails.
  layout::Request* Exchange(std::size_t bytes);

  // The contents of the row of a finished receive.
  std::vector<Fragment> FragmentsOf(const layout::Request* request) const;
  // Copies a received message from the bounce pool to its place in target(). Returns its bytes.
  std::size_t Unpack(const layout::Request* request) const;

  void CloseSend();
  void CloseRecv();

  // The host's; on a device, what is sent is a copy of source().
  std::byte* source() const { return source_.get(); }
  std::byte* target() const { return target_.get(); }
  void* send_comm() const { return send_comm_; }
  void* recv_comm() const { return recv_comm_; }
  void* send_mr() const { return send_mr_; }
  void* recv_mr() const { return recv_mr_; }
  void* listen_comm() const { return listen_comm_; }
  std::byte* handle() { return handle_; }
  const layout::UnpackHandle& unpack() const { return unpack_; }

 private:
  void ReadPool(std::byte* to, const std::byte* from, std::size_t bytes) const;

  const Instance& sender_;
  const Instance& receiver_;
  Device* const device_;
  alignas(8) std::byte handle_[abi::kHandleBytes] = {};
  abi::DeviceHandle device_handle_;
  layout::UnpackHandle unpack_;
  void* listen_comm_ = nullptr;
  void* send_comm_ = nullptr;
  void* recv_comm_ = nullptr;
  Pages source_;
  Pages target_;
  std::byte* sent_from_ = nullptr;
  std::byte* received_at_ = nullptr;
  void* send_mr_ = nullptr;
  void* recv_mr_ = nullptr;
};

}  // namespace ferry::standin::testing
