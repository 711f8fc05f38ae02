// Tests the order of operations and GPU streams that wait for each other.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ferry/cuda/open_devices.h"
#include "ferry/cuda/simulated/devices.h"
#include "ferry/cuda/testing/conformance.h"
#include "ferry/transfer/gpu/stream_wait.h"
#include "ferry/transfer/testing/any_options.h"
#include "ferry/transfer/testing/device_mirror.h"
#include "ferry/transfer/testing/linked_endpoints.h"

// Operations that wait for GPU streams, and streams that wait for operations.
namespace ferry::transfer {
namespace {

constexpr std::size_t kStreamBytes = 100'000;
constexpr std::uint64_t kTag = 17;

// GPU memory on the near side, host memory on the far side, and a stream that others wait for.
// While a stream is stopped nothing here copies on another stream, except for the endpoints, and
// nothing frees memory: on a GPU that might wait for the stream (docs/gotchas.md).
class StreamOrderBase : public ::testing::Test {
 protected:
  void Prepare(const std::string& devices) {
    EXPECT_TRUE(config_.Set("devices", devices)) << devices;
    config_.stage_slice_bytes = 4096;
    config_.stage_bytes = 64 * 1024;
    const auto api = cuda::OpenDevices(config_);
    if (!api) GTEST_SKIP() << api.error().message();
    api_ = *api;
    if (!Must(cuda::ProbeFlags(*api_, 0))) GTEST_SKIP() << "streams cannot wait for flags";
    if (StreamWait::MaxStreams() < 4) GTEST_SKIP() << "too few streams can wait";
    link_ = MakeLink(config_);
    memory_.emplace(api_, 0, kStreamBytes, 1);
    pinned_ = Must(api_->AllocatePinned(0, kStreamBytes));
    stream_ = NewStream();
    local_.emplace(Must(link_.near.endpoint->Register(memory_->span(), Rights::kNone)));
    remote_.emplace(Must(link_.far.endpoint->Register(peer_.span(), Rights::kReadWrite)));
    key_ = remote_->remote();
  }
  void TearDown() override {
    if (gate_) gate_->Open();
    // On a lost device it never ends.
    if (stream_ && !api_->IsLost(0)) {
      EXPECT_TRUE(api_->Wait(stream_, Soon()));
    }
  }

  cuda::Stream NewStream() { return Must(api_->CreateStream(0, cuda::StreamPriority::kNormal)); }
  // Work queued on stream_ from now on does not begin before gate_->Open().
  void Close() { gate_ = Must(cuda::StreamGate::Close(*api_, stream_)); }
  void QueueUpload(void* from) {
    const cuda::CopyItem item{memory_->span().data(), from, kStreamBytes};
    EXPECT_TRUE(api_->Copy(stream_, cuda::CopyKind::kHostToDevice, {&item, 1}));
  }
  void QueueUpload(const std::vector<std::byte>& bytes) {
    std::memcpy(pinned_.data(), bytes.data(), kStreamBytes);
    QueueUpload(pinned_.data());
  }
  void QueueDownload(cuda::StreamRef stream, void* to) {
    const cuda::CopyItem item{to, memory_->span().data(), kStreamBytes};
    EXPECT_TRUE(api_->Copy(stream, cuda::CopyKind::kDeviceToHost, {&item, 1}));
  }
  std::vector<std::byte> InPinned() const {
    return {pinned_.bytes().begin(), pinned_.bytes().end()};
  }
  AnyOptions After(milliseconds deadline = std::chrono::seconds(30)) const {
    return {.deadline = Deadline::After(deadline), .after = stream_};
  }
  Connection& near() { return *link_.near.connection; }
  Connection& far() { return *link_.far.connection; }
  Operation Write(const Region& local, const WriteOptions& options) {
    return Must(near().Write(Must(near().PrepareWrite(Whole(local))), options));
  }
  Operation Write(const WriteOptions& options) { return Write(*local_, options); }
  Operation Read(const ReadOptions& options) {
    return Must(near().Read(Must(near().PrepareRead(Whole(*local_))), options));
  }
  // Returns once an operation that waited for the stream before this call would have begun if it
  // could.
  ::testing::AssertionResult StreamIsLookedAt() {
    return EndsOk(near().Notify(BytesOf("looked"), After()));
  }

  Config config_ = SmallSlices();
  cuda::DeviceApi* api_ = nullptr;
  std::unique_ptr<cuda::StreamGate> gate_;
  cuda::Stream stream_;
  std::optional<MirroredMemory> memory_;
  GuardedMemory peer_{kStreamBytes, 2};
  cuda::PinnedBuffer pinned_;
  Link link_;
  std::optional<Region> local_;   // registration of memory_
  std::optional<Region> remote_;  // registration of peer_

 private:
  std::vector<TransferPart> Whole(const Region& local) const {
    std::vector<TransferPart> parts(1);
    parts[0] = {&local, &key_, {}};
    parts[0].blocks.Add({.dst = 0, .src = 0, .len = kStreamBytes});
    return parts;
  }
  RemoteRegion key_;
};

class StreamOrderTest : public StreamOrderBase, public ::testing::WithParamInterface<DevicesCase> {
 protected:
  void SetUp() override { Prepare(GetParam().devices); }
};

// ---- operations that wait for a stream ----------------------------------------------------------

TEST_P(StreamOrderTest, AWriteBeginsWhenItsStreamHasComeSoFar) {
  const auto before = peer_.Copy();
  const auto fresh = RandomBytes(kStreamBytes, 9);
  Close();
  QueueUpload(fresh);
  Operation write = Write(After());
  EXPECT_TRUE(Works(&link_));  // anything that was to be sent has been sent
  EXPECT_FALSE(write.Poll());
  EXPECT_TRUE(SameBytes(peer_.Copy(), before));
  gate_->Open();
  EXPECT_TRUE(EndsOk(write));
  EXPECT_TRUE(SameBytes(peer_.Copy(), fresh));
}

TEST_P(StreamOrderTest, AReadDoesNotOverwriteWhatItsStreamStillReads) {
  const auto old = memory_->Copy();
  Close();
  QueueDownload(stream_, pinned_.data());
  Operation read = Read(After());
  EXPECT_TRUE(Works(&link_));
  EXPECT_FALSE(read.Poll());
  gate_->Open();
  EXPECT_TRUE(EndsOk(read));
  EXPECT_EQ(InPinned(), old);
  EXPECT_TRUE(SameBytes(memory_->Copy(), peer_.Copy()));
}

TEST_P(StreamOrderTest, MessagesAreSentAndReceivedWhenTheirStreamsHaveComeSoFar) {
  const auto message = RandomBytes(kStreamBytes, 8);
  const auto fresh = RandomBytes(kStreamBytes, 9);
  const auto before = peer_.Copy();
  Close();
  QueueUpload(fresh);
  Operation send = Must(near().Send(kTag, memory_->span(), After()));
  Operation receive = Must(near().Recv(kTag, kWholeTag, pinned_.bytes(), After()));
  Operation arrives = Must(far().Recv(kTag, kWholeTag, peer_.span()));
  Operation answer = Must(far().Send(kTag, message));
  EXPECT_TRUE(Works(&link_));
  EXPECT_FALSE(send.Poll());
  EXPECT_FALSE(receive.Poll());
  EXPECT_TRUE(SameBytes(peer_.Copy(), before));
  EXPECT_EQ(InPinned(), fresh);
  gate_->Open();
  EXPECT_TRUE(EndsOk(send));
  EXPECT_TRUE(EndsOk(arrives));
  EXPECT_TRUE(SameBytes(peer_.Copy(), fresh));
  EXPECT_TRUE(EndsOk(receive));
  EXPECT_TRUE(EndsOk(answer));
  EXPECT_EQ(InPinned(), message);
}

TEST_P(StreamOrderTest, HostMemoryThatAStreamFillsIsSentAfterwards) {
  const Region pinned = Must(link_.near.endpoint->Register(pinned_.bytes(), Rights::kNone));
  Close();
  QueueDownload(stream_, pinned_.data());
  Operation write = Write(pinned, After());
  Operation notify = Must(near().Notify(BytesOf("filled"), After()));
  EXPECT_TRUE(Works(&link_));
  EXPECT_FALSE(write.Poll());
  EXPECT_FALSE(notify.Poll());
  EXPECT_FALSE(far().TakeNotification(Now()));
  gate_->Open();
  EXPECT_TRUE(EndsOk(write));
  EXPECT_TRUE(EndsOk(notify));
  EXPECT_TRUE(SameBytes(peer_.Copy(), memory_->Copy()));
  EXPECT_EQ(TextOf(Must(far().TakeNotification(Soon()))), "filled");
}

TEST_P(StreamOrderTest, WhoWaitsForItsStreamEndsByCancelAndDeadlineAndNeverBegins) {
  const auto before = peer_.Copy();
  Close();
  Operation cancelled = Write(After());
  Operation late = Write(After(milliseconds(1000)));
  const cuda::Stream reader = NewStream();
  ASSERT_TRUE(late.MakeStreamWait(reader));
  cancelled.Cancel();
  EXPECT_TRUE(EndsWith(Code::kCancelled, cancelled));
  EXPECT_TRUE(EndsWith(Code::kTimedOut, late));
  EXPECT_TRUE(api_->Wait(reader, Soon()));
  local_.reset();  // nobody is inside
  gate_->Open();
  EXPECT_TRUE(StreamIsLookedAt());
  EXPECT_TRUE(Works(&link_));
  EXPECT_TRUE(SameBytes(peer_.Copy(), before));
}

TEST_P(StreamOrderTest, WhoWaitsForItsStreamEndsWithThePeer) {
  Close();
  Operation write = Write(After());
  Operation receive = Must(near().Recv(kTag, kWholeTag, memory_->span(), After()));
  const cuda::Stream reader = NewStream();
  ASSERT_TRUE(write.MakeStreamWait(reader));
  remote_.reset();
  link_.far.connection.reset();
  link_.far.endpoint.reset();
  EXPECT_TRUE(EndsWith(Code::kPeerLost, write));
  EXPECT_TRUE(EndsWith(Code::kPeerLost, receive));
  EXPECT_TRUE(api_->Wait(reader, Soon()));
  EXPECT_EQ(near().Notify(BytesOf("?"), After()).error().code(), Code::kPeerLost);
}

TEST_P(StreamOrderTest, WhoWaitsForItsStreamEndsWithTheConnection) {
  Close();
  Operation write = Write(After());
  near().Close();
  EXPECT_TRUE(EndsWith(Code::kCancelled, write));
}

TEST_P(StreamOrderTest, WhoWaitsForItsStreamEndsWithTheEndpoint) {
  Link other = MakeLink(config_);
  GuardedMemory memory(kStreamBytes);
  const cuda::Stream reader = NewStream();
  Close();
  {
    Operation send = Must(other.near.connection->Send(kTag, memory.span(), After()));
    Operation receive = Must(other.near.connection->Recv(kTag, kWholeTag, memory.span(), After()));
    ASSERT_TRUE(receive.MakeStreamWait(reader));
    other.near.endpoint.reset();
    EXPECT_TRUE(EndsWith(Code::kCancelled, send));
    EXPECT_TRUE(EndsWith(Code::kCancelled, receive));
  }
  EXPECT_TRUE(api_->Wait(reader, Soon()));
  other.near.connection.reset();  // the last owner of the endpoint's state and its watch
}

// ---- streams that wait for an operation ---------------------------------------------------------

TEST_P(StreamOrderTest, AStreamThatIsHeldBackSeesTheBytes) {
  const cuda::Stream reader = NewStream();
  Close();
  Operation read = Read(After());
  ASSERT_TRUE(read.MakeStreamWait(reader));
  QueueDownload(reader, pinned_.data());
  EXPECT_TRUE(Works(&link_));
  EXPECT_FALSE(*api_->Query(reader));
  gate_->Open();
  EXPECT_TRUE(api_->Wait(reader, Soon()));
  EXPECT_EQ(InPinned(), peer_.Copy());
  EXPECT_TRUE(EndsOk(read));
  // An operation that has ended blocks no stream.
  ASSERT_TRUE(read.MakeStreamWait(reader));
  EXPECT_TRUE(api_->Wait(reader, Soon()));
}

// The host only queues: an upload, a write of it, another upload over it, a read of the written
// data, a download; and repeats that.
TEST_P(StreamOrderTest, CopiesAndOperationsOfOneStreamFollowEachOther) {
  constexpr std::size_t kRounds = 8;
  const auto sent = Must(api_->AllocatePinned(0, kRounds * kStreamBytes));
  const auto seen = Must(api_->AllocatePinned(0, kRounds * kStreamBytes));
  const auto all = RandomBytes(kRounds * kStreamBytes, 10);
  std::memcpy(sent.data(), all.data(), all.size());
  for (std::size_t at = 0; at < all.size(); at += kStreamBytes) {
    QueueUpload(sent.bytes().subspan(at).data());
    ASSERT_TRUE(Write(After()).MakeStreamWait(stream_));
    QueueUpload(pinned_.data());
    ASSERT_TRUE(Read(After()).MakeStreamWait(stream_));
    QueueDownload(stream_, seen.bytes().subspan(at).data());
  }
  ASSERT_TRUE(api_->Wait(stream_, Soon()));
  for (std::size_t at = 0; at < all.size(); at += kStreamBytes) {
    EXPECT_EQ(std::memcmp(seen.bytes().subspan(at).data(), all.data() + at, kStreamBytes), 0) << at;
  }
}

TEST_P(StreamOrderTest, AsManyStreamsAsMayAreHeldAndLetGo) {
  std::vector<cuda::Stream> readers;
  for (std::uint32_t i = 0; i < StreamWait::MaxStreams(); ++i) readers.push_back(NewStream());
  for (int round = 0; round < 50; ++round) {
    std::vector<Operation> writes;
    for (const cuda::Stream& reader : readers) {
      writes.push_back(Write({}));
      ASSERT_TRUE(writes.back().MakeStreamWait(reader));
      ASSERT_TRUE(writes.front().MakeStreamWait(reader));
    }
    for (const cuda::Stream& reader : readers) EXPECT_TRUE(api_->Wait(reader, Soon()));
    for (const Operation& write : writes) EXPECT_TRUE(EndsOk(write));
  }
  EXPECT_TRUE(SameBytes(peer_.Copy(), memory_->Copy()));
}

TEST_P(StreamOrderTest, MoreStreamsThanMayAreRefusedUntilOneIsLetGo) {
  std::vector<cuda::Stream> readers;
  for (std::uint32_t i = 0; i < StreamWait::MaxStreams(); ++i) readers.push_back(NewStream());
  Operation first = Must(near().Recv(kTag, kWholeTag, {}));
  Operation others = Must(near().Recv(kTag + 1, kWholeTag, {}));
  ASSERT_TRUE(first.MakeStreamWait(readers.front()));
  for (std::size_t i = 1; i < readers.size(); ++i) ASSERT_TRUE(others.MakeStreamWait(readers[i]));
  ASSERT_TRUE(others.MakeStreamWait(readers.back()));  // the same stream again
  const Status refused = others.MakeStreamWait(stream_);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kUnavailable);
  EXPECT_TRUE(EndsOk(Write({})));  // the GPU's copies continue
  first.Cancel();
  EXPECT_TRUE(EndsWith(Code::kCancelled, first));
  ASSERT_TRUE(others.MakeStreamWait(stream_));
  others.Cancel();
  for (const cuda::Stream& reader : readers) EXPECT_TRUE(api_->Wait(reader, Soon()));
}

// The stream begins its wait long after the operation and its endpoint are destroyed.
TEST_P(StreamOrderTest, AStreamMayLookWhenTheEndpointIsGone) {
  Link other = MakeLink(config_);
  Close();
  ASSERT_TRUE(
      Must(other.near.connection->Recv(kTag, kWholeTag, {}, After())).MakeStreamWait(stream_));
  QueueUpload(RandomBytes(kStreamBytes, 9));
  other = Link();
  EXPECT_TRUE(Works(&link_));
  EXPECT_FALSE(*api_->Query(stream_));
  gate_->Open();
  ASSERT_TRUE(api_->Wait(stream_, Soon()));
  EXPECT_TRUE(SameBytes(memory_->Copy(), RandomBytes(kStreamBytes, 9)));
}

TEST_P(StreamOrderTest, ThreadsMayPostAndHoldAtOnce) {
  std::vector<cuda::Stream> streams;
  for (int i = 0; i < 3; ++i) streams.push_back(NewStream());
  std::vector<std::thread> threads;
  for (const cuda::Stream& mine : streams) {
    threads.emplace_back([this, &mine] {
      for (int round = 0; round < 30; ++round) {
        WriteOptions options = After();
        options.after = round % 2 == 0 ? cuda::StreamRef(stream_) : cuda::StreamRef(mine);
        Operation write = Write(options);
        EXPECT_TRUE(write.MakeStreamWait(mine));
        EXPECT_TRUE(write.MakeStreamWait(stream_));
        if (round % 5 == 0) write.Cancel();
        if (round % 3 == 0) (void)write.Wait(Soon());
      }
      EXPECT_TRUE(api_->Wait(mine, Soon()));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(api_->Wait(stream_, Soon()));
  EXPECT_TRUE(Works(&link_));
}

INSTANTIATE_TEST_SUITE_P(Simulated, StreamOrderTest, ::testing::ValuesIn(kSimulatedDevices),
                         DevicesCaseName);
INSTANTIATE_TEST_SUITE_P(Gpu, StreamOrderTest, ::testing::Values(kRealDevices), DevicesCaseName);

// ---- what fails ---------------------------------------------------------------------------------

// A lost device stays lost: each test has its own devices.
class StreamFailureTest : public StreamOrderBase {
 protected:
  void PrepareSimulated(const std::string& devices) {
    Prepare(devices);
    simulated_ = dynamic_cast<cuda::SimulatedDevices*>(api_);
    ASSERT_NE(simulated_, nullptr);
  }
  cuda::SimulatedDevices* simulated_ = nullptr;
};

TEST_F(StreamFailureTest, AStreamWhoseDeviceIsLostEndsWhatWaitsForIt) {
  PrepareSimulated("simulated:2:601");
  Close();
  const Operation write = Write(After());
  const cuda::Stream reader = NewStream();
  ASSERT_TRUE(Operation(write).MakeStreamWait(reader));
  const cuda::Stream other = Must(api_->CreateStream(1, cuda::StreamPriority::kNormal));
  ASSERT_TRUE(Operation(write).MakeStreamWait(other));
  simulated_->Inject(
      {.ordinal = 0, .at = cuda::FaultPoint::kCopy, .fault = cuda::Fault::kIllegalAddress});
  const cuda::Stream broken = NewStream();
  QueueDownload(broken, pinned_.data());
  EXPECT_TRUE(EndsWith(Code::kDeviceLost, write));
  EXPECT_NE(EndMessage(write).find("stream"), std::string::npos) << EndMessage(write);
  EXPECT_TRUE(api_->Wait(other, Soon()));
  EXPECT_EQ(near().Notify(BytesOf("?"), After()).error().code(), Code::kDeviceLost);
  EXPECT_TRUE(Works(&link_));
  // A stream of the other device, with words that were allocated through the lost one.
  std::vector<std::byte> nothing(10);
  Operation receive = Must(near().Recv(kTag, kWholeTag, nothing));
  EXPECT_EQ(receive.MakeStreamWait(stream_).error().code(), Code::kDeviceLost);
  ASSERT_TRUE(receive.MakeStreamWait(other));
  EXPECT_FALSE(*api_->Query(other));
  receive.Cancel();
  EXPECT_TRUE(api_->Wait(other, Soon()));
}

TEST_F(StreamFailureTest, MoreHoldsThanThereAreAreRefusedUntilSomeAreReleased) {
  PrepareSimulated("simulated:1:602");
  std::vector<std::byte> nothing(10);
  Operation first = Must(near().Recv(kTag, kWholeTag, nothing));
  Operation second = Must(near().Recv(kTag + 1, kWholeTag, nothing));
  ASSERT_TRUE(first.MakeStreamWait(stream_));
  for (std::uint32_t i = 1; i < StreamWait::kMax; ++i) ASSERT_TRUE(second.MakeStreamWait(stream_));
  const Status refused = second.MakeStreamWait(stream_);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kUnavailable);
  first.Cancel();
  EXPECT_TRUE(EndsWith(Code::kCancelled, first));
  ASSERT_TRUE(second.MakeStreamWait(stream_));
  EXPECT_EQ(second.MakeStreamWait(stream_).error().code(), Code::kUnavailable);
  second.Cancel();
  EXPECT_TRUE(api_->Wait(stream_, Soon()));
}

TEST_F(StreamFailureTest, AHoldThatTheDeviceRefusesLeavesTheOperation) {
  PrepareSimulated("simulated:1:603");
  Close();
  Operation write = Write(After());
  simulated_->Inject(
      {.ordinal = 0, .at = cuda::FaultPoint::kFlag, .fault = cuda::Fault::kNotSupported});
  EXPECT_EQ(write.MakeStreamWait(stream_).error().code(), Code::kUnsupported);
  simulated_->Inject(
      {.ordinal = 0, .at = cuda::FaultPoint::kEvent, .fault = cuda::Fault::kMemoryAllocation});
  EXPECT_EQ(near().Notify(BytesOf("?"), After()).error().code(), Code::kUnavailable);
  gate_->Open();
  EXPECT_TRUE(EndsOk(write));
  EXPECT_TRUE(StreamIsLookedAt());
  EXPECT_TRUE(SameBytes(peer_.Copy(), memory_->Copy()));
}

TEST(StreamOrderWithoutDevices, IsAnErrorOfTheCall) {
  Config config = SmallSlices();
  config.devices = DeviceChoice::None();
  Link link = MakeLink(config);
  const auto message = BytesOf("hello");
  SendOptions options;
  options.after = cuda::StreamRef::Foreign(0, nullptr);
  const auto refused = link.near.connection->Send(kTag, message, options);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kUnsupported);
  std::vector<std::byte> nothing(10);
  Operation receive = Must(link.near.connection->Recv(kTag, kWholeTag, nothing));
  EXPECT_EQ(receive.MakeStreamWait(*options.after).error().code(), Code::kUnsupported);
  EXPECT_TRUE(Works(&link));
}

}  // namespace
}  // namespace ferry::transfer
