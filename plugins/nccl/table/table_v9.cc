// The plugin's table for version 9.
#include "ferry/net/nccl_abi/abi_v9.h"
#include "plugins/nccl/table/table_forms.h"

namespace ferry::nccl_net {
namespace {

int InitV9(abi::Logger logger) { return InitOnce(22400, logger); }

}  // namespace
}  // namespace ferry::nccl_net

extern "C" {
// NOLINTNEXTLINE(readability-identifier-naming): NCCL's name
__attribute__((visibility("default"))) ferry::net::nccl_abi::TableV9 ncclNetPlugin_v9 = {
    .name = ferry::nccl_net::kPluginName,
    .init = ferry::nccl_net::InitV9,
    .devices = ferry::nccl_net::Devices,
    .get_properties = ferry::nccl_net::GetPropertiesAs,
    .listen = ferry::nccl_net::ListenInProcess,
    .connect = ferry::nccl_net::ConnectInProcess,
    .accept = ferry::nccl_net::AcceptWithHandle,
    .reg_mr = ferry::nccl_net::RegMr,
    .reg_mr_dma_buf = nullptr,
    .dereg_mr = ferry::nccl_net::DeregMr,
    .isend = ferry::nccl_net::IsendOf<std::size_t>,
    .irecv = ferry::nccl_net::IrecvOf<std::size_t>,
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
