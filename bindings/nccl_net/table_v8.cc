#include "bindings/nccl_net/plugin.h"
#include "ferry/net/plugin/abi_v8.h"

namespace ferry::nccl_net {
namespace {

int GetPropertiesV8(int device, abi::PropertiesV8* properties) noexcept {
  abi::PropertiesV12 newest;
  const int outcome = GetProperties(device, &newest);
  if (outcome != abi::kSuccess) return outcome;
  *properties = {.name = newest.name,
                 .pci_path = newest.pci_path,
                 .guid = newest.guid,
                 .ptr_support = newest.ptr_support,
                 .reg_is_global = newest.reg_is_global,
                 .speed = newest.speed,
                 .port = newest.port,
                 .latency = newest.latency,
                 .max_comms = newest.max_comms,
                 .max_recvs = newest.max_recvs,
                 .device_type = newest.device_type,
                 .device_version = newest.device_version};
  return abi::kSuccess;
}

int ConnectV8(int device, void* handle, void** send_comm, abi::DeviceHandle** /*device_handle*/) {
  return Connect(kProcessContext, device, handle, send_comm);
}

int ListenV8(int device, void* handle, void** listen_comm) {
  return Listen(kProcessContext, device, handle, listen_comm);
}

int AcceptV8(void* listen_comm, void** recv_comm, abi::DeviceHandle** /*device_handle*/) {
  return Accept(listen_comm, recv_comm);
}

// NOLINTNEXTLINE(readability-function-size): the interface's
int IsendV8(void* send_comm, void* data, int bytes, int tag, void* /*mr*/, void** request) {
  return Isend(send_comm, data, static_cast<std::size_t>(bytes), tag, request);
}

// NOLINTNEXTLINE(readability-function-size): the interface's
int IrecvV8(void* recv_comm, int count, void** data, int* bytes, int* tags, void** /*mrs*/,
            void** request) {
  return Irecv(recv_comm, Group<int>{count, data, bytes, tags}, request);
}

// NOLINTNEXTLINE(readability-function-size): the interface's
int IflushV8(void* recv_comm, int /*count*/, void** /*data*/, int* /*bytes*/, void** /*mrs*/,
             void** request) {
  return Iflush(recv_comm, request);
}

}  // namespace
}  // namespace ferry::nccl_net

extern "C" {
// NOLINTNEXTLINE(readability-identifier-naming): NCCL's name
__attribute__((visibility("default"))) ferry::net::plugin::abi::TableV8 ncclNetPlugin_v8 = {
    .name = ferry::nccl_net::kPluginName,
    .init = ferry::nccl_net::InitOnce,
    .devices = ferry::nccl_net::Devices,
    .get_properties = ferry::nccl_net::GetPropertiesV8,
    .listen = ferry::nccl_net::ListenV8,
    .connect = ferry::nccl_net::ConnectV8,
    .accept = ferry::nccl_net::AcceptV8,
    .reg_mr = ferry::nccl_net::RegMr,
    .reg_mr_dma_buf = nullptr,
    .dereg_mr = ferry::nccl_net::DeregMr,
    .isend = ferry::nccl_net::IsendV8,
    .irecv = ferry::nccl_net::IrecvV8,
    .iflush = ferry::nccl_net::IflushV8,
    .test = ferry::nccl_net::Test,
    .close_send = ferry::nccl_net::CloseSend,
    .close_recv = ferry::nccl_net::CloseRecv,
    .close_listen = ferry::nccl_net::CloseListen,
    .get_device_mr = nullptr,
    .irecv_consumed = nullptr,
};
}
