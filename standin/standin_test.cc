// Tests of the stand-in: data, limits, misuse and closing.

#include "standin/standin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <ostream>

#include "standin/testing/host.h"

namespace ferry::standin::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMiB = 1024 * kKiB;
constexpr std::size_t kChunk = 512 * kKiB;

bool SameBytes(const Pair& pair, std::size_t bytes) {
  return std::memcmp(pair.source(), pair.target(), bytes) == 0;
}

// All chunks of a pair's buffers, with up to 16 in flight in each direction, in the order in which
// the original takes them. Counts the entries that do not follow the one before them.
struct Transfer {
  Pair& pair;
  std::size_t bytes;
  std::size_t chunk = kChunk;
  std::size_t window = 16;
  std::size_t jumps = 0;
  std::size_t fragments = 0;

  std::deque<layout::Request*> sends = {};
  std::deque<layout::Request*> receives = {};
  std::size_t sent = 0;
  std::size_t posted = 0;
  std::size_t received = 0;

  bool Run() {
    while (received < bytes || !sends.empty()) {
      for (; receives.size() < window && posted < bytes; posted += chunk) {
        receives.push_back(pair.Receive(posted, chunk));
      }
      for (; sends.size() < window && sent < bytes; sent += chunk) {
        sends.push_back(pair.Send(sent, chunk));
      }
      if (!sends.empty() && !Step(&sends)) return false;
      if (!receives.empty() && !TakeOldest()) return false;
    }
    return true;
  }

  bool TakeOldest() {
    layout::Request* const oldest = receives.front();
    const std::size_t before = receives.size();
    if (!Step(&receives)) return false;
    if (receives.size() == before) return true;
    CountJumps(oldest);
    received += chunk;
    return pair.Unpack(oldest) == chunk && pair.Consume(oldest) == abi::kSuccess;
  }

  // Tests the oldest, and takes it away when it is done.
  bool Step(std::deque<layout::Request*>* requests) const {
    const int outcome = requests->front() == nullptr ? -1 : pair.Test(requests->front());
    if (outcome == 1) requests->pop_front();
    return outcome >= 0;
  }

  void CountJumps(const layout::Request* request) {
    std::uint64_t expected = 0;
    for (const Fragment& one : pair.FragmentsOf(request)) {
      if (one.dst != expected) ++jumps;
      expected = one.dst + one.len;
      ++fragments;
    }
  }
};

// ---- Data ---------------------------------------------------------------------------------------

struct Style {
  const char* fragments;
  const char* polls;
};

void PrintTo(const Style& style, std::ostream* out) {
  *out << style.fragments << " after " << style.polls;
}

class StandinStyles : public ::testing::TestWithParam<Style> {};

TEST_P(StandinStyles, CarriesSixtyFourMebibytesByteForByte) {
  const Instance plugin = Instance::Initialized(
      {{"FRAGMENTS", GetParam().fragments}, {"POLLS", GetParam().polls}, {"SEED", "7"}});
  {
    Pair pair(plugin, 64 * kMiB);
    Transfer transfer = {.pair = pair, .bytes = 64 * kMiB};
    EXPECT_TRUE(transfer.Run());
    EXPECT_TRUE(SameBytes(pair, 64 * kMiB));
    EXPECT_GT(transfer.jumps, transfer.fragments / 2) << "entries come in order";
    EXPECT_EQ(plugin.PagesInUse(), 0U);
  }
  EXPECT_EQ(plugin.Misuses(), 0U) << plugin.LastMisuse();
}

INSTANTIATE_TEST_SUITE_P(, StandinStyles,
                         ::testing::Values(Style{"1448", "2"}, Style{"4096", "2"},
                                           Style{"4095", "0"}, Style{"random", "7"},
                                           Style{"tiny", "2"}, Style{"merged", "2"},
                                           Style{"9000", "2"}, Style{"random", "immediate"},
                                           Style{"4096", "immediate"}),
                         [](const auto& style) {
                           return std::string(style.param.fragments) + "After" + style.param.polls;
                         });

TEST(Standin, PresentsItselfAsTheOriginal) {
  const Instance plugin = Instance::Initialized({});
  EXPECT_STREQ(plugin->name, "GPUDirectTCPX_v7");
  EXPECT_EQ(plugin->reg_mr_dma_buf, nullptr);
  EXPECT_EQ(plugin->close_send, plugin->close_recv);
  int count = 0;
  EXPECT_EQ(plugin->devices(&count), abi::kSuccess);
  EXPECT_EQ(count, 2);
  abi::PropertiesV7 properties;
  EXPECT_EQ(plugin->get_properties(1, &properties), abi::kSuccess);
  EXPECT_STREQ(properties.name, "standin1");
  EXPECT_NE(properties.pci_path, nullptr);
  EXPECT_EQ(properties.ptr_support, abi::kPointerHost | abi::kPointerCuda);
  EXPECT_EQ(properties.speed, 100'000);
  EXPECT_EQ(properties.max_recvs, 1);
  EXPECT_EQ(properties.device_type, abi::kDeviceTypeUnpack);
  EXPECT_EQ(properties.device_version, abi::kDeviceVersionUnpack);
}

TEST(Standin, TakesItsNameAndItsDevicesFromTheEnvironment) {
  const Instance plugin = Instance::Initialized({{"NAME", "Other_v7"}, {"NICS", "8"}});
  EXPECT_STREQ(plugin->name, "Other_v7");
  int count = 0;
  EXPECT_EQ(plugin->devices(&count), abi::kSuccess);
  EXPECT_EQ(count, 8);
}

TEST(Standin, RefusesAVariableItCannotRead) {
  for (const auto& [name, value] : Variables{
           {"NICS", "9"}, {"FRAGMENTS", "huge"}, {"FAULT", "sunspots"}, {"FAULT", "short@x"}}) {
    const Instance plugin(Variables{{name, value}});
    EXPECT_EQ(plugin.Init(), abi::kInvalidArgument) << name << " " << value;
    EXPECT_THAT(Warnings(), HasSubstr("FERRY_STANDIN_" + name));
    EXPECT_THAT(Warnings(), HasSubstr("cannot be '" + value + "'"));
  }
}

TEST(Standin, LaysOutRequestsAndRowsAsTheOriginal) {
  const Instance plugin = Instance::Initialized({{"FRAGMENTS", "1448"}});
  Pair pair(plugin, kMiB);
  EXPECT_EQ(pair.unpack().head, ~std::uint64_t{0});
  for (std::uint64_t number = 0; number < 40; ++number) {
    layout::Request* const request = pair.Exchange(10'000);
    ASSERT_NE(request, nullptr);
    EXPECT_EQ(request->comm, pair.recv_comm());
    EXPECT_EQ(request->data, pair.target());
    EXPECT_EQ(request->operation, 1);
    EXPECT_EQ(request->memory_kind, abi::kPointerCuda);
    EXPECT_EQ(request->size, 10'000);
    EXPECT_EQ(request->size_pending, 0);
    EXPECT_TRUE(request->active);
    EXPECT_EQ(request->row, number % layout::kRows);
    EXPECT_EQ(request->fragments, pair.unpack().meta->rows[request->row]);
    EXPECT_EQ(request->count, &pair.unpack().meta->counts[request->row]);
    EXPECT_EQ(request->count_so_far, 7U);
    EXPECT_EQ(pair.FragmentsOf(request).size(), 7U);
    EXPECT_EQ(pair.Consume(request), abi::kSuccess);
  }
}

TEST(Standin, ARowHasAtMost2047Fragments) {
  const Instance plugin = Instance::Initialized({{"FRAGMENTS", "64"}});
  Pair pair(plugin, kMiB);
  layout::Request* request = pair.Exchange(std::size_t{2047} * 64);
  ASSERT_NE(request, nullptr);
  EXPECT_EQ(pair.FragmentsOf(request).size(), 2047U);
  EXPECT_EQ(pair.Consume(request), abi::kSuccess);
  request = pair.Exchange(kMiB);
  ASSERT_NE(request, nullptr);
  EXPECT_LE(pair.FragmentsOf(request).size(), 2047U);
  EXPECT_EQ(pair.Unpack(request), kMiB);
  EXPECT_TRUE(SameBytes(pair, kMiB));
  EXPECT_EQ(pair.Consume(request), abi::kSuccess);
}

TEST(Standin, PagesLieTogetherWhenAskedFor) {
  const Instance plugin = Instance::Initialized({{"TOGETHER", "8"}});
  Pair pair(plugin, kMiB);
  layout::Request* const request = pair.Exchange(20 * 4096 + 100);
  ASSERT_NE(request, nullptr);
  auto fragments = pair.FragmentsOf(request);
  std::sort(fragments.begin(), fragments.end(),
            [](const auto& a, const auto& b) { return a.dst < b.dst; });
  ASSERT_EQ(fragments.size(), 21U);
  for (std::size_t i = 0; i < 16; ++i) {
    EXPECT_EQ(fragments[i].src, fragments[i / 8 * 8].src + i % 8 * 4096) << i;
  }
  EXPECT_EQ(pair.Consume(request), abi::kSuccess);
  EXPECT_EQ(plugin.PagesInUse(), 0U);
}

TEST(Standin, TheLastFragmentIsTinyWhenAskedFor) {
  const Instance plugin = Instance::Initialized({{"FRAGMENTS", "tiny"}});
  Pair pair(plugin, kMiB);
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{5000}, kMiB}) {
    layout::Request* const request = pair.Exchange(bytes);
    ASSERT_NE(request, nullptr);
    const auto fragments = pair.FragmentsOf(request);
    const auto last = std::max_element(fragments.begin(), fragments.end(),
                                       [](auto& a, auto& b) { return a.dst < b.dst; });
    EXPECT_LT(last->len, 16U);
    EXPECT_EQ(pair.Consume(request), abi::kSuccess);
  }
}

TEST(Standin, AReceiveMayBeLargerThanWhatIsSent) {
  const Instance plugin = Instance::Initialized({});
  Pair pair(plugin, kMiB);
  layout::Request* const receive = pair.Receive(0, kMiB);
  layout::Request* const send = pair.Send(0, 5000);
  EXPECT_EQ(pair.Wait(receive, send), 1);
  EXPECT_EQ(receive->size, 5000);
  EXPECT_EQ(pair.Unpack(receive), 5000U);
  EXPECT_EQ(pair.Consume(receive), abi::kSuccess);
}

TEST(Standin, ASendMayBeLargerThanTheReceiveAsInTheOriginal) {
  const Instance plugin = Instance::Initialized({});
  Pair pair(plugin, kMiB);
  layout::Request* const receive = pair.Receive(0, 5000);
  layout::Request* const send = pair.Send(0, 9000);
  EXPECT_EQ(pair.Wait(receive, send), 1);
  EXPECT_EQ(receive->size, 9000);
  EXPECT_EQ(pair.Consume(receive), abi::kSuccess);
  EXPECT_EQ(plugin.Misuses(), 0U);
}

TEST(Standin, AReceiveOfNothingNeedsConsuming) {
  const Instance plugin = Instance::Initialized({});
  Pair pair(plugin, kMiB);
  for (std::uint64_t number = 0; number < 20; ++number) {
    layout::Request* const request = pair.Exchange(number % 2 == 0 ? 0 : 100);
    ASSERT_NE(request, nullptr);
    EXPECT_EQ(request->row, number % layout::kRows);
    EXPECT_EQ(pair.FragmentsOf(request).size(), number % 2);
    EXPECT_EQ(pair.Consume(request), abi::kSuccess);
  }
  EXPECT_EQ(plugin.Misuses(), 0U);
}

TEST(Standin, ASeventeenthRequestIsRefused) {
  const Instance plugin = Instance::Initialized({});
  Pair pair(plugin, kMiB);
  for (int i = 0; i < 16; ++i) ASSERT_NE(pair.Receive(0, 100), nullptr);
  void* request = nullptr;
  void* data = pair.target();
  int bytes = 100;
  int tag = 0;
  void* mr = pair.recv_mr();
  EXPECT_EQ(plugin->irecv(pair.recv_comm(), 1, &data, &bytes, &tag, &mr, &request),
            abi::kInternalError);
  EXPECT_EQ(request, nullptr);
  EXPECT_THAT(Warnings(), HasSubstr("unable to allocate requests"));
  EXPECT_EQ(plugin.Misuses(), 0U);
}

TEST(Standin, WaitsForPagesOfAnEmptyPool) {
  const Instance plugin = Instance::Initialized({{"POOL", "1048576"}, {"FRAGMENTS", "random"}});
  Pair one(plugin, 8 * kMiB);
  Pair other(plugin, 8 * kMiB);
  EXPECT_EQ(one.unpack().bounce_pool, other.unpack().bounce_pool);
  for (Pair* pair : {&one, &other}) {
    Transfer transfer = {.pair = *pair, .bytes = 8 * kMiB, .chunk = 256 * kKiB};
    EXPECT_TRUE(transfer.Run());
    EXPECT_TRUE(SameBytes(*pair, 8 * kMiB));
  }
  EXPECT_EQ(plugin.PagesInUse(), 0U);
}

TEST(Standin, TwoProcessesMeetByTheHandle) {
  const Instance sender = Instance::Initialized({{"CHUNK", "100000"}, {"SOCKETS", "1"}});
  const Instance receiver = Instance::Initialized({{"FRAGMENTS", "random"}, {"SOCKETS", "8"}});
  {
    Pair pair(sender, receiver, 8 * kMiB, nullptr);
    Transfer transfer = {.pair = pair, .bytes = 8 * kMiB};
    EXPECT_TRUE(transfer.Run());
    EXPECT_TRUE(SameBytes(pair, 8 * kMiB));
  }
  EXPECT_EQ(sender.Misuses() + receiver.Misuses(), 0U);
}

// So that no two of them can be copied as one.
TEST(Standin, SpreadsThePagesOfARun) {
  const Instance plugin = Instance::Initialized({{"TOGETHER", "8"}, {"SPREAD", "2"}});
  Pair pair(plugin, kMiB);
  layout::Request* const request = pair.Exchange(kMiB / 2);
  ASSERT_NE(request, nullptr);
  auto fragments = pair.FragmentsOf(request);
  ASSERT_EQ(fragments.size(), kMiB / 2 / 4096);
  std::sort(fragments.begin(), fragments.end(),
            [](const auto& a, const auto& b) { return a.dst < b.dst; });
  for (std::size_t i = 1; i < fragments.size(); ++i) {
    EXPECT_NE(fragments[i].src, fragments[i - 1].src + fragments[i - 1].len) << i;
    if (i % 8 == 0) continue;
    EXPECT_EQ(fragments[i].src, fragments[i - 1].src + 2 * 4096) << i;
  }
  ASSERT_EQ(pair.Unpack(request), kMiB / 2);
  EXPECT_EQ(std::memcmp(pair.source(), pair.target(), kMiB / 2), 0);
  EXPECT_EQ(pair.Consume(request), abi::kSuccess);
  EXPECT_EQ(plugin.PagesInUse(), 0U);
}

TEST(Standin, TheSameSeedCutsTheSameFragments) {
  std::vector<std::vector<std::uint32_t>> lengths;
  for (const char* seed : {"5", "5", "6"}) {
    const Instance plugin = Instance::Initialized({{"FRAGMENTS", "random"}, {"SEED", seed}});
    Pair pair(plugin, kMiB);
    layout::Request* const request = pair.Exchange(kMiB);
    ASSERT_NE(request, nullptr);
    auto& mine = lengths.emplace_back();
    for (const auto& one : pair.FragmentsOf(request)) mine.push_back(one.len);
    EXPECT_EQ(pair.Consume(request), abi::kSuccess);
  }
  EXPECT_EQ(lengths[0], lengths[1]);
  EXPECT_NE(lengths[0], lengths[2]);
}

// ---- Misuse -------------------------------------------------------------------------------------

// That the last call was misuse of which `words` are said.
void ExpectMisuse(const Instance& plugin, const char* words) {
  EXPECT_EQ(plugin.Misuses(), 1U) << words;
  EXPECT_THAT(plugin.LastMisuse(), HasSubstr(words));
  EXPECT_THAT(Warnings(), HasSubstr("standin: misuse: "));
  plugin.Reset();
  EXPECT_EQ(plugin.Misuses(), 0U);
  EXPECT_EQ(plugin.LastMisuse(), "");
}

TEST(StandinMisuse, WhatIsConsumedBeforeItIsCopiedIsPoison) {
  const Instance plugin = Instance::Initialized({});
  Pair pair(plugin, kMiB);
  layout::Request* const request = pair.Exchange(kChunk);
  ASSERT_NE(request, nullptr);
  const auto fragments = pair.FragmentsOf(request);
  EXPECT_EQ(pair.Consume(request), abi::kSuccess);
  for (const Fragment& one : fragments) {
    const std::vector<std::byte> there(pair.unpack().bounce_pool + one.src,
                                       pair.unpack().bounce_pool + one.src + one.len);
    EXPECT_EQ(there, std::vector<std::byte>(one.len, std::byte{0xDB}));
  }
}

TEST(StandinMisuse, ConsumesOutOfTurnAreReported) {
  const Instance plugin = Instance::Initialized({});
  Pair pair(plugin, kMiB);
  layout::Request* const early = pair.Receive(0, 100);
  EXPECT_EQ(pair.Consume(early), abi::kInternalError);
  ExpectMisuse(plugin, "not done, or was consumed before");
  layout::Request* const send = pair.Send(0, 100);
  EXPECT_EQ(pair.Wait(early, send), 1);
  layout::Request* const second = pair.Exchange(200);
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(pair.Consume(second), abi::kInternalError);
  ExpectMisuse(plugin, "not the oldest");
  EXPECT_EQ(pair.Consume(nullptr), abi::kInternalError);
  ExpectMisuse(plugin, "irecvConsumed of no request");
  EXPECT_EQ(plugin->irecv_consumed(pair.recv_comm(), 2, early), abi::kInternalError);
  ExpectMisuse(plugin, "irecvConsumed of 2 buffers");
  EXPECT_EQ(pair.Consume(early), abi::kSuccess);
  EXPECT_EQ(pair.Consume(early), abi::kInternalError);
  ExpectMisuse(plugin, "not the oldest");
  EXPECT_EQ(pair.Consume(second), abi::kSuccess);
  EXPECT_EQ(pair.Consume(second), abi::kInternalError);
  ExpectMisuse(plugin, "not done, or was consumed before");
}

TEST(StandinMisuse, OnlyTheOldestIsTestedOnceBytesMove) {
  const Instance plugin = Instance::Initialized({});
  Pair pair(plugin, kMiB);
  layout::Request* const first = pair.Send(0, 100);
  layout::Request* const second = pair.Send(0, 100);
  EXPECT_EQ(pair.Test(first), 0) << "both are with the sockets now";
  EXPECT_EQ(pair.Test(second), -abi::kInternalError);
  ExpectMisuse(plugin, "test of a request that is not the oldest");
  EXPECT_THAT(Warnings(), HasSubstr("test called with invalid request"));
  int done = 0;
  EXPECT_EQ(plugin->test(nullptr, &done, nullptr), abi::kInternalError);
  ExpectMisuse(plugin, "test of no request");
}

TEST(StandinMisuse, ARequestThatWasReportedIsNotTestedAgain) {
  const Instance plugin = Instance::Initialized({});
  Pair pair(plugin, kMiB);
  layout::Request* const request = pair.Exchange(100);
  ASSERT_NE(request, nullptr);
  EXPECT_EQ(pair.Test(request), -abi::kInternalError);
  ExpectMisuse(plugin, "has been reported as done");
  EXPECT_EQ(pair.Consume(request), abi::kSuccess);
}

TEST(StandinMisuse, FlushIsReported) {
  const Instance plugin = Instance::Initialized({});
  EXPECT_EQ(plugin->iflush(nullptr, 1, nullptr, nullptr, nullptr, nullptr), abi::kInternalError);
  ExpectMisuse(plugin, "iflush");
}

// Another host in the same process.
std::atomic<int> other_hosts_lines{0};
void CountLine(int /*level*/, unsigned long /*flags*/, const char* /*file*/, int /*line*/,
               const char* /*format*/, ...) {
  ++other_hosts_lines;
}

TEST(StandinMisuse, InitIsCalledOnceByEachHost) {
  const Instance plugin = Instance::Initialized({});
  other_hosts_lines = 0;
  EXPECT_EQ(plugin->init(CountLine), abi::kSuccess);
  EXPECT_EQ(plugin.Misuses(), 0U);
  EXPECT_EQ(plugin.Init(), abi::kInternalError);
  ExpectMisuse(plugin, "init was called twice by the same host");
  EXPECT_EQ(other_hosts_lines, 1);
  plugin.Reset();
  EXPECT_EQ(plugin->init(CountLine), abi::kInternalError);
  ExpectMisuse(plugin, "init was called twice by the same host");
  plugin.Reset();
  EXPECT_EQ(plugin->init(nullptr), abi::kInvalidArgument);
  const Instance fresh({});
  int count = 0;
  EXPECT_EQ(fresh->devices(&count), abi::kInternalError);
  EXPECT_EQ(fresh.LastMisuse(), "devices before init");
}

// Each has a logger of its own.
template <int kHost>
void IgnoreLine(int /*level*/, unsigned long /*flags*/, const char* /*file*/, int /*line*/,
                const char* /*format*/, ...) {}

TEST(Standin, RefusesANinthHostAndTellsWhy) {
  const Instance plugin = Instance::Initialized({});
  for (const auto logger : {IgnoreLine<2>, IgnoreLine<3>, IgnoreLine<4>, IgnoreLine<5>,
                            IgnoreLine<6>, IgnoreLine<7>, IgnoreLine<8>}) {
    EXPECT_EQ(plugin->init(logger), abi::kSuccess);
  }
  other_hosts_lines = 0;
  EXPECT_EQ(plugin->init(CountLine), abi::kInternalError);
  EXPECT_EQ(other_hosts_lines, 1);
  EXPECT_EQ(plugin.Misuses(), 0U) << plugin.LastMisuse();
  EXPECT_THAT(Warnings(), HasSubstr("init was called by another host"));
}

TEST(StandinMisuse, RegistrationsAreAlignedAndOfTheirComm) {
  const Instance plugin = Instance::Initialized({});
  Pair pair(plugin, kMiB);
  void* mr = nullptr;
  EXPECT_EQ(plugin->reg_mr(pair.send_comm(), pair.source() + 16, 100, abi::kPointerCuda, &mr),
            abi::kInternalError);
  ExpectMisuse(plugin, "not a multiple of 4096");
  EXPECT_EQ(plugin->dereg_mr(pair.send_comm(), pair.recv_mr()), abi::kInternalError);
  ExpectMisuse(plugin, "deregMr of what this comm has not registered");
  void* request = nullptr;
  EXPECT_EQ(plugin->isend(pair.send_comm(), pair.source(), 100, 0, pair.recv_mr(), &request),
            abi::kInternalError);
  ExpectMisuse(plugin, "memory that is not registered");
  EXPECT_EQ(
      plugin->isend(pair.send_comm(), pair.source() + kMiB - 50, 100, 0, pair.send_mr(), &request),
      abi::kInternalError);
  ExpectMisuse(plugin, "outside of the memory");
}

TEST(StandinMisuse, MemoryOfTheHostCanBeSentButNotReceivedInto) {
  const Instance plugin = Instance::Initialized({});
  Pair pair(plugin, kMiB);
  void* send_mr = nullptr;
  void* recv_mr = nullptr;
  auto* const here = pair.source() + 16;
  ASSERT_EQ(plugin->reg_mr(pair.send_comm(), here, 1000, abi::kPointerHost, &send_mr), 0);
  ASSERT_EQ(plugin->reg_mr(pair.recv_comm(), pair.target(), 1000, abi::kPointerHost, &recv_mr), 0);
  void* data = pair.target();
  int bytes = 1000;
  int tag = 0;
  void* request = nullptr;
  EXPECT_EQ(plugin->irecv(pair.recv_comm(), 1, &data, &bytes, &tag, &recv_mr, &request),
            abi::kInternalError);
  ExpectMisuse(plugin, "memory of the host's");
  layout::Request* const receive = pair.Receive(0, 1000);
  ASSERT_EQ(plugin->isend(pair.send_comm(), here, 1000, 0, send_mr, &request), abi::kSuccess);
  EXPECT_EQ(pair.Wait(receive, static_cast<layout::Request*>(request)), 1);
  EXPECT_EQ(pair.Unpack(receive), 1000U);
  EXPECT_EQ(std::memcmp(pair.target(), here, 1000), 0);
  EXPECT_EQ(pair.Consume(receive), abi::kSuccess);
  EXPECT_EQ(plugin->dereg_mr(pair.send_comm(), send_mr), abi::kSuccess);
  EXPECT_EQ(plugin->dereg_mr(pair.recv_comm(), recv_mr), abi::kSuccess);
}

TEST(StandinMisuse, NothingIsUsedAfterItsEnd) {
  const Instance plugin = Instance::Initialized({});
  Pair pair(plugin, kMiB);
  void* comm = nullptr;
  abi::DeviceHandle handle;
  abi::DeviceHandle* device_handle = &handle;
  EXPECT_EQ(plugin->connect(0, pair.handle(), &comm, &device_handle), abi::kInternalError);
  ExpectMisuse(plugin, "connect with a handle after its end");
  EXPECT_EQ(plugin->accept(pair.listen_comm(), &comm, &device_handle), abi::kInternalError);
  ExpectMisuse(plugin, "accept with a listen comm that was closed");
  EXPECT_EQ(plugin->close_listen(pair.listen_comm()), abi::kInternalError);
  ExpectMisuse(plugin, "closeListen of a listen comm that was closed");
  void* const closed = pair.send_comm();
  void* const mr = pair.send_mr();
  layout::Request* const request = pair.Send(0, 100);
  pair.CloseSend();
  EXPECT_EQ(plugin.Misuses(), 0U);
  void* unused = nullptr;
  EXPECT_EQ(plugin->isend(closed, pair.source(), 100, 0, mr, &unused), abi::kInternalError);
  ExpectMisuse(plugin, "isend with a comm that was closed");
  EXPECT_EQ(pair.Test(request), -abi::kInternalError);
  ExpectMisuse(plugin, "test with a comm that was closed");
  EXPECT_EQ(plugin->close_send(closed), abi::kInternalError);
  ExpectMisuse(plugin, "close with a comm that was closed");
  EXPECT_EQ(plugin->isend(pair.recv_comm(), pair.source(), 100, 0, mr, &unused),
            abi::kInternalError);
  ExpectMisuse(plugin, "comm of the other direction");
}

TEST(StandinMisuse, AListenCommMakesOneConnection) {
  const Instance plugin = Instance::Initialized({{"POLLS", "0"}});
  alignas(8) std::byte handle[abi::kHandleBytes];
  alignas(8) std::byte copy[abi::kHandleBytes];
  void* listening = nullptr;
  ASSERT_EQ(plugin->listen(0, handle, &listening), abi::kSuccess);
  std::memcpy(copy, handle, sizeof(copy));
  void* send = nullptr;
  void* recv = nullptr;
  abi::DeviceHandle memory;
  abi::DeviceHandle* device_handle = &memory;
  EXPECT_EQ(plugin->accept(listening, &recv, nullptr), abi::kInternalError);
  ExpectMisuse(plugin, "accept without memory for the device handle");
  while (send == nullptr || recv == nullptr) {
    if (send == nullptr) {
      ASSERT_EQ(plugin->connect(0, handle, &send, &device_handle), abi::kSuccess);
    }
    if (recv == nullptr) {
      ASSERT_EQ(plugin->accept(listening, &recv, &device_handle), abi::kSuccess);
    }
  }
  void* more = nullptr;
  EXPECT_EQ(plugin->accept(listening, &more, &device_handle), abi::kInternalError);
  ExpectMisuse(plugin, "accept with a listen comm after its end");
  EXPECT_EQ(plugin->connect(0, copy, &more, &device_handle), abi::kInternalError);
  ExpectMisuse(plugin, "fresh copy of a handle");
  std::memcpy(copy, handle, sizeof(copy));
  EXPECT_EQ(plugin->connect(0, copy, &more, &device_handle), abi::kInternalError);
  ExpectMisuse(plugin, "belongs to other memory");
  std::memset(copy, 0, sizeof(copy));
  EXPECT_EQ(plugin->connect(0, copy, &more, &device_handle), abi::kInternalError);
  ExpectMisuse(plugin, "what listen has not written");
  EXPECT_EQ(plugin->close_listen(listening), abi::kSuccess);
  EXPECT_EQ(plugin->close_send(send), abi::kSuccess);
  EXPECT_EQ(plugin->close_recv(recv), abi::kSuccess);
}

TEST(StandinMisuse, AClosedCommHasConsumedAndDeregisteredEverything) {
  const Instance plugin = Instance::Initialized({});
  Pair pair(plugin, kMiB);
  ASSERT_NE(pair.Exchange(kChunk), nullptr);
  pair.CloseRecv();
  ExpectMisuse(plugin, "1 receives that are not consumed");
  EXPECT_EQ(plugin.PagesInUse(), 0U);
  Pair other(plugin, kMiB);
  void* mr = nullptr;
  ASSERT_EQ(plugin->reg_mr(other.send_comm(), other.source(), 10, abi::kPointerHost, &mr), 0);
  other.CloseSend();
  ExpectMisuse(plugin, "close of a comm with 1 registrations");
}

TEST(StandinMisuseDeathTest, AbortsWhenAskedTo) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        const Instance plugin = Instance::Initialized({{"ABORT", "1"}});
        (void)plugin->iflush(nullptr, 1, nullptr, nullptr, nullptr, nullptr);
      },
      "standin: misuse: iflush");
}

}  // namespace
}  // namespace ferry::standin::testing
