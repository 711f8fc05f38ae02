// An agent's endpoint, memory and peers, as NIXL's agent asks for them.
#include "plugins/nixl/backend.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "ferry/core/secret.h"
#include "plugins/nixl/guard.h"
#include "plugins/nixl/log.h"
#include "plugins/nixl/settings.h"

namespace ferry::nixl {
namespace {

// For notifications that are on their way when the agent ends.
constexpr auto kFlushGrace = std::chrono::seconds(2);
// For new metadata of an agent that was restarted, once its former connections are lost.
constexpr auto kClaimGrace = std::chrono::seconds(5);

const char* MemoryName(abi::Memory kind) {
  return kind == abi::Memory::kVram ? "VRAM_SEG" : "DRAM_SEG";
}

bool IsSupported(abi::Memory kind) {
  return kind == abi::Memory::kDram || kind == abi::Memory::kVram;
}

}  // namespace

// ---- life ---------------------------------------------------------------------------------------

Backend::Backend(const abi::InitParams& init, Config config, Secrets secrets, SigningKey key,
                 transfer::Endpoint endpoint)
    : BackendEngine(init),
      config_(std::move(config)),
      endpoint_(std::move(endpoint)),
      secrets_(std::move(secrets)),
      key_(std::move(key)) {}

Result<std::unique_ptr<Backend>> Backend::Create(const abi::InitParams& init) {
  if (init.agent.size() > kMaxNameBytes) {
    return Error(Code::kInvalidArgument,
                 fmt::format("the agent's name has {} bytes, the limit is {}", init.agent.size(),
                             kMaxNameBytes));
  }
  if (init.type != "FERRY") {
    Log(LogLevel::kWarning, fmt::format("this plug-in stands in for {}, because its file has that "
                                        "name; both sides must use it",
                                        init.type));
  }
  FERRY_TRY_ASSIGN(Config config, LoadSettings(init.params ? *init.params : abi::Params()));
  Secrets secrets;
  FERRY_TRY_ASSIGN(secrets.settings, LoadSecret(config));
  WarnIfOthersMayRead("secret_file", config.secret_file);
  FERRY_TRY_ASSIGN(SigningKey key, SigningKey::Random());
  FERRY_TRY_ASSIGN(
      transfer::Endpoint endpoint,
      transfer::Endpoint::Create(config, ConnectionSecret(secrets.settings, secrets.metadata),
                                 CheckOfIdentities(init.agent)));
  std::unique_ptr<Backend> backend(new Backend(init, std::move(config), std::move(secrets),
                                               std::move(key), std::move(endpoint)));
  FERRY_TRY(backend->Start());
  return backend;
}

Status Backend::Start() {
  FERRY_TRY_ASSIGN(courier_, Courier::Create());
  FERRY_TRY_ASSIGN(inbox_,
                   Inbox::Create(&endpoint_, &tasks_,
                                 {.sender_bytes = config_.peer_memory - config_.notification_bytes,
                                  .total_bytes = config_.peer_memory_total,
                                  .claim = config_.peer_timeout + kClaimGrace}));
  // The kernel of a peer that is stopped still accepts connections: whoever waits for one is told
  // as soon as of a peer that stops later.
  peer_context_ = {.endpoint = &endpoint_,
                   .tasks = &tasks_,
                   .courier = courier_.get(),
                   .agent = fields_.agent,
                   .secret = secrets_.settings,
                   .key = &key_,
                   .dial_timeout = std::min(config_.connect_timeout, config_.peer_timeout)};
  transfer_context_ = {.courier = courier_.get(), .active = &active_};
  peers_[fields_.agent] = std::make_shared<Peer>(fields_.agent, OwnInfo(), &peer_context_);
  inbox_->BindName(fields_.agent, key_.public_key());
  Log(LogLevel::kInfo, fmt::format("agent '{}' listens on port {}, endpoint {}", fields_.agent,
                                   endpoint_.port(), endpoint_.id().ToString()));
  return Ok();
}

void Backend::Destroy(std::unique_ptr<Backend> backend) noexcept {
  if (backend->mark_.forked()) (void)backend.release();
}

Backend::~Backend() {
  try {
    // Order: notifications leave while connections are up; then the endpoint ends what threads
    // block in; then the threads are joined. The inbox may still ask for tasks after Stop(), which
    // drops them.
    std::map<std::string, std::shared_ptr<Peer>> peers;  // as in peers_
    {
      const std::lock_guard lock(mutex_);
      peers.swap(peers_);
    }
    if (courier_) courier_->WaitIdle(Deadline::After(kFlushGrace));
    for (const auto& entry : peers) entry.second->Disconnect();
    endpoint_.Close();  // ends what the other threads wait for
    tasks_.Stop();
    inbox_.reset();
    courier_.reset();
  } catch (const std::exception& error) {
    Log(LogLevel::kError, error.what());
  }
}

// ---- memory -------------------------------------------------------------------------------------

abi::Memories Backend::SupportedMemories() const {
  return {abi::Memory::kDram, abi::Memory::kVram};
}

// Depends on the range alone, and cannot be guessed from that: a range that is registered again has
// the same metadata, and peers that have loaded it before reach the new registration.
std::uint64_t Backend::TokenOf(const MemoryRange& range) const {
  const std::uint64_t name[] = {range.address, range.length,
                                static_cast<std::uint64_t>(range.kind)};
  const auto mac = Hmac(secrets_.token.bytes, std::as_bytes(std::span(name)));
  std::uint64_t token = 0;
  std::memcpy(&token, mac.data(), sizeof(token));
  return token;
}

Result<std::shared_ptr<transfer::Region>> Backend::RegisterRange(const MemoryRange& range) {
  if (!IsSupported(range.kind)) {
    return Error(Code::kUnsupported, "only DRAM_SEG and VRAM_SEG are supported");
  }
  // NIXL names memory by its address.
  auto* const begin = reinterpret_cast<std::byte*>(range.address);
  FERRY_TRY_ASSIGN(
      transfer::Region region,
      endpoint_.Register({begin, range.length}, transfer::Rights::kReadWrite, TokenOf(range)));
  // Only registration finds out where the memory is. On a mismatch the region ends with this scope.
  const std::uint8_t gpu = region.remote().gpu;
  if ((gpu != 0) != (range.kind == abi::Memory::kVram)) {
    return Error(Code::kInvalidArgument,
                 fmt::format("it is memory of {}, not {}",
                             gpu == 0 ? "the host" : fmt::format("GPU {}", gpu - 1),
                             MemoryName(range.kind)));
  }
  return std::make_shared<transfer::Region>(std::move(region));
}

Result<std::unique_ptr<LocalMemory>> Backend::TryRegister(const MemoryRange& range) {
  // One at a time: of two regions with the same token the later one counts. Not under mutex_,
  // because the first region of a GPU takes tenths of seconds.
  const std::lock_guard registering(registering_);
  std::unique_lock lock(mutex_);
  auto found = ranges_.find(range);
  if (found == ranges_.end()) {
    lock.unlock();
    FERRY_TRY_ASSIGN(auto region, RegisterRange(range));
    lock.lock();
    found = ranges_.try_emplace(range, Registered{std::move(region), 0}).first;
  }
  auto memory = std::make_unique<LocalMemory>(found->second.region, range.kind);
  registered_.insert(memory.get());
  ++found->second.count;
  return memory;
}

abi::Outcome Backend::Register(const abi::BlobDescriptor& memory, const abi::Memory& kind,
                               abi::Metadata*& out) {
  return Guarded("register memory", mark_, [&] {
    auto registered = TryRegister({memory.at.address, memory.at.length, kind});
    if (!registered) {
      return Fail(
          fmt::format("cannot register {} bytes at {:#x}", memory.at.length, memory.at.address),
          registered.error());
    }
    out = registered->release();  // the agent's until Deregister()
    return abi::Outcome::kSuccess;
  });
}

std::unique_ptr<LocalMemory> Backend::Take(abi::Metadata* metadata, bool* last) {
  const std::lock_guard lock(mutex_);
  if (registered_.erase(metadata) == 0) return nullptr;
  std::unique_ptr<LocalMemory> memory(static_cast<LocalMemory*>(metadata));  // made by Register()
  const auto range = ranges_.find(memory->range());
  *last = --range->second.count == 0;
  if (*last) ranges_.erase(range);
  return memory;
}

abi::Outcome Backend::Deregister(abi::Metadata* metadata) {
  if (mark_.forked()) return abi::Outcome::kSuccess;  // it is the parent's
  return Guarded("deregister memory", mark_, [&] {
    bool last = false;
    std::unique_ptr<LocalMemory> memory = Take(metadata, &last);
    if (!memory) {
      return Fail("cannot deregister memory",
                  Error(Code::kInvalidArgument,
                        "it is not registered, or its range is twice in the list; deregister each "
                        "registration by a call of its own"));
    }
    if (!last) return abi::Outcome::kSuccess;
    // First our own transfers, then the region, which waits for those of peers.
    active_.CancelUsersOf(memory->region.get());
    const auto timeout = config_.peer_timeout + config_.drain_grace + std::chrono::seconds(1);
    if (const Status done = memory->region->Deregister(Deadline::After(timeout)); !done) {
      // Its end would wait until nobody is in it, for good where a GPU is stuck. So the region, and
      // with it the endpoint's staging memory, is kept until the process ends.
      if (done.error().code() == Code::kTimedOut) (void)memory.release();
      return Fail("cannot deregister memory", done.error());
    }
    return abi::Outcome::kSuccess;
  });
}

abi::Outcome Backend::PublicData(const abi::Metadata* metadata, std::string& out) const {
  return Guarded("describe memory", mark_, [&] {
    // Made by Register().
    const auto* const memory = static_cast<const LocalMemory*>(metadata);
    out = MemoryInfo{memory->region->remote()}.Serialize();
    return abi::Outcome::kSuccess;
  });
}

abi::Outcome Backend::Query(const abi::BlobList& memories,
                            std::vector<std::optional<abi::Params>>& out) const {
  return Guarded("query memory", mark_, [&] {
    const std::lock_guard lock(mutex_);
    for (const abi::BlobDescriptor& asked : memories.items) {
      const auto found = std::find_if(ranges_.begin(), ranges_.end(), [&](const auto& entry) {
        const MemoryRange& range = entry.first;
        return range.kind == memories.memory && Covers(range.address, range.length, asked.at);
      });
      // One entry for each question, in order, whatever the answer is.
      out.emplace_back(std::nullopt);
      if (found != ranges_.end()) {
        out.back() = abi::Params{{"memory", MemoryName(found->first.kind)},
                                 {"registered_bytes", std::to_string(found->first.length)}};
      }
    }
    return abi::Outcome::kSuccess;
  });
}

// ---- peers --------------------------------------------------------------------------------------

abi::Outcome Backend::ConnectionInfo(std::string& out) const {
  return Guarded("describe the endpoint", mark_, [&] {
    out = OwnInfo().Serialize();
    return abi::Outcome::kSuccess;
  });
}

abi::Outcome Backend::LoadConnectionInfo(const std::string& agent, const std::string& info) {
  return Guarded("load connection information", mark_, [&] {
    auto parsed = nixl::ConnectionInfo::Parse(info);
    if (!parsed) {
      // The agent tells metadata that does not fit from other failures by the outcome.
      (void)Fail(fmt::format("cannot load the metadata of agent '{}'", agent), parsed.error());
      return abi::Outcome::kMismatch;
    }
    std::shared_ptr<Peer> peer;  // shared as in peers_
    std::shared_ptr<Peer> former;
    {
      const std::lock_guard lock(mutex_);
      const auto found = peers_.find(agent);
      // The agent forgets a peer whose other metadata is bad without telling us.
      if (found != peers_.end() && found->second->info().secret == parsed->secret &&
          found->second->info().key == parsed->key && !found->second->lost()) {
        return abi::Outcome::kSuccess;
      }
      // Another secret means another incarnation of the agent: each back end has its own. Lock
      // order: this mutex, then a peer's or the inbox's; what may close or dial comes after both.
      inbox_->BindName(agent, parsed->key);
      peer = std::make_shared<Peer>(agent, *std::move(parsed), &peer_context_);
      former = std::exchange(peers_[agent], peer);  // no empty entry stays without memory
    }
    if (former) former->Disconnect();
    peer->Dial(false);
    return abi::Outcome::kSuccess;
  });
}

Result<std::shared_ptr<Peer>> Backend::FindPeer(const std::string& agent) const {
  const std::lock_guard lock(mutex_);
  const auto found = peers_.find(agent);
  if (found != peers_.end()) return found->second;
  return Error(Code::kInvalidArgument, fmt::format("no metadata of agent '{}' is loaded", agent));
}

abi::Outcome Backend::Connect(const std::string& agent) {
  return Guarded("connect", mark_, [&] {
    // Every agent connects to itself at its creation, and few transfer to themselves: the first
    // transfer dials.
    if (agent == fields_.agent) return abi::Outcome::kSuccess;
    const auto peer = FindPeer(agent);
    if (!peer) return Fail("cannot connect", peer.error()), abi::Outcome::kNotFound;
    (*peer)->Dial(true);
    return abi::Outcome::kSuccess;
  });
}

abi::Outcome Backend::Disconnect(const std::string& agent) {
  if (mark_.forked()) return abi::Outcome::kSuccess;  // it is the parent's
  return Guarded("disconnect", mark_, [&] {
    std::shared_ptr<Peer> peer;  // shared with transfers
    {
      const std::lock_guard lock(mutex_);
      const auto found = peers_.find(agent);
      if (found == peers_.end()) return abi::Outcome::kSuccess;
      peer = std::move(found->second);
      peers_.erase(found);
      inbox_->UnbindName(agent);
    }
    peer->Disconnect();
    return abi::Outcome::kSuccess;
  });
}

Result<std::unique_ptr<RemoteMemory>> Backend::TryImport(const abi::BlobDescriptor& memory,
                                                         abi::Memory kind,
                                                         const std::string& agent) const {
  FERRY_TRY_ASSIGN(const std::shared_ptr<Peer> peer, FindPeer(agent));
  FERRY_TRY_ASSIGN(MemoryInfo info, MemoryInfo::Parse(memory.blob));
  // The blob and the connection information reach us separately, and may be from two incarnations
  // of the agent. Transfers use the connection, so they have to agree.
  if (info.region.endpoint != peer->info().address.endpoint) {
    return Error(Code::kCorrupt, "the memory belongs to another endpoint than the agent's");
  }
  if (info.region.length != memory.at.length ||
      (info.region.gpu != 0) != (kind == abi::Memory::kVram)) {
    return Error(
        Code::kCorrupt,
        fmt::format("the descriptor has {} bytes of {}, its metadata {} of {}", memory.at.length,
                    MemoryName(kind), info.region.length,
                    MemoryName(info.region.gpu == 0 ? abi::Memory::kDram : abi::Memory::kVram)));
  }
  return std::make_unique<RemoteMemory>(std::move(info.region), memory.at.address);
}

abi::Outcome Backend::Load(std::unique_ptr<RemoteMemory> memory, abi::Metadata*& out) {
  const std::lock_guard lock(mutex_);
  loaded_.insert(memory.get());
  out = memory.release();  // the agent's until UnloadMetadata()
  return abi::Outcome::kSuccess;
}

abi::Outcome Backend::LoadRemoteMetadata(const abi::BlobDescriptor& memory, const abi::Memory& kind,
                                         const std::string& agent, abi::Metadata*& out) {
  return Guarded("load metadata", mark_, [&] {
    auto imported = TryImport(memory, kind, agent);
    if (!imported) {
      (void)Fail(fmt::format("cannot load metadata of agent '{}'", agent), imported.error());
      return abi::Outcome::kMismatch;
    }
    return Load(*std::move(imported), out);
  });
}

abi::Outcome Backend::LoadLocalMetadata(abi::Metadata* metadata, abi::Metadata*& out) {
  return Guarded("load own metadata", mark_, [&] {
    // Made by Register().
    const auto* const memory = static_cast<const LocalMemory*>(metadata);
    return Load(std::make_unique<RemoteMemory>(memory->region->remote(), memory->base()), out);
  });
}

abi::Outcome Backend::UnloadMetadata(abi::Metadata* metadata) {
  if (mark_.forked()) return abi::Outcome::kSuccess;  // it is the parent's
  return Guarded("unload metadata", mark_, [&] {
    {
      const std::lock_guard lock(mutex_);
      // The agent gives it back, twice where a range is twice in the list.
      if (loaded_.erase(metadata) == 0) return abi::Outcome::kInvalidParam;
    }
    delete metadata;  // NOLINT(cppcoreguidelines-owning-memory): made by Load()
    return abi::Outcome::kSuccess;
  });
}

}  // namespace ferry::nixl
