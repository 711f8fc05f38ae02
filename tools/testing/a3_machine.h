// A fake A3 machine that is set up correctly for GPUDirect-TCPX.
#pragma once
#include <fmt/core.h>

#include <array>
#include <string>
#include <vector>

#include "tools/testing/fake_system.h"

namespace ferry::tools {

// A machine with a correct setup for GPUDirect-TCPX: 8 GPUs, with one interface on the PCI switch
// of each pair; its daemon runs, and the variables are the documented ones.
struct A3Machine {
  A3Machine() {
    system.states["/usr/local/tcpx/lib64/libnccl-net-tcpx.so"] = PathState{.readable = true};
    system.token_options = {97};
    system.files["/proc/driver/nvidia/version"] =
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  535.183.01  Release Build\n"
        "GCC version:  gcc version 12.2.0";
    system.environment = {
        {"NCCL_GPUDIRECTTCPX_SOCKET_IFNAME", "eth1,eth2,eth3,eth4"},
        {"NCCL_GPUDIRECTTCPX_CTRL_DEV", "eth0"},
        {"NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX", "/run/tcpx"},
        {"NCCL_GPUDIRECTTCPX_PROGRAM_FLOW_STEERING_WAIT_MICROS", "50000"},
        {"NCCL_DYNAMIC_CHUNK_SIZE", "524288"},
        {"NCCL_NSOCKS_PERTHREAD", "2"},
    };
    for (const char* name : {"rx_rule_manager", "rx_rule_uninstall", "queue_ids_by_gpu"}) {
      AddSocket(std::string("/run/tcpx/") + name);
    }
    constexpr std::array kNics = {"0000:06:00.0", "0000:0c:00.0", "0000:86:00.0", "0000:8c:00.0"};
    for (std::size_t nic = 0; nic < kNics.size(); ++nic) {
      const std::string behind = fmt::format("/sys/devices/pci0000:0{0}/0000:0{0}:01.0/", nic);
      AddNic(fmt::format("eth{}", nic + 1), fmt::format("10.0.{}.1", nic + 1),
             behind + kNics.at(nic));
      for (const std::size_t gpu : {2 * nic, 2 * nic + 1}) AddGpu(Gpus()[gpu], behind);
    }
    system.Sysctl("net.ipv4.tcp_rmem", "4096\t1048576\t15728640");
    system.Sysctl("net.ipv4.tcp_wmem", "4096\t1048576\t67108864");
    system.Sysctl("net.ipv4.tcp_mtu_probing", "0");
    system.Sysctl("net.ipv4.ip_local_port_range", "50000\t60000");
  }

  static std::vector<std::string> Gpus() {
    return {"0000:04:00.0", "0000:05:00.0", "0000:0a:00.0", "0000:0b:00.0",
            "0000:84:00.0", "0000:85:00.0", "0000:8a:00.0", "0000:8b:00.0"};
  }

  void AddSocket(const std::string& path) {
    system.states[path] =
        PathState{.kind = PathState::Kind::kSocket, .readable = true, .writable = true};
  }

  void AddNic(const std::string& name, const std::string& host, const std::string& pci_path) {
    const std::string folder = "/sys/class/net/" + name;
    system.files[folder + "/operstate"] = "up";
    system.files[folder + "/mtu"] = "8244";
    if (!pci_path.empty()) system.links[folder + "/device"] = pci_path;
    system.addresses.push_back({name, host});
    system.switches[name] = NicSwitches{.private_flags = {{"enable-header-split", true},
                                                          {"enable-strict-header-split", true},
                                                          {"enable-max-rx-buffer-size", true}},
                                        .ntuple = true};
  }

  void AddGpu(const std::string& gpu, const std::string& behind) {
    system.files["/proc/driver/nvidia/gpus/" + gpu + "/information"] = "";
    system.links["/sys/bus/pci/devices/" + gpu] = behind + gpu;
    AddSocket("/run/tcpx/get_gpu_fd_" + gpu);
  }

  FakeSystem system;
};

}  // namespace ferry::tools
