// Lane handlers and hosts for tests.
#include "ferry/net/testing/lane_end.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "ferry/core/check.h"

namespace ferry::net {
namespace {

constexpr std::byte kGuard{0xA5};

}  // namespace

// ---- bytes --------------------------------------------------------------------------------------

std::span<const std::byte> AsBytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string AsText(std::span<const std::byte> bytes) {
  std::string text(bytes.size(), '\0');
  if (!bytes.empty()) std::memcpy(text.data(), bytes.data(), bytes.size());
  return text;
}

std::vector<std::size_t> CutInto(std::uint64_t total, std::span<const std::size_t> sizes) {
  std::vector<std::size_t> cut;
  for (std::size_t i = 0; total > 0; ++i) {
    const std::uint64_t size = sizes.empty() ? total : sizes[i % sizes.size()];
    cut.push_back(static_cast<std::size_t>(std::min(size, total)));
    total -= cut.back();
  }
  return cut;
}

Scatter::Scatter(std::span<const std::size_t> piece_bytes) {
  for (const std::size_t size : piece_bytes) bytes_ += size;
  memory_.assign(bytes_ + piece_bytes.size() + 1, kGuard);
  std::size_t end = memory_.size() - 1;
  for (const std::size_t size : piece_bytes) {
    end -= size;
    pieces_.push_back({memory_.data() + end, size});
    --end;
  }
}

void Scatter::Store(std::span<const std::byte> bytes) {
  FERRY_CHECK(bytes.size() == bytes_, bytes.size(), bytes_);
  for (const iovec& piece : pieces_) {
    std::memcpy(piece.iov_base, bytes.data(), piece.iov_len);
    bytes = bytes.subspan(piece.iov_len);
  }
}

std::vector<std::byte> Scatter::Load() const {
  std::vector<std::byte> bytes(bytes_);
  std::size_t at = 0;
  for (const iovec& piece : pieces_) {
    std::memcpy(bytes.data() + at, piece.iov_base, piece.iov_len);
    at += piece.iov_len;
  }
  return bytes;
}

bool Scatter::GuardsAreIntact() const {
  if (memory_.empty()) return true;
  bool intact = memory_.back() == kGuard;
  for (const iovec& piece : pieces_) {
    intact = intact && *(static_cast<const std::byte*>(piece.iov_base) - 1) == kGuard;
  }
  return intact;
}

// ---- waiting ------------------------------------------------------------------------------------

void Tally::Add() {
  const std::lock_guard lock(mutex_);
  ++count_;
  changed_.notify_all();
}

int Tally::count() const {
  const std::lock_guard lock(mutex_);
  return count_;
}

bool Tally::AwaitAtLeast(int count) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, Clock::now() + kTimeout, [&] { return count_ >= count; });
}

void RunOn(EventLoop& loop, FunctionRef<void()> task) {
  Tally ended;
  loop.Post([&] {
    task();
    ended.Add();
  });
  // The task refers to this frame, so continuing after a timeout would be unsafe.
  FERRY_CHECK(ended.AwaitAtLeast(1));
}

// ---- LaneEnd ------------------------------------------------------------------------------------

LaneEnd::LaneEnd(std::unique_ptr<Lane> lane, EventLoop* loop)
    : lane_(std::move(lane)), loop_(loop) {}

LaneEnd::~LaneEnd() {
  if (lane_ != nullptr) DestroyLane();
}

void LaneEnd::DestroyLane() {
  RunOn(*loop_, [this] { lane_.reset(); });
}

void Destroy(std::unique_ptr<LaneEnd>* end) {
  if (*end == nullptr) return;
  (*end)->DestroyLane();
  end->reset();
}

void LaneEnd::Attach() { lane_->Attach(loop_, this); }

void LaneEnd::Do(FunctionRef<void(Lane&)> task) {
  RunOn(*loop_, [&] { task(*lane_); });
}

void LaneEnd::MoveTo(EventLoop* loop) {
  loop_.store(loop);
  lane_->Attach(loop, this);
}

TestFrame* LaneEnd::Make(std::string_view meta, std::span<const std::size_t> pieces,
                         std::uint64_t seed) {
  TestFrame& frame = frames_.emplace_back();
  const auto bytes = AsBytes(meta);
  frame.meta.assign(bytes.begin(), bytes.end());
  frame.memory = Scatter(pieces);
  frame.content = RandomBytes(frame.memory.bytes(), seed);
  frame.memory.Store(frame.content);
  frame.payload.assign(frame.memory.pieces().begin(), frame.memory.pieces().end());
  frame.payload_bytes = frame.content.size();
  return &frame;
}

void LaneEnd::Send(std::span<TestFrame* const> frames) {
  Do([&](Lane& lane) {
    for (TestFrame* frame : frames) lane.Send(frame);
  });
}

Result<Placement> LaneEnd::OnFrame(std::span<const std::byte> meta, std::uint64_t payload_bytes) {
  EXPECT_TRUE(loop()->InLoop());
  Note('F');
  std::string text = AsText(meta);
  if (on_frame) {
    if (auto choice = on_frame(text, payload_bytes)) return *std::move(choice);
  }
  if (payload_bytes == 0) {
    const std::lock_guard lock(mutex_);
    arrived_.push_back({std::move(text), {}});
    changed_.notify_all();
    return Placement{};
  }
  receiving_meta_ = std::move(text);
  receiving_.emplace(CutInto(payload_bytes, receive_pieces));
  return Placement{Placement::Action::kPlace, receiving_->pieces()};
}

Status LaneEnd::OnPayload() {
  EXPECT_TRUE(loop()->InLoop());
  Note('P');
  if (!receiving_) return on_payload ? on_payload() : Ok();
  EXPECT_TRUE(receiving_->GuardsAreIntact());
  Arrived arrived{std::move(receiving_meta_), receiving_->Load()};
  receiving_.reset();
  const std::lock_guard lock(mutex_);
  arrived_.push_back(std::move(arrived));
  changed_.notify_all();
  return Ok();
}

void LaneEnd::OnSent(OutFrame* frame) {
  EXPECT_TRUE(loop()->InLoop());
  Note('S');
  {
    const std::lock_guard lock(mutex_);
    sent_.push_back(frame);
    changed_.notify_all();
  }
  if (on_sent) on_sent(frame);
}

void LaneEnd::OnClosed(LaneLoss loss, const Error& error) {
  EXPECT_TRUE(loop()->InLoop());
  Note('C');
  receiving_.reset();
  const std::lock_guard lock(mutex_);
  closed_.push_back(error);
  loss_ = loss;
  changed_.notify_all();
}

void LaneEnd::Note(char what) {
  const std::lock_guard lock(mutex_);
  EXPECT_TRUE(closed_.empty()) << what << " after OnClosed";
  log_ += what;
}

std::vector<Arrived> LaneEnd::Take(std::size_t count) {
  std::unique_lock lock(mutex_);
  (void)changed_.wait_until(lock, Clock::now() + kTimeout,
                            [&] { return arrived_.size() >= count || !closed_.empty(); });
  EXPECT_EQ(arrived_.size(), count) << (closed_.empty() ? "" : closed_.front().ToString());
  return std::exchange(arrived_, {});
}

bool LaneEnd::AwaitSent(std::size_t count) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, Clock::now() + kTimeout, [&] { return sent_.size() >= count; });
}

std::optional<Error> LaneEnd::AwaitClosed() {
  std::unique_lock lock(mutex_);
  (void)changed_.wait_until(lock, Clock::now() + kTimeout, [&] { return !closed_.empty(); });
  if (closed_.empty()) return std::nullopt;
  return closed_.front();
}

LaneLoss LaneEnd::loss() const {
  const std::lock_guard lock(mutex_);
  return loss_;
}

std::vector<const OutFrame*> LaneEnd::sent() const {
  const std::lock_guard lock(mutex_);
  return sent_;
}

std::string LaneEnd::log() const {
  const std::lock_guard lock(mutex_);
  return log_;
}

// ---- TestHost -----------------------------------------------------------------------------------

TestHost::TestHost(std::unique_ptr<Provider> provider) : provider_(std::move(provider)) {
  for (auto& loop : loops_) {
    auto created = EventLoop::Create();
    FERRY_CHECK(created);
    loop = *std::move(created);
    FERRY_CHECK(loop->StartWorker("test-host").has_value());
  }
}

TestHost::~TestHost() {
  StopListening();
  for (const auto& loop : loops_) loop->Stop();
}

Result<Address> TestHost::Listen(const Address& address, const Config& config) {
  Result<Address> bound = address;
  RunOn(*loop(), [&] {
    listener_.reset();
    auto listener = provider_->Listen(address, config, loop(), [this](std::unique_ptr<Lane> lane) {
      const std::lock_guard lock(mutex_);
      accepted_.push_back(std::move(lane));
      changed_.notify_all();
    });
    if (!listener) {
      bound = listener.error();
      return;
    }
    listener_ = *std::move(listener);
    bound = listener_->address();
  });
  return bound;
}

void TestHost::StopListening() {
  RunOn(*loop(), [this] { listener_.reset(); });
}

std::unique_ptr<Lane> TestHost::Accept() {
  std::unique_lock lock(mutex_);
  (void)changed_.wait_until(lock, Clock::now() + kTimeout, [this] { return !accepted_.empty(); });
  EXPECT_FALSE(accepted_.empty());
  if (accepted_.empty()) return nullptr;
  auto lane = std::move(accepted_.front());
  accepted_.pop_front();
  return lane;
}

Result<std::unique_ptr<Lane>> TestHost::Connect(const Address& address, const Config& config,
                                                Deadline deadline) {
  Tally answers;
  Result<std::unique_ptr<Lane>> result = Error(Code::kInternal, "no answer");
  loop()->Post([&] {
    provider_->Connect(address, config, loop(), deadline, [&](auto connected) {
      EXPECT_TRUE(loop()->InLoop());
      result = std::move(connected);
      answers.Add();
    });
  });
  FERRY_CHECK(answers.AwaitAtLeast(1), "the provider never answered");
  return result;
}

}  // namespace ferry::net
