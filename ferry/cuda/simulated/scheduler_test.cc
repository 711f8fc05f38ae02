// Tests of the threads that run the queued work of simulated streams.
#include "ferry/cuda/simulated/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ferry/core/units.h"
#include "ferry/cuda/address.h"
#include "ferry/cuda/testing/conformance.h"

namespace ferry::cuda {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// What kernels of a test note, in the order in which they ran.
class Notes {
 public:
  void Add(int number) {
    const std::lock_guard lock(mutex_);
    all_.push_back(number);
  }
  std::vector<int> all() {
    const std::lock_guard lock(mutex_);
    return all_;
  }

 private:
  std::mutex mutex_;
  std::vector<int> all_;
};
struct NoteArguments {
  Notes* notes;
  int number;
};
Status EmulateNote(EmulatedMemory& /*memory*/, const void* arguments) {
  const auto& note = *static_cast<const NoteArguments*>(arguments);
  note.notes->Add(note.number);
  return Ok();
}

class SimulatedSchedulerTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kSize = 100 * kKiB;

  void SetUp() override {
    memory_ = *SimulatedMemory::Create(2, kMiB, kMiB);
    Make({.seed = 3, .workers = 2, .max_delay = microseconds(50)});
    device_ = *memory_->AllocateDevice(0, kSize);
    pinned_ = *memory_->AllocatePinned(kSize);
  }
  void Make(const SimulatedScheduler::Options& options) {
    scheduler_ = std::make_unique<SimulatedScheduler>(*memory_, 2, options);
    FERRY_ASSERT_OK(scheduler_->Start());
  }
  StreamRef NewStream(int ordinal = 0) {
    return StreamRef::Foreign(ordinal, scheduler_->AddStream(ordinal));
  }
  static SimulatedWork Note(Notes* notes, int number) {
    const NoteArguments arguments{notes, number};
    SimulatedLaunch launch{{"note", nullptr, EmulateNote}, {}};
    constexpr std::size_t kUnit = sizeof(std::max_align_t);
    launch.arguments.resize((sizeof(NoteArguments) + kUnit - 1) / kUnit);
    std::memcpy(launch.arguments.data(), &arguments, sizeof arguments);
    return launch;
  }
  SimulatedWork ToDevice() const {
    return SimulatedCopy{CopyKind::kHostToDevice, {{device_, pinned_, kSize}}};
  }
  // A record behind all work of the stream.
  SharedRecord Mark(StreamRef stream) {
    auto record = std::make_shared<SimulatedRecord>();  // shared with the stream
    scheduler_->Push(stream, SimulatedRecording{record}, std::nullopt);
    return record;
  }
  bool EndsSoon(const SharedRecord& record) {
    for (const Deadline limit = Soon(); !scheduler_->IsDone(record);) {
      if (limit.expired()) return false;
      std::this_thread::yield();
    }
    return true;
  }
  bool BreaksSoon(int ordinal) {
    for (const Deadline limit = Soon(); !scheduler_->broken(ordinal);) {
      if (limit.expired()) return false;
      std::this_thread::yield();
    }
    return true;
  }

  std::unique_ptr<SimulatedMemory> memory_;
  void* device_ = nullptr;
  void* pinned_ = nullptr;
  Notes notes_;
  std::unique_ptr<SimulatedScheduler> scheduler_;  // its threads end before what they use
};

// ---- streams ------------------------------------------------------------------------------------

TEST_F(SimulatedSchedulerTest, KnowsAStreamOnItsDeviceOnly) {
  const StreamRef stream = NewStream(1);
  EXPECT_TRUE(scheduler_->Knows(stream));
  EXPECT_FALSE(scheduler_->Knows(StreamRef::Foreign(0, stream.native())));
  for (const int ordinal : {0, 1}) {
    EXPECT_TRUE(scheduler_->Knows(StreamRef::Foreign(ordinal, nullptr))) << "the default stream";
  }
  EXPECT_FALSE(scheduler_->Knows(StreamRef::Foreign(2, nullptr)));
  scheduler_->RemoveStream(stream.native());
  EXPECT_FALSE(scheduler_->Knows(stream));
}

TEST_F(SimulatedSchedulerTest, HandlesAreNotUsedAgain) {
  const StreamRef first = NewStream();
  scheduler_->RemoveStream(first.native());
  EXPECT_NE(NewStream().native(), first.native());
}

TEST_F(SimulatedSchedulerTest, AStreamThatIsRemovedFinishesItsWork) {
  const StreamRef stream = NewStream();
  scheduler_->Pause();
  for (const int number : {1, 2}) scheduler_->Push(stream, Note(&notes_, number), std::nullopt);
  const SharedRecord end = Mark(stream);
  scheduler_->RemoveStream(stream.native());
  EXPECT_FALSE(scheduler_->Knows(stream)) << "it takes nothing more";
  scheduler_->Resume();
  EXPECT_TRUE(EndsSoon(end));
  EXPECT_THAT(notes_.all(), ElementsAre(1, 2));
}

TEST_F(SimulatedSchedulerTest, DefaultStreamsOfTwoDevicesAreTwo) {
  scheduler_->Pause();
  scheduler_->Push(StreamRef::Foreign(0, nullptr), Note(&notes_, 1), std::nullopt);
  EXPECT_FALSE(scheduler_->IsIdle(StreamRef::Foreign(0, nullptr)));
  EXPECT_TRUE(scheduler_->IsIdle(StreamRef::Foreign(1, nullptr)));
  scheduler_->Resume();
  EXPECT_TRUE(EndsSoon(Mark(StreamRef::Foreign(0, nullptr))));
}

TEST_F(SimulatedSchedulerTest, NothingBeginsWhileItIsPaused) {
  const StreamRef stream = NewStream();
  scheduler_->Pause();
  scheduler_->Push(stream, Note(&notes_, 1), std::nullopt);
  const SharedRecord end = Mark(stream);
  for (int i = 0; i < 100; ++i) std::this_thread::yield();
  EXPECT_FALSE(scheduler_->IsDone(end));
  EXPECT_TRUE(notes_.all().empty());
  scheduler_->Resume();
  EXPECT_TRUE(EndsSoon(end));
}

TEST_F(SimulatedSchedulerTest, WorkThatIsQueuedIsDroppedAtTheEnd) {
  const StreamRef stream = NewStream();
  scheduler_->Pause();
  scheduler_->Push(stream, Note(&notes_, 1), std::nullopt);
  const SharedRecord end = Mark(stream);
  scheduler_.reset();
  EXPECT_FALSE(end->done);
  EXPECT_TRUE(notes_.all().empty());
}

// ---- order --------------------------------------------------------------------------------------

TEST_F(SimulatedSchedulerTest, WorkWaitsForARecordOfAnotherStream) {
  const StreamRef first = NewStream(0);
  const StreamRef second = NewStream(1);
  for (int round = 0; round < 20; ++round) {
    Notes notes;
    scheduler_->Push(first, Note(&notes, 1), std::nullopt);
    const SharedRecord passed = Mark(first);
    scheduler_->Push(second, SimulatedWait{passed}, std::nullopt);
    scheduler_->Push(second, Note(&notes, 2), std::nullopt);
    ASSERT_TRUE(EndsSoon(Mark(second)));
    ASSERT_THAT(notes.all(), ElementsAre(1, 2));
  }
}

TEST_F(SimulatedSchedulerTest, TimeBetweenRecordsIsNotNegative) {
  const StreamRef stream = NewStream();
  const SharedRecord from = Mark(stream);
  scheduler_->Push(stream, ToDevice(), std::nullopt);
  const SharedRecord to = Mark(stream);
  ASSERT_TRUE(EndsSoon(to));
  EXPECT_GE(scheduler_->Between(from, to).count(), 0);
  EXPECT_LE(scheduler_->Between(to, from).count(), 0);
}

TEST_F(SimulatedSchedulerTest, AFlagIsReachedByItsValueOrALaterOneAcrossTheEndOfTheRange) {
  auto* const flag = static_cast<std::byte*>(pinned_);
  const StreamRef stream = NewStream();
  for (const std::uint32_t value : {1U, 0x80000000U, ~0U, 0U}) {
    StoreFlag(flag, value - 1);
    scheduler_->Push(stream, SimulatedFlagWait{AddressOf(flag), value}, std::nullopt);
    const SharedRecord passed = Mark(stream);
    for (int i = 0; i < 20; ++i) std::this_thread::yield();
    EXPECT_FALSE(scheduler_->IsDone(passed)) << value;
    StoreFlag(flag, value + 5);
    EXPECT_TRUE(EndsSoon(passed)) << value;
  }
}

TEST_F(SimulatedSchedulerTest, AStreamWritesAFlagThatAnotherWaitsFor) {
  const StreamRef writer = NewStream();
  const StreamRef reader = NewStream();
  const std::uint64_t flag = AddressOf(device_);
  scheduler_->Push(writer, SimulatedFlagWrite{flag, 0}, std::nullopt);
  ASSERT_TRUE(EndsSoon(Mark(writer)));
  scheduler_->Push(reader, SimulatedFlagWait{flag, 7}, std::nullopt);
  scheduler_->Push(reader, Note(&notes_, 2), std::nullopt);
  const SharedRecord end = Mark(reader);
  scheduler_->Push(writer, Note(&notes_, 1), std::nullopt);
  scheduler_->Push(writer, SimulatedFlagWrite{flag, 7}, std::nullopt);
  EXPECT_TRUE(EndsSoon(end));
  EXPECT_THAT(notes_.all(), ElementsAre(1, 2));
}

// ---- copies -------------------------------------------------------------------------------------

TEST_F(SimulatedSchedulerTest, ADestinationHoldsPoisonUntilItsCopyRuns) {
  const auto held = memory_->Hold(Reach::kDevice, 0, AddressOf(device_), kSize);
  ASSERT_TRUE(held);
  std::memset(pinned_, 1, kSize);
  const StreamRef stream = NewStream();
  scheduler_->Pause();
  scheduler_->Push(stream, ToDevice(), std::nullopt);
  EXPECT_THAT(held->bytes(), Each(kPoisonPending)) << "at once, as the stream was idle";
  scheduler_->Resume();
  ASSERT_TRUE(EndsSoon(Mark(stream)));
  EXPECT_THAT(held->bytes(), Each(std::byte{1}));
}

// ---- lost devices -------------------------------------------------------------------------------

TEST_F(SimulatedSchedulerTest, WorkThatIsToldToFailBreaksItsDeviceAlone) {
  const StreamRef stream = NewStream(0);
  const StreamRef other = NewStream(1);
  scheduler_->Push(stream, Note(&notes_, 1), Fault::kLaunchFailure);
  scheduler_->Push(stream, Note(&notes_, 2), std::nullopt);
  ASSERT_TRUE(BreaksSoon(0));
  EXPECT_EQ(scheduler_->broken(0)->fault, Fault::kLaunchFailure);
  EXPECT_FALSE(scheduler_->broken(1));
  EXPECT_TRUE(scheduler_->IsIdle(stream)) << "its work is dropped";
  EXPECT_TRUE(EndsSoon(Mark(other)));
  EXPECT_TRUE(notes_.all().empty());
}

TEST_F(SimulatedSchedulerTest, TheFirstFailureOfADeviceIsKept) {
  scheduler_->Break(0, {Fault::kIllegalAddress, "the first"});
  scheduler_->Break(0, {Fault::kLaunchFailure, "the second"});
  ASSERT_TRUE(scheduler_->broken(0));
  EXPECT_EQ(scheduler_->broken(0)->fault, Fault::kIllegalAddress);
  EXPECT_EQ(scheduler_->broken(0)->tried, "the first");
}

TEST_F(SimulatedSchedulerTest, WorkOfABrokenDeviceIsDroppedAndWaitsForItEnd) {
  const StreamRef lost = NewStream(0);
  const StreamRef other = NewStream(1);
  scheduler_->Pause();
  scheduler_->Push(lost, Note(&notes_, 1), std::nullopt);
  const SharedRecord never = Mark(lost);
  scheduler_->Push(other, SimulatedWait{never}, std::nullopt);
  const SharedRecord end = Mark(other);
  scheduler_->Break(0, {Fault::kIllegalAddress, "a test"});
  scheduler_->Resume();
  EXPECT_TRUE(EndsSoon(end)) << "the other device does not wait for work that is gone";
  EXPECT_FALSE(scheduler_->IsDone(never));
  scheduler_->Push(lost, Note(&notes_, 2), std::nullopt);
  EXPECT_TRUE(scheduler_->IsIdle(lost));
  EXPECT_TRUE(notes_.all().empty());
}

TEST_F(SimulatedSchedulerTest, MemoryThatGoesBeforeItsWorkIsAnIllegalAccess) {
  struct {
    SimulatedWork work;
    const char* tried;
  } const cases[] = {
      {ToDevice(), "copying to"},
      {SimulatedFlagWrite{AddressOf(device_), 1}, "writing a flag"},
      {SimulatedFlagWait{AddressOf(device_), 1}, "waiting for a flag"},
  };
  memory_->Release(Resource::kDeviceMemory, device_);
  for (const auto& [work, tried] : cases) {
    Make({.seed = 3, .workers = 2, .max_delay = microseconds(50)});
    scheduler_->Push(NewStream(), work, std::nullopt);
    ASSERT_TRUE(BreaksSoon(0)) << tried;
    EXPECT_EQ(scheduler_->broken(0)->fault, Fault::kIllegalAddress);
    EXPECT_THAT(scheduler_->broken(0)->tried, HasSubstr(tried));
    EXPECT_THAT(scheduler_->broken(0)->tried, HasSubstr("freed"));
  }
}

}  // namespace
}  // namespace ferry::cuda
