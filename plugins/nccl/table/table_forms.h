// Adapters from older versions of the plugin interface to the newest.
#pragma once
#include <cstddef>
#include <cstdint>

#include "plugins/nccl/table/plugin.h"

// Calls that have the same form in several versions of the interface; each table uses those of its
// version.
namespace ferry::nccl_net {

// v7 to v11: copies the newest properties' fields that the version has.
template <class Properties>
int GetPropertiesAs(int device, Properties* properties) noexcept {
  abi::PropertiesV12 newest;
  const int outcome = GetProperties(device, &newest);
  if (outcome != abi::kSuccess) return outcome;
  *properties = {};
  properties->name = newest.name;
  properties->pci_path = newest.pci_path;
  properties->guid = newest.guid;
  properties->ptr_support = newest.ptr_support;
  properties->speed = newest.speed;
  properties->port = newest.port;
  properties->latency = newest.latency;
  properties->max_comms = newest.max_comms;
  properties->max_recvs = newest.max_recvs;
  properties->device_type = newest.device_type;
  properties->device_version = newest.device_version;
  if constexpr (requires { properties->reg_is_global; }) {
    properties->reg_is_global = newest.reg_is_global;
  }
  if constexpr (requires { properties->virtual_device; }) {
    properties->force_flush = newest.force_flush;
    properties->virtual_device = {.count = 1, .devices = {device}};
    properties->max_p2p_bytes = newest.max_p2p_bytes;
    properties->max_coll_bytes = newest.max_coll_bytes;
  }
  if constexpr (requires { properties->max_multi_request_size; }) {
    properties->max_multi_request_size = newest.max_multi_request_size;
  }
  return abi::kSuccess;
}

// From v11 on.
inline int InitInContext(void** context, std::uint64_t /*comm*/, abi::CommConfig* /*config*/,
                         abi::Logger logger, abi::ProfilerCallback /*profiler*/) {
  return Init(context, logger);
}
inline int ConnectInContext(void* context, int device, void* handle, void** send_comm,
                            abi::DeviceHandle** /*device_handle*/) {
  return Connect(context, device, handle, send_comm);
}

// Up to v8, that is NCCL before 2.24, which does not use our tuner: with more channels short
// collectives would be slower.
inline int InitUntuned(abi::Logger logger) { return InitOnce(kBeforeTuner, logger); }
// The first up to v10, the second up to v9.
inline int ListenInProcess(int device, void* handle, void** listen_comm) {
  return Listen(kProcessContext, device, handle, listen_comm);
}
inline int ConnectInProcess(int device, void* handle, void** send_comm,
                            abi::DeviceHandle** /*device_handle*/) {
  return Connect(kProcessContext, device, handle, send_comm);
}

inline int AcceptWithHandle(void* listen_comm, void** recv_comm,
                            abi::DeviceHandle** /*device_handle*/) {
  return Accept(listen_comm, recv_comm);
}

// NOLINTBEGIN(readability-function-size): the interface's

// Up to v9; sizes are int up to v8.
template <class Size>
int IsendOf(void* send_comm, void* data, Size bytes, int tag, void* /*mr*/, void** request) {
  return Isend(send_comm, data, static_cast<std::size_t>(bytes), tag, request);
}
template <class Size>
int IrecvOf(void* recv_comm, int count, void** data, Size* bytes, int* tags, void** /*mrs*/,
            void** request) {
  return Irecv(recv_comm, Group<Size>{count, data, bytes, tags}, request);
}

// From v10 on.
inline int IsendWithEvent(void* send_comm, void* data, std::size_t bytes, int tag, void* /*mr*/,
                          void* /*profiler_event*/, void** request) {
  return Isend(send_comm, data, bytes, tag, request);
}
inline int IrecvWithEvents(void* recv_comm, int count, void** data, std::size_t* bytes, int* tags,
                           void** /*mrs*/, void** /*profiler_events*/, void** request) {
  return Irecv(recv_comm, Group<std::size_t>{count, data, bytes, tags}, request);
}

inline int IflushOfGroup(void* recv_comm, int /*count*/, void** /*data*/, int* /*bytes*/,
                         void** /*mrs*/, void** request) {
  return Iflush(recv_comm, request);
}

// NOLINTEND(readability-function-size)

}  // namespace ferry::nccl_net
