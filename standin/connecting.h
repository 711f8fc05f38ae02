// Listen comms and the state behind a connection handle.
#pragma once
#include <cstdint>
#include <memory>

#include "standin/comm.h"
#include "standin/engine.h"
#include "standin/link.h"
#include "standin/plugin_abi.h"
#include "standin/recv_comm.h"
#include "standin/send_comm.h"

namespace ferry::standin {

class Dial;

// The part of the 128-byte handle that listen() writes and connect() reads. As in the original,
// connect() stores a pointer to its private state in it.
struct Handle {
  std::uint64_t magic = kMagic;
  Rendezvous rendezvous;
  Dial* dial = nullptr;

  static constexpr std::uint64_t kMagic = 0x4e4f4e4954535846;
};
static_assert(sizeof(Handle) <= abi::kHandleBytes);

// The state behind a handle, kept after the connection is made. Calls must not overlap.
class Dial {
 public:
  Dial(const void* handle, std::uint64_t id, int device);

  bool IsOf(const void* handle, std::uint64_t id) const { return handle_ == handle && id_ == id; }
  std::uint64_t id() const { return id_; }
  void Start(Engine& engine, const Rendezvous& rendezvous);
  // Returns a comm, or null while it is not ready.
  int Poll(Engine& engine, std::unique_ptr<Comm>* comm);

 private:
  const void* const handle_;
  const std::uint64_t id_;
  const int device_;
  std::shared_ptr<Attempt> attempt_;  // shared with its thread; null after the end
  int polls_ = 0;
};

// A listen comm, for one connection. Calls one at a time.
class ListenComm {
 public:
  // Null, with a log line, if there is no socket.
  static std::unique_ptr<ListenComm> Make(Engine& engine, int device, Handle* handle);

  int Poll(Engine& engine, std::unique_ptr<RecvComm>* comm);
  int Close();

 private:
  ListenComm(int device, Socket socket, const Rendezvous& rendezvous);

  const int device_;
  const Rendezvous rendezvous_;
  std::shared_ptr<Socket> socket_;    // shared with the attempt's thread
  std::shared_ptr<Attempt> attempt_;  // shared with its thread
  int polls_ = 0;
  bool used_ = false;
};

}  // namespace ferry::standin
