// The plugin's table for version 7.
#include "ferry/net/nccl_abi/abi_v7.h"
#include "plugins/nccl/table/table_forms.h"

namespace ferry::nccl_net {
namespace {

int RegMrV7(void* comm, void* data, int bytes, int kind, void** mr) {
  return RegMr(comm, data, static_cast<std::size_t>(bytes), kind, mr);
}

}  // namespace
}  // namespace ferry::nccl_net

extern "C" {
// NOLINTNEXTLINE(readability-identifier-naming): NCCL's name
__attribute__((visibility("default"))) ferry::net::nccl_abi::TableV7 ncclNetPlugin_v7 = {
    .name = ferry::nccl_net::kPluginName,
    .init = ferry::nccl_net::InitUntuned,
    .devices = ferry::nccl_net::Devices,
    .get_properties = ferry::nccl_net::GetPropertiesAs,
    .listen = ferry::nccl_net::ListenInProcess,
    .connect = ferry::nccl_net::ConnectInProcess,
    .accept = ferry::nccl_net::AcceptWithHandle,
    .reg_mr = ferry::nccl_net::RegMrV7,
    .reg_mr_dma_buf = nullptr,
    .dereg_mr = ferry::nccl_net::DeregMr,
    .isend = ferry::nccl_net::IsendOf<int>,
    .irecv = ferry::nccl_net::IrecvOf<int>,
    .iflush = ferry::nccl_net::IflushOfGroup,
    .test = ferry::nccl_net::Test,
    .close_send = ferry::nccl_net::CloseSend,
    .close_recv = ferry::nccl_net::CloseRecv,
    .close_listen = ferry::nccl_net::CloseListen,
    .get_device_mr = nullptr,
    .irecv_consumed = nullptr,
};
}
