// Conformance suite of providers: payloads in registered memory, honoured or refused.
#include <algorithm>
#include <utility>

#include "ferry/net/testing/conformance.h"

namespace ferry::net {
namespace {

constexpr std::size_t kRegisteredBytes = 100'000;
constexpr std::byte kUntouchedByte{0xEE};

void NameRegistered(TestFrame* frame, const RegisteredBuffer& buffer, std::size_t offset,
                    std::size_t bytes) {
  frame->registered = {buffer.memory.get(), offset, bytes};
  frame->payload_bytes = bytes;
  const auto content = std::span(buffer.bytes).subspan(offset, bytes);
  frame->content.assign(content.begin(), content.end());
}

}  // namespace

TEST_P(ProviderConformance, RegistersMemoryIfItSaysSo) {
  Provider& provider = near_host_->provider();
  source_.bytes.resize(kRegisteredBytes);
  auto registered = provider.Register(source_.bytes);
  if (provider.capabilities().registered_memory) {
    ASSERT_TRUE(registered) << registered.error().ToString();
    source_.memory = *std::move(registered);
    EXPECT_NE(source_.memory, nullptr);
    return;
  }
  ASSERT_FALSE(registered);
  EXPECT_EQ(registered.error().code(), Code::kUnsupported);
  EXPECT_NE(registered.error().message().find(provider.name()), std::string::npos);
}

TEST_P(ProviderConformance, RegisteredMemoryMeetsRegisteredAndOtherMemory) {
  if (!near_host_->provider().capabilities().registered_memory) return;
  ASSERT_NO_FATAL_FAILURE(Connect());
  source_.bytes = RandomBytes(kRegisteredBytes, 1);
  sink_.bytes.assign(kRegisteredBytes, kUntouchedByte);
  auto source = near_host_->provider().Register(source_.bytes);
  auto sink = far_host_->provider().Register(sink_.bytes);
  ASSERT_TRUE(source && sink);
  source_.memory = *std::move(source);
  sink_.memory = *std::move(sink);
  constexpr std::size_t kTo = 777;
  far_->on_frame = [&](const std::string& meta, std::uint64_t bytes) -> LaneEnd::Choice {
    if (meta != "into registered") return std::nullopt;
    Placement placement;
    placement.registered = {sink_.memory.get(), kTo, bytes};
    return placement;
  };
  far_->on_payload = [&] {
    tally_.Add();
    return Ok();
  };
  near_->Attach();
  far_->Attach();

  const std::vector<TestFrame*> into = {Make(*near_, "into registered"),
                                        Make(*near_, "into registered", 30'000)};
  const std::vector<TestFrame*> others = {Make(*near_, "from registered"),
                                          Make(*near_, "neither", 70'000)};
  NameRegistered(into[0], source_, 50'000, 40'000);
  NameRegistered(others[0], source_, kRegisteredBytes - 1, 1);
  near_->Send(std::vector{into[0], others[0], others[1]});
  EXPECT_TRUE(Match(others, far_->Take(2)));
  EXPECT_TRUE(near_->AwaitSent(3));
  const auto placed = [&](const TestFrame& frame) {
    const auto at = sink_.bytes.begin() + kTo;
    return std::equal(frame.content.begin(), frame.content.end(), at) &&
           std::count(sink_.bytes.begin(), at, kUntouchedByte) == kTo;
  };
  ASSERT_TRUE(tally_.AwaitAtLeast(1));
  EXPECT_TRUE(placed(*into[0]));
  EXPECT_EQ(sink_.bytes[kTo + 40'000], kUntouchedByte);
  near_->Send(into[1]);
  ASSERT_TRUE(tally_.AwaitAtLeast(2));
  EXPECT_TRUE(placed(*into[1]));
}

TEST_P(ProviderConformance, AFrameInRegisteredMemoryEndsALaneThatDoesNotSupportIt) {
  if (near_host_->provider().capabilities().registered_memory) return;
  ASSERT_NO_FATAL_FAILURE(ConnectAndAttach());
  source_.bytes.resize(kRegisteredBytes);
  source_.memory = std::make_unique<RegisteredMemory>();
  TestFrame* const frame = Make(*near_, "a");
  NameRegistered(frame, source_, 0, 100);
  near_->Do([&](Lane& lane) {
    lane.Send(frame);
    lane.Send(Make(*near_, "b"));
    EXPECT_EQ(near_->log(), "");  // no callback from inside
  });
  const auto closed = near_->AwaitClosed();
  ASSERT_TRUE(closed);
  EXPECT_EQ(closed->code(), Code::kUnsupported);
  EXPECT_EQ(near_->loss(), LaneLoss::kBroken);
  EXPECT_EQ(near_->log(), "C");
  EXPECT_TRUE(far_->AwaitClosed());
  EXPECT_EQ(far_->log(), "C");
}

TEST_P(ProviderConformance, APlacementInRegisteredMemoryEndsALaneThatDoesNotSupportIt) {
  if (near_host_->provider().capabilities().registered_memory) return;
  ASSERT_NO_FATAL_FAILURE(Connect());
  sink_.memory = std::make_unique<RegisteredMemory>();
  far_->on_frame = [&](const std::string&, std::uint64_t bytes) -> LaneEnd::Choice {
    Placement placement;
    placement.registered = {sink_.memory.get(), 0, bytes};
    return placement;
  };
  near_->Attach();
  far_->Attach();
  near_->Send(Make(*near_, "a", 100));
  const auto closed = far_->AwaitClosed();
  ASSERT_TRUE(closed);
  EXPECT_EQ(closed->code(), Code::kUnsupported);
  EXPECT_EQ(far_->loss(), LaneLoss::kBroken);
  EXPECT_TRUE(near_->AwaitClosed());
}

TEST_P(ProviderConformance, APlacementInGpuMemoryEndsALaneThatDoesNotSupportIt) {
  if (near_host_->provider().capabilities().gpu) return;
  for (const std::size_t bytes : {std::size_t{100}, std::size_t{100'000}}) {
    ASSERT_NO_FATAL_FAILURE(Connect());
    sink_.bytes.assign(bytes, kUntouchedByte);
    iovec place{sink_.bytes.data(), bytes};
    far_->on_frame = [&](const std::string&, std::uint64_t) -> LaneEnd::Choice {
      Placement placement;
      placement.memory = {&place, 1};
      placement.gpu = true;
      return placement;
    };
    near_->Attach();
    far_->Attach();
    near_->Send(Make(*near_, "a", bytes));
    const auto closed = far_->AwaitClosed();
    ASSERT_TRUE(closed);
    EXPECT_EQ(closed->code(), Code::kUnsupported);
    EXPECT_EQ(far_->loss(), LaneLoss::kBroken);
    EXPECT_TRUE(near_->AwaitClosed());
    EXPECT_EQ(std::count(sink_.bytes.begin(), sink_.bytes.end(), kUntouchedByte),
              static_cast<std::ptrdiff_t>(bytes));
  }
}

}  // namespace ferry::net
