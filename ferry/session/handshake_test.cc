// Tests what a handshake tells its user, with a lane that is only played.
#include "ferry/session/handshake.h"

#include <gtest/gtest.h>

#include <utility>

namespace ferry::session {
namespace {

// Reports each frame as sent at once.
class PlayedLane final : public net::Lane {
 public:
  void Attach(EventLoop* /*loop*/, net::LaneHandler* handler) override { handler_ = handler; }
  void Send(net::OutFrame* frame) override { handler_->OnSent(frame); }
  void Resume() override {}
  void DiscardRest() override {}
  void Close(net::Closing /*how*/) override {}
  void SetMaxMeta(std::size_t /*bytes*/) override {}
  net::LaneInfo Info() const override {
    net::LaneInfo info;
    info.remote = "there:1";
    return info;
  }
  std::uint64_t BytesReceived() const override { return 0; }

  // As when this frame arrives. An error ends the lane.
  void Hear(wire::Type type, std::span<const std::byte> body) {
    std::vector<std::byte> meta;
    wire::Append(&meta, wire::Header{.type = type, .role = wire::Role::kNccl});
    meta.insert(meta.end(), body.begin(), body.end());
    const auto placed = handler_->OnFrame(meta, 0);
    if (!placed) handler_->OnClosed(net::LaneLoss::kBroken, placed.error());
  }

 private:
  net::LaneHandler* handler_ = nullptr;
};

class CountingUser final : public HandshakeUser {
 public:
  Status OnReceived(Handshake* /*handshake*/, wire::Type /*type*/,
                    wire::MetaReader* /*body*/) override {
    return Ok();
  }
  void OnComplete(Handshake* /*handshake*/) override {}
  void OnGone(Handshake* /*handshake*/, const Error& error) override {
    ++gone;
    last = error.code();
  }

  int gone = 0;
  Code last{};
};

// Runs on the loop, whose turns this thread takes, until the time.
void RunUntil(EventLoop* loop, Clock::time_point when, UniqueFunction<void()> task) {
  bool done = false;
  loop->Post([&, task = std::move(task)]() mutable {
    task();
    loop->AddTimerOnLoop(when, [&] { done = true; });
  });
  EXPECT_TRUE(loop->DriveUntil([&] { return done; }, Deadline::After(std::chrono::seconds(60)),
                               microseconds(0)));
}

TEST(Handshake, WhoIsRefusedIsToldOnceThoughTheDeadlinePasses) {
  auto loop = EventLoop::Create(microseconds(0));
  ASSERT_TRUE(loop);
  const auto user = std::make_shared<CountingUser>();
  auto owned = std::make_unique<PlayedLane>();
  PlayedLane* const lane = owned.get();
  const Deadline deadline = Deadline::After(milliseconds(20));
  Handshake handshake(std::move(owned),
                      {.side = Handshake::Side::kDials,
                       .role = wire::Role::kNccl,
                       .loop = loop->get(),
                       .deadline = deadline},
                      user);
  RunUntil(loop->get(), deadline.when() + milliseconds(1), [&] {
    handshake.StartOnLoop();
    handshake.OpenOnLoop(wire::Type::kHello, {});
    const wire::RefuseBody refusal{.code = static_cast<std::uint8_t>(Code::kUnavailable)};
    lane->Hear(wire::Type::kRefuse, wire::BytesOf(refusal));
  });
  EXPECT_EQ(user->gone, 1);
  EXPECT_EQ(user->last, Code::kUnavailable);
}

}  // namespace
}  // namespace ferry::session
