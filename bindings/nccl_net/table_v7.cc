#include "bindings/nccl_net/plugin.h"
#include "ferry/net/plugin/abi_v7.h"

namespace ferry::nccl_net {
namespace {

int GetPropertiesV7(int device, abi::PropertiesV7* properties) noexcept {
  abi::PropertiesV12 newest;
  const int outcome = GetProperties(device, &newest);
  if (outcome != abi::kSuccess) return outcome;
  *properties = {.name = newest.name,
                 .pci_path = newest.pci_path,
                 .guid = newest.guid,
                 .ptr_support = newest.ptr_support,
                 .speed = newest.speed,
                 .port = newest.port,
                 .latency = newest.latency,
                 .max_comms = newest.max_comms,
                 .max_recvs = newest.max_recvs,
                 .device_type = newest.device_type,
                 .device_version = newest.device_version};
  return abi::kSuccess;
}

int ConnectV7(int device, void* handle, void** send_comm, abi::DeviceHandle** /*device_handle*/) {
  return Connect(kProcessContext, device, handle, send_comm);
}

int ListenV7(int device, void* handle, void** listen_comm) {
  return Listen(kProcessContext, device, handle, listen_comm);
}

int AcceptV7(void* listen_comm, void** recv_comm, abi::DeviceHandle** /*device_handle*/) {
  return Accept(listen_comm, recv_comm);
}

int RegMrV7(void* comm, void* data, int bytes, int kind, void** mr) {
  return RegMr(comm, data, static_cast<std::size_t>(bytes), kind, mr);
}

// NOLINTNEXTLINE(readability-function-size): the interface's
int IsendV7(void* send_comm, void* data, int bytes, int tag, void* /*mr*/, void** request) {
  return Isend(send_comm, data, static_cast<std::size_t>(bytes), tag, request);
}

// NOLINTNEXTLINE(readability-function-size): the interface's
int IrecvV7(void* recv_comm, int count, void** data, int* bytes, int* tags, void** /*mrs*/,
            void** request) {
  return Irecv(recv_comm, Group<int>{count, data, bytes, tags}, request);
}

// NOLINTNEXTLINE(readability-function-size): the interface's
int IflushV7(void* recv_comm, int /*count*/, void** /*data*/, int* /*bytes*/, void** /*mrs*/,
             void** request) {
  return Iflush(recv_comm, request);
}

}  // namespace
}  // namespace ferry::nccl_net

extern "C" {
// NOLINTNEXTLINE(readability-identifier-naming): NCCL's name
__attribute__((visibility("default"))) ferry::net::plugin::abi::TableV7 ncclNetPlugin_v7 = {
    .name = ferry::nccl_net::kPluginName,
    .init = ferry::nccl_net::InitOnce,
    .devices = ferry::nccl_net::Devices,
    .get_properties = ferry::nccl_net::GetPropertiesV7,
    .listen = ferry::nccl_net::ListenV7,
    .connect = ferry::nccl_net::ConnectV7,
    .accept = ferry::nccl_net::AcceptV7,
    .reg_mr = ferry::nccl_net::RegMrV7,
    .reg_mr_dma_buf = nullptr,
    .dereg_mr = ferry::nccl_net::DeregMr,
    .isend = ferry::nccl_net::IsendV7,
    .irecv = ferry::nccl_net::IrecvV7,
    .iflush = ferry::nccl_net::IflushV7,
    .test = ferry::nccl_net::Test,
    .close_send = ferry::nccl_net::CloseSend,
    .close_recv = ferry::nccl_net::CloseRecv,
    .close_listen = ferry::nccl_net::CloseListen,
    .get_device_mr = nullptr,
    .irecv_consumed = nullptr,
};
}
