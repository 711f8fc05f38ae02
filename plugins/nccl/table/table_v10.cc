// The plugin's table for version 10.
#include "ferry/net/nccl_abi/abi_v10.h"
#include "plugins/nccl/table/table_forms.h"

namespace ferry::nccl_net {
namespace {

int InitV10(abi::Logger logger, abi::ProfilerCallback /*profiler*/) {
  return InitOnce(22600, logger);
}

int ConnectV10(int device, abi::CommConfig* /*config*/, void* handle, void** send_comm,
               abi::DeviceHandle** device_handle) {
  return ConnectInProcess(device, handle, send_comm, device_handle);
}

}  // namespace
}  // namespace ferry::nccl_net

extern "C" {
// NOLINTNEXTLINE(readability-identifier-naming): NCCL's name
__attribute__((visibility("default"))) ferry::net::nccl_abi::TableV10 ncclNetPlugin_v10 = {
    .name = ferry::nccl_net::kPluginName,
    .init = ferry::nccl_net::InitV10,
    .devices = ferry::nccl_net::Devices,
    .get_properties = ferry::nccl_net::GetPropertiesAs,
    .listen = ferry::nccl_net::ListenInProcess,
    .connect = ferry::nccl_net::ConnectV10,
    .accept = ferry::nccl_net::AcceptWithHandle,
    .reg_mr = ferry::nccl_net::RegMr,
    .reg_mr_dma_buf = nullptr,
    .dereg_mr = ferry::nccl_net::DeregMr,
    .isend = ferry::nccl_net::IsendWithEvent,
    .irecv = ferry::nccl_net::IrecvWithEvents,
    .iflush = ferry::nccl_net::IflushOfGroup,
    .test = ferry::nccl_net::Test,
    .close_send = ferry::nccl_net::CloseSend,
    .close_recv = ferry::nccl_net::CloseRecv,
    .close_listen = ferry::nccl_net::CloseListen,
    .get_device_mr = nullptr,
    .irecv_consumed = nullptr,
    .make_virtual_device = nullptr,
};
}
