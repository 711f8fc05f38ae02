// The receiving end of a comm.
#include "plugins/nccl/recv_comm.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "plugins/nccl/engine.h"
#include "plugins/nccl/report.h"

namespace ferry::nccl_net {
namespace {

bool Touches(std::span<const std::byte> a, std::span<const std::byte> b) noexcept {
  return std::less<>()(a.data(), b.data() + b.size()) &&
         std::less<>()(b.data(), a.data() + a.size());
}

Error TooLarge(std::uint64_t bytes, int tag, std::uint64_t room) {
  return Error(Code::kInvalidArgument,
               fmt::format("a message of {} bytes with tag {} is larger than the {} bytes that "
                           "irecv gave it; post receives of at least what is sent",
                           bytes, tag, room));
}

}  // namespace

RecvComm::RecvComm(Engine* engine, EventLoop* swift, std::size_t lanes, std::uint64_t early_bytes)
    : Comm(engine, swift, lanes),
      early_bytes_(std::min(early_bytes, kMaxEarlyBytes)),
      landings_(lanes) {
  StoreWire(WelcomeWire{}, &welcome_.meta);
}

// ---- receives -----------------------------------------------------------------------------------

RecvComm::Tag& RecvComm::TagOf(int tag) {
  const auto it =
      std::find_if(tags_.begin(), tags_.end(), [&](const Tag& each) { return each.tag == tag; });
  return it != tags_.end() ? *it : tags_.emplace_back(Tag{.tag = tag});
}

RecvComm::RecvRequest* RecvComm::FreeRequest() {
  if (free_.empty()) {
    if (requests_.size() == abi::kMaxRequests) return nullptr;
    requests_.push_back(std::make_unique<RecvRequest>(this));
    return requests_.back().get();
  }
  RecvRequest* const request = free_.back();
  free_.pop_back();
  return request;
}

Result<Request*> RecvComm::Receive(std::span<const Incoming> places) {
  if (failed()) return failure();
  std::unique_lock lock(mutex_);
  bool met_all = true;
  bool met_any = false;
  bool must_tell = false;
  RecvRequest* const request = FreeRequest();
  if (request == nullptr) return static_cast<Request*>(nullptr);
  request->count = places.size();
  request->left.store(static_cast<std::uint32_t>(places.size()), std::memory_order_relaxed);
  for (std::size_t i = 0; i < places.size(); ++i) {
    Tag& tag = TagOf(places[i].tag);
    Slot& slot = request->slots[i];
    Claims claims = std::move(slot.claims);
    claims.Clear();
    slot = {.request = request,
            .data = places[i].data,
            .tag = places[i].tag,
            .sequence = tag.posted++,
            .claims = std::move(claims)};
    must_tell |= MustTellLocked(tag, slot.data.size());
    posted_.push_back(&slot);
    const bool met = MeetEarlyLocked(&slot);
    met_any |= met;
    met_all &= met;
  }
  if (ended_ && !met_all) FailLocked(*ended_);
  must_tell |= HasHeardEnoughLocked();
  if (!must_tell || telling_ || closing_ || error_) return static_cast<Request*>(request);
  telling_ = true;
  if (!met_any) {
    // Not on this thread: it returns to test and may have posted more receives by then.
    LoopOf(0)->Post([this] { TellOnLoop(); });
    return static_cast<Request*>(request);
  }
  lock.unlock();
  // The request may be done by now without another call, while the sender waits for the credit. The
  // comm cannot be closed during this call.
  LoopOf(0)->PostOrRun([this] { TellOnLoop(); });
  return static_cast<Request*>(request);
}

// Whether the sender may be waiting for this receive.
bool RecvComm::MustTellLocked(const Tag& tag, std::size_t room) const noexcept {
  return room > early_bytes_ || tag.asked > tag.told;
}

// Half of what the sender may send without a credit. Receives of small messages are announced
// together when these have arrived: each credit costs a system call on both sides, which NCCL's
// thread has no time for, and the arrived messages tell their size, which a receive does not.
bool RecvComm::HasHeardEnoughLocked() const noexcept {
  return heard_ >= kMaxEarly / 2 || heard_bytes_ >= kMaxEarlyTotal / 2;
}

// OnLoop of the lane, when a message may have become complete. If true, the caller must call
// TellOnLoop() at once: a thread of NCCL's that has everything it waited for does not drive the
// loop again.
bool RecvComm::IsToTellLocked(std::size_t lane) {
  if (!HasHeardEnoughLocked() || telling_ || closing_ || error_) return false;
  telling_ = true;
  if (lane == 0) return true;
  LoopOf(0)->Post([this] { TellOnLoop(); });
  return false;
}

void RecvComm::TellOnLoop() {
  std::vector<CountWire> posted;
  {
    const std::lock_guard lock(mutex_);
    telling_ = false;
    heard_ = 0;
    heard_bytes_ = 0;
    for (Tag& tag : tags_) {
      if (tag.told == tag.posted) continue;
      tag.told = tag.posted;
      posted.push_back({.tag = tag.tag, .receives = tag.posted});
    }
  }
  SayCountsOnLoop(FrameType::kCredit, posted);
}

// Call when all lanes are up: a lane that its sender closed during connection setup would never
// come up.
void RecvComm::AnswerByeOnLoop() {
  if (bye_heard_ && complete()) SayByeOnLoop();
}

void RecvComm::OnComplete() {
  SendOnLoop(0, &welcome_);
  AnswerByeOnLoop();
}

void RecvComm::OnBye() {
  bye_heard_ = true;
  AnswerByeOnLoop();
}

Status RecvComm::OnAsk(std::span<const CountWire> asked) {
  const std::lock_guard lock(mutex_);
  bool must_tell = false;
  for (const CountWire& count : asked) {
    Tag& tag = TagOf(count.tag);
    tag.asked = std::max(tag.asked, count.receives);
    must_tell |= tag.asked > tag.told && tag.posted > tag.told;
    if (tags_.size() > kMaxTags) {
      return Error(Code::kCorrupt,
                   fmt::format("the sender used more than {} tags; use fewer", kMaxTags));
    }
  }
  if (must_tell && !telling_ && !closing_ && !error_) {
    telling_ = true;
    LoopOf(0)->Post([this] { TellOnLoop(); });
  }
  return Ok();
}

Result<Tested> RecvComm::Test(Request* request) {
  auto* const one = static_cast<RecvRequest*>(request);
  if (one->left.load(std::memory_order_acquire) > 0) {
    swift()->DriveOnce();
    if (one->left.load(std::memory_order_acquire) > 0) {
      if (failed()) return failure();
      return Tested{};
    }
  }
  Tested tested{.done = true, .count = one->count};
  for (std::size_t i = 0; i < one->count; ++i) {
    tested.sizes[i] = one->slots[i].total;
    traffic_.Add(tested.sizes[i]);
  }
  const std::lock_guard lock(mutex_);
  free_.push_back(one);
  return tested;
}

bool RecvComm::Uses(std::span<const std::byte> memory) const {
  return std::any_of(posted_.begin(), posted_.end(),
                     [&](const Slot* slot) { return Touches(slot->data, memory); });
}

// ---- what arrives -------------------------------------------------------------------------------

bool RecvComm::Claims::Take(std::uint64_t offset, std::uint64_t bytes) {
  if (bytes == 0) return true;
  const Part part{offset, offset + bytes};
  auto next = std::lower_bound(parts_.begin(), parts_.end(), part.begin,
                               [](const Part& one, std::uint64_t at) { return one.end <= at; });
  if (next != parts_.end() && next->begin < part.end) return false;
  const bool joins_next = next != parts_.end() && next->begin == part.end;
  const bool joins_last = next != parts_.begin() && std::prev(next)->end == part.begin;
  if (joins_last) {
    std::prev(next)->end = joins_next ? next->end : part.end;
    if (joins_next) parts_.erase(next);
  } else if (joins_next) {
    next->begin = part.begin;
  } else if (parts_.size() < kMaxParts) {
    parts_.insert(next, part);
  } else {
    return false;
  }
  return true;
}

RecvComm::Slot* RecvComm::FindPostedLocked(const DataWire& data) {
  const auto it = std::find_if(posted_.begin(), posted_.end(), [&](const Slot* slot) {
    return slot->tag == data.tag && slot->sequence == data.sequence;
  });
  return it == posted_.end() ? nullptr : *it;
}

Status RecvComm::CheckPieceLocked(Slot* slot, const DataWire& data, std::uint64_t payload_bytes) {
  if (!std::exchange(slot->begun, true)) slot->total = data.total;
  if (data.total > slot->data.size()) return TooLarge(data.total, data.tag, slot->data.size());
  const bool fits = data.total == slot->total && data.offset <= data.total &&
                    payload_bytes <= data.total - data.offset &&
                    slot->claims.Take(data.offset, payload_bytes);
  if (!fits) {
    return Error(Code::kCorrupt,
                 fmt::format("{} bytes at offset {} are not a valid piece of a message of {} bytes",
                             payload_bytes, data.offset, slot->total));
  }
  return Ok();
}

void RecvComm::FinishLocked(Slot* slot) {
  if (slot->received < slot->total) return;
  posted_.erase(std::find(posted_.begin(), posted_.end(), slot));
  if (slot->sequence >= TagOf(slot->tag).told) {
    ++heard_;
    heard_bytes_ += slot->total;
  }
  // Last: the request may be reused from here on.
  slot->request->left.fetch_sub(1, std::memory_order_release);
}

Result<net::Placement> RecvComm::HandleFrame(std::size_t lane, std::span<const std::byte> meta,
                                             std::uint64_t payload_bytes) {
  const net::Placement nowhere{.action = net::Placement::Action::kDiscard, .memory = {}};
  if (const auto asked = LoadCounts(FrameType::kAsk, meta); asked && lane == 0) {
    if (payload_bytes != 0)
      return Error(Code::kCorrupt, "the sender sent a credit request with a payload");
    FERRY_TRY(OnAsk(*asked));
    return nowhere;
  }
  const auto data = lane == 0 ? LoadPadded(meta) : LoadWire<DataWire>(meta);
  if (!data || data->type != FrameType::kData) {
    return Error(Code::kCorrupt, "the sender sent an unexpected frame instead of data");
  }
  net::Placement placement;
  bool tells = false;
  {
    const std::lock_guard lock(mutex_);
    placement = PlaceLocked(lane, *data, payload_bytes);
    tells = payload_bytes == 0 && IsToTellLocked(lane);
  }
  if (tells) TellOnLoop();
  return placement;
}

net::Placement RecvComm::PlaceLocked(std::size_t lane, const DataWire& data,
                                     std::uint64_t payload_bytes) {
  const net::Placement nowhere{.action = net::Placement::Action::kDiscard, .memory = {}};
  Landing landing{.slot = FindPostedLocked(data)};
  Status placed = Ok();
  if (landing.slot != nullptr) {
    placed = CheckPieceLocked(landing.slot, data, payload_bytes);
  } else if (auto kept = KeepEarlyLocked(lane, data, payload_bytes); kept) {
    landing.early = *kept;
  } else {
    placed = kept.error();
  }
  if (!placed) {
    // Recorded first as the comm's error; the end of the lane follows from it.
    FailLocked(placed.error());
    return nowhere;
  }
  if (payload_bytes == 0) {
    if (landing.slot != nullptr) FinishLocked(landing.slot);
    return nowhere;
  }
  std::byte* const to = landing.slot != nullptr ? landing.slot->data.data() + data.offset
                                                : landing.early->data.data();
  landing.place = {to, payload_bytes};
  landings_[lane] = landing;
  return {.memory = {&landings_[lane].place, 1}};
}

Status RecvComm::HandlePayload(std::size_t lane) {
  std::unique_lock lock(mutex_);
  const Landing landing = std::exchange(landings_[lane], Landing{});
  if (landing.early != nullptr) {
    landing.early->whole = true;
    if (landing.early->slot != nullptr) DeliverEarlyLocked(landing.early);
  } else if (landing.slot != nullptr) {  // otherwise the payload was discarded
    landing.slot->received += landing.place.iov_len;
    FinishLocked(landing.slot);
  }
  const bool tells = IsToTellLocked(lane);
  lock.unlock();
  if (tells) TellOnLoop();
  return Ok();
}

// ---- what arrives before its receive ------------------------------------------------------------

Result<RecvComm::Early*> RecvComm::KeepEarlyLocked(std::size_t lane, const DataWire& data,
                                                   std::uint64_t payload_bytes) {
  const auto tag = std::find_if(tags_.begin(), tags_.end(),
                                [&](const Tag& each) { return each.tag == data.tag; });
  const bool is_new = (tag == tags_.end() || data.sequence >= tag->posted) &&
                      std::none_of(early_.begin(), early_.end(), [&](const auto& early) {
                        return early->tag == data.tag && early->sequence == data.sequence;
                      });
  const bool is_small = lane == 0 && data.offset == 0 && data.total == payload_bytes &&
                        payload_bytes <= kMaxEarlyBytes;
  const bool has_room = early_.size() < kMaxEarly && payload_bytes <= kMaxEarlyTotal - early_total_;
  if (!is_new || !is_small || !has_room) {
    return Error(
        Code::kCorrupt,
        fmt::format("message {} with tag {} ({} of {} bytes) came before a receive was "
                    "posted for it, and is no small one of the {} ({} bytes) that may",
                    data.sequence, data.tag, payload_bytes, data.total, kMaxEarly, kMaxEarlyTotal));
  }
  early_.push_back(std::make_unique<Early>());
  Early* const early = early_.back().get();
  early->tag = data.tag;
  early->sequence = data.sequence;
  early->data.resize(payload_bytes);
  early_total_ += payload_bytes;
  early->whole = payload_bytes == 0;
  return early;
}

// The receive was just posted; its message may have arrived already.
bool RecvComm::MeetEarlyLocked(Slot* slot) {
  const auto it = std::find_if(early_.begin(), early_.end(), [&](const auto& early) {
    return early->tag == slot->tag && early->sequence == slot->sequence;
  });
  if (it == early_.end()) return false;
  Early* const early = it->get();
  const std::uint64_t total = early->data.size();
  if (total > slot->data.size()) {
    FailLocked(TooLarge(total, slot->tag, slot->data.size()));
    return true;
  }
  early->slot = slot;
  slot->begun = true;
  slot->total = total;
  (void)slot->claims.Take(0, total);  // no other piece is part of this message
  if (early->whole) DeliverEarlyLocked(early);
  return true;
}

void RecvComm::DeliverEarlyLocked(Early* early) {
  Slot* const slot = early->slot;
  std::copy(early->data.begin(), early->data.end(), slot->data.begin());
  slot->received = slot->total;
  early_total_ -= slot->total;
  const auto it = std::find_if(early_.begin(), early_.end(),
                               [&](const auto& each) { return each.get() == early; });
  early_.erase(it);
  FinishLocked(slot);
}

void RecvComm::OnLaneLost(const LostLane& lane, const Error& error) {
  if (!lane.last) return FailLaterOnLoop(lane.index, error);
  const std::lock_guard lock(mutex_);
  const auto is_part = [](const auto& early) { return !early->whole; };
  early_.erase(std::remove_if(early_.begin(), early_.end(), is_part), early_.end());
  // Everything sent before the end has arrived, and its receives may be posted later. Receives that
  // are already posted will get nothing, and fail, as the comm does.
  if (posted_.empty() && !early_.empty()) {
    ended_ = error;
  } else {
    FailLocked(error);
  }
}

}  // namespace ferry::nccl_net
