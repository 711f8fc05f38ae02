#include "bindings/nccl_net/plugin.h"
#include "ferry/net/plugin/abi_v10.h"

namespace ferry::nccl_net {
namespace {

int GetPropertiesV10(int device, abi::PropertiesV10* properties) noexcept {
  abi::PropertiesV12 newest;
  const int outcome = GetProperties(device, &newest);
  if (outcome != abi::kSuccess) return outcome;
  *properties = {.name = newest.name,
                 .pci_path = newest.pci_path,
                 .guid = newest.guid,
                 .ptr_support = newest.ptr_support,
                 .reg_is_global = newest.reg_is_global,
                 .force_flush = newest.force_flush,
                 .speed = newest.speed,
                 .port = newest.port,
                 .latency = newest.latency,
                 .max_comms = newest.max_comms,
                 .max_recvs = newest.max_recvs,
                 .device_type = newest.device_type,
                 .device_version = newest.device_version,
                 .virtual_device = {.count = 1, .devices = {device}},
                 .max_p2p_bytes = newest.max_p2p_bytes,
                 .max_coll_bytes = newest.max_coll_bytes};
  return abi::kSuccess;
}

int InitV10(abi::Logger logger, abi::ProfilerCallback /*profiler*/) { return InitOnce(logger); }

int ConnectV10(int device, abi::CommConfig* /*config*/, void* handle, void** send_comm,
               abi::DeviceHandle** /*device_handle*/) {
  return Connect(kProcessContext, device, handle, send_comm);
}

int ListenV10(int device, void* handle, void** listen_comm) {
  return Listen(kProcessContext, device, handle, listen_comm);
}

int AcceptV10(void* listen_comm, void** recv_comm, abi::DeviceHandle** /*device_handle*/) {
  return Accept(listen_comm, recv_comm);
}

// NOLINTNEXTLINE(readability-function-size): the interface's
int IsendV10(void* send_comm, void* data, std::size_t bytes, int tag, void* /*mr*/,
             void* /*profiler_event*/, void** request) {
  return Isend(send_comm, data, bytes, tag, request);
}

// NOLINTNEXTLINE(readability-function-size): the interface's
int IrecvV10(void* recv_comm, int count, void** data, std::size_t* bytes, int* tags, void** /*mrs*/,
             void** /*profiler_events*/, void** request) {
  return Irecv(recv_comm, Group<std::size_t>{count, data, bytes, tags}, request);
}

// NOLINTNEXTLINE(readability-function-size): the interface's
int IflushV10(void* recv_comm, int /*count*/, void** /*data*/, int* /*bytes*/, void** /*mrs*/,
              void** request) {
  return Iflush(recv_comm, request);
}

}  // namespace
}  // namespace ferry::nccl_net

extern "C" {
// NOLINTNEXTLINE(readability-identifier-naming): NCCL's name
__attribute__((visibility("default"))) ferry::net::plugin::abi::TableV10 ncclNetPlugin_v10 = {
    .name = ferry::nccl_net::kPluginName,
    .init = ferry::nccl_net::InitV10,
    .devices = ferry::nccl_net::Devices,
    .get_properties = ferry::nccl_net::GetPropertiesV10,
    .listen = ferry::nccl_net::ListenV10,
    .connect = ferry::nccl_net::ConnectV10,
    .accept = ferry::nccl_net::AcceptV10,
    .reg_mr = ferry::nccl_net::RegMr,
    .reg_mr_dma_buf = nullptr,
    .dereg_mr = ferry::nccl_net::DeregMr,
    .isend = ferry::nccl_net::IsendV10,
    .irecv = ferry::nccl_net::IrecvV10,
    .iflush = ferry::nccl_net::IflushV10,
    .test = ferry::nccl_net::Test,
    .close_send = ferry::nccl_net::CloseSend,
    .close_recv = ferry::nccl_net::CloseRecv,
    .close_listen = ferry::nccl_net::CloseListen,
    .get_device_mr = nullptr,
    .irecv_consumed = nullptr,
    .make_virtual_device = nullptr,
};
}
