#include "tests/plugin/testing/standin.h"

#include <dlfcn.h>
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <future>

namespace ferry::net::plugin::testing {
namespace {

constexpr std::size_t kPage = 4096;

std::string CopyOfStandIn() {
  static std::atomic<int> copies{0};
  const auto path = std::filesystem::temp_directory_path() /
                    fmt::format("ferry-standin-{}-{}.so", ::getpid(), copies.fetch_add(1));
  std::filesystem::copy_file(FERRY_STANDIN_LIBRARY, path,
                             std::filesystem::copy_options::overwrite_existing);
  return path.string();
}

// Of a library that is loaded already.
template <class Function>
Function* Find(const std::string& path, const char* name) {
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  void* const found = library == nullptr ? nullptr : ::dlsym(library, name);
  Function* function = nullptr;
  std::memcpy(&function, &found, sizeof function);
  return function;
}

}  // namespace

ScopedVariables::ScopedVariables(const Variables& variables, const std::string& prefix) {
  for (const auto& [name, value] : variables) {
    names_.push_back(prefix + name);
    ::setenv(names_.back().c_str(), value.c_str(), 1);
  }
}

ScopedVariables::~ScopedVariables() {
  for (const std::string& name : names_) ::unsetenv(name.c_str());
}

StandIn::StandIn(const Variables& variables) : variables_(variables), path_(CopyOfStandIn()) {}

StandIn::~StandIn() {
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
}

Result<Plugin*> StandIn::Open() {
  const ScopedVariables chunk(Variables{{"NCCL_DYNAMIC_CHUNK_SIZE", "524288"}});
  const ScopedVariables own(variables_, "FERRY_STANDIN_");
  return Plugin::Open(path_);
}

std::string StandIn::Misuse() const {
  auto* const misuses = Find<unsigned long()>(path_, "ferry_standin_misuses");
  auto* const last = Find<const char*()>(path_, "ferry_standin_last_misuse");
  if (misuses == nullptr || last == nullptr) return "it is not loaded";
  return misuses() == 0 ? std::string() : last();
}

Result<Ends> Connect(Plugin* plugin, std::size_t count, Deadline deadline) {
  Ends ends;
  for (std::size_t i = 0; i < count; ++i) {
    const auto device = static_cast<int>(i % plugin->nics().size());
    FERRY_TRY_ASSIGN(const auto listening, Listening::Open(plugin, device));
    Connecting connecting(plugin, device, listening->handle());
    auto connected = std::async(std::launch::async, [&] { return connecting.Connect(deadline); });
    auto accepted = listening->Accept(deadline);
    FERRY_TRY_ASSIGN(auto sender, connected.get());
    if (!accepted) return accepted.error();
    ends.senders.push_back(std::move(sender));
    ends.receivers.push_back(*std::move(accepted));
  }
  return ends;
}

void PagesDelete::operator()(std::byte* memory) const { std::free(memory); }

Pages MakePages(std::size_t bytes) {
  const std::size_t whole = (bytes + kPage - 1) / kPage * kPage;
  return Pages(static_cast<std::byte*>(std::aligned_alloc(kPage, whole)));
}

}  // namespace ferry::net::plugin::testing
