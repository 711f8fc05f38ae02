// Shares GPU memory between the two sides of a connection: announces, maps and takes it back.
#include "ferry/transfer/gpu/gpu_sharing.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <optional>
#include <unordered_map>

#include "ferry/core/check.h"
#include "ferry/core/random.h"
#include "ferry/cuda/address.h"
#include "ferry/transfer/gpu/device_memory.h"
#include "ferry/transfer/gpu/sharing_host.h"

namespace ferry::transfer {
namespace {

// Limit of shares of one peer: each is a mapping in the driver.
constexpr std::size_t kMaxShares = 4096;
// Bytes charged for a share here, beyond the mapping.
constexpr std::uint64_t kShareBytes = 512;

std::uint64_t NextId() {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1) + 1;
}

constexpr const char* kNotProved =
    "the peer is not proved to run on this machine as this user and in the same namespaces";

struct LocalShares {
  struct Entry {
    std::weak_ptr<const RegionPin> region;
    Uuid connection;
    std::uint64_t end = 0;  // that shares it
  };
  std::mutex mutex;
  std::unordered_map<Uuid, Entry> entries;  // by token; under mutex
};

LocalShares& AllLocalShares() {
  static auto& all = *new LocalShares;
  return all;
}

// An id that is the same for all processes of a running machine, whatever their container and
// network; none if the kernel does not tell (random(4)).
// Not the host name or an address: containers on one machine differ in them, and machines may share
// them. The boot id is the kernel's.
Uuid ReadHost() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  Uuid id;
  std::size_t digits = 0;
  for (char c = 0; file.get(c) && digits < 2 * id.bytes.size();) {
    const bool decimal = c >= '0' && c <= '9';
    if (!decimal && (c < 'a' || c > 'f')) continue;
    const auto digit = static_cast<unsigned>(decimal ? c - '0' : c - 'a' + 10);
    auto& byte = id.bytes[digits++ / 2];
    byte = static_cast<std::byte>((static_cast<unsigned>(byte) << 4U) | digit);
  }
  return id;
}

const Uuid& ThisHost() {
  static const Uuid id = ReadHost();
  return id;
}

Uuid UuidOf(const std::uint8_t (&sent)[16]) {
  Uuid id;
  std::memcpy(id.bytes.data(), sent, sizeof sent);
  return id;
}

// The peer's description of its memory is not trusted: the driver reports what was mapped.
Result<PeerMemory::Mapped> MapOther(cuda::DeviceApi* api, const wire::ShareBody& body) {
  const auto gpu = static_cast<int>(body.gpu);
  cuda::IpcExport exported;
  exported.handle = body.handle;
  exported.offset = body.offset;
  exported.bytes = body.allocation;
  exported.pci_bus_id.assign(body.bus, strnlen(body.bus, sizeof body.bus));
  PeerMemory::Mapped mapped{.gpu = gpu, .bytes = body.bytes};
  FERRY_TRY_ASSIGN(mapped.imported, api->Import(gpu, exported));
  // What was mapped counts, and not what the peer says: an access beyond it would lose the device.
  FERRY_TRY_ASSIGN(const cuda::PointerInfo info, api->Inspect(mapped.imported.data()));
  const std::uint64_t start = cuda::AddressOf(mapped.imported.data());
  const std::uint64_t size = start - info.base <= info.bytes ? info.base + info.bytes - start : 0;
  if (body.offset > size || body.bytes > size - body.offset) {
    return Error(Code::kRefused,
                 fmt::format("{} bytes from offset {} are not in the {} bytes that were mapped",
                             body.bytes, body.offset, size));
  }
  mapped.address = start + body.offset;
  return mapped;
}

Result<PeerMemory::Mapped> MapHere(cuda::DeviceApi* api, int gpu,
                                   const std::shared_ptr<const RegionPin>& region) {
  const int owner = region->get()->stager->ordinal();
  if (owner != gpu) FERRY_TRY(api->EnablePeerAccess(gpu, owner));
  PeerMemory::Mapped mapped{.gpu = gpu,
                            .address = cuda::AddressOf(region->memory().data()),
                            .bytes = region->memory().size()};
  mapped.here = region;
  return mapped;
}

// Maps memory of another process of this machine, or `here`, memory of this one, which CUDA cannot
// import. Runs as one of `tasks`, which may end after the stagers of the endpoint.
Result<std::shared_ptr<const PeerMemory>> Map(
    cuda::DeviceApi* api, BackgroundTasks* tasks, const wire::ShareBody& body,
    const std::optional<std::weak_ptr<const RegionPin>>& here, UniqueFunction<void()> gone) {
  const auto gpu = static_cast<int>(body.gpu);
  const auto local = here ? here->lock() : nullptr;
  if (here && !local) {
    return Error(Code::kRefused, "the memory that was shared is deregistered");
  }
  FERRY_TRY_ASSIGN(PeerMemory::Mapped mapped,
                   local ? MapHere(api, gpu, local) : MapOther(api, body));
  return std::make_shared<const PeerMemory>(std::move(mapped), tasks, std::move(gone));
}

}  // namespace

// ---- LocalShare ---------------------------------------------------------------------------------

LocalShare::LocalShare(const std::shared_ptr<const RegionPin>& region, const Uuid& connection,
                       std::uint64_t end) {
  LocalShares& all = AllLocalShares();
  const std::lock_guard lock(all.mutex);
  all.entries.emplace(token_, LocalShares::Entry{region, connection, end});
}

LocalShare::~LocalShare() {
  LocalShares& all = AllLocalShares();
  const std::lock_guard lock(all.mutex);
  all.entries.erase(token_);
}

std::shared_ptr<const RegionPin> LocalShare::Find(const Uuid& token, const Uuid& connection,
                                                  std::uint64_t end) {
  LocalShares& all = AllLocalShares();
  const std::lock_guard lock(all.mutex);
  const auto it = all.entries.find(token);
  const bool fits =
      it != all.entries.end() && it->second.connection == connection && it->second.end != end;
  return fits ? it->second.region.lock() : nullptr;
}

// ---- PeerMemory ---------------------------------------------------------------------------------

PeerMemory::PeerMemory(Mapped mapped, BackgroundTasks* background_tasks,
                       UniqueFunction<void()> gone)
    : mapped_(std::move(mapped)), background_tasks_(background_tasks), gone_(std::move(gone)) {}

// Unmapping may wait for all work on the GPU, so a background task does it.
PeerMemory::~PeerMemory() {
  // Memory is mapped by a background task, so the thread exists.
  const Status posted = background_tasks_->Post(
      [imported = std::move(mapped_.imported), gone = std::move(gone_)]() mutable {
        imported = cuda::ImportedBuffer();
        gone();
      });
  FERRY_CHECK(posted.has_value());
}

bool PeerMemory::Keep(std::shared_ptr<const RegionPin>* owner) const {
  if (!mapped_.here) return true;
  *owner = mapped_.here->lock();
  return *owner != nullptr;
}

GpuSharing::GpuSharing(SharingHost* connection) : connection_(connection), id_(NextId()) {}

// Shares of this side's memory go from kNew (being exported) over kAsked (told the peer) to kShared
// or kRefused; a shared one, when its region goes, over kEnding (told to unmap) away. own_mutex_
// guards them, since application threads ask and the home loop answers; it is never held together
// with peers_mutex_, nor while the driver is called or a frame is sent.
// ---- own memory ---------------------------------------------------------------------------------

std::string GpuSharing::ReasonAgainst(const RegionState& local, std::uint8_t remote_gpu) const {
  if (local.stager == nullptr) return kHostMemoryHere;
  if (remote_gpu == 0) return "the peer's memory is host memory";
  if (connection_->config().cuda_ipc == AutoOff::kOff) return "FERRY_CUDA_IPC=off";
  // A region of another endpoint would not be taken back from this endpoint's connections.
  if (!connection_->regions().Has(&local)) return "the region here belongs to another endpoint";
  return {};
}

GpuSharing::Own* GpuSharing::FindLocked(const RegionState& local, std::uint8_t gpu) {
  const auto it = std::find_if(own_.begin(), own_.end(), [&](const auto& own) {
    return own->region == local.id && own->generation == local.generation && own->gpu == gpu;
  });
  return it == own_.end() ? nullptr : it->get();
}

GpuSharing::Own* GpuSharing::FindLocked(std::uint32_t share) {
  const auto it =
      std::find_if(own_.begin(), own_.end(), [&](const auto& own) { return own->share == share; });
  return it == own_.end() ? nullptr : it->get();
}

GpuSharing::Route GpuSharing::RouteLocked(const Own& own) const {
  if (own.state == State::kShared && !own.take_back) return {own.share, own.why};
  if (own.state == State::kRefused) return {0, own.why};
  return {0, "the peer has not answered whether it can map the memory here"};
}

// The peer can no longer access the memory.
void GpuSharing::RefuseLocked(Own* own, std::string why) {
  own->state = State::kRefused;
  own->why = std::move(why);
  own->pin.reset();
  own->local.reset();
}

void GpuSharing::EraseLocked(const Own* own) {
  std::erase_if(own_, [&](const auto& each) { return each.get() == own; });
}

// The handle covers the whole allocation; offset and bytes select the region in it.
Status GpuSharing::Fill(const RegionState& local, wire::ShareBody* body) {
  FERRY_TRY_ASSIGN(const cuda::IpcExport exported,
                   local.stager->api()->Export(local.memory.data()));
  body->allocation = exported.bytes;
  body->offset = exported.offset;
  body->bytes = local.memory.size();
  std::memcpy(body->host, ThisHost().bytes.data(), sizeof body->host);
  body->handle = exported.handle;
  const std::size_t length = std::min(exported.pci_bus_id.size(), sizeof body->bus);
  std::memcpy(body->bus, exported.pci_bus_id.data(), length);
  return Ok();
}

void GpuSharing::Ask(const std::shared_ptr<RegionState>& local, std::uint8_t remote_gpu) {
  if (!ReasonAgainst(*local, remote_gpu).empty()) return;
  wire::ShareBody body;
  body.gpu = remote_gpu - 1U;
  {
    const std::lock_guard lock(own_mutex_);
    if (!never_.empty() || over_ || FindLocked(*local, remote_gpu) != nullptr) return;
    local->openers.AddSharer(connection_->number());  // first, so that Deregister finds it
    RegionPin pin(local);
    if (!pin) return;
    auto& own = own_.emplace_back(std::make_unique<Own>());
    own->share = body.share = ++last_share_;
    own->region = local->id;
    own->generation = local->generation;
    own->gpu = remote_gpu;
    own->pin = std::make_shared<const RegionPin>(std::move(pin));
    own->local = std::make_unique<LocalShare>(own->pin, connection_->token(), id_);
    std::memcpy(body.token, own->local->token().bytes.data(), sizeof body.token);
  }
  // Without the mutex: the driver may block.
  const Status filled = Fill(*local, &body);
  connection_->home()->PostOrRun(
      [self = connection_->weak().lock(), this, body, filled] { SendShareOnLoop(body, filled); });
}

GpuSharing::Route GpuSharing::RouteTo(const std::shared_ptr<RegionState>& local,
                                      std::uint8_t remote_gpu, Deadline deadline) {
  if (std::string reason = ReasonAgainst(*local, remote_gpu); !reason.empty()) return {0, reason};
  Route route{0, "the connection or the region here has ended"};
  const auto settled = [&] {
    const std::lock_guard lock(own_mutex_);
    // Settled when the peer has answered, or cannot answer any more.
    const Own* const own = FindLocked(*local, remote_gpu);
    if (own == nullptr && !never_.empty()) route.why = never_;
    if (own == nullptr || connection_->lost()) return true;
    route = RouteLocked(*own);
    return own->silent || (own->state != State::kNew && own->state != State::kAsked);
  };
  if (!connection_->home()->DriveUntil(settled, deadline, connection_->config().spin)) {
    const std::lock_guard lock(own_mutex_);
    if (Own* const own = FindLocked(*local, remote_gpu)) own->silent = true;
  }
  return route;
}

// The region may have been taken back, or the export may have failed, before the request is sent.
void GpuSharing::SendShareOnLoop(const wire::ShareBody& body, const Status& filled) {
  const bool proved = connection_->PeerProcessOnLoop() != 0;
  {
    const std::lock_guard lock(own_mutex_);
    Own* const own = FindLocked(body.share);
    if (own == nullptr) return;
    if (own->take_back) {  // the peer was not told about it yet
      EraseLocked(own);
      return;
    }
    own->state = State::kAsked;
    if (!filled) RefuseLocked(own, filled.error().message());
    if (!proved) RefuseLocked(own, never_ = kNotProved);
  }
  if (filled && proved) Send(wire::Type::kShare, wire::BytesOf(body));
  connection_->home()->NotifyWaiters();
}

void GpuSharing::LimitOnLoop(std::uint32_t share) {
  const std::weak_ptr<SharingHost> weak = connection_->weak();
  // A peer that keeps the mapping could write into memory that the application has freed, so the
  // connection ends, which unmaps it.
  connection_->home()->AddTimerOnLoop(Clock::now() + connection_->config().drain_grace,
                                      [weak, this, share] {
                                        const auto core = weak.lock();
                                        if (core == nullptr) return;
                                        {
                                          const std::lock_guard lock(own_mutex_);
                                          if (FindLocked(share) == nullptr) return;
                                        }
                                        core->Fail(NotLetGo());
                                      });
}

Error GpuSharing::NotLetGo() const {
  return Error(Code::kPeerLost,
               fmt::format("{} has not unmapped GPU memory, which is being deregistered, for "
                           "{:.1f} s (FERRY_DRAIN_GRACE); the connection was closed, reconnect",
                           connection_->peer_name(), Seconds(connection_->config().drain_grace)));
}

void GpuSharing::Send(wire::Type type, std::span<const std::byte> body) {
  connection_->SendControlOnLoop(type, body);
}

// All shares of the plan or none.
bool GpuSharing::BeginUse(const Plan& plan) {
  const std::lock_guard lock(own_mutex_);
  const auto usable = [&](const PlanPart& part) {
    const Own* const own = part.share == 0 ? nullptr : FindLocked(part.share);
    return part.share == 0 || (own != nullptr && own->state == State::kShared && !own->take_back);
  };
  if (!std::all_of(plan.parts.begin(), plan.parts.end(), usable)) return false;
  for (const PlanPart& part : plan.parts) {
    if (part.share != 0) ++FindLocked(part.share)->users;
  }
  return true;
}

// Returns true once per share; the caller then sends the kUnshare, without the mutex.
bool GpuSharing::EndsLocked(Own* own) const {
  if (!own->take_back || own->users > 0 || own->state != State::kShared) return false;
  own->state = State::kEnding;
  return true;
}

void GpuSharing::SendUnshares(const std::vector<std::uint32_t>& shares) {
  for (const std::uint32_t share : shares) {
    Send(wire::Type::kUnshare, wire::BytesOf(wire::SliceBody{share, 0}));
    LimitOnLoop(share);
  }
}

void GpuSharing::EndUseOnLoop(const Plan& plan) {
  std::vector<std::uint32_t> ending;
  {
    const std::lock_guard lock(own_mutex_);
    for (const PlanPart& part : plan.parts) {
      Own* const own = part.share == 0 ? nullptr : FindLocked(part.share);
      if (own == nullptr) continue;  // the connection has ended
      --own->users;
      if (EndsLocked(own)) ending.push_back(own->share);
    }
  }
  SendUnshares(ending);
}

// A share that the peer has not answered for yet is taken back when its answer arrives.
void GpuSharing::TakeBackOnLoop(const RegionState* region) {
  std::vector<std::uint32_t> ending;
  std::vector<std::uint32_t> asked;
  {
    const std::lock_guard lock(own_mutex_);
    std::erase_if(own_, [&](const auto& own) {
      return own->state == State::kRefused && own->region == region->id &&
             own->generation == region->generation;
    });
    for (const auto& own : own_) {
      if (own->pin == nullptr || own->pin->get() != region) continue;
      own->take_back = true;
      if (own->state == State::kAsked) asked.push_back(own->share);
      if (EndsLocked(own.get())) ending.push_back(own->share);
    }
  }
  SendUnshares(ending);
  for (const std::uint32_t share : asked) LimitOnLoop(share);
}

// A refusal with `slice` set holds for every region: the peer can never map memory of this process.
Status GpuSharing::OnShared(wire::MetaReader* reader) {
  wire::RefuseBody body;
  if (!reader->Read(&body)) return Error(Code::kCorrupt, "shared");
  bool ends = false;
  {
    const std::lock_guard lock(own_mutex_);
    Own* const own = FindLocked(body.sequence);
    if (own == nullptr || own->state != State::kAsked) {
      return Error(Code::kCorrupt, "an answer about memory that was not shared");
    }
    if (body.code == 0) {
      own->state = State::kShared;
      own->why = reader->Text();
      ends = EndsLocked(own);
    } else {
      RefuseLocked(own, reader->Text());
      if (body.slice != 0) never_ = own->why;
      if (own->take_back) EraseLocked(own);
    }
  }
  if (ends) SendUnshares({body.sequence});
  connection_->home()->NotifyWaiters();
  return Ok();
}

Status GpuSharing::OnUnshared(std::uint32_t share) {
  const std::lock_guard lock(own_mutex_);
  const Own* const own = FindLocked(share);
  if (own == nullptr || own->state != State::kEnding) {
    return Error(Code::kCorrupt, "unmaps memory that was not taken back");
  }
  EraseLocked(own);
  return Ok();
}

// ---- the peer's memory --------------------------------------------------------------------------

std::shared_ptr<const PeerMemory> GpuSharing::Find(std::uint32_t share) const {
  const std::lock_guard lock(peers_mutex_);
  const auto it = peers_.find(share);
  return it == peers_.end() ? nullptr : it->second;
}

Status GpuSharing::OnSharingFrame(const wire::MessageHeader& header, wire::MetaReader* reader) {
  if (header.type == wire::Type::kShared) return OnShared(reader);
  if (header.type == wire::Type::kShare) {
    wire::ShareBody body;
    if (!reader->Read(&body)) return Error(Code::kCorrupt, "share");
    return OnShare(body);
  }
  wire::SliceBody body;
  if (!reader->Read(&body)) return Error(Code::kCorrupt, "unshare");
  return header.type == wire::Type::kUnshare ? OnUnshare(body.slice) : OnUnshared(body.slice);
}

Status GpuSharing::OnShare(const wire::ShareBody& body) {
  const bool fits = body.bytes > 0 && body.offset <= body.allocation &&
                    body.bytes <= body.allocation - body.offset && body.gpu < 255;
  const std::string never = ReasonAgainst(body);
  bool full = false;
  {
    const std::lock_guard lock(peers_mutex_);
    if (!fits || body.share == 0 || peers_.count(body.share) != 0) {
      return Error(Code::kCorrupt, "share");
    }
    full = peers_.size() >= kMaxShares ||
           (never.empty() && !connection_->memory().TryAdd(kShareBytes));
    // Reserved, so that a second share of the same number is refused while this one is being
    // mapped.
    if (never.empty() && !full) peers_[body.share] = nullptr;
  }
  if (!never.empty()) {
    AnswerOnLoop(body.share, Error(Code::kUnsupported, never), true);
  } else if (full) {
    AnswerOnLoop(
        body.share,
        Error(Code::kUnavailable,
              fmt::format("the peer maps no further memory range: at most {}, and what its "
                          "FERRY_PEER_MEMORY has room for",
                          kMaxShares)),
        false);
  } else {
    MapOnLoop(body);
  }
  return Ok();
}

// Against every share of this peer, for as long as the connection lasts.
std::string GpuSharing::ReasonAgainst(const wire::ShareBody& body) const {
  const bool this_host = !ThisHost().none() && UuidOf(body.host) == ThisHost();
  if (!this_host) return "the peer is on another machine";
  if (connection_->config().cuda_ipc == AutoOff::kOff) return "FERRY_CUDA_IPC=off at the peer";
  return connection_->PeerProcessOnLoop() != 0 ? "" : kNotProved;
}

void GpuSharing::MapOnLoop(const wire::ShareBody& body) {
  std::optional<std::weak_ptr<const RegionPin>> here;
  if (connection_->PeerProcessOnLoop() == ::getpid()) {
    const auto local = LocalShare::Find(UuidOf(body.token), connection_->token(), id_);
    if (local == nullptr || connection_->regions().Has(local->get())) {
      return MappedOnLoop(body.share, Error(Code::kRefused,
                                            "it is not memory that the other side of this "
                                            "connection has shared over it"));
    }
    here = local;
  }
  Stager* const stager = memory_->Known(static_cast<int>(body.gpu));
  if (stager == nullptr) {
    return MappedOnLoop(body.share, Error(Code::kInvalidArgument,
                                          fmt::format("GPU {} has no region there", body.gpu)));
  }
  const std::weak_ptr<SharingHost> weak = connection_->weak();
  // Importing memory may block in the driver, so not on the loop. `this` is used only while `core`,
  // its owner, is held.
  BackgroundTasks* const tasks = &memory_->background_tasks();
  const Status posted = tasks->Post([weak, this, api = stager->api(), tasks, body, here] {
    auto mapped = Map(api, tasks, body, here, [weak, this, share = body.share] {
      if (const auto core = weak.lock()) {
        core->home()->Post([core, this, share] { GoneOnLoop(share); });
      }
    });
    if (const auto core = weak.lock()) {
      core->home()->Post([core, this, share = body.share, mapped = std::move(mapped)]() mutable {
        MappedOnLoop(share, std::move(mapped));
      });
    }
  });
  if (!posted) MappedOnLoop(body.share, posted.error());
}

void GpuSharing::AnswerOnLoop(std::uint32_t share, const Status& status, bool for_good) {
  std::vector<std::byte> body;
  wire::RefuseBody answer;
  answer.sequence = share;
  answer.slice = for_good ? 1 : 0;
  answer.code = status ? 0 : static_cast<std::uint8_t>(status.error().code());
  wire::Append(&body, answer);
  wire::AppendText(&body, status ? "both GPUs are on this machine, and reach each other"
                                 : status.error().message());
  Send(wire::Type::kShared, body);
}

void GpuSharing::MappedOnLoop(std::uint32_t share,
                              Result<std::shared_ptr<const PeerMemory>> mapped) {
  {
    const std::lock_guard lock(peers_mutex_);
    const auto it = peers_.find(share);
    if (it == peers_.end()) return;  // the connection has ended
    if (mapped) {
      it->second = *mapped;
    } else {
      peers_.erase(it);
      connection_->memory().RemoveTried(kShareBytes);
    }
  }
  AnswerOnLoop(share, mapped ? Ok() : Status(mapped.error()), false);
}

Status GpuSharing::OnUnshare(std::uint32_t share) {
  std::shared_ptr<const PeerMemory> last;  // shared with the copies; destroyed after the lock
  const std::lock_guard lock(peers_mutex_);
  const auto it = peers_.find(share);
  if (it == peers_.end() || it->second == nullptr) {
    return Error(Code::kCorrupt, "takes back memory that was not shared");
  }
  // Copies that run hold it, too; the last one to let go unmaps it, and GoneOnLoop() tells the
  // peer. The entry stays until then, so that the number is not used again.
  last = std::move(it->second);
  return Ok();
}

void GpuSharing::GoneOnLoop(std::uint32_t share) {
  {
    const std::lock_guard lock(peers_mutex_);
    if (peers_.erase(share) == 0) return;  // the connection has ended
    connection_->memory().RemoveTried(kShareBytes);
  }
  Send(wire::Type::kUnshared, wire::BytesOf(wire::SliceBody{share, 0}));
}

void GpuSharing::EndOnLoop() {
  std::map<std::uint32_t, std::shared_ptr<const PeerMemory>> peers;  // shared with the copies
  std::vector<std::unique_ptr<Own>> own;
  {
    const std::lock_guard lock(peers_mutex_);
    peers.swap(peers_);
    connection_->memory().RemoveTried(peers.size() * kShareBytes);
  }
  const std::lock_guard lock(own_mutex_);
  over_ = true;
  own.swap(own_);
}

}  // namespace ferry::transfer
