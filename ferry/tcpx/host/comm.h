// One-way connections through an NCCL network plugin.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <deque>
#include <memory>
#include <utility>

#include "ferry/core/result.h"
#include "ferry/tcpx/host/plugin.h"

// Connections of a plugin: one-way, from a SendComm to a ReceiveComm, messages in order. All calls
// for one comm come from one thread at a time, with the comm's GPU current
// (cuda::DeviceApi::MakeCurrent()). None waits for the peer: a call that has nothing to report says
// so, and is repeated, which also drives the plugin. So the thread must call for all of its comms
// in turn, or those that it leaves out stall their peers. Errors are those of Plugin::CallError(),
// mostly kPeerLost; after an error a comm may only be closed.
namespace ferry::tcpx {

// Where a Listening listens. Plain bytes, passed to the sending side by any means.
using Handle = std::array<std::byte, abi::kHandleBytes>;

// Memory registered with one comm. The memory stays the caller's, and must outlive this. Destroy it
// before the comm, and not while a message of this memory is in flight.
class Registration {
 public:
  Registration(Registration&& other) noexcept
      : plugin_(other.plugin_), comm_(other.comm_), mr_(std::exchange(other.mr_, nullptr)) {}
  Registration& operator=(Registration&&) = delete;
  ~Registration();
  void* mr() const noexcept { return mr_; }  // Message::mr

 private:
  friend class Comm;
  Registration(Plugin* plugin, void* comm, void* mr) : plugin_(plugin), comm_(comm), mr_(mr) {}

  Plugin* const plugin_;
  void* const comm_;
  void* mr_;
};

// Made by Listening and Connecting; the destructor closes it. Common to both ends of a connection:
// requests in flight, oldest first. Never exceeds the plugin's capacity, because some plugins
// report a full queue like any other failure.
class Comm {
 public:
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  // Registers `bytes` of host or GPU memory. GPUDirect-TCPX needs GPU memory that starts at a
  // multiple of 4096 bytes (cuda::AllocateRegistrable()), and receives into GPU memory only.
  // Errors: kInvalidArgument for more bytes than the plugin registers at a time; kUnsupported.
  Result<Registration> Register(void* data, std::size_t bytes, bool on_gpu);
  // How many messages may be started now; those of GPUDirect-TCPX count until they are consumed.
  std::size_t room() const noexcept { return window_ - in_flight(); }
  std::size_t in_flight() const noexcept { return requests_.size() + held_; }
  int device() const noexcept { return device_; }
  Plugin& plugin() const noexcept { return *plugin_; }

 protected:
  Comm(Plugin* plugin, int device, void* comm, std::size_t window)
      : plugin_(plugin),
        comm_(comm),
        device_(device),
        window_(std::min(window, plugin->driver().most_requests())) {}
  ~Comm() = default;

  // Starts a request with a function of the driver; `call` is the plugin's name for it.
  using Start = int (MessageApi::*)(void* comm, const Message& message, void** request);
  Result<bool> Begin(Start start, const char* call, const Message& message);
  // The oldest request, if it is done, which then leaves the queue; else null. `what` names the
  // request in errors; `bytes` is unchanged where the plugin does not report it.
  Result<void*> TakeOldest(const char* what, int* bytes);

  Plugin* const plugin_;
  void* const comm_;
  const int device_;
  const std::size_t window_;
  std::deque<void*> requests_;  // not done yet
  std::size_t held_ = 0;        // done, but the plugin's memory is still in use
};

class SendComm final : public Comm {
 public:
  // The best value that users of GPUDirect-TCPX found.
  static constexpr std::size_t kWindow = 12;

  SendComm(Plugin* plugin, int device, void* comm) : Comm(plugin, device, comm, kWindow) {}
  ~SendComm();

  // Starts to send (isend); returns false where the plugin has no capacity now. Needs room(). The
  // memory must stay unchanged until the message is done.
  Result<bool> Send(const Message& message);
  // Whether the oldest unfinished message is done now.
  Result<bool> Test();
};

class ReceiveComm final : public Comm {
 public:
  static constexpr std::size_t kWindow = 16;

  ReceiveComm(Plugin* plugin, int device, void* comm, std::unique_ptr<abi::DeviceHandle> handle)
      : Comm(plugin, device, comm, kWindow), handle_(std::move(handle)) {}
  ~ReceiveComm();

  // Starts to receive a message of at most this size (irecv); returns false where the plugin has no
  // capacity now. Needs room(). A plugin that unpacks does not touch the memory; others write to it
  // until the message is done.
  Result<bool> Receive(const Message& message);
  // Whether the oldest unfinished message is done now. If so, `bytes` is its size, or -1 where the
  // plugin does not report it, and `request` is the plugin's request, valid until Consume().
  struct Arrival {
    bool done = false;
    int bytes = -1;
    void* request = nullptr;
    std::uint64_t index = 0;  // of all receives of this comm, from 0
  };
  Result<Arrival> Test();
  // Releases the plugin's memory of the oldest message that is done and not consumed
  // (irecvConsumed): nobody may read it any more, so first Unpacker::Completed() must have reached
  // the ticket of its batch. Needed for every message, also with plugins that do not unpack.
  Status Consume();

  // For a plugin that unpacks: the data that kernels need; else type 0.
  const abi::DeviceHandle& device_handle() const noexcept { return *handle_; }

 private:
  const std::unique_ptr<abi::DeviceHandle> handle_;
  std::deque<void*> done_;  // not consumed yet
  std::uint64_t tested_ = 0;
};

// Waits for one connection.
class Listening {
 public:
  // `device`: an index into Plugin::nics(). The GPU that is current is that of the connection.
  // Errors: kUnavailable.
  static Result<std::unique_ptr<Listening>> Open(Plugin* plugin, int device);
  Listening(const Listening&) = delete;
  Listening& operator=(const Listening&) = delete;
  ~Listening();

  const Handle& handle() const noexcept { return handle_; }
  // Null if there is no connection yet: call again. Do not call after it has returned a comm or an
  // error. GPUDirect-TCPX blocks here for tenths of a second, and waits for flow rules
  // (docs/tcpx.md has the variable). The comm may outlive this.
  Result<std::unique_ptr<ReceiveComm>> Accept();
  // The plugin has begun to accept, and has not ended it: it may hold sockets of the connection,
  // which are not closed by destroying this. NCCL's interface cannot cancel: call until it ends.
  bool pending() const noexcept { return pending_; }
  const Plugin& plugin() const noexcept { return *plugin_; }

 private:
  Listening(Plugin* plugin, int device) : plugin_(plugin), device_(device) {}

  Plugin* const plugin_;
  const int device_;
  void* comm_ = nullptr;
  bool pending_ = false;
  alignas(8) Handle handle_{};
  std::unique_ptr<abi::DeviceHandle> device_handle_;
};

// Makes one connection. Plugins store their state in the handle. Nothing ends a connect that is
// pending() when this is destroyed: call until it ends.
class Connecting {
 public:
  Connecting(Plugin* plugin, int device, const Handle& handle)
      : plugin_(plugin), device_(device), handle_(handle) {}
  Connecting(const Connecting&) = delete;
  Connecting& operator=(const Connecting&) = delete;

  // As Listening::Accept().
  Result<std::unique_ptr<SendComm>> Connect();
  // The plugin has begun to connect, and has not ended it.
  bool pending() const noexcept { return pending_; }
  const Plugin& plugin() const noexcept { return *plugin_; }

 private:
  Plugin* const plugin_;
  const int device_;
  bool pending_ = false;
  alignas(8) Handle handle_;
};

}  // namespace ferry::tcpx
