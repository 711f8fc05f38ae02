// The environment plugin that NCCL finds in this library.
#include <dlfcn.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ferry/core/config.h"
#include "ferry/net/nccl_abi/abi.h"
#include "plugins/nccl/nccl_request.h"
#include "plugins/nccl/report.h"
#include "plugins/nccl/setup/set_variables.h"

// NCCL 2.28 and later load the library named by NCCL_ENV_PLUGIN before they read any other
// variable. With NCCL_ENV_PLUGIN in place of NCCL_NET_PLUGIN, this library names itself as the
// network, and asks for channels of send and receive by the variable that NCCL 2.28 reads before it
// loads a network (nccl_request.h).
namespace ferry::nccl_net {
namespace {

namespace abi = net::nccl_abi;

constexpr const char* kPluginVariable = "NCCL_NET_PLUGIN";

std::string_view ValueOf(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? std::string_view() : text;
}

// The channels to ask for between two ranks; 0 leaves them to NCCL.
int ChannelsToAskFor() {
  constexpr std::array kChosen = {"NCCL_NCHANNELS_PER_NET_PEER", "NCCL_MAX_NCHANNELS",
                                  "NCCL_MAX_NRINGS", "NCCL_MAX_CTAS", "FERRY_NCCL_DEVICES"};
  for (const char* name : kChosen) {
    if (!ValueOf(name).empty()) return 0;
  }
  // The network's init reports settings that cannot be used.
  const auto config = Config::FromEnvironment([](const char* name) { return std::getenv(name); });
  return config ? config->nccl_channels : 0;
}

int Complete() noexcept {
  try {
    Dl_info info{};
    // dladdr(3) takes the address of a function as a data pointer.
    const bool known = ::dladdr(reinterpret_cast<const void*>(&Complete), &info) != 0;
    if (!known || !ValueOf(kPluginVariable).empty()) return abi::kSuccess;
    if (!AllowsThisPlugin(ValueOf("NCCL_NET"))) return abi::kSuccess;
    std::vector<std::pair<std::string, std::string>> variables{{kPluginVariable, info.dli_fname}};
    if (const int channels = ChannelsToAskFor(); channels != 0) {
      variables.emplace_back("NCCL_NCHANNELS_PER_NET_PEER", std::to_string(channels));
    }
    SetVariables(variables);
  } catch (const std::exception& error) {
    Warn(error.what());
  }
  return abi::kSuccess;
}

int InitEnvV1(std::uint8_t /*major*/, std::uint8_t /*minor*/, std::uint8_t /*patch*/,
              const char* /*suffix*/) {
  return Complete();
}
int InitEnvV2(std::uint8_t /*major*/, std::uint8_t /*minor*/, std::uint8_t /*patch*/,
              const char* /*suffix*/, abi::Logger logger) {
  SetLogger(logger);
  return Complete();
}

int FinalizeEnv() { return abi::kSuccess; }
const char* GetEnv(const char* name) { return std::getenv(name); }

// ncclEnv_v1_t and ncclEnv_v2_t (src/include/plugin/env of NCCL), which differ in `init`.
template <class Init>
struct EnvTable {
  const char* name;
  Init* init;
  int (*finalize)();
  const char* (*get_env)(const char* name);
};

constexpr const char* kEnvName = "Ferry";

}  // namespace
}  // namespace ferry::nccl_net

extern "C" {
// NOLINTBEGIN(readability-identifier-naming): NCCL's names
__attribute__((visibility("default")))
ferry::nccl_net::EnvTable<decltype(ferry::nccl_net::InitEnvV1)>
    ncclEnvPlugin_v1 = {
        .name = ferry::nccl_net::kEnvName,
        .init = ferry::nccl_net::InitEnvV1,
        .finalize = ferry::nccl_net::FinalizeEnv,
        .get_env = ferry::nccl_net::GetEnv,
};
__attribute__((visibility("default")))
ferry::nccl_net::EnvTable<decltype(ferry::nccl_net::InitEnvV2)>
    ncclEnvPlugin_v2 = {
        .name = ferry::nccl_net::kEnvName,
        .init = ferry::nccl_net::InitEnvV2,
        .finalize = ferry::nccl_net::FinalizeEnv,
        .get_env = ferry::nccl_net::GetEnv,
};
// NOLINTEND(readability-identifier-naming)
}
