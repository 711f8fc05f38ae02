// A version-independent view of an NCCL network plugin's functions.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "ferry/net/nccl_abi/abi.h"

namespace ferry::tcpx {

namespace abi = net::nccl_abi;

// A device of a plugin: a network interface, or several combined.
struct NicFacts {
  std::string name;          // "eth1"
  std::string pci_path;      // under /sys; empty if unknown
  std::uint64_t guid = 0;    // the same for ports of one card
  bool host_memory = false;  // sends from and receives into host memory
  bool cuda_memory = false;  // the same for GPU memory
  bool dma_buf = false;
  std::uint64_t megabits = 0;  // per second
  int port = 0;
  float latency = 0;  // µs
  int most_comms = 0;
  int most_receives = 0;  // per grouped receive
  bool unpacks = false;   // received data lies in pieces that the GPU must reassemble
  int device_type = abi::kDeviceTypeHost;
  int device_version = 0;
  std::uint64_t most_message_bytes = 0;
};

// A part of registered memory to send from or receive into.
struct Message {
  void* data = nullptr;
  std::size_t bytes = 0;
  int tag = 0;         // the same on both sides
  void* mr = nullptr;  // Registration::mr()
};

inline constexpr std::size_t kMaxGrouped = 32;

// The library as a whole and its devices.
class LibraryApi {
 public:
  virtual int version() const noexcept = 0;
  virtual const char* name() const noexcept = 0;  // may be null
  virtual std::uint64_t most_registered_bytes() const noexcept = 0;
  virtual std::size_t most_requests() const noexcept = 0;  // in flight, per comm
  virtual bool can_consume() const noexcept = 0;           // has irecvConsumed

  virtual int Init(abi::Logger logger) = 0;
  virtual int Finalize() = 0;
  virtual int Devices(int* count) = 0;
  virtual int Describe(int device, NicFacts* facts) = 0;

 protected:
  ~LibraryApi() = default;
};

// One-way connections: beginning, polling and closing them.
class ConnectionApi {
 public:
  virtual int Listen(int device, void* handle, void** listen_comm) = 0;
  virtual int Connect(int device, void* handle, void** send_comm,
                      abi::DeviceHandle** device_handle) = 0;
  virtual int Accept(void* listen_comm, void** recv_comm, abi::DeviceHandle** device_handle) = 0;
  virtual int CloseSend(void* send_comm) = 0;
  virtual int CloseReceive(void* recv_comm) = 0;
  virtual int CloseListen(void* listen_comm) = 0;

 protected:
  ~ConnectionApi() = default;
};

// Messages over a connection, and the memory that they are sent from and received into.
class MessageApi {
 public:
  virtual int Register(void* comm, void* data, std::size_t bytes, int kind, void** mr) = 0;
  virtual int Deregister(void* comm, void* mr) = 0;
  virtual int Send(void* send_comm, const Message& message, void** request) = 0;
  virtual int Receive(void* recv_comm, const Message& message, void** request) = 0;
  // Receives several messages as one request, at most NicFacts::most_receives and kMaxGrouped.
  virtual int ReceiveGroup(void* recv_comm, std::span<const Message> messages, void** request) = 0;
  virtual int Flush(void* recv_comm, const Message& message, void** request) = 0;
  virtual int Test(void* request, int* done, int* bytes) = 0;
  virtual int Consume(void* recv_comm, void* request) = 0;

 protected:
  ~MessageApi() = default;
};

// A plugin's functions in one form for all versions. Outcomes are those of abi.h. Emulates what a
// version lacks as NCCL does for that version; arguments must be in that version's range
// (most_registered_bytes(), NicFacts::most_message_bytes). Code that needs one role takes that
// role's interface.
class Driver : public LibraryApi, public ConnectionApi, public MessageApi {
 public:
  virtual ~Driver() = default;
};

inline constexpr int kOldestVersion = 5;
inline constexpr int kNewestVersion = 12;

// A driver for the table of a loaded library, which must outlive it; null for a version outside
// this range. A driver has state: create one for each use of the plugin.
std::unique_ptr<Driver> MakeDriver(int version, void* table);

}  // namespace ferry::tcpx
