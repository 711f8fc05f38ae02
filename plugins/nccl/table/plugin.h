// The plugin's functions in the form of the newest version.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "ferry/net/nccl_abi/abi_v12.h"
#include "plugins/nccl/comm.h"

// The plugin's functions in the form of the newest version; table_v7.cc to table_v12.cc adapt them
// to each version. All return an abi::Outcome and let no exception out. None blocks on a peer; the
// close functions wait for this process's own threads.
namespace ferry::nccl_net {

inline constexpr const char* kPluginName = "Ferry";

// From v11 on: a context for each communicator, released by Finalize() even if comms of it are
// still open.
int Init(void** context, abi::Logger logger) noexcept;
int Finalize(void* context) noexcept;
// Up to v10: once for the process, instead of a context. `oldest`: the oldest version of NCCL that
// has the table, as ncclGetVersion() states it, if NCCL does not state its own; kBeforeTuner: no
// variables are set (NcclRequest), since NCCL before 2.24 does not use our tuner.
int InitOnce(int oldest, abi::Logger logger) noexcept;
inline constexpr int kBeforeTuner = 0;
inline constexpr void* kProcessContext = nullptr;

int Devices(int* count) noexcept;
int GetProperties(int device, abi::PropertiesV12* properties) noexcept;
int Listen(void* context, int device, void* handle, void** listen_comm) noexcept;
int Connect(void* context, int device, void* handle, void** send_comm) noexcept;
int Accept(void* listen_comm, void** recv_comm) noexcept;
int RegMr(void* comm, void* data, std::size_t bytes, int kind, void** mr) noexcept;
int DeregMr(void* comm, void* mr) noexcept;
int Isend(void* send_comm, void* data, std::size_t bytes, int tag, void** request) noexcept;

// The arrays of one irecv().
template <class Size>
struct Group {
  int count;
  void** data;
  const Size* bytes;
  const int* tags;
};
int Irecv(void* recv_comm, const Group<std::size_t>& group, void** request) noexcept;
int Irecv(void* recv_comm, const Group<int>& group, void** request) noexcept;
int Iflush(void* recv_comm, void** request) noexcept;
int Test(void* request, int* done, int* bytes) noexcept;
int CloseSend(void* send_comm) noexcept;
int CloseRecv(void* recv_comm) noexcept;
int CloseListen(void* listen_comm) noexcept;
int SetNetAttr(void* context, void* attributes) noexcept;

}  // namespace ferry::nccl_net
