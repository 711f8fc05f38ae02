// Measures the CPU cost of one operation while many others are in flight.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <ctime>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "ferry/transfer/lane/message_queue.h"
#include "ferry/transfer/testing/linked_endpoints.h"

// Cost of one operation while `n` others are in flight: CPU time of the whole process, divided by
// n. Other programs on the machine change it little.
//
// The two endpoints are in this process, connected over loopback, so the cost includes both sides.
namespace ferry::transfer {
namespace {

constexpr std::uint64_t kBytes = 64;  // bytes of each write, read and message
constexpr auto kLong = std::chrono::hours(1);

double CpuSeconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

std::size_t Count(const benchmark::State& state) {
  return static_cast<std::size_t>(state.range(0));
}

// `spent`: CPU seconds of all n operations.
void Report(benchmark::State& state, double spent) {
  state.SetIterationTime(spent);
  state.counters["per_operation"] = benchmark::Counter(
      static_cast<double>(state.range(0)),
      benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

Config ForMany() {
  Config config = SmallSlices();
  config.slice_bytes = 1024 * 1024;
  config.window_bytes = 16 * 1024 * 1024;
  config.max_operations = 1 << 20;
  config.unexpected_bytes = std::uint64_t{1} << 30;
  config.peer_memory = std::uint64_t{2} << 30;
  config.peer_memory_total = std::uint64_t{2} << 30;
  return config;
}

std::vector<std::uint64_t> ShuffledTags(std::size_t count) {
  std::vector<std::uint64_t> tags(count);
  std::iota(tags.begin(), tags.end(), 0);
  std::shuffle(tags.begin(), tags.end(), std::mt19937_64(count));
  return tags;
}

class Both {
 public:
  explicit Both(std::size_t count) : bytes_(kBytes), buffer_(kBytes) { operations_.reserve(count); }
  Connection& near() { return *link_.near.connection; }
  Connection& far() { return *link_.far.connection; }

  void Send(std::uint64_t tag) {
    operations_.push_back(Must(near().Send(tag, bytes_, {.deadline = Deadline::After(kLong)})));
  }
  void Receive(std::uint64_t tag, Deadline deadline = Deadline::After(kLong)) {
    operations_.push_back(Must(far().Recv(tag, kWholeTag, buffer_, {.deadline = deadline})));
  }
  void Write(const PreparedTransfer& transfer) {
    operations_.push_back(Must(near().Write(transfer)));
  }
  void Read(const PreparedTransfer& transfer) {
    operations_.push_back(Must(near().Read(transfer)));
  }
  // Returns once all operations posted earlier on the far side have begun.
  void Settle() {
    (void)Must(far().Notify(bytes_)).Wait();
    (void)near().TakeNotification(Soon());
  }
  void CancelInReverse() {
    std::for_each(operations_.rbegin(), operations_.rend(),
                  [](Operation& operation) { operation.Cancel(); });
  }
  void WaitForAll() {
    for (Operation& operation : operations_) (void)operation.Wait();
    operations_.clear();
  }

  template <class Work>
  double Time(Work&& work) {
    const double before = CpuSeconds();
    work();
    return CpuSeconds() - before;
  }

  Endpoint& near_endpoint() { return *link_.near.endpoint; }
  Endpoint& far_endpoint() { return *link_.far.endpoint; }

 private:
  Link link_ = MakeLink(ForMany());
  std::vector<std::byte> bytes_;
  std::vector<std::byte> buffer_;
  std::vector<Operation> operations_;
};

// ---- over a connection --------------------------------------------------------------------------

template <bool kWrites>
void BmTransfers(benchmark::State& state) {
  Both both(Count(state));
  std::vector<std::byte> here(kBytes);
  std::vector<std::byte> there(kBytes);
  const Region local = Must(both.near_endpoint().Register(here, Rights::kNone));
  const Region remote = Must(both.far_endpoint().Register(there, Rights::kReadWrite));
  const RemoteRegion key = Must(both.near().Import(remote.key()));
  TransferPart part{&local, &key, {}};
  part.blocks.Add({.dst = 0, .src = 0, .len = kBytes});
  std::vector<TransferPart> parts;
  parts.push_back(std::move(part));
  const PreparedTransfer transfer = Must(kWrites ? both.near().PrepareWrite(std::move(parts))
                                                 : both.near().PrepareRead(std::move(parts)));
  for (auto _ : state) {
    Report(state, both.Time([&] {
      for (std::size_t i = 0; i < Count(state); ++i) {
        kWrites ? both.Write(transfer) : both.Read(transfer);
      }
      both.WaitForAll();
    }));
  }
}

void BmPostReceive(benchmark::State& state) {
  Both both(Count(state));
  for (auto _ : state) {
    Report(state, both.Time([&] {
      for (std::size_t i = 0; i < Count(state); ++i) both.Receive(i);
      both.Settle();
    }));
    both.CancelInReverse();
    both.WaitForAll();
  }
}

void BmCancelReceive(benchmark::State& state) {
  Both both(Count(state));
  for (auto _ : state) {
    for (std::size_t i = 0; i < Count(state); ++i) both.Receive(i);
    both.Settle();
    Report(state, both.Time([&] {
      both.CancelInReverse();
      both.WaitForAll();
    }));
  }
}

// The receives are posted before their messages, which arrive in a different order.
void BmMatchReceive(benchmark::State& state) {
  Both both(2 * Count(state));
  const auto tags = ShuffledTags(Count(state));
  for (auto _ : state) {
    for (std::size_t i = 0; i < Count(state); ++i) both.Receive(i);
    both.Settle();
    Report(state, both.Time([&] {
      for (const std::uint64_t tag : tags) both.Send(tag);
      both.WaitForAll();
    }));
  }
}

// The messages arrive before their receives, which are posted in a different order.
void BmMatchMessage(benchmark::State& state) {
  Both both(2 * Count(state));
  const auto tags = ShuffledTags(Count(state));
  for (auto _ : state) {
    for (std::size_t i = 0; i < Count(state); ++i) both.Send(i);
    both.WaitForAll();
    Report(state, both.Time([&] {
      for (const std::uint64_t tag : tags) both.Receive(tag);
      both.WaitForAll();
    }));
  }
}

// Receives that time out, one every 16 us. Measured from their posting to the end of the last.
void BmDeadline(benchmark::State& state) {
  Both both(Count(state));
  for (auto _ : state) {
    const auto first = Clock::now() + std::chrono::milliseconds(50 + Count(state) / 50);
    Report(state, both.Time([&] {
      for (std::size_t i = 0; i < Count(state); ++i) {
        both.Receive(i, Deadline::At(first + i * std::chrono::microseconds(16)));
      }
      both.WaitForAll();
    }));
  }
}

// ---- tables -------------------------------------------------------------------------------------

Matcher::Receive ReceiveFor(std::uint64_t tag, std::uint64_t mask = kWholeTag) {
  auto receive = std::make_shared<OperationState>();
  receive->kind = OperationKind::kRecv;
  receive->tag = tag;
  receive->mask = mask;
  return receive;
}

// Matches one receive and posts another while n are queued.
void BmMatcherReceives(benchmark::State& state) {
  Matcher matcher;
  const auto tags = ShuffledTags(Count(state));
  for (const std::uint64_t tag : tags) (void)matcher.Post(ReceiveFor(tag));
  std::size_t at = 0;
  for (auto _ : state) {
    (void)matcher.Post(matcher.TakeReceive(tags[at]));
    at = at + 7 < tags.size() ? at + 7 : 0;
  }
}

// Takes one message and keeps another while n are queued.
void BmMatcherMessages(benchmark::State& state) {
  Matcher matcher;
  const auto tags = ShuffledTags(Count(state));
  for (const std::uint64_t tag : tags) {
    matcher.Keep({.tag = tag, .bytes = 0, .peer_operation = tag, .announced = true, .data = {}});
  }
  const Matcher::Receive receive = ReceiveFor(0);
  std::size_t at = 0;
  for (auto _ : state) {
    receive->tag = tags[at];
    matcher.Keep(*matcher.Post(receive));
    at = at + 7 < tags.size() ? at + 7 : 0;
  }
}

// As above, with receives whose mask ignores the lowest bit.
void BmMatcherMessagesByMask(benchmark::State& state) {
  Matcher matcher;
  const auto tags = ShuffledTags(Count(state));
  for (const std::uint64_t tag : tags) {
    matcher.Keep({.tag = tag, .bytes = 0, .peer_operation = tag, .announced = true, .data = {}});
  }
  const Matcher::Receive receive = ReceiveFor(0, ~std::uint64_t{1});
  std::size_t at = 0;
  for (auto _ : state) {
    receive->tag = tags[at];
    matcher.Keep(*matcher.Post(receive));
    at = at + 7 < tags.size() ? at + 7 : 0;
  }
}

// One access with one of n granted keys.
void BmOpenGranted(benchmark::State& state) {
  std::vector<std::byte> memory(kBytes);
  RegionTable table;
  const auto region = Must(table.Add(memory, Rights::kNone));
  std::vector<std::pair<wire::KeyBody, Accessor>> all;
  for (std::size_t i = 0; i < Count(state); ++i) {
    const Uuid peer = Uuid::Random();
    all.emplace_back(Must(table.Grant(region, peer, Rights::kRead)), Accessor{nullptr, peer});
  }
  std::shuffle(all.begin(), all.end(), std::mt19937_64(1));
  std::size_t at = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(table.Open(all[at].first, Rights::kRead, all[at].second));
    at = at + 1 < all.size() ? at + 1 : 0;
  }
}

// Grants a key to one more peer, and withdraws it.
void BmGrantAndWithdraw(benchmark::State& state) {
  std::vector<std::byte> memory(kBytes);
  RegionTable table;
  const auto region = Must(table.Add(memory, Rights::kNone));
  for (std::size_t i = 0; i < Count(state); ++i) {
    (void)Must(table.Grant(region, Uuid::Random(), Rights::kRead));
  }
  const Uuid peer = Uuid::Random();
  for (auto _ : state) {
    benchmark::DoNotOptimize(table.Grant(region, peer, Rights::kRead));
    table.Withdraw(region, peer);
  }
}

void Sizes(benchmark::internal::Benchmark* bench) { bench->Arg(1'000)->Arg(60'000)->Arg(200'000); }
void Batches(benchmark::internal::Benchmark* bench) {
  bench->UseManualTime()->Unit(benchmark::kMillisecond);
  Sizes(bench);
}

BENCHMARK_TEMPLATE(BmTransfers, true)->Name("BmWrite")->Apply(Batches);
BENCHMARK_TEMPLATE(BmTransfers, false)->Name("BmRead")->Apply(Batches);
BENCHMARK(BmPostReceive)->Apply(Batches);
BENCHMARK(BmCancelReceive)->Apply(Batches);
BENCHMARK(BmMatchReceive)->Apply(Batches);
BENCHMARK(BmMatchMessage)->Apply(Batches);
BENCHMARK(BmDeadline)->Apply(Batches);
BENCHMARK(BmMatcherReceives)->Apply(Sizes);
BENCHMARK(BmMatcherMessages)->Apply(Sizes);
BENCHMARK(BmMatcherMessagesByMask)->Apply(Sizes);
BENCHMARK(BmOpenGranted)->Apply(Sizes);
BENCHMARK(BmGrantAndWithdraw)->Apply(Sizes);

}  // namespace
}  // namespace ferry::transfer
