// Conformance suite of providers: frames, placements, ends and moves.
#include "ferry/net/testing/conformance.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "ferry/core/check.h"
#include "ferry/net/machine/socket_owner.h"

namespace ferry::net {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

std::vector<std::byte> Untouched(const Scatter& memory) {
  return std::vector<std::byte>(memory.bytes(), std::byte{0xEE});
}

Placement Discard() { return {Placement::Action::kDiscard, {}}; }
Placement Pause() { return {Placement::Action::kPause, {}}; }
Placement Into(const Scatter& memory) { return {Placement::Action::kPlace, memory.pieces()}; }

std::vector<const OutFrame*> AsSent(const std::vector<TestFrame*>& frames) {
  return {frames.begin(), frames.end()};
}

}  // namespace

void PrintTo(const ConformanceCase& parameter, std::ostream* out) { *out << parameter.name; }

std::string ConformanceCaseName(const ::testing::TestParamInfo<ConformanceCase>& info) {
  return info.param.name;
}

void ProviderConformance::SetUp() {
  target_ = GetParam().make();
  if (const std::string why = target_->Unavailable(); !why.empty()) GTEST_SKIP() << why;
  config_ = target_->MakeConfig();
  near_host_ = std::make_unique<TestHost>(target_->MakeProvider());
  far_host_ = std::make_unique<TestHost>(target_->MakeProvider());
  splices_ = near_host_->provider().capabilities().spliced_pages;
}

void ProviderConformance::Connect() {
  auto bound = far_host_->Listen(target_->ListenAddress(), config_);
  ASSERT_TRUE(bound) << bound.error().ToString();
  address_ = *bound;
  auto lane = near_host_->Connect(address_, config_);
  ASSERT_TRUE(lane) << lane.error().ToString();
  auto accepted = far_host_->Accept();
  ASSERT_NE(accepted, nullptr);
  // Otherwise nothing would be spliced within this machine.
  if (splices_) {
    EXPECT_TRUE((*lane)->ProvePeer(ThisProcess()) && accepted->ProvePeer(ThisProcess()));
  }
  near_ = std::make_unique<LaneEnd>(*std::move(lane), near_host_->loop());
  far_ = std::make_unique<LaneEnd>(std::move(accepted), far_host_->loop());
}

void ProviderConformance::ConnectAndAttach() {
  ASSERT_NO_FATAL_FAILURE(Connect());
  near_->Attach();
  far_->Attach();
}

TestFrame* ProviderConformance::Make(LaneEnd& end, std::string_view meta, std::size_t bytes,
                                     std::span<const std::size_t> pieces) {
  const auto seed = std::hash<std::string_view>()(meta);
  TestFrame* const frame = end.Make(meta, CutInto(bytes, pieces), seed);
  frame->may_splice = splices_;
  return frame;
}

::testing::AssertionResult ProviderConformance::Match(std::span<TestFrame* const> frames,
                                                      std::span<const Arrived> arrived) {
  if (frames.size() != arrived.size()) {
    return ::testing::AssertionFailure()
           << arrived.size() << " of " << frames.size() << " frames arrived";
  }
  for (std::size_t i = 0; i < frames.size(); ++i) {
    if (arrived[i].meta != AsText(frames[i]->meta)) {
      return ::testing::AssertionFailure() << "frame " << i << " has other metadata";
    }
    if (!SameBytes(arrived[i].payload, frames[i]->content)) {
      return ::testing::AssertionFailure()
             << "frame " << i << " has another payload of " << arrived[i].payload.size()
             << " bytes; " << frames[i]->content.size() << " were sent";
    }
  }
  return ::testing::AssertionSuccess();
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ProviderConformance);

// ---- frames -------------------------------------------------------------------------------------

TEST_P(ProviderConformance, FramesArriveInOrderWithTheirMetadataAndPayload) {
  ASSERT_NO_FATAL_FAILURE(ConnectAndAttach());
  std::vector<TestFrame*> frames;
  for (std::size_t i = 0; i < 100; ++i) {
    frames.push_back(Make(*near_, std::string(i + 1, 'm') + std::to_string(i), i * i * 7 % 40961));
  }
  near_->Send(frames);
  EXPECT_TRUE(Match(frames, far_->Take(frames.size())));
}

TEST_P(ProviderConformance, PiecesOfAnySizeMeetPiecesOfAnyOtherSize) {
  ASSERT_NO_FATAL_FAILURE(ConnectAndAttach());
  // Single bytes only for short payloads; they are still more than one system call takes.
  const std::vector<std::size_t> single = {1};
  const std::vector<std::vector<std::size_t>> shapes = {
      single, {1, 4095, 4097, 2 * kMiB}, {65536}, {3 * kMiB + 1}, {17, 1, 300'000}};
  for (const auto& receiving : shapes) {
    far_->Do([&](Lane&) { far_->receive_pieces = receiving; });
    std::vector<TestFrame*> frames;
    for (const auto& sending : shapes) {
      const bool is_short = sending == single || receiving == single;
      const std::string name = "pieces of " + std::to_string(sending.front());
      frames.push_back(Make(*near_, name, is_short ? 3001 : large() / 16 + 13, sending));
    }
    near_->Send(frames);
    EXPECT_TRUE(Match(frames, far_->Take(frames.size())));
  }
}

TEST_P(ProviderConformance, EmptyPayloadsAreNotReported) {
  ASSERT_NO_FATAL_FAILURE(ConnectAndAttach());
  const std::vector<TestFrame*> frames = {Make(*near_, "a"), Make(*near_, "b", 1),
                                          Make(*near_, "c"), Make(*near_, "d")};
  near_->Send(frames);
  EXPECT_TRUE(Match(frames, far_->Take(4)));
  EXPECT_EQ(far_->log(), "FFPFF");
}

TEST_P(ProviderConformance, TheLargestMetadataArrives) {
  ASSERT_NO_FATAL_FAILURE(ConnectAndAttach());
  std::vector<TestFrame*> frames;
  for (int i = 0; i < 4; ++i) {
    frames.push_back(Make(*near_, AsText(RandomBytes(kMaxMetaBytes, 7)), i % 2 == 0 ? 0 : 100'000));
    frames.push_back(Make(*near_, "x"));
  }
  near_->Send(frames);
  EXPECT_TRUE(Match(frames, far_->Take(frames.size())));
}

TEST_P(ProviderConformance, ManySmallFramesOfOneTurnArrive) {
  ASSERT_NO_FATAL_FAILURE(ConnectAndAttach());
  std::vector<TestFrame*> frames;
  for (std::size_t i = 0; i < 5000; ++i) {
    frames.push_back(Make(*near_, std::to_string(i), i % 64));
  }
  near_->Send(frames);
  EXPECT_TRUE(Match(frames, far_->Take(frames.size())));
  EXPECT_TRUE(near_->AwaitSent(frames.size()));
  EXPECT_EQ(near_->sent(), AsSent(frames));
}

TEST_P(ProviderConformance, ALargePayloadArrives) {
  ASSERT_NO_FATAL_FAILURE(ConnectAndAttach());
  const std::vector<TestFrame*> frames = {Make(*near_, "large", large()), Make(*near_, "next")};
  near_->Send(frames);
  EXPECT_TRUE(Match(frames, far_->Take(2)));
}

TEST_P(ProviderConformance, BothDirectionsWorkAtOnce) {
  ASSERT_NO_FATAL_FAILURE(ConnectAndAttach());
  std::vector<TestFrame*> there;
  std::vector<TestFrame*> back;
  for (std::size_t i = 0; i < 16; ++i) {
    there.push_back(Make(*near_, "there " + std::to_string(i), large() / 32 + i));
    back.push_back(Make(*far_, "back " + std::to_string(i), large() / 32 + 31 * i));
  }
  near_->Send(there);
  far_->Send(back);
  EXPECT_TRUE(Match(there, far_->Take(there.size())));
  EXPECT_TRUE(Match(back, near_->Take(back.size())));
}

TEST_P(ProviderConformance, CallbacksMaySend) {
  constexpr int kRounds = 300;
  ASSERT_NO_FATAL_FAILURE(Connect());
  // Each end returns a frame from inside OnFrame; the far end adds a payload, and the near end
  // sends another frame after each sent one.
  far_->on_frame = [&](const std::string& meta, std::uint64_t) -> LaneEnd::Choice {
    if (meta != "ball") return Placement{};
    far_->lane().Send(Make(*far_, "back", 1000));
    return Placement{};
  };
  place_ = Scatter(std::vector<std::size_t>{1000});
  near_->on_frame = [&](const std::string&, std::uint64_t) -> LaneEnd::Choice {
    return Into(place_);
  };
  near_->on_payload = [&] {
    tally_.Add();
    if (tally_.count() < kRounds) near_->lane().Send(Make(*near_, "ball"));
    return Ok();
  };
  near_->on_sent = [&](OutFrame* frame) {
    if (AsText(frame->meta) == "ball") near_->lane().Send(Make(*near_, "echo"));
  };
  near_->Attach();
  far_->Attach();
  near_->Send(Make(*near_, "ball"));
  EXPECT_TRUE(tally_.AwaitAtLeast(kRounds));
}

TEST_P(ProviderConformance, FramesMayBeSentBeforeThePeerIsAttached) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  near_->Attach();
  const std::vector<TestFrame*> frames = {Make(*near_, "early", 1000), Make(*near_, "bird")};
  near_->Send(frames);
  EXPECT_TRUE(near_->AwaitSent(2));
  far_->Attach();
  EXPECT_TRUE(Match(frames, far_->Take(2)));
}

TEST_P(ProviderConformance, SentFramesAreReportedInOrderAndAreTheSendersAgain) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  near_->on_sent = [&](OutFrame* frame) {
    for (const iovec& piece : frame->payload) std::memset(piece.iov_base, 0, piece.iov_len);
    std::fill(frame->meta.begin(), frame->meta.end(), std::byte{0});
  };
  near_->Attach();
  far_->Attach();
  std::vector<TestFrame*> frames;
  for (std::size_t i = 0; i < 64; ++i) {
    frames.push_back(Make(*near_, "f" + std::to_string(i), i % 3 == 0 ? large() / 256 : i * 10));
    frames.back()->may_splice = false;
  }
  near_->Send(frames);
  EXPECT_TRUE(near_->AwaitSent(frames.size()));
  EXPECT_EQ(near_->sent(), AsSent(frames));
  const auto arrived = far_->Take(frames.size());
  ASSERT_EQ(arrived.size(), frames.size());
  for (std::size_t i = 0; i < frames.size(); ++i) {
    EXPECT_EQ(arrived[i].meta, "f" + std::to_string(i));
    EXPECT_TRUE(SameBytes(arrived[i].payload, frames[i]->content)) << i;
  }
}

// ---- placements ---------------------------------------------------------------------------------

TEST_P(ProviderConformance, ADiscardedPayloadIsReportedWhenItIsGoneAndTheNextFrameArrives) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  far_->on_frame = [](const std::string& meta, std::uint64_t) -> LaneEnd::Choice {
    if (meta.starts_with("drop")) return Discard();
    return std::nullopt;
  };
  near_->Attach();
  far_->Attach();
  const std::vector<TestFrame*> frames = {Make(*near_, "drop 1", large() / 4),
                                          Make(*near_, "a", 100), Make(*near_, "drop 2", 100),
                                          Make(*near_, "drop 3"), Make(*near_, "b", 70'000)};
  near_->Send(frames);
  EXPECT_TRUE(Match(std::vector{frames[1], frames[4]}, far_->Take(2)));
  EXPECT_EQ(far_->log(), "FPFPFPFFP");
}

TEST_P(ProviderConformance, APausedFrameIsOfferedAgainAfterEachResume) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  far_->on_frame = [&](const std::string& meta, std::uint64_t) -> LaneEnd::Choice {
    if (meta != "wait") return std::nullopt;
    tally_.Add();
    if (tally_.count() <= 3) return Pause();
    return std::nullopt;
  };
  near_->Attach();
  far_->Attach();
  std::vector<TestFrame*> frames = {Make(*near_, "first", 10), Make(*near_, "wait", large() / 8),
                                    Make(*near_, "after", 5000), Make(*near_, "last")};
  near_->Send(frames);
  for (int round = 1; round <= 3; ++round) {
    ASSERT_TRUE(tally_.AwaitAtLeast(round));
    // Whatever arrives meanwhile, a paused lane calls nothing.
    frames.push_back(Make(*near_, "more " + std::to_string(round)));
    near_->Send(frames.back());
    far_->Do([](Lane&) {});
    EXPECT_EQ(tally_.count(), round);
    EXPECT_EQ(far_->log(), "FP" + std::string(static_cast<std::size_t>(round), 'F'));
    far_->Do([](Lane& lane) { lane.Resume(); });
  }
  EXPECT_TRUE(Match(frames, far_->Take(frames.size())));
}

TEST_P(ProviderConformance, NothingIsLostByManyPauses) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  far_->on_frame = [this, offered = std::string()](const std::string& meta,
                                                   std::uint64_t) mutable -> LaneEnd::Choice {
    if (std::exchange(offered, meta) == meta) return std::nullopt;
    far_->loop()->Post([this] { far_->lane().Resume(); });
    return Pause();
  };
  near_->Attach();
  far_->Attach();
  std::vector<TestFrame*> frames;
  for (std::size_t i = 0; i < 200; ++i) {
    frames.push_back(Make(*near_, std::to_string(i), i % 2 == 0 ? i : i * 300));
  }
  near_->Send(frames);
  EXPECT_TRUE(Match(frames, far_->Take(frames.size())));
}

TEST_P(ProviderConformance, ResumeAndDiscardRestDoNothingAtOtherTimes) {
  ASSERT_NO_FATAL_FAILURE(ConnectAndAttach());
  std::vector<TestFrame*> frames;
  for (int i = 0; i < 20; ++i) {
    far_->Do([](Lane& lane) {
      lane.Resume();
      lane.DiscardRest();
    });
    frames.push_back(Make(*near_, std::to_string(i), 100));
    near_->Send(frames.back());
    EXPECT_TRUE(Match(std::span(frames).last(1), far_->Take(1)));
  }
}

TEST_P(ProviderConformance, DiscardRestLeavesTheMemoryAloneAndTheNextFrameArrives) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  place_ = Scatter(CutInto(large() / 2, std::vector<std::size_t>{100'000, 1, 1'000'000}));
  far_->on_frame = [&](const std::string& meta, std::uint64_t) -> LaneEnd::Choice {
    if (meta != "stop") return std::nullopt;
    far_->loop()->Post([&] {
      far_->lane().DiscardRest();
      place_.Store(Untouched(place_));
    });
    return Into(place_);
  };
  near_->Attach();
  far_->Attach();
  const std::vector<TestFrame*> frames = {Make(*near_, "stop", large() / 2),
                                          Make(*near_, "next", 100), Make(*near_, "last")};
  near_->Send(frames);
  EXPECT_TRUE(Match(std::span(frames).last(2), far_->Take(2)));
  EXPECT_EQ(far_->log(), "FPFPF");
  EXPECT_TRUE(SameBytes(place_.Load(), Untouched(place_)));
}

// ---- the end ------------------------------------------------------------------------------------

TEST_P(ProviderConformance, AnErrorFromOnFrameEndsTheLaneWithIt) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  far_->on_frame = [](const std::string&, std::uint64_t) -> LaneEnd::Choice {
    return Error(Code::kCorrupt, "frame of the third kind");
  };
  near_->Attach();
  far_->Attach();
  near_->Send(Make(*near_, "a", 100));
  const auto here = far_->AwaitClosed();
  ASSERT_TRUE(here);
  EXPECT_EQ(here->ToString(), "Corrupt: frame of the third kind");
  const auto there = near_->AwaitClosed();
  ASSERT_TRUE(there);
  EXPECT_EQ(there->code(), Code::kPeerLost);
  EXPECT_EQ(far_->log(), "FC");
}

TEST_P(ProviderConformance, AnErrorFromOnPayloadEndsTheLaneWithIt) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  place_ = Scatter(std::vector<std::size_t>{100});
  far_->on_frame = [&](const std::string&, std::uint64_t) -> LaneEnd::Choice {
    return Into(place_);
  };
  far_->on_payload = [] { return Error(Code::kRefused, "no more of this"); };
  near_->Attach();
  far_->Attach();
  near_->Send(std::vector{Make(*near_, "a", 100), Make(*near_, "b", 100)});
  const auto here = far_->AwaitClosed();
  ASSERT_TRUE(here);
  EXPECT_EQ(here->ToString(), "Refused: no more of this");
  ASSERT_TRUE(near_->AwaitClosed());
  EXPECT_EQ(far_->log(), "FPC");
}

TEST_P(ProviderConformance, TheEndIsReportedOnceAndLastToThePeerOnly) {
  ASSERT_NO_FATAL_FAILURE(ConnectAndAttach());
  const std::vector<TestFrame*> frames = {Make(*near_, "a", 100), Make(*near_, "b")};
  near_->Send(frames);
  EXPECT_TRUE(Match(frames, far_->Take(2)));
  EXPECT_TRUE(near_->AwaitSent(2));
  near_->Do([](Lane& lane) { lane.Close(Closing::kOrderly); });
  const auto closed = far_->AwaitClosed();
  ASSERT_TRUE(closed);
  EXPECT_EQ(closed->code(), Code::kPeerLost);
  EXPECT_FALSE(closed->message().empty());
  EXPECT_EQ(far_->loss(), LaneLoss::kPeerClosed);
  Destroy(&near_);
  far_->Do([](Lane& lane) { lane.Close(Closing::kOrderly); });
  EXPECT_EQ(far_->log(), "FPFC");
}

TEST_P(ProviderConformance, CloseDropsQueuedFramesAndNoCallbackFollows) {
  ASSERT_NO_FATAL_FAILURE(ConnectAndAttach());
  std::vector<TestFrame*> frames(8);
  for (TestFrame*& frame : frames) frame = Make(*near_, "a", large() / 8);
  near_->Do([&](Lane& lane) {
    for (TestFrame* frame : frames) lane.Send(frame);
    lane.Close(Closing::kOrderly);
    // The frames are the sender's again: the lane must not read them.
    for (TestFrame* frame : frames) *frame = TestFrame();
  });
  const auto closed = far_->AwaitClosed();
  ASSERT_TRUE(closed);
  EXPECT_EQ(closed->code(), Code::kPeerLost);
  EXPECT_EQ(near_->log(), "");
}

TEST_P(ProviderConformance, CloseMayComeFromInsideAnyCallback) {
  for (const char where : {'F', 'P', 'S'}) {
    ASSERT_NO_FATAL_FAILURE(Connect());
    place_ = Scatter(std::vector<std::size_t>{100});
    const auto close_in = [where](char callback, LaneEnd& end) {
      if (callback == where) end.lane().Close(Closing::kOrderly);
    };
    far_->on_frame = [&](const std::string&, std::uint64_t) -> LaneEnd::Choice {
      close_in('F', *far_);
      return Into(place_);
    };
    far_->on_payload = [&] {
      close_in('P', *far_);
      return where == 'P' ? Status(Error(Code::kInternal, "not to be reported")) : Ok();
    };
    far_->on_sent = [&](OutFrame*) { close_in('S', *far_); };
    near_->Attach();
    far_->Attach();
    near_->Send(std::vector{Make(*near_, "a", 100), Make(*near_, "b", 100)});
    if (where == 'S') far_->Send(std::vector{Make(*far_, "c"), Make(*far_, "d")});
    EXPECT_TRUE(near_->AwaitClosed());
    far_->Do([](Lane&) {});
    const std::string log = far_->log();
    ASSERT_FALSE(log.empty());
    EXPECT_EQ(log.back(), where) << log;
    EXPECT_EQ(std::count(log.begin(), log.end(), where), 1) << log;
    Destroy(&far_);
    Destroy(&near_);
  }
}

TEST_P(ProviderConformance, CloseInTheMiddleOfAPayloadLeavesTheMemoryAlone) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  place_ = Scatter(std::vector<std::size_t>{large() / 2});
  far_->on_frame = [&](const std::string&, std::uint64_t) -> LaneEnd::Choice {
    far_->loop()->Post([&] {
      far_->lane().Close(Closing::kOrderly);
      place_.Store(Untouched(place_));
    });
    return Into(place_);
  };
  near_->Attach();
  far_->Attach();
  near_->Send(Make(*near_, "a", large() / 2));
  EXPECT_TRUE(near_->AwaitClosed());
  far_->Do([](Lane&) {});
  EXPECT_EQ(far_->log(), "F");
  EXPECT_TRUE(SameBytes(place_.Load(), Untouched(place_)));
}

TEST_P(ProviderConformance, DestroyingALaneClosesIt) {
  ASSERT_NO_FATAL_FAILURE(ConnectAndAttach());
  near_->Send(Make(*near_, "a", large() / 8));
  Destroy(&near_);
  EXPECT_TRUE(far_->AwaitClosed());
}

TEST_P(ProviderConformance, DestroyingAnUnattachedLaneClosesIt) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  Destroy(&far_);
  near_->Attach();
  const auto closed = near_->AwaitClosed();
  ASSERT_TRUE(closed);
  EXPECT_EQ(closed->code(), Code::kPeerLost);
}

TEST_P(ProviderConformance, ALaneMayBeDestroyedAfterItsLoopHasStopped) {
  ASSERT_NO_FATAL_FAILURE(ConnectAndAttach());
  auto loop = EventLoop::Create();
  ASSERT_TRUE(loop);
  ASSERT_TRUE((*loop)->StartWorker("test-short"));
  near_->Do([&](Lane&) { near_->MoveTo(loop->get()); });
  near_->Send(Make(*near_, "a", large() / 8));
  (*loop)->Stop();
  near_->DestroyLaneHere();
  EXPECT_TRUE(far_->AwaitClosed());
}

// ---- moving -------------------------------------------------------------------------------------

TEST_P(ProviderConformance, AnIdleLaneMovesToAnotherLoopAndBack) {
  ASSERT_NO_FATAL_FAILURE(ConnectAndAttach());
  std::vector<TestFrame*> frames;
  for (std::size_t i = 0; i < 10; ++i) {
    far_->Do([&](Lane&) { far_->MoveTo(far_host_->loop(i % 2)); });
    near_->Do([&](Lane&) { near_->MoveTo(near_host_->loop(i / 2 % 2)); });
    frames.push_back(Make(*near_, std::to_string(i), 5000));
    near_->Send(frames.back());
    EXPECT_TRUE(Match(std::span(frames).last(1), far_->Take(1)));
  }
}

TEST_P(ProviderConformance, AMovingReceiverKeepsEveryByte) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  far_->on_frame = [&](const std::string& meta, std::uint64_t) -> LaneEnd::Choice {
    if (!meta.ends_with('0') || meta == std::to_string(moves_ * 10)) return std::nullopt;
    ++moves_;
    far_->loop()->Post([&] { far_->MoveTo(far_host_->loop(moves_ % 2)); });
    return Pause();
  };
  near_->Attach();
  far_->Attach();
  std::vector<TestFrame*> frames;
  for (std::size_t i = 1; i <= 300; ++i) {
    frames.push_back(Make(*near_, std::to_string(i), i % 7 == 0 ? 200'000 : i));
  }
  near_->Send(frames);
  EXPECT_TRUE(Match(frames, far_->Take(frames.size())));
  EXPECT_EQ(moves_, 30U);
}

TEST_P(ProviderConformance, AMovingSenderKeepsEveryByte) {
  ASSERT_NO_FATAL_FAILURE(ConnectAndAttach());
  std::vector<TestFrame*> frames;
  for (std::size_t i = 0; i < 60; ++i) {
    frames.push_back(Make(*near_, std::to_string(i), i % 10 == 0 ? large() / 32 : i));
  }
  near_->Send(std::span(frames).first(30));
  for (std::size_t i = 0; i < 30; ++i) {
    near_->Do([&](Lane& lane) {
      lane.Send(frames[30 + i]);
      near_->MoveTo(near_host_->loop(i % 2));
    });
  }
  EXPECT_TRUE(Match(frames, far_->Take(frames.size())));
  EXPECT_TRUE(near_->AwaitSent(frames.size()));
  EXPECT_EQ(near_->sent(), AsSent(frames));
}

TEST_P(ProviderConformance, TheEndReachesALaneThatHasMoved) {
  ASSERT_NO_FATAL_FAILURE(ConnectAndAttach());
  far_->Do([&](Lane&) { far_->MoveTo(far_host_->loop(1)); });
  Destroy(&near_);
  EXPECT_TRUE(far_->AwaitClosed());
}

// ---- reports ------------------------------------------------------------------------------------

TEST_P(ProviderConformance, InfoNamesBothEnds) {
  ASSERT_NO_FATAL_FAILURE(ConnectAndAttach());
  LaneInfo here;
  LaneInfo there;
  near_->Do([&](Lane& lane) { here = lane.Info(); });
  far_->Do([&](Lane& lane) { there = lane.Info(); });
  EXPECT_EQ(here.remote, address_.ToString());
  EXPECT_EQ(there.local, here.remote);
  EXPECT_EQ(there.remote, here.local);
  EXPECT_NE(here.local, here.remote);
  for (const LaneInfo& info : {here, there}) {
    EXPECT_FALSE(info.interface.empty());
    EXPECT_FALSE(info.congestion_control.empty());
    EXPECT_GT(info.send_buffer_bytes, 0U);
    EXPECT_GT(info.recv_buffer_bytes, 0U);
  }
}

TEST_P(ProviderConformance, BytesReceivedCountsWhatHasArrived) {
  ASSERT_NO_FATAL_FAILURE(ConnectAndAttach());
  std::uint64_t before = far_->lane().BytesReceived();
  for (int i = 0; i < 3; ++i) {
    near_->Send(Make(*near_, "a", 100'000));
    (void)far_->Take(1);
    const std::uint64_t after = far_->lane().BytesReceived();
    EXPECT_GE(after, before + 100'000);
    before = after;
  }
}

}  // namespace ferry::net
