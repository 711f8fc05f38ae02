// Tests of messages whose rows the GPU reads, on simulated devices and GPUs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ferry/copy/testing/copy_bed.h"
#include "ferry/core/testing/random_bytes.h"
#include "ferry/cuda/testing/device_target.h"
#include "ferry/tcpx/unpack/rows_kernel.h"
#include "ferry/tcpx/unpack/testing/spoiled_message.h"
#include "ferry/tcpx/unpack/unpacker.h"

namespace ferry::tcpx {
namespace {

using ::testing::HasSubstr;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kRowsMessage = 60'000;  // every touched byte costs time
#else
constexpr std::uint64_t kRowsMessage = 512 * 1024 + 9;
#endif
constexpr std::size_t kRowsGuard = 100;
constexpr auto kRowsTimeout = std::chrono::seconds(60);

// Device memory that is filled from the host, and looked at there.
class Mirror {
 public:
  Mirror(CopyBed* bed, std::size_t bytes, std::uint64_t seed)
      : bed_(bed), memory_(bed->Make(bytes, true, seed)) {}
  std::span<std::byte> host() { return memory_.host.bytes(); }
  Place place() const { return memory_.place; }
  void Upload() {
    const cuda::CopyItem item{memory_.device.data(), memory_.host.data(), memory_.host.size()};
    Must(bed_->api().Copy(bed_->stream(), cuda::CopyKind::kHostToDevice, {&item, 1}));
    bed_->Finish();
  }
  void Download() { bed_->Look(&memory_); }

 private:
  CopyBed* bed_;
  CopyBed::Memory memory_;
};

// A message in a pool on the GPU, its rows in pinned memory, and its destination with poison around
// what may be written.
struct RowsCase {
  std::vector<Fragment> fragments;
  std::vector<PostedRun> runs;
  std::uint64_t pool_bytes = 0;
  std::uint64_t bytes = 0;
  std::optional<Mirror> pool;
  std::optional<Mirror> place;
  CopyBed::Memory rows;
  std::uint64_t pool_skip = 0;
  std::uint64_t place_skip = 0;
  std::vector<std::byte> before;
  std::vector<std::byte> expected;

  PostedReceive receive() const { return {pool_bytes, bytes, runs}; }
};

class RowsTest : public ::testing::TestWithParam<cuda::DeviceCase> {
 protected:
  void SetUp() override {
    target_ = GetParam().make();
    if (const std::string why = target_->Unavailable(); !why.empty()) GTEST_SKIP() << why;
    bed_.emplace(&target_->api());
    unpacker_ = Must(Unpacker::Create(&api(), 0));
  }
  // Destroys the queued work before the memory that it uses.
  void TearDown() override { unpacker_.reset(); }

  cuda::DeviceApi& api() { return target_->api(); }

  static void WriteRows(RowsCase* made) {
    if (made->fragments.empty()) return;
    std::memcpy(made->rows.host.data(), made->fragments.data(),
                made->fragments.size() * sizeof(Fragment));
  }
  RowsRequest RequestOf(const RowsCase& made) {
    // The mapped address of the rows.
    const auto* rows = reinterpret_cast<const Fragment*>(made.rows.place.mapped);
    return {rows, made.fragments.size(), made.receive(), made.place->place() + made.place_skip,
            made.pool->place() + made.pool_skip};
  }

  RowsCase Make(const std::vector<std::uint32_t>& lengths, bool in_order,
                const std::vector<std::uint32_t>& run_lengths = {}) {
    const std::uint64_t seed = ++seed_;
    RowsCase made;
    const Scattered scattered =
        Scatter(lengths, {.seed = seed, .begin = seed % 7, .in_order = in_order});
    made.fragments = scattered.fragments;
    made.bytes = scattered.bytes;
    made.pool_bytes = scattered.pool_end;
    ScatteredRuns runs{{{5, made.bytes + 3}}, made.bytes + 8};
    if (!run_lengths.empty()) runs = ScatterRuns(run_lengths, seed);
    made.runs = runs.runs;
    made.pool_skip = seed % 16;
    made.place_skip = seed * 5 % 16;
    made.pool.emplace(&*bed_, made.pool_skip + made.pool_bytes + kRowsGuard, seed);
    made.place.emplace(&*bed_, made.place_skip + runs.place_end + kRowsGuard, ~seed);
    made.rows = bed_->Make(std::max<std::size_t>(lengths.size(), 1) * sizeof(Fragment), false, 1);
    WriteRows(&made);
    made.before.assign(made.place->host().begin(), made.place->host().end());
    made.expected = made.before;
    PutInPlace(scattered, made.runs, made.pool->host().subspan(made.pool_skip),
               std::span(made.expected).subspan(made.place_skip));
    return made;
  }

  void WaitFor(Unpacker* unpacker, std::uint64_t ticket) {
    const Deadline limit = Deadline::After(kRowsTimeout);
    while (Must(unpacker->Completed()) < ticket) {
      ASSERT_FALSE(limit.expired());
      std::this_thread::yield();
    }
  }
  std::vector<RefusedRows> Unpack(std::span<const RowsRequest> requests) {
    const std::uint64_t ticket = Must(unpacker_->EnqueueRows(requests));
    WaitFor(unpacker_.get(), ticket);
    auto refused = unpacker_->TakeRefused(ticket);
    EXPECT_TRUE(unpacker_->TakeRefused(ticket).empty());
    return refused;
  }
  static void ExpectPlace(RowsCase* made, const std::vector<std::byte>& expected) {
    made->place->Download();
    const auto got = made->place->host();
    const auto [wrong, right] =
        std::mismatch(got.begin(), got.end(), expected.begin(), expected.end());
    EXPECT_TRUE(wrong == got.end()) << "byte " << (wrong - got.begin()) << " of " << got.size();
  }
  void ExpectInPlace(RowsCase made) {
    const RowsRequest request = RequestOf(made);
    for (const RefusedRows& refused : Unpack({&request, 1}))
      ADD_FAILURE() << refused.error.message();
    ExpectPlace(&made, made.expected);
  }
  void ExpectInPlace(const std::vector<std::uint32_t>& lengths,
                     const std::vector<std::uint32_t>& run_lengths = {}) {
    ExpectInPlace(Make(lengths, true, run_lengths));
    ExpectInPlace(Make(lengths, false, run_lengths));
  }
  // The message is refused with the sentence of a FragmentReader, and nothing is written.
  std::string Refusal(RowsCase made) {
    WriteRows(&made);
    const RowsRequest request = RequestOf(made);
    const auto refused = Unpack({&request, 1});
    ExpectPlace(&made, made.before);
    if (refused.size() != 1) return "not refused";
    EXPECT_EQ(refused[0].index, 0U);
    EXPECT_EQ(refused[0].error.code(), Code::kCorrupt);
    std::vector<Block> blocks;
    const Status read = reader_.Read(made.fragments, made.receive(), &blocks);
    EXPECT_EQ(refused[0].error.message(), read ? "accepted" : read.error().message());
    return refused[0].error.message();
  }

  std::unique_ptr<cuda::DeviceTarget> target_;
  std::optional<CopyBed> bed_;
  std::unique_ptr<Unpacker> unpacker_;
  FragmentReader reader_;
  std::uint64_t seed_ = 0;
};

// ---- bytes --------------------------------------------------------------------------------------

TEST_P(RowsTest, FragmentsOfAnyLengthsGoToTheirPlaces) {
  ExpectInPlace(LengthsOf(kRowsMessage, 1, 9000));
  ExpectInPlace(LengthsOf(kRowsMessage / 50, 1, 100));
  ExpectInPlace(LengthsOf(kRowsMessage / 500, 1, 17));
}

TEST_P(RowsTest, FragmentsOfOneLengthGoToTheirPlaces) {
  for (const std::uint32_t len : {1448U, 4096U, 4095U, 4092U, 4088U, 4080U, 3968U}) {
    ExpectInPlace(LengthsOf(kRowsMessage, len, len));
  }
}

TEST_P(RowsTest, OneRowAndAsManyAsThereMayBeGoToTheirPlaces) {
  for (const std::uint32_t len : {1U, 15U, 16U, 4096U, 70'001U, 300'000U}) ExpectInPlace({len});
  for (const std::size_t count : {kMaxFragments - 1, kMaxFragments}) {
    ExpectInPlace(std::vector<std::uint32_t>(count, 1));
    ExpectInPlace(
        std::vector<std::uint32_t>(count, static_cast<std::uint32_t>(kRowsMessage / count) | 1U));
  }
}

TEST_P(RowsTest, FragmentsAreCutWhereRunsEnd) {
  for (const std::uint32_t most : {3000U, 4096U, 30'000U}) {
    ExpectInPlace(LengthsOf(kRowsMessage / 4, 1, 9000), LengthsOf(kRowsMessage / 4, 900, most, 2));
    ExpectInPlace(LengthsOf(kRowsMessage / 4, 4096, 4096),
                  LengthsOf(kRowsMessage / 4 + 99, most, most, 2));
  }
  ExpectInPlace({70'001, 1, 200'000}, LengthsOf(270'002, 1200, 7000, 2));
}

TEST_P(RowsTest, ManyMessagesAreOneBatch) {
  std::deque<RowsCase> messages;
  std::vector<RowsRequest> requests;
  for (std::uint32_t i = 0; i < kMaxRowsMessages; ++i) {
    messages.push_back(Make(LengthsOf(i % 9 * 1000 + i, 1, 1 + i * 7, i + 1), i % 3 == 0));
  }
  for (const RowsCase& message : messages) requests.push_back(RequestOf(message));
  EXPECT_TRUE(Unpack(requests).empty());
  for (RowsCase& message : messages) ExpectPlace(&message, message.expected);
}

TEST_P(RowsTest, RowsInTheGpusMemoryAreRead) {
  RowsCase made = Make(LengthsOf(kRowsMessage, 1, 4096), false);
  Mirror rows(&*bed_, made.fragments.size() * sizeof(Fragment), 1);
  std::memcpy(rows.host().data(), made.fragments.data(), rows.host().size());
  rows.Upload();
  RowsRequest request = RequestOf(made);
  // The address on the GPU.
  request.rows = reinterpret_cast<const Fragment*>(rows.place().mapped);
  EXPECT_TRUE(Unpack({&request, 1}).empty());
  ExpectPlace(&made, made.expected);
}

TEST_P(RowsTest, BatchesFollowEachOther) {
  std::deque<RowsCase> messages;
  for (std::uint32_t i = 0; i < 60; ++i) {
    messages.push_back(Make(LengthsOf(20'000 + 777 * i, 1, 4096, i), i % 2 == 0));
  }
  std::uint64_t ticket = 0;
  const Deadline limit = Deadline::After(kRowsTimeout);
  for (std::size_t next = 0; next < messages.size();) {
    ASSERT_FALSE(limit.expired());
    const RowsRequest requests[]{RequestOf(messages[next]), RequestOf(messages[next + 1])};
    const auto queued = unpacker_->EnqueueRows(requests);
    if (queued) {
      next += 2;
      ticket = *queued;
    } else {
      ASSERT_EQ(queued.error().code(), Code::kUnavailable);
      Must(unpacker_->Completed());
    }
  }
  WaitFor(unpacker_.get(), ticket);
  for (; ticket > 0; --ticket) EXPECT_TRUE(unpacker_->TakeRefused(ticket).empty());
  for (RowsCase& message : messages) ExpectPlace(&message, message.expected);
}

TEST_P(RowsTest, BatchesOfRowsAndOfBlocksFollowEachOther) {
  RowsCase by_rows = Make(LengthsOf(kRowsMessage, 1, 4096), false);
  RowsCase by_blocks = Make(LengthsOf(kRowsMessage, 1, 4096), false);
  std::vector<Block> blocks;
  Must(reader_.Read(by_blocks.fragments, by_blocks.receive(), &blocks));
  const RowsRequest rows = RequestOf(by_rows);
  const RowsRequest other = RequestOf(by_blocks);
  const PlacedList list{blocks, other.dst, other.src};
  for (int i = 0; i < 5; ++i) {
    Must(unpacker_->EnqueueRows({&rows, 1}));
    Must(unpacker_->Enqueue({&list, 1}));
  }
  WaitFor(unpacker_.get(), 10);
  EXPECT_TRUE(unpacker_->TakeRefused(9).empty());
  ExpectPlace(&by_rows, by_rows.expected);
  ExpectPlace(&by_blocks, by_blocks.expected);
}

// ---- what is refused ----------------------------------------------------------------------------

TEST_P(RowsTest, AreRefusedWithTheSentenceOfTheReader) {
  for (const bool in_order : {true, false}) {
    const auto spoiled = [&](auto spoil) {
      RowsCase made = Make(LengthsOf(50'000, 100, 400), in_order);
      spoil(&made.fragments);
      return Refusal(std::move(made));
    };
    EXPECT_THAT(spoiled([](auto* rows) { (*rows)[100].len = 0; }), HasSubstr("is empty"));
    EXPECT_THAT(spoiled([](auto* rows) {
                  (*rows)[9].src = 0xfffffff0U;
                  (*rows)[10].len = 0;
                }),
                HasSubstr("fragment 9 (src 4294967280"));
    EXPECT_THAT(spoiled([](auto* rows) { (*rows)[7].dst = ~std::uint64_t{0}; }),
                HasSubstr("does not lie within the message"));
    EXPECT_THAT(spoiled([](auto* rows) { (*rows)[7].len -= 1; }), HasSubstr("bytes together"));
    EXPECT_THAT(spoiled([](auto* rows) { (*rows)[7].len += 1; }), HasSubstr("bytes together"));
    EXPECT_THAT(spoiled([](auto* rows) { rows->pop_back(); }), HasSubstr("bytes together"));
    EXPECT_THAT(spoiled([](auto* rows) { std::fill(rows->begin(), rows->end(), Fragment{}); }),
                HasSubstr("fragment 0 (src 0, len 0, dst 0) is empty"));
  }
}

TEST_P(RowsTest, ThatOverlapAreRefusedWithTheSentenceOfTheReader) {
  const auto refusal = [&](std::vector<Fragment> rows) {
    std::uint64_t bytes = 0;
    for (const Fragment& row : rows) bytes += row.len;
    RowsCase made = Make({static_cast<std::uint32_t>(bytes)}, true);
    made.fragments = std::move(rows);
    made.rows = bed_->Make(made.fragments.size() * sizeof(Fragment), false, 1);
    return Refusal(std::move(made));
  };
  EXPECT_THAT(refusal({{9, 2, 9}, {0, 5, 0}, {5, 4, 4}}), HasSubstr("both write byte 4 of"));
  EXPECT_THAT(refusal({{0, 5, 0}, {9, 5, 3}, {0, 5, 0}}), HasSubstr("both write byte 0 of"));
  EXPECT_THAT(refusal({{0, 9, 0}, {2, 1, 4}}), HasSubstr("both write byte 4 of"));
  EXPECT_THAT(refusal({{2, 1, 4}, {0, 9, 0}}), HasSubstr("both write byte 4 of"));
  // Each ends where another one begins or at the end, and none begins at 0.
  EXPECT_THAT(refusal({{0, 8, 2}, {0, 2, 8}}), HasSubstr("both write byte 8 of"));
  EXPECT_THAT(refusal(std::vector<Fragment>(kMaxFragments, {0, 1, 0})),
              HasSubstr("both write byte 0 of"));
}

TEST_P(RowsTest, ARefusedMessageDoesNotConcernTheOthers) {
  std::deque<RowsCase> messages;
  std::vector<RowsRequest> requests;
  for (std::uint32_t i = 0; i < 40; ++i) {
    messages.push_back(Make(LengthsOf(20'000, 1, 4096, i), i % 2 == 0));
    if (i % 3 == 1) messages.back().fragments[1].len += 1;
    WriteRows(&messages.back());
  }
  messages.push_back(Make({}, true));
  for (const RowsCase& message : messages) requests.push_back(RequestOf(message));
  const auto refused = Unpack(requests);
  EXPECT_EQ(refused.size(), 13U);
  for (const RefusedRows& one : refused) {
    EXPECT_EQ(one.index % 3, 1U);
    EXPECT_EQ(one.ticket, 1U);
  }
  for (std::size_t i = 0; i < messages.size(); ++i) {
    ExpectPlace(&messages[i], i < 40 && i % 3 == 1 ? messages[i].before : messages[i].expected);
  }
}

TEST_P(RowsTest, WhatCannotBeABatchIsToldAndQueuesNothing) {
  RowsCase made = Make(LengthsOf(5000, 10, 30), true, LengthsOf(5000, 10, 20));
  ASSERT_GT(made.runs.size(), kMaxMessageRuns);
  RowsRequest request = RequestOf(made);
  const auto many_runs = unpacker_->EnqueueRows({&request, 1});
  ASSERT_FALSE(many_runs);
  EXPECT_EQ(many_runs.error().code(), Code::kInvalidArgument);
  const PostedRun run{0, 5000};
  request.receive.runs = {&run, 1};
  const auto many = unpacker_->EnqueueRows(std::vector(kMaxRowsMessages + 1, request));
  ASSERT_FALSE(many);
  EXPECT_EQ(many.error().code(), Code::kInvalidArgument);
  request.receive.message_bytes = 5001;
  const auto longer = unpacker_->EnqueueRows({&request, 1});
  ASSERT_FALSE(longer);
  EXPECT_EQ(longer.error().code(), Code::kCorrupt);
  EXPECT_THAT(longer.error().message(),
              HasSubstr("a message of 5001 bytes has come for a receive of 5000 bytes"));
  EXPECT_EQ(Must(unpacker_->EnqueueRows({})), 1U);
  const auto dma = Must(Unpacker::Create(&api(), 0, {.by = UnpackBy::kDma}));
  EXPECT_FALSE(dma->reads_rows());
  EXPECT_EQ(dma->EnqueueRows({&request, 1}).error().code(), Code::kUnsupported);
}

// ---- rows that are partly wrong -----------------------------------------------------------------

// Messages of one batch, side by side in the same memory.
class SpoiledBatch {
 public:
  static constexpr std::size_t kRoom = std::size_t{1} << 20;

  explicit SpoiledBatch(CopyBed* bed)
      : pool_(bed, 1 << 16, 7), place_(bed, kRoom, 8), rows_(bed->Make(kRoom, false, 9)) {}

  // Whether there was room.
  bool Add(std::unique_ptr<SpoiledMessage> message) {
    const std::size_t bytes = message->fragments.size() * sizeof(Fragment);
    if (requests_.size() == kMaxRowsMessages || runs_ + message->runs.size() > kMaxRowsRuns ||
        place_at_ + message->place_end + kRowsGuard > kRoom || rows_at_ + bytes > kRoom) {
      return false;
    }
    if (bytes > 0) {
      std::memcpy(rows_.host.bytes().data() + rows_at_, message->fragments.data(), bytes);
    }
    // The mapped address of its rows.
    const auto* rows = reinterpret_cast<const Fragment*>(rows_.place.mapped + rows_at_);
    requests_.push_back({rows, message->fragments.size(), message->receive,
                         place_.place() + place_at_, pool_.place()});
    starts_.push_back(place_at_);
    rows_at_ += bytes;
    place_at_ += message->place_end + messages_.size() % 16 + 1;
    runs_ += message->runs.size();
    messages_.push_back(std::move(message));
    return true;
  }

  // Returns the number of messages that were accepted.
  std::size_t Run(Unpacker* unpacker) {
    std::fill(place_.host().begin(), place_.host().end(), std::byte{0xC5});
    place_.Upload();
    const std::uint64_t ticket = Must(unpacker->EnqueueRows(requests_));
    Must(unpacker->Drain(Deadline::After(kRowsTimeout)));
    const std::vector<RefusedRows> refused = unpacker->TakeRefused(ticket);
    std::vector<std::byte> expected(kRoom, std::byte{0xC5});
    auto next = refused.begin();
    for (std::size_t i = 0; i < messages_.size(); ++i) {
      const auto origins = ReferenceOrigins(*messages_[i]);
      const bool is_refused = next != refused.end() && next->index == i;
      EXPECT_EQ(is_refused, !origins.has_value());
      if (is_refused) ExpectSentence(*messages_[i], (next++)->error);
      for (std::size_t at = 0; origins && at < origins->size(); ++at) {
        if ((*origins)[at]) expected[starts_[i] + at] = pool_.host()[*(*origins)[at]];
      }
    }
    place_.Download();
    EXPECT_TRUE(SameBytes(place_.host().first(expected.size()), expected));
    const std::size_t accepted = messages_.size() - refused.size();
    messages_.clear();
    requests_.clear();
    starts_.clear();
    runs_ = rows_at_ = place_at_ = 0;
    return accepted;
  }

 private:
  // Where three rows write a byte, the reader may name another two of them.
  void ExpectSentence(const SpoiledMessage& message, const Error& error) {
    std::vector<Block> blocks;
    const Status read = reader_.Read(message.fragments, message.receive, &blocks);
    ASSERT_FALSE(read);
    const auto end_of = [](const std::string& text) {
      const std::size_t both = text.find("both write");
      return both == std::string::npos ? text : text.substr(both);
    };
    EXPECT_EQ(error.code(), Code::kCorrupt);
    EXPECT_EQ(end_of(error.message()), end_of(read.error().message()));
  }

  Mirror pool_;
  Mirror place_;
  CopyBed::Memory rows_;
  FragmentReader reader_;
  std::vector<std::unique_ptr<SpoiledMessage>> messages_;
  std::vector<RowsRequest> requests_;
  std::vector<std::size_t> starts_;  // in the place
  std::size_t runs_ = 0;
  std::size_t rows_at_ = 0;
  std::size_t place_at_ = 0;
};

TEST_P(RowsTest, AreAcceptedOrRefusedAsAByteByByteCheckSays) {
  SpoiledBatch batch(&*bed_);
  std::uint64_t accepted = 0;
  std::uint64_t other = 0;  // not for the GPU
  for (std::uint64_t round = 0; round < kSpoiledMessages; ++round) {
    SCOPED_TRACE(testing::Message() << "up to round " << round);
    auto message = std::make_unique<SpoiledMessage>(round);
    const PostedReceive& receive = message->receive;
    if (!CheckMessage({message->fragments.size(), receive.pool_bytes, receive.message_bytes,
                       TotalBytes(receive.runs)})) {
      ASSERT_FALSE(ReferenceOrigins(*message));
      ++other;
      continue;
    }
    if (message->runs.size() > kMaxMessageRuns) {
      ++other;
      continue;
    }
    if (!batch.Add(std::move(message))) {
      accepted += batch.Run(unpacker_.get());
      ASSERT_FALSE(HasFailure());
      ASSERT_TRUE(batch.Add(std::make_unique<SpoiledMessage>(round)));
    }
  }
  accepted += batch.Run(unpacker_.get());
  EXPECT_LT(other, kSpoiledMessages / 8);
  EXPECT_GT(accepted, kSpoiledMessages / 8);
  EXPECT_LT(accepted, kSpoiledMessages - other - kSpoiledMessages / 8);
}

// ---- when rows are read -------------------------------------------------------------------------

class SimulatedRowsTest : public RowsTest {};

// What is checked is what is copied: both are what the GPU reads, whatever the CPU has seen.
TEST_P(SimulatedRowsTest, WhatIsWrittenBeforeTheGpuReadsIsChecked) {
  RowsCase made = Make(LengthsOf(50'000, 100, 400), false);
  const RowsRequest request = RequestOf(made);
  target_->simulated()->Pause();
  const std::uint64_t ticket = Must(unpacker_->EnqueueRows({&request, 1}));
  EXPECT_EQ(Must(unpacker_->Completed()), 0U);
  made.fragments[3].src = 0xffffffffU;
  WriteRows(&made);
  target_->simulated()->Resume();
  WaitFor(unpacker_.get(), ticket);
  const auto refused = unpacker_->TakeRefused(ticket);
  ASSERT_EQ(refused.size(), 1U);
  EXPECT_THAT(refused[0].error.message(), HasSubstr("fragment 3 (src 4294967295"));
  ExpectPlace(&made, made.before);
}

TEST_P(SimulatedRowsTest, ABatchIsOneLaunchAndMakesNothing) {
  std::deque<RowsCase> messages;
  std::vector<RowsRequest> requests;
  for (std::uint32_t i = 0; i < kRowsMessages; ++i) {
    messages.push_back(Make(LengthsOf(1000, 1, 400, i), false));
    requests.push_back(RequestOf(messages.back()));
  }
  const auto before = target_->simulated()->counters();
  WaitFor(unpacker_.get(), Must(unpacker_->EnqueueRows(requests)));
  const auto after = target_->simulated()->counters();
  EXPECT_EQ(after.launches, before.launches + 1);
  EXPECT_EQ(after.records, before.records + 1);
  EXPECT_EQ(after.copy_calls, before.copy_calls);
  EXPECT_EQ(after.events, before.events);
  EXPECT_EQ(after.device_allocations, before.device_allocations);
  EXPECT_EQ(after.pinned_allocations, before.pinned_allocations);
}

TEST_P(SimulatedRowsTest, ADeviceThatIsLostIsTold) {
  RowsCase made = Make(LengthsOf(5000, 100, 400), false);
  const RowsRequest request = RequestOf(made);
  target_->simulated()->Inject(
      {.ordinal = 0, .at = cuda::FaultPoint::kLaunch, .fault = cuda::Fault::kIllegalAddress});
  const Deadline limit = Deadline::After(kRowsTimeout);
  std::optional<Error> lost;
  if (const auto ticket = unpacker_->EnqueueRows({&request, 1}); !ticket) lost = ticket.error();
  while (!lost && !limit.expired()) {
    if (const auto done = unpacker_->Completed(); !done) lost = done.error();
  }
  ASSERT_TRUE(lost);
  EXPECT_EQ(lost->code(), Code::kDeviceLost);
  EXPECT_TRUE(unpacker_->TakeRefused(1).empty());
}

INSTANTIATE_TEST_SUITE_P(Simulated, RowsTest, ::testing::ValuesIn(cuda::kSimulatedCases),
                         cuda::DeviceCaseName);
INSTANTIATE_TEST_SUITE_P(Simulated, SimulatedRowsTest, ::testing::ValuesIn(cuda::kSimulatedCases),
                         cuda::DeviceCaseName);
INSTANTIATE_TEST_SUITE_P(Gpu, RowsTest, ::testing::Values(cuda::kRealCase), cuda::DeviceCaseName);

}  // namespace
}  // namespace ferry::tcpx
