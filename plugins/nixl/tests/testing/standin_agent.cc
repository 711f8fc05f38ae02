// Drives a back end as NIXL's agent does.
#include "plugins/nixl/tests/testing/standin_agent.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include <algorithm>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <utility>

#include "tests/support/peer_process.h"

// NOLINTNEXTLINE(readability-identifier-naming): NIXL's name
extern "C" ferry::nixl::abi::Plugin* nixl_plugin_init();

namespace ferry::nixl::testing {
namespace {

std::string Hex(std::string_view text) {
  return tests::ToHex(std::as_bytes(std::span(text.data(), text.size())));
}

std::string Unhex(const std::string& hex) {
  const auto bytes = tests::FromHex(hex);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void Require(bool is_true, const char* what) {
  if (!is_true) throw std::runtime_error(what);
}

}  // namespace

const abi::Plugin& LoadedPlugin() {
  static const abi::Plugin* const plugin = [] {
    void* const library = dlopen(FERRY_NIXL_PLUGIN, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == nullptr) throw std::runtime_error(dlerror());
    void* const found = dlsym(library, "nixl_plugin_init");
    Require(found != nullptr, "no nixl_plugin_init");
    return reinterpret_cast<abi::Plugin* (*)()>(found)();
  }();
  return *plugin;
}

const abi::Plugin& LinkedPlugin() { return *nixl_plugin_init(); }

StandInAgent::StandInAgent(std::string name, const abi::Params& params, const abi::Plugin& plugin)
    : name_(std::move(name)), plugin_(plugin) {
  Require(plugin.api_version == abi::kApiVersion, "another version of the interface");
  abi::Params copy = params;
  const abi::InitParams init{.agent = name_, .type = "FERRY", .params = &copy};
  engine_ = plugin.create(&init);
  Require(engine_ != nullptr, "the back end cannot be created");
  std::string info;
  Require(engine_->SupportsRemote() && engine_->SupportsNotifications(), "no remote operations");
  Require(engine_->ConnectionInfo(info) == abi::Outcome::kSuccess && !info.empty(),
          "no connection information");
  Require(engine_->SupportsLocal() && engine_->Connect(name_) == abi::Outcome::kSuccess,
          "no transfers to itself");
}

StandInAgent::~StandInAgent() {
  for (const Entry& entry : entries_) {
    if (entry.peer.empty()) {
      (void)engine_->Deregister(entry.metadata);
    } else {
      (void)engine_->UnloadMetadata(entry.metadata);
    }
  }
  plugin_.destroy(engine_);
}

abi::Outcome StandInAgent::Register(std::span<std::byte> memory, abi::Memory kind) {
  Entry entry{.blob = {{reinterpret_cast<std::uintptr_t>(memory.data()), memory.size(), 0}, {}},
              .kind = kind,
              .metadata = nullptr,
              .peer = {}};
  const abi::Outcome outcome = engine_->Register(entry.blob, kind, entry.metadata);
  if (outcome != abi::Outcome::kSuccess) return outcome;
  Require(engine_->PublicData(entry.metadata, entry.blob.blob) == abi::Outcome::kSuccess,
          "memory cannot be described");
  Entry own = entry;
  own.peer = name_;
  Require(engine_->LoadLocalMetadata(entry.metadata, own.metadata) == abi::Outcome::kSuccess,
          "memory cannot be loaded as the agent's own");
  entries_.push_back(std::move(entry));
  entries_.push_back(std::move(own));
  return outcome;
}

void StandInAgent::Deregister(std::span<std::byte> memory, int times) {
  const Range range{reinterpret_cast<std::uintptr_t>(memory.data()), memory.size()};
  const Entry* const own = Find(range, name_);
  const Entry* const entry = Find(range, "");
  Require(own != nullptr && entry != nullptr, "memory that is not registered");
  abi::Metadata* const unloaded = own->metadata;
  abi::Metadata* const deregistered = entry->metadata;
  for (int i = 0; i < times; ++i) (void)engine_->UnloadMetadata(unloaded);
  for (int i = 0; i < times; ++i) (void)engine_->Deregister(deregistered);
  std::erase_if(entries_, [&](const Entry& other) {
    return other.metadata == unloaded || other.metadata == deregistered;
  });
}

std::string StandInAgent::Metadata() const {
  std::string info;
  Require(engine_->ConnectionInfo(info) == abi::Outcome::kSuccess, "no connection information");
  std::string out = fmt::format("{} {}", Hex(name_), Hex(info));
  for (const Entry& entry : entries_) {
    if (!entry.peer.empty()) continue;
    out += fmt::format(" {} {} {} {}", entry.blob.at.address, entry.blob.at.length,
                       static_cast<int>(entry.kind), Hex(entry.blob.blob));
  }
  return out;
}

abi::Outcome StandInAgent::Load(std::string_view metadata) {
  std::istringstream in{std::string(metadata)};
  std::string name;
  std::string info;
  in >> name >> info;
  name = Unhex(name);
  abi::Outcome outcome = engine_->LoadConnectionInfo(name, Unhex(info));
  loaded_blobs_.clear();
  Entry entry;
  entry.peer = name;
  int kind = 0;
  std::string blob;
  while (outcome == abi::Outcome::kSuccess &&
         in >> entry.blob.at.address >> entry.blob.at.length >> kind >> blob) {
    entry.kind = static_cast<abi::Memory>(kind);
    entry.blob.blob = Unhex(blob);
    const auto known = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& other) {
      return other.peer == name && other.kind == entry.kind &&
             other.blob.at.address == entry.blob.at.address &&
             other.blob.at.length == entry.blob.at.length;
    });
    if (known != entries_.end()) {
      if (known->blob.blob != entry.blob.blob) outcome = abi::Outcome::kNotAllowed;
      continue;
    }
    outcome = engine_->LoadRemoteMetadata(entry.blob, entry.kind, name, entry.metadata);
    if (outcome != abi::Outcome::kSuccess) break;
    entries_.push_back(entry);
    loaded_blobs_.push_back(entry.blob);
  }
  return outcome;
}

void StandInAgent::Forget(const std::string& peer) {
  std::erase_if(entries_, [&](const Entry& entry) {
    if (entry.peer != peer) return false;
    (void)engine_->UnloadMetadata(entry.metadata);
    return true;
  });
  (void)engine_->Disconnect(peer);
}

const StandInAgent::Entry* StandInAgent::Find(const Range& range, const std::string& peer) const {
  // Among several ranges NIXL's agent finds the one that is equal.
  const Entry* covering = nullptr;
  for (const Entry& entry : entries_) {
    const abi::Descriptor& at = entry.blob.at;
    const bool begins = range.address >= at.address && range.address < at.address + at.length;
    if (entry.peer != peer || !begins) continue;
    if (range.address == at.address && range.length == at.length) return &entry;
    if (covering == nullptr) covering = &entry;
  }
  return covering;
}

StandInAgent::Transfer StandInAgent::Prepare(abi::Direction direction, std::span<const Range> local,
                                             std::span<const Range> remote, const std::string& peer,
                                             abi::Outcome* outcome) {
  Transfer transfer(this, direction, peer);
  const auto fill = [&](abi::MetaList* list, std::span<const Range> ranges,
                        const std::string& owner) {
    const Entry* entry = nullptr;
    for (const Range& range : ranges) {
      const bool same = entry != nullptr && range.address >= entry->blob.at.address &&
                        range.address < entry->blob.at.address + entry->blob.at.length;
      if (!same) entry = Find(range, owner);
      Require(entry != nullptr, "memory that is not registered");
      list->memory = entry->kind;
      list->items.push_back({{range.address, range.length, 0}, entry->metadata});
    }
  };
  fill(&transfer.local, local, "");
  fill(&transfer.remote, remote, peer);
  const abi::Options none;
  const abi::Outcome prepared =
      engine_->Prepare(direction, transfer.local, transfer.remote, peer, transfer.request, &none);
  if (outcome != nullptr) *outcome = prepared;
  Require(outcome != nullptr || prepared == abi::Outcome::kSuccess, "cannot be prepared");
  return transfer;
}

abi::Notifications StandInAgent::Await(std::size_t count, Deadline deadline) {
  abi::Notifications all;
  while (true) {
    abi::Notifications some;
    Require(engine_->TakeNotifications(some) == abi::Outcome::kSuccess, "no notifications");
    std::move(some.begin(), some.end(), std::back_inserter(all));
    if (all.size() >= count || deadline.expired()) return all;
    std::this_thread::yield();
  }
}

// ---- Transfer -----------------------------------------------------------------------------------

StandInAgent::Transfer::Transfer(StandInAgent* agent, abi::Direction direction, std::string peer)
    : agent_(agent), direction_(direction), peer_(std::move(peer)) {}

StandInAgent::Transfer::Transfer(Transfer&& other) noexcept
    : local(std::move(other.local)),
      remote(std::move(other.remote)),
      request(std::exchange(other.request, nullptr)),
      agent_(other.agent_),
      direction_(other.direction_),
      peer_(std::move(other.peer_)) {}

StandInAgent::Transfer::~Transfer() {
  if (request != nullptr) Release(Deadline::After(std::chrono::seconds(30)));
}

abi::Outcome StandInAgent::Transfer::Post(std::optional<std::string> notification) {
  abi::Options options;
  options.has_notification = notification.has_value();
  options.notification = std::move(notification).value_or("");
  return agent_->engine_->Post(direction_, local, remote, peer_, request, &options);
}

abi::Outcome StandInAgent::Transfer::Check() { return agent_->engine_->Check(request); }

abi::Outcome StandInAgent::Transfer::Wait(Deadline deadline) {
  while (true) {
    const abi::Outcome outcome = Check();
    if (outcome != abi::Outcome::kInProgress || deadline.expired()) return outcome;
    std::this_thread::yield();
  }
}

void StandInAgent::Transfer::Release(Deadline deadline) {
  while (static_cast<int>(agent_->engine_->Release(request)) < 0) {
    Require(!deadline.expired(), "a transfer is not released");
    std::this_thread::yield();
  }
  request = nullptr;
}

}  // namespace ferry::nixl::testing
