// One-way connections through a NCCL network plugin.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <deque>
#include <memory>
#include <utility>

#include "ferry/core/deadline.h"
#include "ferry/core/result.h"
#include "ferry/net/plugin/plugin.h"

// Connections of a plugin: one way, from a SendComm to a ReceiveComm, messages in order. All calls
// for one comm come from one thread at a time, on which the GPU is current that the comm is for.
// Errors are those of Plugin::CallError(), mostly kPeerLost: a comm that has failed once is not to
// be used but closed.
namespace ferry::net::plugin {

// What the receiving side gives to the sending one, by any means.
using Handle = std::array<std::byte, abi::kHandleBytes>;

// Memory that one comm may use. Give it back before the comm goes.
class Registration {
 public:
  Registration(Plugin* plugin, void* comm, void* mr) : plugin_(plugin), comm_(comm), mr_(mr) {}
  Registration(Registration&& other) noexcept
      : plugin_(other.plugin_), comm_(other.comm_), mr_(std::exchange(other.mr_, nullptr)) {}
  Registration& operator=(Registration&&) = delete;
  ~Registration();
  void* mr() const noexcept { return mr_; }

 private:
  Plugin* const plugin_;
  void* const comm_;
  void* mr_;
};

// What both ends of a connection have: requests that are under way, oldest first. The plugin is
// never asked for more than it has room for, as some answer that as they answer everything else.
class Comm {
 public:
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  // `bytes` of host or GPU memory. GPUDirect-TCPX needs a base of whole pages of 4096 bytes.
  Result<Registration> Register(void* data, std::size_t bytes, bool on_gpu);
  // Messages that may be begun now.
  std::size_t room() const noexcept { return window_ - under_way(); }
  std::size_t under_way() const noexcept { return requests_.size() + held_; }
  int device() const noexcept { return device_; }
  Plugin& plugin() const noexcept { return *plugin_; }

 protected:
  Comm(Plugin* plugin, int device, void* comm, std::size_t window)
      : plugin_(plugin),
        comm_(comm),
        device_(device),
        window_(std::min(window, plugin->driver().most_requests())) {}
  ~Comm() = default;

  // What Send() and Receive() are, by that function of the driver's, which plugins name so.
  using Start = int (Driver::*)(void* comm, const Message& message, void** request);
  Result<bool> Begin(Start start, const char* call, const Message& message);
  // The oldest request, where it is done now, and no longer under way; else null. `what` it is, for
  // errors; `bytes` are left as they are where the plugin does not tell.
  Result<void*> TakeOldest(const char* what, int* bytes);

  Plugin* const plugin_;
  void* const comm_;
  const int device_;
  const std::size_t window_;
  std::deque<void*> requests_;  // that are not done
  std::size_t held_ = 0;        // done, and the plugin's memory is still used
};

class SendComm final : public Comm {
 public:
  // As GPUDirect-TCPX's users found it to be best.
  static constexpr std::size_t kWindow = 12;

  SendComm(Plugin* plugin, int device, void* comm) : Comm(plugin, device, comm, kWindow) {}
  ~SendComm();

  // Begins to send; false where the plugin cannot now. Needs room(). The memory stays as it is
  // until the message is done.
  Result<bool> Send(const Message& message);
  // Whether the oldest message that was not done is done now.
  Result<bool> Test();
};

class ReceiveComm final : public Comm {
 public:
  static constexpr std::size_t kWindow = 16;

  ReceiveComm(Plugin* plugin, int device, void* comm, std::unique_ptr<abi::DeviceHandle> handle)
      : Comm(plugin, device, comm, kWindow), handle_(std::move(handle)) {}
  ~ReceiveComm();

  // Begins to receive a message of at most so many bytes; false where the plugin cannot now. Needs
  // room().
  Result<bool> Receive(const Message& message);
  // Whether the oldest message that was not done is done now: `bytes` are then its bytes where the
  // plugin tells, else -1, and `request` what the plugin calls it, until Consume().
  struct Arrival {
    bool done = false;
    int bytes = -1;
    void* request = nullptr;
    std::uint64_t index = 0;  // of all receives of this comm, from 0
  };
  Result<Arrival> Test();
  // The oldest message that is done and was not consumed: nobody reads the plugin's memory for it
  // any more.
  Status Consume();

  // Of a plugin that unpacks: what kernels need; else type 0.
  const abi::DeviceHandle& device_handle() const noexcept { return *handle_; }

 private:
  const std::unique_ptr<abi::DeviceHandle> handle_;
  std::deque<void*> done_;  // and not consumed
  std::uint64_t tested_ = 0;
};

// Waits for one connection.
class Listening {
 public:
  static Result<std::unique_ptr<Listening>> Open(Plugin* plugin, int device);
  Listening(const Listening&) = delete;
  Listening& operator=(const Listening&) = delete;
  ~Listening();

  const Handle& handle() const noexcept { return handle_; }
  // Null: not yet, ask again. To be called no more when it has given a comm or an error.
  Result<std::unique_ptr<ReceiveComm>> Accept();
  // Asks until then; waits in between. kTimedOut is an end, too.
  Result<std::unique_ptr<ReceiveComm>> Accept(Deadline deadline);

 private:
  Listening(Plugin* plugin, int device) : plugin_(plugin), device_(device) {}

  Plugin* const plugin_;
  const int device_;
  void* comm_ = nullptr;
  alignas(8) Handle handle_{};
  std::unique_ptr<abi::DeviceHandle> device_handle_;
};

// Makes one connection. Plugins keep what they remember of it in the handle.
class Connecting {
 public:
  Connecting(Plugin* plugin, int device, const Handle& handle)
      : plugin_(plugin), device_(device), handle_(handle) {}
  Connecting(const Connecting&) = delete;
  Connecting& operator=(const Connecting&) = delete;

  // As Listening::Accept(), both.
  Result<std::unique_ptr<SendComm>> Connect();
  Result<std::unique_ptr<SendComm>> Connect(Deadline deadline);

 private:
  Plugin* const plugin_;
  const int device_;
  alignas(8) Handle handle_;
};

}  // namespace ferry::net::plugin
