// Implements access to the stand-in library for tests.

#include "ferry/tcpx/tests/testing/standin.h"

#include <dlfcn.h>

#include <cstring>
#include <future>

namespace ferry::tcpx::testing {
namespace {

// Looks up a symbol of a library that is already loaded.
template <class Function>
Function* Find(const std::string& path, const char* name) {
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  void* const found = library == nullptr ? nullptr : ::dlsym(library, name);
  Function* function = nullptr;
  std::memcpy(&function, &found, sizeof function);
  return function;
}

}  // namespace

StandIn::StandIn(const Variables& variables)
    : variables_(variables), copy_(standin::testing::StandInFile()) {}

Result<Plugin*> StandIn::Open() {
  const ScopedVariables chunk(Variables{{"NCCL_DYNAMIC_CHUNK_SIZE", "524288"}});
  const ScopedVariables own(variables_, "FERRY_STANDIN_");
  return Plugin::Open(copy_.path());
}

std::string StandIn::Misuse() const {
  auto* const misuses = Find<unsigned long()>(copy_.path(), "ferry_standin_misuses");
  auto* const last = Find<const char*()>(copy_.path(), "ferry_standin_last_misuse");
  if (misuses == nullptr || last == nullptr) return "it is not loaded";
  return misuses() == 0 ? std::string() : last();
}

Result<Ends> Connect(Plugin* plugin, std::size_t count, Deadline deadline, cuda::DeviceApi* api) {
  Ends ends;
  for (std::size_t i = 0; i < count; ++i) {
    const auto device = static_cast<int>(i % plugin->nics().size());
    FERRY_TRY_ASSIGN(const auto listening, Listening::Open(plugin, device));
    Connecting connecting(plugin, device, listening->handle());
    auto connected = std::async(std::launch::async, [&]() -> Result<std::unique_ptr<SendComm>> {
      cuda::CurrentDevice current;
      if (api != nullptr) {
        FERRY_TRY_ASSIGN(current, api->MakeCurrent(0));
      }
      return AskUntil(deadline, [&] { return connecting.Connect(); });
    });
    auto accepted = AskUntil(deadline, [&] { return listening->Accept(); });
    FERRY_TRY_ASSIGN(auto sender, connected.get());
    if (!accepted) return accepted.error();
    ends.senders.push_back(std::move(sender));
    ends.receivers.push_back(*std::move(accepted));
  }
  return ends;
}

}  // namespace ferry::tcpx::testing
