// The stager's slots, request queues and copy thread.
#include "ferry/transfer/gpu/stager.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "ferry/core/check.h"
#include "ferry/core/log.h"
#include "ferry/core/loop/thread.h"
#include "ferry/core/trace.h"
#include "ferry/cuda/address.h"
#include "ferry/cuda/profile_range.h"
#include "ferry/cuda/registrable_memory.h"

namespace ferry::transfer {
namespace {

// Launches of one direction that are queued at once: one runs, one is ready behind it, and two more
// cover the time until their end is noticed. With 2 the whole transfer was 6 % slower, with 1 it
// was 13 % slower. Two alternating streams with overlapping kernels were 9 % slower.
constexpr std::size_t kMaxLaunches = 4;
// Requests in one launch, which all complete at its end: 4 MiB take 80 us.
constexpr std::size_t kMaxRequests = 16;
// With one launch ready behind the one that runs, another one waits until it has this many
// requests: launches of a direction run one after another, and one of a single slice of 256 KiB was
// seen to take 20 to 30 us, of which its bytes need 5. Between two H100 writes of 64 MiB are 4 %
// faster, those of 16 MiB 6 %.
constexpr std::size_t kMinFurtherRequests = 4;
// Thread blocks of kernels that copy between GPUs: half of the multiprocessors of an H100. The copy
// engine only where there are no kernels: its copies may queue behind those of waiting streams
// (docs/gotchas.md).
constexpr std::uint32_t kMoveGroups = 64;
constexpr int kSpins = 256;  // then yield the processor
constexpr auto kDrain = std::chrono::seconds(60);

constexpr std::array kWays{StageWay::kToNetwork, StageWay::kFromNetwork, StageWay::kWithin};

cuda::CopyKind KindOf(StageWay way) {
  switch (way) {
    case StageWay::kToNetwork: return cuda::CopyKind::kDeviceToHost;
    case StageWay::kFromNetwork: return cuda::CopyKind::kHostToDevice;
    case StageWay::kWithin: break;
  }
  return cuda::CopyKind::kDeviceToDevice;
}

// Name of the row in traces.
const char* LaneOf(StageWay way) {
  return way == StageWay::kWithin ? "copies" : cuda::CopyKindName(KindOf(way));
}

const char* NameOf(StageWay way) {
  switch (way) {
    case StageWay::kToNetwork: return "gather";
    case StageWay::kFromNetwork: return "scatter";
    case StageWay::kWithin: break;
  }
  return "move";
}

}  // namespace

// ---- slots --------------------------------------------------------------------------------------

StageSlot::StageSlot(StageSlot&& other) noexcept
    : stager_(std::exchange(other.stager_, nullptr)), index_(other.index_) {}

StageSlot& StageSlot::operator=(StageSlot&& other) noexcept {
  if (this != &other) {
    Release();
    stager_ = std::exchange(other.stager_, nullptr);
    index_ = other.index_;
  }
  return *this;
}

std::span<std::byte> StageSlot::memory() const noexcept { return stager_->MemoryOf(index_); }

net::RegisteredRange StageSlot::on_gpu(std::uint64_t bytes) const noexcept {
  return {stager_->registered_.get(), index_ * stager_->slot_bytes(), bytes};
}

// A moved-from slot has no stager, and releasing it does nothing.
void StageSlot::Release() {
  if (Stager* const stager = std::exchange(stager_, nullptr)) stager->Return(index_);
}

// One range of memory: the slots towards the network first, then those from it. So a slot's number
// tells its side. Copies within GPUs need no slots.
std::span<std::byte> Stager::MemoryOf(std::uint32_t slot) const {
  return memory_.bytes.subspan(slot * options_.slot_bytes, options_.slot_bytes);
}

std::optional<StageSlot> Stager::Take(StageWay way, Given given) {
  const std::lock_guard lock(mutex_);
  Side& from = side(way);
  // While anybody waits, no slot is free.
  if (from.free.empty()) {
    from.waiting.push_back(std::move(given));
    return std::nullopt;
  }
  return TakeFreeLocked(&from);
}

// Half of the slots stay for callers that would have to wait: work that can be put off gets the
// rest.
std::optional<StageSlot> Stager::TakeSpare(StageWay way) {
  const std::lock_guard lock(mutex_);
  Side& from = side(way);
  if (from.free.size() <= options_.slots / 2) return std::nullopt;
  return TakeFreeLocked(&from);
}

StageSlot Stager::TakeFreeLocked(Side* from) {
  // The slot that was used last is likely to be in a cache still.
  const std::uint32_t slot = from->free.back();
  from->free.pop_back();
  return StageSlot(this, slot);
}

// The callback runs without the mutex, because it takes other locks.
void Stager::Return(std::uint32_t slot) {
  Given given;
  {
    const std::lock_guard lock(mutex_);
    Side& to = sides_[slot / options_.slots];
    if (to.waiting.empty()) {
      to.free.push_back(slot);
      return;
    }
    given = std::move(to.waiting.front());
    to.waiting.pop_front();
  }
  given(StageSlot(this, slot));
}

// ---- setting up ---------------------------------------------------------------------------------

Result<std::unique_ptr<Stager>> Stager::Create(cuda::DeviceApi* api, int ordinal,
                                               const StagerOptions& options) {
  FERRY_CHECK(options.slots > 0 && options.slot_bytes > 0, options.slots, options.slot_bytes);
  std::unique_ptr<Stager> stager(new Stager(api, ordinal, options));
  FERRY_TRY(stager->Init());
  FERRY_TRY_ASSIGN(stager->thread_,
                   StartThread<std::jthread>(fmt::format("copies of GPU {}", ordinal),
                                             [self = stager.get()] { self->Run(); }));
  return stager;
}

Status Stager::Init() {
  {
    // Loaded here, because later a stream may wait for the very operation that needs the kernels.
    FERRY_TRY_ASSIGN(const auto stream, api_->CreateStream(ordinal_, cuda::StreamPriority::kHigh));
    FERRY_TRY_ASSIGN(has_kernels_, HaveCopyKernels(api_, stream));
    by_kernel_ = has_kernels_ && options_.by_kernel;
  }
  FERRY_TRY(InitMemory());
  for (const StageWay way : kWays) FERRY_TRY(InitSide(way));
  return Ok();
}

// Ordinary memory that is pinned afterwards, because pages of memory that CUDA allocates cannot be
// passed to a socket zero-copy. Uses huge pages if there are any.
Status Stager::InitMemory() {
  FERRY_TRY_ASSIGN(memory_, MapHugePages(2 * options_.slots * options_.slot_bytes));
  void* const at = memory_.bytes.data();
  // Touches every page before it is pinned.
  std::memset(at, 0, memory_.bytes.size());
  FERRY_TRY_ASSIGN(pinned_, api_->RegisterHost(ordinal_, at, memory_.bytes.size()));
  FERRY_TRY_ASSIGN(place_, Place::OnHost(*api_, ordinal_, at));
  // A provider may receive into this GPU and not send from it. Slots are sent from pinned memory
  // then.
  net::Provider* const provider = options_.provider;
  const auto gpu = provider == nullptr ? std::nullopt : provider->capabilities().gpu;
  if (gpu && gpu != ordinal_) {
    Log(LogLevel::kWarn, "transfer",
        "memory of GPU {} goes by way of the host, because this endpoint's network is for GPU {}; "
        "make GPU {} current on the thread that creates the endpoint",
        ordinal_, *gpu, ordinal_);
  }
  if (gpu != ordinal_) return Ok();
  receives_into_gpu_ = true;
  // One launch gathers into slots of both kinds; a list for the copy engine has one kind.
  if (!by_kernel_) return Ok();
  const std::size_t bytes = options_.slots * options_.slot_bytes;
  FERRY_TRY_ASSIGN(auto on_gpu, cuda::AllocateRegistrable(api_, ordinal_, bytes));
  gpu_memory_ = std::move(on_gpu.buffer);
  auto registered = provider->Register({on_gpu.data, bytes});
  if (registered) {
    registered_ = *std::move(registered);
    gpu_place_ = Place::OnDevice(on_gpu.data);
  } else {
    Log(LogLevel::kInfo, "transfer", "memory of GPU {} is sent by way of the host: {}", ordinal_,
        registered.error().message());
    gpu_memory_ = {};
  }
  return Ok();
}

Status Stager::InitSide(StageWay way) {
  Side& made = side(way);
  const auto first = static_cast<std::uint32_t>(way) * options_.slots;
  const std::uint32_t slots = way == StageWay::kWithin ? 0 : options_.slots;
  // In descending order, so that the first ones are taken first.
  for (std::uint32_t i = slots; i > 0; --i) made.free.push_back(first + i - 1);
  for (std::size_t i = 0; i < kMaxLaunches; ++i) {
    FERRY_TRY_ASSIGN(auto event, api_->CreateEvent(ordinal_, cuda::EventTiming::kOff));
    made.tickets.push_back({std::move(event), {}});
  }
  FERRY_TRY_ASSIGN(made.stream, api_->CreateStream(ordinal_, cuda::StreamPriority::kHigh));
  return InitExecutor(way);
}

Status Stager::InitExecutor(StageWay way) {
  Side& made = side(way);
  if (way == StageWay::kWithin && has_kernels_) {
    FERRY_TRY_ASSIGN(made.executor,
                     MakeKernelExecutor(api_, ordinal_, {.device_groups = kMoveGroups}));
    return Ok();
  }
  if (way == StageWay::kWithin || !by_kernel_) {
    made.executor = MakeDmaExecutor(api_);
    return Ok();
  }
  FERRY_TRY_ASSIGN(auto executor, MakeSummingExecutor(api_, ordinal_));
  made.summing = executor.get();
  made.executor = std::move(executor);
  FERRY_TRY_ASSIGN(made.sheets, api_->AllocatePinned(ordinal_, kMaxLaunches * kSumSheetBytes));
  auto* at = static_cast<std::byte*>(made.sheets.data());
  for (Ticket& ticket : made.tickets) {
    FERRY_TRY_ASSIGN(const Place place, Place::OnHost(*api_, ordinal_, at));
    // Pinned memory for cells, of which this is the start.
    ticket.sums = {static_cast<std::uint32_t*>(static_cast<void*>(at)), place.mapped};
    at += kSumSheetBytes;
  }
  return Ok();
}

Stager::~Stager() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  // A stream may still use the slots.
  for (const Side& each : sides_) {
    if (each.stream) (void)api_->Wait(each.stream, Deadline::After(kDrain));
  }
}

// ---- asking -------------------------------------------------------------------------------------

void Stager::Gather(const StageSlot& slot, std::span<const Block> blocks, Done done,
                    std::uint32_t* crc, SlotMemory into) {
  Request request{slot.index_, {blocks.begin(), blocks.end()}, std::move(done)};
  request.crc = crc;
  request.memory = into;
  std::uint64_t at = 0;
  for (Block& block : request.blocks) {
    // Blocks lie in the slot one after another, in the order of the frame's payload.
    block.dst = at;
    at += block.len;
  }
  FERRY_CHECK(at <= options_.slot_bytes, at, options_.slot_bytes);
  Ask(StageWay::kToNetwork, std::move(request));
}

void Stager::Scatter(const StageSlot& slot, std::span<const Block> blocks, Done done,
                     std::uint32_t* crc) {
  Request request{slot.index_, {blocks.begin(), blocks.end()}, std::move(done)};
  request.crc = crc;
  std::uint64_t at = 0;
  for (Block& block : request.blocks) {
    block.src = at;
    at += block.len;
  }
  FERRY_CHECK(at <= options_.slot_bytes, at, options_.slot_bytes);
  Ask(StageWay::kFromNetwork, std::move(request));
}

void Stager::Move(std::vector<Block> blocks, Clock::time_point begin_by, Done done) {
  Ask(StageWay::kWithin, Request{0, std::move(blocks), std::move(done), begin_by});
}

// Wakes the thread only if it was idle; otherwise it looks again after the current copies.
void Stager::Ask(StageWay way, Request request) {
  // A slot of the right side: each side has slots, stream and executor of its own.
  FERRY_CHECK(
      way == StageWay::kWithin || request.slot / options_.slots == static_cast<std::uint32_t>(way),
      request.slot);
  FERRY_CHECK(request.crc == nullptr || sums(), ordinal_);
  bool was_idle = false;
  {
    const std::lock_guard lock(mutex_);
    was_idle = IsIdleLocked();
    side(way).asked.push_back(std::move(request));
  }
  // Without the mutex, so that the thread does not wake only to wait for it.
  if (was_idle) changed_.notify_one();
}

StagerCounters Stager::Counters(StageWay way) const {
  const std::lock_guard lock(mutex_);
  const Side& from = sides_[static_cast<std::size_t>(way)];
  StagerCounters counters = from.counters;
  counters.free = from.free.size();
  counters.waiting = from.waiting.size();
  return counters;
}

StagingCounters Stager::Counters() const {
  return {.ordinal = ordinal_,
          .slots = options_.slots,
          .to_network = Counters(StageWay::kToNetwork),
          .from_network = Counters(StageWay::kFromNetwork)};
}

// ---- the thread ---------------------------------------------------------------------------------

bool Stager::IsIdleLocked() const {
  return std::all_of(sides_.begin(), sides_.end(),
                     [](const Side& each) { return each.asked.empty(); });
}

// Returns false after waiting too long for a stuck GPU.
// The thread polls while copies are in flight: a sleep would cost a wake-up for each launch.
bool Stager::Spin(int* spins, Deadline* last) {
  if (++*spins % kSpins != 0) return true;
  std::this_thread::yield();
  const std::lock_guard lock(mutex_);
  if (stopping_ && last->never()) *last = Deadline::After(kDrain);
  return !last->expired();
}

void Stager::Run() {
  int spins = 0;
  Deadline last = Deadline::Never();  // set once stopping: limit for copies in flight
  for (;;) {
    bool moved = false;
    bool busy = false;
    for (const StageWay way : kWays) {
      // Before launching more, so that requests of ended launches are answered as early as
      // possible, and their events can be used again.
      moved |= Reap(way);
      moved |= LaunchMore(way);
      busy |= !side(way).in_flight.empty();
    }
    if (moved) {
      spins = 0;
      continue;
    }
    if (busy) {
      if (!Spin(&spins, &last)) break;
      continue;
    }
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return stopping_ || !IsIdleLocked(); });
    if (stopping_) break;
  }
  // No callback runs any more. The requests are destroyed after the lock is released: that returns
  // the slots they own.
  std::array<std::deque<Request>, kWays.size()> dropped;
  std::array<std::deque<Launch>, kWays.size()> stuck;
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < sides_.size(); ++i) {
    dropped[i].swap(sides_[i].asked);
    stuck[i].swap(sides_[i].in_flight);
  }
}

bool Stager::LaunchMore(StageWay way) {
  Side& from = side(way);
  // in_flight and tickets belong to the thread alone; only `asked` and the counters need the mutex.
  if (from.in_flight.size() == kMaxLaunches) return false;
  std::vector<Request> requests;
  {
    const std::lock_guard lock(mutex_);
    if (stopping_ || from.asked.empty()) return false;
    if (from.in_flight.size() > 1 && from.asked.size() < kMinFurtherRequests) return false;
    const std::size_t count = std::min(from.asked.size(), kMaxRequests);
    requests.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      requests.push_back(std::move(from.asked.front()));
      from.asked.pop_front();
    }
    ++from.counters.launches;
    from.counters.slots += count;
    for (const Request& request : requests) {
      for (const Block& block : request.blocks) from.counters.bytes += block.len;
    }
  }
  LaunchOne(way, std::move(requests));
  return true;
}

// One launch is of one kind: if the checksum of one request is wanted, all are computed.
Status Stager::Queue(StageWay way, std::span<const Request> requests, const SumSheet& sums) {
  const Side& to = side(way);
  lists_.clear();
  for (const Request& request : requests) {
    // The blocks of the other side have absolute addresses (Place{}).
    const Place slot = (request.memory == SlotMemory::kGpu ? gpu_place_ : place_) +
                       request.slot * options_.slot_bytes;
    lists_.push_back({request.blocks, way == StageWay::kToNetwork ? slot : Place{},
                      way == StageWay::kFromNetwork ? slot : Place{}});
  }
  const bool summed = std::any_of(requests.begin(), requests.end(),
                                  [](const Request& each) { return each.crc != nullptr; });
  if (!summed) return to.executor->Enqueue(to.stream, KindOf(way), lists_);
  const SumOrder order = way == StageWay::kToNetwork ? SumOrder::kDestination : SumOrder::kSource;
  return to.summing->EnqueueSummed(to.stream, order, lists_, sums);
}

void Stager::StoreSums(std::span<const Request> requests, const SumSheet& sums) {
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (requests[i].crc == nullptr) continue;
    std::uint64_t bytes = 0;
    for (const Block& block : requests[i].blocks) bytes += block.len;
    *requests[i].crc = ReadSum(sums, i, bytes);
  }
}

void Stager::LaunchOne(StageWay way, std::vector<Request> requests) {
  Side& to = side(way);
  const cuda::ProfileRange range(NameOf(way));
  const auto began = Clock::now();
  // A Move() that has waited for too long: its caller has been promised an answer by then.
  const auto late = std::stable_partition(
      requests.begin(), requests.end(), [&](const Request& each) { return began < each.begin_by; });
  if (late != requests.end()) {
    Fail({std::make_move_iterator(late), std::make_move_iterator(requests.end())},
         Error(Code::kTimedOut, "the copy was not begun within drain_grace; try again"));
    requests.erase(late, requests.end());
    if (requests.empty()) return;
  }
  Status queued = Queue(way, requests, to.tickets.back().sums);
  if (queued) queued = api_->Record(to.tickets.back().end, to.stream);
  if (!queued) {
    // Part of it may be queued: no slot may be reused before that is over.
    (void)api_->Wait(to.stream, Deadline::After(kDrain));
    if (requests.size() == 1) return Fail(std::move(requests), queued.error());
    // An error in one request must not fail the others.
    for (Request& request : requests) RunAlone(way, std::move(request));
    return;
  }
  to.in_flight.push_back({std::move(to.tickets.back()), std::move(requests), began});
  to.tickets.pop_back();
}

void Stager::RunAlone(StageWay way, Request request) {
  // Waits for the copy even after an error, since part of it may be queued.
  const SumSheet sums = side(way).tickets.back().sums;
  Status done = Queue(way, {&request, 1}, sums);
  const Status ended = api_->Wait(side(way).stream, Deadline::After(kDrain));
  if (done) done = ended;
  if (done) StoreSums({&request, 1}, sums);
  request.done(done);
}

bool Stager::Reap(StageWay way) {
  Side* const from = &side(way);
  if (from->in_flight.empty()) return false;
  const auto over = api_->Query(from->in_flight.front().ticket.end);
  if (over && !*over) return false;
  Launch ended = std::move(from->in_flight.front());
  from->in_flight.pop_front();
  const SumSheet sums = ended.ticket.sums;  // used by the next launch, which this thread begins
  from->tickets.push_back(std::move(ended.ticket));
  if (!over) {
    Fail(std::move(ended.requests), over.error());
    return true;
  }
  if (Trace* const trace = ActiveTrace()) {
    trace->AddInTurn(fmt::format("GPU {} {}", ordinal_, LaneOf(way)),
                     fmt::format("{} {} slices", NameOf(way), ended.requests.size()), ended.began,
                     Clock::now());
  }
  StoreSums(ended.requests, sums);
  for (Request& request : ended.requests) request.done(Ok());
  return true;
}

void Stager::Fail(std::vector<Request> requests, const Error& error) {
  for (Request& request : requests) request.done(error);
}

}  // namespace ferry::transfer
