// Receives chunks into the plugin's pool and unpacks them.
#include "ferry/tcpx/host/receiver.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "ferry/core/check.h"
#include "ferry/core/log.h"
#include "ferry/cuda/address.h"

namespace ferry::net::plugin {
namespace {

constexpr std::chrono::microseconds kShareLaunch{6};
// How long a chunk may wait for others to share a launch with, and how few batches make it launch
// at once.
// With fewer batches in flight the GPU would wait for the next launch.
constexpr std::size_t kFewBatches = 2;
// The range of a fragment's address.
constexpr std::uint64_t kMaxPoolBytes = std::uint64_t{1} << 32;

}  // namespace

Result<std::unique_ptr<Receiver>> Receiver::Create(cuda::DeviceApi* api, Unpacker* unpacker,
                                                   std::vector<std::unique_ptr<ReceiveComm>> comms,
                                                   const ReceiverOptions& options,
                                                   Deadline deadline) {
  std::unique_ptr<Receiver> receiver(new Receiver(unpacker, options));
  for (auto& comm : comms) {
    std::optional<UnpackRows> rows;
    if (!options.straight) {
      FERRY_TRY_ASSIGN(rows, UnpackRows::Open(*comm, api, deadline));
      if (unpacker->reads_rows()) rows->Map(api, unpacker->stream().ordinal());
    }
    receiver->watch_.AddChannel(comm->device());
    receiver->channels_.push_back({std::move(comm), std::move(rows), {}, {}});
  }
  FERRY_TRY(receiver->PlacePool(api));
  return receiver;
}

// The fragments of all channels become blocks of the same launches, with offsets from one pool's
// start, so all channels must have the same pool: the one of their GPU.
Status Receiver::PlacePool(cuda::DeviceApi* api) {
  if (channels_.empty()) return Ok();
  std::byte* const base = PoolOf(channels_.front());
  for (const Channel& channel : channels_) {
    if (PoolOf(channel) == base) continue;
    return Error(Code::kInvalidArgument,
                 fmt::format("channels of devices {} and {} have different bounce pools; make a "
                             "receiver for each GPU",
                             channels_.front().comm->device(), channel.comm->device()));
  }
  pool_ = Place::OnDevice(base);
  if (options_.straight) {
    pool_bytes_ = kMaxPoolBytes;
    return Ok();
  }
  cuda::PointerInfo info;
  if (api != nullptr) {
    FERRY_TRY_ASSIGN(info, api->Inspect(base));
  }
  FERRY_TRY(MeasurePool(info));
  if (api == nullptr || info.kind == cuda::MemoryKind::kDevice) return Ok();
  const int ordinal = unpacker_->stream().ordinal();
  // As the stand-in may have it. Kernels can read it once it is registered.
  if (info.kind == cuda::MemoryKind::kHost) {
    FERRY_TRY_ASSIGN(pool_pin_, api->RegisterHost(ordinal, base, pool_bytes_));
  }
  FERRY_TRY_ASSIGN(pool_, Place::OnHost(*api, ordinal, base));
  unpacker_->SetKind(cuda::CopyKind::kHostToDevice);
  return Ok();
}

// `info` is that of the pool's start. Uses the smallest size that the caller, the plugin and CUDA
// report.
Status Receiver::MeasurePool(const cuda::PointerInfo& info) {
  const Plugin& plugin = channels_.front().comm->plugin();
  std::byte* const base = PoolOf(channels_.front());
  const std::uint64_t told = plugin.PoolBytes(base);
  // CUDA knows the allocation that contains the pool; for plain host memory it knows nothing.
  const bool is_known = info.kind != cuda::MemoryKind::kHost && info.bytes > 0;
  const std::uint64_t allocated =
      is_known ? info.base + info.bytes - cuda::AddressOf(base) : std::uint64_t{0};
  pool_bytes_ = kMaxPoolBytes;
  for (const std::uint64_t known : {options_.pool_bytes, told, allocated}) {
    if (known > 0) pool_bytes_ = std::min(pool_bytes_, known);
  }
  if (options_.pool_bytes > 0 || told > 0 || allocated > 0) return Ok();
  if (info.kind == cuda::MemoryKind::kHost) {
    return Error(Code::kUnsupported,
                 fmt::format("network plugin {} has its bounce pool in host memory and does not "
                             "tell how large it is, so that what it receives cannot be checked; "
                             "take a build of it that exports {}",
                             plugin.name(), kPoolBytesName));
  }
  Log(LogLevel::kWarn, "plugin",
      "neither CUDA nor network plugin {} tells how large its bounce pool is: fragments are "
      "checked "
      "against the {} bytes that they can address",
      plugin.name(), kMaxPoolBytes);
  return Ok();
}

Receiver::~Receiver() {
  const bool was_told = was_told_;
  const Status drained = Drain(Deadline::After(options_.end_timeout));
  if (!drained && !was_told) {
    Log(LogLevel::kWarn, "plugin", "at the end of a receiver: {}", drained.error().message());
  }
}

void Receiver::Receive(std::size_t channel, Chunk chunk, ChunkPlace place) {
  channels_[channel].waiting.push_back({chunk, std::move(place)});
  ++in_flight_;
}

void Receiver::DropAll() {
  for (Channel& channel : channels_) {
    for (Expected& one : channel.waiting) one.place.runs.clear();
    for (Expected& one : channel.posted) one.place.runs.clear();
  }
  for (std::size_t i = unpacking_; i < arrived_.size(); ++i) {
    arrived_[i].blocks = 0;
    arrived_[i].rows = nullptr;
  }
}

// Where the fragments of its oldest message lie.
std::byte* Receiver::PoolOf(const Channel& channel) {
  if (channel.rows) return channel.rows->pool();
  return channel.posted.empty()
             ? nullptr
             : static_cast<std::byte*>(channel.posted.front().chunk.message.data);
}

Status Receiver::Progress(std::vector<std::uint64_t>* done) {
  return watch_.Take([&] { return Advance(done); });
}

// One turn: report what Drain() finished; for each channel post receives, collect what has arrived,
// and launch if it is time; launch the rest; report what is in place and return its memory.
Status Receiver::Advance(std::vector<std::uint64_t>* done) {
  done->insert(done->end(), drained_.begin(), drained_.end());
  drained_.clear();
  for (std::size_t i = 0; i < channels_.size(); ++i) {
    FERRY_TRY(PostOn(i));
    FERRY_TRY(TakeFrom(i));
    if (IsDue()) FERRY_TRY(Unpack());
  }
  FERRY_TRY(Unpack());
  return Finish(done);
}

// A chunk shares its launch with others while the GPU has enough work, but does not wait until all
// channels were polled, which may take longer than the launch.
bool Receiver::IsDue() const {
  return unpacking_ < arrived_.size() && (unpacker_->in_flight() < kFewBatches ||
                                          Clock::now() - arrived_[unpacking_].at > kShareLaunch);
}

Status Receiver::PostOn(std::size_t index) {
  Channel& channel = channels_[index];
  while (!channel.waiting.empty() && channel.comm->room() > 0) {
    watch_.Start(index);
    Expected& next = channel.waiting.front();
    auto begun = channel.comm->Receive(next.chunk.message);
    if (!begun) return watch_.Named(index, next.chunk, begun.error());
    if (!*begun) {
      // With receives posted the timeout is that of the oldest of them, and TakeFrom() looks at it.
      if (!channel.posted.empty() || !watch_.IsLate(index)) break;
      return watch_.Late(index, next.chunk, "the plugin has not begun to receive it",
                         "; see that the peer is well, and reconnect");
    }
    channel.posted.push_back(std::move(next));
    channel.waiting.pop_front();
  }
  return Ok();
}

// Where the oldest posted chunk, which has arrived, lies in the pool.
Result<std::span<const Fragment>> Receiver::FragmentsOf(const Channel& channel,
                                                        const ReceiveComm::Arrival& arrival) {
  if (channel.rows) return channel.rows->Read(arrival);
  const Message& message = channel.posted.front().chunk.message;
  const auto expected = static_cast<std::int64_t>(message.bytes);
  if (arrival.bytes >= 0 && arrival.bytes != expected) {
    return Error(Code::kCorrupt, fmt::format("{} bytes have come; see that both sides use the same "
                                             "plugin and chunk size",
                                             arrival.bytes));
  }
  whole_ = {0, static_cast<std::uint32_t>(expected), 0};
  return std::span<const Fragment>(&whole_, 1);
}

Status Receiver::TakeFrom(std::size_t index) {
  Channel& channel = channels_[index];
  while (!channel.posted.empty()) {
    const Expected& oldest = channel.posted.front();
    auto arrival = channel.comm->Test();
    if (!arrival) return watch_.Named(index, oldest.chunk, arrival.error());
    if (!arrival->done) {
      if (!watch_.IsLate(index)) return Ok();
      return watch_.Late(
          index, oldest.chunk, "nothing has come",
          fmt::format(", with {} receives posted; see that the peer sends, and reconnect",
                      channel.posted.size()));
    }
    const auto at = Clock::now();
    auto fragments = FragmentsOf(channel, *arrival);
    if (!fragments) return watch_.Named(index, oldest.chunk, fragments.error());
    FERRY_TRY(Take(index, *arrival, *fragments, at));
    channel.posted.pop_front();
    // A chunk without room waits for this side, not for the peer.
    watch_.Restart(index, !channel.posted.empty());
    if (IsDue()) FERRY_TRY(Unpack());
  }
  return Ok();
}

void Receiver::Watch(const Channel& channel, const ReceiveComm::Arrival& arrival,
                     std::span<const Fragment> fragments) {
  const void* const request =
      channel.comm->plugin().has_tcpx_requests() ? arrival.request : nullptr;
  const WatchedChunk watched{channel.posted.front().chunk, fragments, PoolOf(channel), request};
  if (!watcher_(watched)) watcher_ = nullptr;
}

Status Receiver::Take(std::size_t index, const ReceiveComm::Arrival& arrival,
                      std::span<const Fragment> fragments, Clock::time_point at) {
  const Channel& channel = channels_[index];
  Expected& oldest = channels_[index].posted.front();
  const Place from = channel.rows ? pool_ : oldest.place.from;
  Arrived taken{index, oldest.chunk, 0, blocks_.size(), 0, oldest.place.to, from, at};
  const bool dropped = oldest.place.runs.empty() && oldest.chunk.message.bytes > 0;
  const PostedReceive receive{pool_bytes_, oldest.chunk.message.bytes, oldest.place.runs};
  // A watcher is told of validated chunks only, so that the CPU has to read them.
  const bool for_gpu = channel.rows && !fragments.empty() && !watcher_ && unpacker_->reads_rows() &&
                       receive.runs.size() <= kMaxMessageRuns;
  const Fragment* const mapped = for_gpu ? channel.rows->mapped(fragments) : nullptr;
  Status read = Ok();
  if (mapped != nullptr && !dropped) {
    read = CheckMessage(
        {fragments.size(), receive.pool_bytes, receive.message_bytes, TotalBytes(receive.runs)});
    taken.rows = mapped;
    taken.row_count = fragments.size();
    taken.runs = std::move(oldest.place.runs);
  } else if (!dropped) {
    // Blocks of all chunks that wait for a launch lie in one vector, so that a turn allocates
    // nothing once it has grown. Read() appends only if the whole row is valid.
    read = reader_.Read(fragments, receive, &blocks_);
  }
  if (!read) return watch_.Named(index, oldest.chunk, read.error());
  if (watcher_) Watch(channel, arrival, fragments);
  taken.blocks = blocks_.size() - taken.first_block;
  arrived_.push_back(std::move(taken));
  return Ok();
}

Result<std::uint64_t> Receiver::QueueBatch(std::size_t* count) {
  lists_.clear();
  requests_.clear();
  const bool by_rows = arrived_[unpacking_].rows != nullptr;
  for (std::size_t i = unpacking_; i < arrived_.size(); ++i) {
    const Arrived& one = arrived_[i];
    if ((one.rows != nullptr) != by_rows) break;
    if (by_rows) {
      requests_.push_back({one.rows,
                           one.row_count,
                           {pool_bytes_, one.chunk.message.bytes, one.runs},
                           one.to,
                           one.from});
    } else {
      lists_.push_back({std::span(blocks_).subspan(one.first_block, one.blocks), one.to, one.from});
    }
  }
  const auto queue = [&](std::size_t first) {
    return by_rows ? unpacker_->EnqueueRows(std::span(requests_).first(first))
                   : unpacker_->Enqueue(std::span(lists_).first(first));
  };
  *count = lists_.size() + requests_.size();
  auto ticket = queue(*count);
  // More chunks may have arrived than fit into one batch.
  // kInvalidArgument: more than one batch may have. kUnavailable: no room at the moment.
  while (!ticket && ticket.error().code() == Code::kInvalidArgument && *count > 1) {
    *count /= 2;
    ticket = queue(*count);
  }
  return ticket;
}

Status Receiver::Unpack() {
  while (unpacking_ < arrived_.size() && unpacker_->room() > 0) {
    std::size_t count = 0;
    const auto ticket = QueueBatch(&count);
    if (!ticket) {
      if (ticket.error().code() == Code::kUnavailable) return Ok();
      const Arrived& first = arrived_[unpacking_];
      return watch_.Named(first.channel, first.chunk, ticket.error());
    }
    MarkUnpacking(count, *ticket);
  }
  return Ok();
}

void Receiver::MarkUnpacking(std::size_t count, std::uint64_t ticket) {
  const auto now = Clock::now();
  for (; count > 0; --count) {
    Arrived& one = arrived_[unpacking_++];
    one.ticket = ticket;
    ++launch_times_.chunks;
    launch_times_.sum += now - one.at;
    launch_times_.longest = std::max<std::chrono::nanoseconds>(launch_times_.longest, now - one.at);
  }
  const std::size_t used =
      unpacking_ < arrived_.size() ? arrived_[unpacking_].first_block : blocks_.size();
  // The unpacker has taken its copy (PlacedList), so their blocks can go; the rest moves to the
  // front.
  blocks_.erase(blocks_.begin(), blocks_.begin() + static_cast<std::ptrdiff_t>(used));
  for (std::size_t i = unpacking_; i < arrived_.size(); ++i) arrived_[i].first_block -= used;
}

Status Receiver::Finish(std::vector<std::uint64_t>* done) {
  const auto completed = unpacker_->Completed();
  if (completed) return GiveBack(*completed, done);
  if (arrived_.empty()) return completed.error();
  return watch_.Named(arrived_.front().channel, arrived_.front().chunk, completed.error());
}

Status Receiver::GiveBack(std::uint64_t completed, std::vector<std::uint64_t>* done) {
  // In the order of arrival, even across channels: tickets ascend along arrived_.
  while (unpacking_ > 0 && arrived_.front().ticket <= completed) {
    // Asked about when the first chunk of the batch is the oldest one; after that it ends.
    for (const RefusedRows& refused : unpacker_->TakeRefused(arrived_.front().ticket)) {
      const Arrived& one = arrived_[refused.index];
      return watch_.Named(one.channel, one.chunk, refused.error);
    }
    const Arrived first = std::move(arrived_.front());
    // Removed once, whatever the plugin returns.
    arrived_.pop_front();
    --unpacking_;
    --in_flight_;
    const Status consumed = channels_[first.channel].comm->Consume();
    if (!consumed) return watch_.Named(first.channel, first.chunk, consumed.error());
    done->push_back(first.chunk.id);
  }
  return Ok();
}

Status Receiver::Drain(Deadline deadline) {
  if (Status drained = unpacker_->Drain(deadline); !drained) {
    was_told_ = true;
    return drained;
  }
  Status given = GiveBack(std::numeric_limits<std::uint64_t>::max(), &drained_);
  // The unpacker tells of a refused chunk once; Progress() would take it for one in place.
  if (!given) watch_.Fail(given.error());
  return given;
}

}  // namespace ferry::net::plugin
