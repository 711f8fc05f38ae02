// The plugin's table for version 12.
#include "ferry/net/nccl_abi/abi_v12.h"
#include "plugins/nccl/table/table_forms.h"

extern "C" {
// NOLINTNEXTLINE(readability-identifier-naming): NCCL's name
__attribute__((visibility("default"))) ferry::net::nccl_abi::TableV12 ncclNetPlugin_v12 = {
    .name = ferry::nccl_net::kPluginName,
    .init = ferry::nccl_net::InitInContext,
    .devices = ferry::nccl_net::Devices,
    .get_properties = ferry::nccl_net::GetProperties,
    .listen = ferry::nccl_net::Listen,
    .connect = ferry::nccl_net::ConnectInContext,
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
    .finalize = ferry::nccl_net::Finalize,
    .set_net_attr = ferry::nccl_net::SetNetAttr,
};
}
