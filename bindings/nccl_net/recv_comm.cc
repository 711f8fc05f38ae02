#include "bindings/nccl_net/recv_comm.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "bindings/nccl_net/engine.h"
#include "bindings/nccl_net/report.h"

namespace ferry::nccl_net {
namespace {

bool Touches(std::span<const std::byte> a, std::span<const std::byte> b) noexcept {
  return std::less<>()(a.data(), b.data() + b.size()) &&
         std::less<>()(b.data(), a.data() + a.size());
}

}  // namespace

RecvComm::RecvComm(Engine* engine, std::size_t lanes) : Comm(engine, lanes), landings_(lanes) {}

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
  const std::lock_guard lock(mutex_);
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
    tag.told = false;
    posted_.push_back(&request->slots[i]);
  }
  // Not by this thread: it comes back to test, and by then has perhaps posted more.
  if (!telling_ && !closing_ && !error_) {
    telling_ = true;
    LoopOf(0)->Post([this] { TellOnLoop(); });
  }
  return static_cast<Request*>(request);
}

void RecvComm::TellOnLoop() {
  const auto unsent = [](const auto& frame) {
    return !frame->is_sent.load(std::memory_order_acquire);
  };
  auto it = std::find_if_not(credits_.begin(), credits_.end(), unsent);
  if (it == credits_.end()) {
    credits_.push_back(std::make_unique<CreditFrame>());
    it = credits_.end() - 1;
    (*it)->sent = &(*it)->is_sent;
  }
  std::vector<CreditEntryWire> entries;
  {
    const std::lock_guard lock(mutex_);
    telling_ = false;
    for (Tag& tag : tags_) {
      if (!std::exchange(tag.told, true)) entries.push_back({.tag = tag.tag, .posted = tag.posted});
    }
  }
  StoreCredits(entries, &(*it)->meta);
  (*it)->is_sent.store(false, std::memory_order_relaxed);
  SendOnLoop(0, it->get());
}

Result<Tested> RecvComm::Test(Request* request) {
  auto* const one = static_cast<RecvRequest*>(request);
  if (one->left.load(std::memory_order_acquire) > 0) {
    engine()->swift()->DriveOnce();
    if (one->left.load(std::memory_order_acquire) > 0) {
      if (failed()) return failure();
      return Tested{};
    }
  }
  Tested tested{.done = true, .count = one->count};
  for (std::size_t i = 0; i < one->count; ++i) {
    tested.sizes[i] = one->slots[i].total;
    Count(tested.sizes[i]);
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
  } else if (parts_.size() < kMostParts) {
    parts_.insert(next, part);
  } else {
    return false;
  }
  return true;
}

Result<RecvComm::Slot*> RecvComm::FindLocked(const DataWire& data, std::uint64_t payload_bytes) {
  const auto it = std::find_if(posted_.begin(), posted_.end(), [&](const Slot* slot) {
    return slot->tag == data.tag && slot->sequence == data.sequence;
  });
  if (it == posted_.end()) {
    return Error(Code::kCorrupt,
                 fmt::format("message {} with tag {} came before a receive was posted for it",
                             data.sequence, data.tag));
  }
  Slot* const slot = *it;
  if (!std::exchange(slot->begun, true)) slot->total = data.total;
  if (data.total > slot->data.size()) {
    return Error(Code::kInvalidArgument,
                 fmt::format("a message of {} bytes with tag {} is larger than the {} bytes that "
                             "irecv gave it; post receives of at least what is sent",
                             data.total, data.tag, slot->data.size()));
  }
  const bool fits = data.total == slot->total && data.offset <= data.total &&
                    payload_bytes <= data.total - data.offset &&
                    slot->claims.Take(data.offset, payload_bytes);
  if (!fits) {
    return Error(Code::kCorrupt, fmt::format("{} bytes at {} are no piece of a message of {} bytes",
                                             payload_bytes, data.offset, slot->total));
  }
  return slot;
}

void RecvComm::FinishLocked(Slot* slot) {
  if (slot->received < slot->total) return;
  posted_.erase(std::find(posted_.begin(), posted_.end(), slot));
  // Last: the request may be used again from here on.
  slot->request->left.fetch_sub(1, std::memory_order_release);
}

Result<net::Placement> RecvComm::OnFrameOnLoop(std::size_t lane, std::span<const std::byte> meta,
                                               std::uint64_t payload_bytes) {
  const auto data = LoadWire<DataWire>(meta);
  if (!data || data->type != FrameType::kData) {
    return Error(Code::kCorrupt, "the sender said something else than data");
  }
  const std::lock_guard lock(mutex_);
  const auto found = FindLocked(*data, payload_bytes);
  if (!found) {
    // As the comm's error it is the first; the lane's end follows from it.
    FailLocked(found.error());
    return net::Placement{.action = net::Placement::Action::kDiscard, .memory = {}};
  }
  Slot* const slot = *found;
  if (payload_bytes == 0) {
    FinishLocked(slot);
    return net::Placement{.action = net::Placement::Action::kDiscard, .memory = {}};
  }
  Landing& landing = landings_[lane];
  landing = {.slot = slot, .place = {slot->data.data() + data->offset, payload_bytes}};
  return net::Placement{.memory = {&landing.place, 1}};
}

Status RecvComm::OnPayloadOnLoop(std::size_t lane) {
  const std::lock_guard lock(mutex_);
  Slot* const slot = std::exchange(landings_[lane].slot, nullptr);
  if (slot == nullptr) return Ok();  // it went nowhere
  slot->received += landings_[lane].place.iov_len;
  FinishLocked(slot);
  return Ok();
}

void RecvComm::OnLaneLostOnLoop(std::size_t lane, const Error& error, bool last) {
  if (last) return Fail(error);
  FailLaterOnLoop(lane, error);
}

}  // namespace ferry::nccl_net
