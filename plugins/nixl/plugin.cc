// The symbols that NIXL's loader asks for.
#include <exception>
#include <memory>

#include "ferry/core/version.h"
#include "plugins/nixl/abi.h"
#include "plugins/nixl/agent_library.h"
#include "plugins/nixl/backend.h"
#include "plugins/nixl/log.h"

namespace ferry::nixl {
namespace {

abi::BackendEngine* Create(const abi::InitParams* init) noexcept {
  try {
    auto backend = Backend::Create(*init);
    if (backend) return backend->release();  // until Destroy()
    (void)Fail("cannot create the back end", backend.error());
  } catch (const std::exception& error) {
    Log(LogLevel::kError, error.what());
  }
  return nullptr;
}

void Destroy(abi::BackendEngine* engine) noexcept {
  // Made by Create(); the agent gives it back.
  Backend::Destroy(std::unique_ptr<Backend>(static_cast<Backend*>(engine)));
}

const char* Name() noexcept { return "FERRY"; }
const char* VersionText() noexcept { return FERRY_VERSION; }
abi::Params DefaultParams() { return {}; }
abi::Memories Memories() { return {abi::Memory::kDram, abi::Memory::kVram}; }

constinit abi::Plugin plugin{.create = Create,
                             .destroy = Destroy,
                             .name = Name,
                             .version = VersionText,
                             .default_params = DefaultParams,
                             .memories = Memories};

}  // namespace
}  // namespace ferry::nixl

// NOLINTBEGIN(readability-identifier-naming): NIXL's names.
extern "C" __attribute__((visibility("default"))) ferry::nixl::abi::Plugin* nixl_plugin_init() {
  // Once: the library stays loaded, and the agent asks several times.
  static const bool usable = ferry::nixl::MayBeUsedBy(__builtin_return_address(0));
  return usable ? &ferry::nixl::plugin : nullptr;
}

// Nothing to clean up: the library is never unloaded, and each back end ends its own threads.
extern "C" __attribute__((visibility("default"))) void nixl_plugin_fini() {}
// NOLINTEND(readability-identifier-naming)
