// Tests the faults that the stand-in injects on request.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "standin/testing/host.h"

namespace ferry::standin::testing {
namespace {

constexpr std::size_t kMessage = 100'000;

Instance Faulty(const std::string& fault) { return Instance::Initialized({{"FAULT", fault}}); }

// A receive that the fault strikes: the second.
class Struck {
 public:
  explicit Struck(const std::string& fault)
      : plugin_(Faulty(fault + "@2")), pair_(plugin_, 200'000) {
    layout::Request* const first = pair_.Exchange(kMessage);
    if (first == nullptr) return;
    EXPECT_EQ(pair_.Unpack(first), kMessage) << "the first receive is a good one";
    EXPECT_EQ(std::memcmp(pair_.source(), pair_.target(), kMessage), 0);
    EXPECT_EQ(pair_.Consume(first), abi::kSuccess);
    request_ = pair_.Exchange(kMessage);
    if (request_ == nullptr) return;
    fragments_ = pair_.FragmentsOf(request_);
    std::sort(fragments_.begin(), fragments_.end(),
              [](const auto& a, const auto& b) { return a.dst < b.dst; });
    for (const auto& one : fragments_) bytes_ += one.len;
  }
  // A faulty row does not harm the stand-in itself.
  ~Struck() {
    if (request_ != nullptr) {
      EXPECT_EQ(pair_.Consume(request_), abi::kSuccess);
    }
    EXPECT_EQ(plugin_.PagesInUse(), 0U);
    EXPECT_EQ(plugin_.Misuses(), 0U);
  }
  Struck(const Struck&) = delete;
  Struck& operator=(const Struck&) = delete;

  const Pair& pair() const { return pair_; }
  const layout::Request* request() const { return request_; }
  const std::vector<Fragment>& fragments() const { return fragments_; }
  std::size_t bytes() const { return bytes_; }

 private:
  Instance plugin_;
  Pair pair_;
  layout::Request* request_ = nullptr;
  std::vector<Fragment> fragments_;
  std::size_t bytes_ = 0;
};

constexpr std::uint64_t kPool = 64 * 1024 * 1024;

TEST(StandinFault, CountStaysZero) {
  const Struck struck("count_stays_zero");
  ASSERT_NE(struck.request(), nullptr);
  EXPECT_EQ(struck.fragments().size(), 0U);
  EXPECT_EQ(struck.request()->size, static_cast<int>(kMessage));
}

TEST(StandinFault, OversizeExceedsWhatWasPosted) {
  const Struck struck("oversize");
  ASSERT_NE(struck.request(), nullptr);
  EXPECT_EQ(struck.request()->size, static_cast<int>(kMessage + 64));
  EXPECT_EQ(struck.bytes(), kMessage + 64);
  EXPECT_EQ(struck.fragments().back().dst, kMessage);
}

TEST(StandinFault, ShortLacksAByte) {
  const Struck struck("short");
  ASSERT_NE(struck.request(), nullptr);
  EXPECT_EQ(struck.request()->size, static_cast<int>(kMessage));
  EXPECT_EQ(struck.bytes(), kMessage - 1);
}

TEST(StandinFault, OverlapHasTheRightSum) {
  const Struck struck("overlap");
  ASSERT_NE(struck.request(), nullptr);
  EXPECT_EQ(struck.bytes(), kMessage);
  const auto& fragments = struck.fragments();
  std::size_t overlaps = 0;
  for (std::size_t i = 1; i < fragments.size(); ++i) {
    if (fragments[i].dst < fragments[i - 1].dst + fragments[i - 1].len) ++overlaps;
  }
  EXPECT_EQ(overlaps, 1U);
}

TEST(StandinFault, OutOfPoolEndsBeyondThePool) {
  const Struck struck("out_of_pool");
  ASSERT_NE(struck.request(), nullptr);
  EXPECT_TRUE(std::any_of(struck.fragments().begin(), struck.fragments().end(), [](auto& one) {
    return one.src < kPool && std::uint64_t{one.src} + one.len > kPool;
  }));
}

TEST(StandinFault, WrapOverflowsThirtyTwoBits) {
  const Struck struck("wrap");
  ASSERT_NE(struck.request(), nullptr);
  EXPECT_TRUE(std::any_of(struck.fragments().begin(), struck.fragments().end(),
                          [](auto& one) { return one.src + one.len < one.src; }));
}

TEST(StandinFault, ZeroLengthIsAFragmentOfNothing) {
  const Struck struck("zero_length");
  ASSERT_NE(struck.request(), nullptr);
  EXPECT_EQ(struck.bytes(), kMessage);
  EXPECT_EQ(std::count_if(struck.fragments().begin(), struck.fragments().end(),
                          [](auto& one) { return one.len == 0; }),
            1);
}

TEST(StandinFault, BadRowPointsToAnotherRow) {
  const Struck struck("bad_row");
  ASSERT_NE(struck.request(), nullptr);
  EXPECT_EQ(struck.request()->row, 1U);
  EXPECT_EQ(struck.request()->fragments, struck.pair().unpack().meta->rows[2]);
  EXPECT_EQ(struck.bytes(), kMessage);
}

TEST(StandinFault, StuckCountIsNeverDone) {
  const Instance plugin = Faulty("stuck_count");
  Pair pair(plugin, kMessage);
  layout::Request* const receive = pair.Receive(0, kMessage);
  layout::Request* const send = pair.Send(0, kMessage);
  EXPECT_EQ(pair.Wait(send), 1);
  for (int after = 0; after < 100; after += receive->size_pending == 0 ? 1 : 0) {
    ASSERT_EQ(pair.Test(receive), 0);
  }
}

TEST(StandinFault, CallsFailWhenAskedTo) {
  {
    const Instance plugin = Faulty("isend_rc2@2");
    Pair pair(plugin, kMessage);
    EXPECT_NE(pair.Send(0, 10), nullptr);
    void* request = nullptr;
    EXPECT_EQ(plugin->isend(pair.send_comm(), pair.source(), 10, 0, pair.send_mr(), &request),
              abi::kSystemError);
  }
  {
    const Instance plugin = Faulty("irecv_rc3@2");
    Pair pair(plugin, kMessage);
    EXPECT_NE(pair.Receive(0, 10), nullptr);
    void* request = nullptr;
    void* data = pair.target();
    int bytes = 10;
    int tag = 0;
    void* mr = pair.recv_mr();
    EXPECT_EQ(plugin->irecv(pair.recv_comm(), 1, &data, &bytes, &tag, &mr, &request),
              abi::kInternalError);
    EXPECT_EQ(plugin.Misuses(), 0U);
  }
  {
    const Instance plugin = Faulty("test_rc2@3");
    Pair pair(plugin, kMessage);
    layout::Request* const request = pair.Receive(0, 10);
    EXPECT_EQ(pair.Test(request), 0);
    EXPECT_EQ(pair.Test(request), 0);
    EXPECT_EQ(pair.Test(request), -abi::kSystemError);
  }
}

TEST(StandinFault, HalfCloseFailsBothEnds) {
  const Instance plugin = Faulty("half_close@2");
  Pair pair(plugin, kMessage);
  layout::Request* const first = pair.Exchange(kMessage);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(pair.Consume(first), abi::kSuccess);
  layout::Request* const receive = pair.Receive(0, kMessage);
  layout::Request* const send = pair.Send(0, kMessage);
  EXPECT_EQ(pair.Wait(send), -abi::kSystemError);
  EXPECT_EQ(pair.Wait(receive), -abi::kSystemError);
}

TEST(StandinFault, APeerThatHasGoneIsNoticed) {
  const Instance plugin = Instance::Initialized({});
  Pair pair(plugin, kMessage);
  layout::Request* const receive = pair.Receive(0, kMessage);
  EXPECT_EQ(pair.Test(receive), 0);
  pair.CloseSend();
  EXPECT_EQ(pair.Wait(receive), -abi::kSystemError);
}

TEST(StandinFault, ASlowPeerDelaysEachMessage) {
  const Instance plugin = Instance::Initialized({{"FAULT", "slow_peer"}, {"DELAY_MS", "30"}});
  Pair pair(plugin, kMessage);
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 3; ++i) {
    layout::Request* const request = pair.Exchange(kMessage);
    ASSERT_NE(request, nullptr);
    EXPECT_EQ(pair.Consume(request), abi::kSuccess);
  }
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(90));
}

// connect() or accept() as often as `polls` says; the outcome of the last.
struct Polled {
  int outcome = abi::kSuccess;
  void* comm = nullptr;
};

Polled Connect(const Instance& plugin, int polls) {
  alignas(8) std::byte handle[abi::kHandleBytes];
  void* listening = nullptr;
  Polled polled;
  abi::DeviceHandle* none = nullptr;
  EXPECT_EQ(plugin->listen(0, handle, &listening), abi::kSuccess);
  for (int i = 0; i < polls && polled.outcome == abi::kSuccess && polled.comm == nullptr; ++i) {
    polled.outcome = plugin->connect(0, handle, &polled.comm, &none);
  }
  EXPECT_EQ(plugin->close_listen(listening), abi::kSuccess);
  return polled;
}

TEST(StandinFault, ConnectNeverComesToAnEnd) {
  const Polled polled = Connect(Faulty("connect_never"), 100'000);
  EXPECT_EQ(polled.outcome, abi::kSuccess);
  EXPECT_EQ(polled.comm, nullptr);
}

TEST(StandinFault, ConnectFailsAtTheGivenPoll) {
  EXPECT_EQ(Connect(Faulty("connect_fail@3"), 2).outcome, abi::kSuccess);
  const Polled polled = Connect(Faulty("connect_fail@3"), 3);
  EXPECT_EQ(polled.outcome, abi::kSystemError);
  EXPECT_EQ(polled.comm, nullptr);
}

TEST(StandinFault, AnImmediateCommIsNotReadyWhileNobodyAccepts) {
  const Instance plugin = Instance::Initialized({{"POLLS", "immediate"}});
  alignas(8) std::byte handle[abi::kHandleBytes];
  void* listening = nullptr;
  void* comm = nullptr;
  abi::DeviceHandle* none = nullptr;
  ASSERT_EQ(plugin->listen(0, handle, &listening), abi::kSuccess);
  ASSERT_EQ(plugin->connect(0, handle, &comm, &none), abi::kSuccess);
  ASSERT_NE(comm, nullptr);
  const Pages memory = MakePages(4096);
  void* mr = nullptr;
  ASSERT_EQ(plugin->reg_mr(comm, memory.get(), 4096, abi::kPointerCuda, &mr), abi::kSuccess);
  for (int i = 0; i < 1000; ++i) {
    void* request = nullptr;
    ASSERT_EQ(plugin->isend(comm, memory.get(), 4096, 0, mr, &request), abi::kSuccess);
    ASSERT_EQ(request, nullptr);
  }
  EXPECT_EQ(plugin->dereg_mr(comm, mr), abi::kSuccess);
  EXPECT_EQ(plugin->close_send(comm), abi::kSuccess);
  EXPECT_EQ(plugin->close_listen(listening), abi::kSuccess);
}

TEST(StandinFault, AcceptFailsAtTheGivenPoll) {
  const Instance plugin = Faulty("accept_fail@2");
  alignas(8) std::byte handle[abi::kHandleBytes];
  void* listening = nullptr;
  void* comm = nullptr;
  abi::DeviceHandle memory;
  abi::DeviceHandle* device_handle = &memory;
  ASSERT_EQ(plugin->listen(0, handle, &listening), abi::kSuccess);
  EXPECT_EQ(plugin->accept(listening, &comm, &device_handle), abi::kSuccess);
  EXPECT_EQ(plugin->accept(listening, &comm, &device_handle), abi::kSystemError);
  EXPECT_EQ(plugin->close_listen(listening), abi::kSuccess);
}

TEST(StandinFault, InitFailsOrFindsNoDevices) {
  const Instance broken(Variables{{"FAULT", "init_fail"}});
  EXPECT_EQ(broken.Init(), abi::kSystemError);
  const Instance empty = Faulty("no_devices");
  int count = 7;
  EXPECT_EQ(empty->devices(&count), abi::kSuccess);
  EXPECT_EQ(count, 0);
}

TEST(StandinFaultDeathTest, NoCmsgEndsTheProcess) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        const Instance plugin = Faulty("exit_no_cmsg@2");
        Pair pair(plugin, kMessage);
        (void)pair.Consume(pair.Exchange(kMessage));
        (void)pair.Exchange(kMessage);
      },
      ::testing::ExitedWithCode(1), "fatal, .* rx no cmsg");
}

}  // namespace
}  // namespace ferry::standin::testing
