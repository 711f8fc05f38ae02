#include "bindings/nccl_net/plugin.h"
#include "ferry/net/plugin/abi_v12.h"

namespace ferry::nccl_net {
namespace {

int InitV12(void** context, std::uint64_t /*comm*/, abi::CommConfig* /*config*/, abi::Logger logger,
            abi::ProfilerCallback /*profiler*/) {
  return Init(context, logger);
}

int ConnectV12(void* context, int device, void* handle, void** send_comm,
               abi::DeviceHandle** /*device_handle*/) {
  return Connect(context, device, handle, send_comm);
}

int AcceptV12(void* listen_comm, void** recv_comm, abi::DeviceHandle** /*device_handle*/) {
  return Accept(listen_comm, recv_comm);
}

// NOLINTNEXTLINE(readability-function-size): the interface's
int IsendV12(void* send_comm, void* data, std::size_t bytes, int tag, void* /*mr*/,
             void* /*profiler_event*/, void** request) {
  return Isend(send_comm, data, bytes, tag, request);
}

// NOLINTNEXTLINE(readability-function-size): the interface's
int IrecvV12(void* recv_comm, int count, void** data, std::size_t* bytes, int* tags, void** /*mrs*/,
             void** /*profiler_events*/, void** request) {
  return Irecv(recv_comm, Group<std::size_t>{count, data, bytes, tags}, request);
}

// NOLINTNEXTLINE(readability-function-size): the interface's
int IflushV12(void* recv_comm, int /*count*/, void** /*data*/, int* /*bytes*/, void** /*mrs*/,
              void** request) {
  return Iflush(recv_comm, request);
}

}  // namespace
}  // namespace ferry::nccl_net

extern "C" {
// NOLINTNEXTLINE(readability-identifier-naming): NCCL's name
__attribute__((visibility("default"))) ferry::net::plugin::abi::TableV12 ncclNetPlugin_v12 = {
    .name = ferry::nccl_net::kPluginName,
    .init = ferry::nccl_net::InitV12,
    .devices = ferry::nccl_net::Devices,
    .get_properties = ferry::nccl_net::GetProperties,
    .listen = ferry::nccl_net::Listen,
    .connect = ferry::nccl_net::ConnectV12,
    .accept = ferry::nccl_net::AcceptV12,
    .reg_mr = ferry::nccl_net::RegMr,
    .reg_mr_dma_buf = nullptr,
    .dereg_mr = ferry::nccl_net::DeregMr,
    .isend = ferry::nccl_net::IsendV12,
    .irecv = ferry::nccl_net::IrecvV12,
    .iflush = ferry::nccl_net::IflushV12,
    .test = ferry::nccl_net::Test,
    .close_send = ferry::nccl_net::CloseSend,
    .close_recv = ferry::nccl_net::CloseRecv,
    .close_listen = ferry::nccl_net::CloseListen,
    .get_device_mr = nullptr,
    .irecv_consumed = nullptr,
    .make_virtual_device = nullptr,
    .finalize = ferry::nccl_net::Finalize,
    .set_net_attr = ferry::nccl_net::SetNetAttr,
};
}
