// Soak test that runs for FERRY_SOAK_SECONDS: operations of all kinds with reachable and
// unreachable deadlines, some cancelled, on connections whose lanes are reset, stalled and
// corrupted and whose peer is frozen, killed and restarted, between host and GPU memory. Every
// operation ends in time, every successful operation moved all its bytes, and nothing remains at
// the end.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "ferry/core/units.h"
#include "ferry/net/testing/fault_proxy.h"
#include "ferry/transfer/testing/any_options.h"
#include "tests/load/placed_memory.h"
#include "tests/soak/sent_history.h"
#include "tests/support/echo_role.h"
#include "tests/support/engine_peer.h"

namespace ferry::tests {
namespace {

using transfer::Connection;
using transfer::Operation;
using transfer::Region;

constexpr std::uint64_t kSlab = 2 * kMiB;  // of either side's memory, for each client
constexpr std::uint64_t kWholeTag = ~std::uint64_t{0};
constexpr milliseconds kOperation{3000};
// The latest an operation ends: its deadline, the grace, and what a frozen peer costs.
constexpr milliseconds kBound = kOperation + kDrainGrace + 3 * kPeerTimeout + kSlack;

int Seconds() {
  const char* const text = std::getenv("FERRY_SOAK_SECONDS");
  return text != nullptr ? std::atoi(text) : kSanitized ? 20 : 30;
}

std::uint64_t Seed() {
  const char* const text = std::getenv("FERRY_SOAK_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 1;
}

// The setting `devices` of both sides: simulated GPUs, unless FERRY_SOAK_DEVICES says "auto", for
// real ones, or "none".
std::string Devices() {
  const char* const text = std::getenv("FERRY_SOAK_DEVICES");
  return text != nullptr ? text : fmt::format("simulated:2:{}", Seed());
}
// The setting `provider` of both sides.
std::string ProviderName() {
  const char* const text = std::getenv("FERRY_SOAK_PROVIDER");
  return text != nullptr ? text : "tcp";
}
bool OverPlugin() { return ProviderName() != "tcp"; }
bool DevicesAreReal() { return Devices() == "auto"; }

// Where a client's memory is, and its peer's: kOnHost, or the ordinal of a GPU.
struct Places {
  int here;
  int there;
};
constexpr std::array<Places, 4> kPlaces = {Places{kOnHost, kOnHost}, Places{0, 1},
                                           Places{1, kOnHost}, Places{kOnHost, 0}};
constexpr std::size_t kClients = kPlaces.size();

// With few GPUs, or none.
int PlaceOn(const cuda::DeviceApi* devices, int place) {
  if (devices == nullptr || place == kOnHost) return kOnHost;
  return place % devices->count();
}

std::string PlaceName(const cuda::DeviceApi* devices, int place) {
  const int at = PlaceOn(devices, place);
  return at == kOnHost ? "the host" : fmt::format("GPU {}", at);
}

// Few slots between GPUs and network, so that they are waited for.
Settings SoakSettings(const Settings& more = {}) {
  Settings settings =
      FastSettings({"lanes=3", "insecure=on", "slice_bytes=64KiB", "window_bytes=256KiB",
                    "checksum=on", "connect_timeout=1s", "lane_timeout=500ms", "stage_bytes=1MiB",
                    "devices=" + Devices(), "provider=" + ProviderName()});
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

// Counts of events, by name; any thread may add.
class Counts {
 public:
  void Add(const std::string& what, std::uint64_t count = 1) {
    const std::lock_guard lock(mutex_);
    counts_[what] += count;
  }
  std::uint64_t Of(const std::string& what) const {
    const std::lock_guard lock(mutex_);
    const auto it = counts_.find(what);
    return it == counts_.end() ? 0 : it->second;
  }
  void Print() const {
    const std::lock_guard lock(mutex_);
    for (const auto& [what, count] : counts_) {
      std::printf("  %-36s %llu\n", what.c_str(), static_cast<unsigned long long>(count));
    }
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::uint64_t> counts_;
};

// The process that is talked to, as it is now. Its regions have the numbers of the clients.
struct Host {
  std::unique_ptr<PeerProcess> process;
  std::string available;  // GPU memory, when it began
};

class Client {
 public:
  struct Surroundings {
    transfer::Endpoint* endpoint;
    cuda::DeviceApi* devices;
    std::string where;
    Counts* counts;
  };
  Client(std::size_t number, std::uint64_t seed, const Surroundings& around)
      : random_(seed * 100 + number),
        endpoint_(around.endpoint),
        where_(around.where),
        counts_(around.counts),
        places_(fmt::format("from {} to {}", PlaceName(around.devices, kPlaces[number].here),
                            PlaceName(around.devices, kPlaces[number].there))),
        there_on_gpu_(PlaceOn(around.devices, kPlaces[number].there) != kOnHost),
        expected_(kSlab),
        out_(around.devices, PlaceOn(around.devices, kPlaces[number].here), kSlab),
        in_(around.devices, PlaceOn(around.devices, kPlaces[number].here), kSlab),
        out_region_(Must(endpoint_->Register(out_.span(), transfer::Rights::kNone))),
        in_region_(Must(endpoint_->Register(in_.span(), transfer::Rights::kNone))) {}

  // A key of the client's memory at the present peer that no earlier connection has used: their
  // writes may still be on their way to it (docs/reliability.md).
  using NewKey = std::function<Result<std::vector<std::byte>>()>;

  // Talks to whoever is there until `stop`.
  void Run(const std::atomic<bool>& stop, const NewKey& new_key) {
    while (!stop.load() && !failed()) {
      auto connection = endpoint_->Connect(where_, Deadline::After(std::chrono::seconds(2)));
      if (!connection) {
        counts_->Add("connect: " + std::string(CodeName(connection.error().code())));
        continue;
      }
      counts_->Add("connect: ok");
      ++connections_;
      const auto key = new_key();
      if (!key) failure_ = "no key: " + key.error().ToString();
      // Fails if the peer has been restarted since it was connected to.
      const auto remote = connection->Import(key ? *key : std::vector<std::byte>());
      while (remote && !stop.load() && !connection->lost() && !failed()) Step(*connection, *remote);
      connection->Close();
    }
  }
  bool failed() const { return !failure_.empty(); }
  const std::string& failure() const { return failure_; }
  bool GuardsIntact() { return out_.GuardsIntact() && in_.GuardsIntact(); }

 private:
  std::uint64_t Below(std::uint64_t n) { return random_() % n; }

  void Step(Connection& connection, const transfer::RemoteRegion& remote) {
    switch (Below(8)) {
      case 0:
      case 1:
      case 2: return WriteAndReadBack(connection, remote);
      case 3: return Echo(connection);
      case 4: return Burst(connection, remote);
      case 5: return Hopeless(connection, remote);
      case 6: return Cancelled(connection, remote);
      default: return Note(connection);
    }
  }

  static transfer::AnyOptions By(milliseconds wait) { return {.deadline = Deadline::After(wait)}; }

  // How it ended; "hang" is the failure of the test.
  Status End(const char* what, Result<Operation> operation, std::uint64_t bytes) {
    if (!operation) {
      counts_->Add(fmt::format("{}: not begun, {}", what, CodeName(operation.error().code())));
      return operation.error();
    }
    const Stopwatch watch;
    Status ended = operation->Wait(Deadline::After(std::chrono::seconds(60)));
    if (!operation->Poll()) {
      failure_ = fmt::format("{} hangs: {}", what, ended.error().ToString());
    } else if (watch.elapsed() > kBound) {
      failure_ = fmt::format("{} took {} ms", what, watch.elapsed().count());
    } else if (ended && operation->bytes() != bytes) {
      failure_ = fmt::format("{} moved {} bytes of {}", what, operation->bytes(), bytes);
    }
    counts_->Add(fmt::format("{}: {}", what, ended ? "ok" : CodeName(ended.error().code())));
    history_.SetEnd(what, ended ? "ok" : ended.error().ToString());
    if (ended) CountBytes(bytes);
    return ended;
  }

  void CountBytes(std::uint64_t bytes) {
    counts_->Add("bytes", bytes);
    if (out_.on_gpu()) counts_->Add("bytes of GPU memory here", bytes);
    if (there_on_gpu_) counts_->Add("bytes of GPU memory there", bytes);
  }

  // The first bytes of what is sent, of which expected_ is a copy.
  void FillOut(std::uint64_t bytes, std::uint64_t seed) {
    history_.AddFill(bytes, seed);
    Fill(std::span(expected_).first(bytes), seed);
    out_.Put(std::span(expected_).first(bytes));
  }
  // So that what is looked at later has come from elsewhere.
  void PoisonIn(std::uint64_t bytes) { in_.Put(std::vector<std::byte>(bytes, std::byte{0xEE})); }
  // `again`: reads the peer's memory once more into in_, where that is possible.
  void CheckIn(std::uint64_t bytes, const char* what, const std::function<Status()>& again = {}) {
    const auto expected = std::span(expected_).first(bytes);
    const auto got = in_.Look(bytes);
    if (std::equal(got.begin(), got.end(), expected.begin())) return;
    failure_ = fmt::format("{} of {} bytes came back changed over connection {}, {}: {}", what,
                           bytes, connections_, places_, history_.Explain(got, expected));
    if (!again) return;
    const Status status = again();
    failure_ += "\n  read again: " +
                (status ? history_.Explain(in_.Look(bytes), expected) : status.error().ToString());
  }

  // Blocks of 1 to 64 KiB that cover the first `bytes` of the slab, on both sides alike.
  BlockList Blocks(std::uint64_t bytes) {
    std::vector<Block> blocks;
    for (std::uint64_t at = 0; at < bytes;) {
      const std::uint64_t length = std::min(bytes - at, 1 + Below(64 * kKiB));
      blocks.push_back({at, at, length});
      at += length;
    }
    std::shuffle(blocks.begin(), blocks.end(), random_);
    BlockList list;
    for (const Block& block : blocks) list.Add(block);
    return list;
  }
  Result<Operation> PostWrite(Connection& connection, const transfer::RemoteRegion& remote,
                              std::uint64_t bytes, milliseconds wait, const char* what) {
    history_.AddWrite(what, bytes, connections_);
    std::vector<transfer::TransferPart> parts(1);
    parts[0] = {&out_region_, &remote, Blocks(bytes)};
    FERRY_TRY_ASSIGN(const auto prepared, connection.PrepareWrite(std::move(parts)));
    return connection.Write(prepared, By(wait));
  }
  std::uint64_t Size() { return 1 + (Below(4) == 0 ? Below(kSlab) : Below(100 * kKiB)); }

  void WriteAndReadBack(Connection& connection, const transfer::RemoteRegion& remote) {
    const std::uint64_t bytes = Size();
    const std::uint64_t seed = random_();
    FillOut(bytes, seed);
    if (!End("write", PostWrite(connection, remote, bytes, kOperation, "write"), bytes)) return;
    if (!ReadBack(connection, remote, bytes)) return;
    CheckIn(bytes, "what was written", [&] { return ReadBack(connection, remote, bytes); });
  }
  Status ReadBack(Connection& connection, const transfer::RemoteRegion& remote,
                  std::uint64_t bytes) {
    PoisonIn(bytes);
    std::vector<transfer::TransferPart> parts(1);
    parts[0] = {&in_region_, &remote, {}};
    parts[0].blocks.Add({.dst = 0, .src = 0, .len = bytes});
    auto prepared = connection.PrepareRead(std::move(parts));
    if (!prepared) {
      failure_ = prepared.error().ToString();
      return prepared.error();
    }
    return End("read", connection.Read(*prepared, By(kOperation)), bytes);
  }

  void Echo(Connection& connection) {
    const std::uint64_t bytes = Below(2) == 0 ? Below(2000) : Below(kEchoMax);
    const std::uint64_t tag = ++tag_;
    FillOut(bytes, tag);
    PoisonIn(bytes);
    auto receive = connection.Recv(tag, kWholeTag, in_.span().first(kEchoMax), By(kOperation));
    const Status sent =
        End("send", connection.Send(tag, out_.span().first(bytes), By(kOperation)), bytes);
    if (!sent && receive) receive->Cancel();
    if (!End("receive", std::move(receive), bytes)) return;
    CheckIn(bytes, "a message");
  }

  void Burst(Connection& connection, const transfer::RemoteRegion& remote) {
    const std::uint64_t bytes = 1 + Below(64 * kKiB);
    std::vector<Result<Operation>> burst;
    for (int i = 0; i < 16; ++i) {
      burst.push_back(PostWrite(connection, remote, bytes, kOperation, "burst"));
    }
    for (auto& operation : burst) (void)End("burst", std::move(operation), bytes);
  }

  void Hopeless(Connection& connection, const transfer::RemoteRegion& remote) {
    const std::uint64_t bytes = Size();
    (void)End("late", PostWrite(connection, remote, bytes, milliseconds(Below(3)), "late"), bytes);
  }

  void Cancelled(Connection& connection, const transfer::RemoteRegion& remote) {
    const std::uint64_t bytes = kSlab;
    auto operation = PostWrite(connection, remote, bytes, kOperation, "cancelled");
    if (operation) {
      for (std::uint64_t spins = Below(2000); spins > 0; --spins) (void)operation->Poll();
      operation->Cancel();
    }
    (void)End("cancelled", std::move(operation), bytes);
  }

  void Note(Connection& connection) {
    const std::vector<std::byte> note(1 + Below(100), std::byte{7});
    (void)End("notify", connection.Notify(note, By(kOperation)), note.size());
  }

  std::mt19937_64 random_;
  transfer::Endpoint* const endpoint_;
  const std::string where_;
  Counts* const counts_;
  const std::string places_;
  const bool there_on_gpu_;
  std::vector<std::byte> expected_;
  PlacedMemory out_;
  PlacedMemory in_;
  Region out_region_;
  Region in_region_;
  std::uint64_t tag_ = 0;
  int connections_ = 0;  // made so far
  SentHistory history_;
  std::string failure_;
};

class Soak : public ::testing::Test {
 protected:
  // The peer always listens at the same port, so that the proxy finds the next one.
  void BeginHost() {
    std::string command = "endpoint";
    Settings settings = SoakSettings();
    settings.push_back(port_ == 0 ? LastingPorts() : fmt::format("port_range={}", port_));
    for (const std::string& setting : settings) command += " " + setting;
    auto process = Must(PeerProcess::Start("echo"));
    const auto address = Must(transfer::EndpointAddress::Parse(FromHex(Ask(*process, command))));
    port_ = address.at.front().port;
    for (const Places& places : kPlaces) {
      (void)Ask(*process, fmt::format("region {} {}", kSlab, PlaceOn(devices_, places.there)));
    }
    std::string available = Ask(*process, "available");
    host_ = {std::move(process), std::move(available)};
  }
  static std::string Ask(PeerProcess& process, const std::string& command) {
    process.Command(command);
    return process.Answer();
  }
  Result<std::vector<std::byte>> NewKey(std::size_t client) {
    const std::lock_guard lock(host_mutex_);
    try {
      return FromHex(Ask(*host_.process, fmt::format("renew {}", client)));
    } catch (const std::exception& error) {
      return Error(Code::kInternal, error.what());
    }
  }

  // One fault, or a pause.
  void Disturb(net::FaultProxy& proxy, std::mt19937_64& random) {
    const auto pause = [&](std::uint64_t most_ms) {
      std::this_thread::sleep_for(milliseconds(1 + random() % most_ms));
    };
    pause(400);
    switch (random() % 16) {
      case 0: counts_.Add("fault: all lanes reset"); return proxy.CutNow(net::ProxyCut::kReset);
      case 1: counts_.Add("fault: all lanes closed"); return proxy.CutNow(net::ProxyCut::kClose);
      case 2:
      case 3:
        counts_.Add("fault: stalled");
        proxy.SetStalled(true);
        pause(kSanitized ? 500 : 1500);
        return proxy.SetStalled(false);
      case 4:
        counts_.Add("fault: a byte inverted");
        return proxy.CorruptAt(
            random() % 2 == 0 ? net::ProxyDirection::kToTarget : net::ProxyDirection::kToClient,
            proxy.forwarded(net::ProxyDirection::kToTarget) + random() % kMiB);
      case 5: {
        counts_.Add("fault: peer frozen");
        MustDo(host_.process->Stop(TestDeadline()));
        pause(kSanitized ? 500 : 1500);
        return host_.process->Continue();
      }
      case 6: {
        counts_.Add("fault: peer killed");
        const std::lock_guard lock(host_mutex_);
        host_.process->Kill();
        (void)Must(host_.process->WaitExit(TestDeadline()));
        return BeginHost();
      }
      default: counts_.Add("fault: one lane reset"); return proxy.ResetOne(random());
    }
  }

  // Talks, and is disturbed, for as long as the soak is.
  void RunClients(transfer::Endpoint* endpoint, net::FaultProxy& proxy) {
    std::vector<std::unique_ptr<Client>> clients;
    for (std::size_t i = 0; i < kClients; ++i) {
      clients.push_back(std::make_unique<Client>(
          i, Seed(),
          Client::Surroundings{endpoint, devices_, proxy.address().ToString(), &counts_}));
    }
    std::atomic<bool> stop{false};
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < kClients; ++i) {
      threads.emplace_back([&, i] { clients[i]->Run(stop, [&, i] { return NewKey(i); }); });
    }
    std::mt19937_64 random(Seed());
    const Deadline end = Deadline::After(std::chrono::seconds(Seconds()));
    const auto failed = [&] {
      return std::any_of(clients.begin(), clients.end(), [](auto& c) { return c->failed(); });
    };
    while (!end.expired() && !failed()) Disturb(proxy, random);
    proxy.SetStalled(false);
    // A busy machine may not have come to all that is judged.
    const Deadline timeout = TestDeadline();
    while (!UsedEverything(*endpoint) && !failed() && !timeout.expired()) {
      std::this_thread::sleep_for(milliseconds(10));
    }
    stop.store(true);
    threads.clear();
    for (const auto& client : clients) {
      EXPECT_EQ(client->failure(), "");
      EXPECT_TRUE(client->GuardsIntact());
    }
  }

  // Whether everything that this test is about has happened.
  bool UsedEverything(const transfer::Endpoint& endpoint) const {
    const auto counters = endpoint.Counters();
    const bool staged = std::all_of(
        counters.staging.begin(), counters.staging.end(),
        [](const auto& gpu) { return gpu.to_network.slots > 0 && gpu.from_network.slots > 0; });
    return staged && counts_.Of("write: ok") > 0 && counts_.Of("read: ok") > 0 &&
           counts_.Of("receive: ok") > 0;
  }

  // Every operation has ended, so all its resources are returned soon.
  void ExpectPeerHoldsNothing() {
    const Deadline timeout = TestDeadline();
    for (const char* what : {"connections", "slots"}) {
      while (Ask(*host_.process, what) != "0" && !timeout.expired()) std::this_thread::yield();
      EXPECT_EQ(Ask(*host_.process, what), "0") << what;
    }
    ExpectAsMuchAvailable(NumbersOf(host_.available), NumbersOf(Ask(*host_.process, "available")),
                          "the peer");
    const std::uint64_t resident = std::stoull(Ask(*host_.process, "resident"));
    std::printf("  the peer holds %s at the end, this process %s\n", FormatSize(resident).c_str(),
                FormatSize(ResidentBytes()).c_str());
    // CUDA maps much. A provider of plugins keeps 11 MiB of pinned memory and of this GPU's for
    // each of as many lanes as there were at once: 12, and as many that were lost and have not
    // ended.
    const std::uint64_t most = OverPlugin() ? 384 : 256;
    EXPECT_LT(resident, (kSanitized || DevicesAreReal() ? 2048 : most) * kMiB);
  }

  static std::vector<std::uint64_t> NumbersOf(const std::string& text) {
    std::istringstream words(text);
    return {std::istream_iterator<std::uint64_t>(words), {}};
  }
  // A GPU's memory is the other process's, too, which holds more or less of it by now, and CUDA's,
  // which takes it in large pieces: between two H200 180 MiB, after 45 s and after 100 s. A
  // provider of plugins keeps the buffers of as many lanes as there were at once, 12 with 34 MiB
  // here, after 12 s and after 36 s the same.
  static void ExpectAsMuchAvailable(const std::vector<std::uint64_t>& before,
                                    const std::vector<std::uint64_t>& now, const char* whose) {
    ASSERT_EQ(before.size(), now.size());
    const std::uint64_t slack = DevicesAreReal() ? 512 * kMiB : OverPlugin() ? 64 * kMiB : 0;
    for (std::size_t i = 0; i < now.size(); ++i) {
      std::printf("  GPU %zu as %s sees it: %s available, %s before\n", i, whose,
                  FormatSize(now[i]).c_str(), FormatSize(before[i]).c_str());
      EXPECT_GE(now[i] + slack, before[i]) << "of GPU " << i << ", as " << whose << " sees it";
    }
  }

  cuda::DeviceApi* const devices_ = DevicesOf(Devices());
  std::mutex host_mutex_;  // while a thread asks, or replaces, the process
  Host host_;              // changed by the thread of the test only
  std::uint16_t port_ = 0;
  Counts counts_;
};

TEST_F(Soak, NothingIsLostLeakedOrLeftHangingWhateverGoesWrong) {
  std::printf("  %d s, seed %llu, devices %s\n", Seconds(), static_cast<unsigned long long>(Seed()),
              Devices().c_str());
  // Without the short timeouts: nothing is disturbed yet.
  UseEachGpu(devices_,
             ConfigOf({"listen_host=127.0.0.1", "stage_bytes=1MiB", "devices=" + Devices()}));
  BeginHost();
  auto proxy = Must(net::FaultProxy::Start({"127.0.0.1", port_}, Seed()));
  const auto before_endpoint = AvailableMemory(devices_);
  std::optional<transfer::Endpoint> endpoint =
      Must(transfer::Endpoint::Create(ConfigOf(SoakSettings())));
  const std::size_t descriptors = OpenDescriptors();
  RunClients(&*endpoint, *proxy);
  EXPECT_TRUE(UsedEverything(*endpoint));
  for (const transfer::StagingCounters& gpu : endpoint->Counters().staging) {
    counts_.Add(fmt::format("GPU {}: slots from it", gpu.ordinal), gpu.to_network.slots);
    counts_.Add(fmt::format("GPU {}: slots into it", gpu.ordinal), gpu.from_network.slots);
  }
  counts_.Print();
  EXPECT_EQ(counts_.Of("bytes of GPU memory here") > 0, devices_ != nullptr);
  // All is closed here; there it is when the ends have come over.
  ExpectPeerHoldsNothing();
  const Deadline timeout = TestDeadline();
  while (OpenDescriptors() > descriptors && !timeout.expired()) std::this_thread::yield();
  EXPECT_LE(OpenDescriptors(), descriptors);
  const auto in_use = [&] { return SlotsInUse(endpoint->Counters()); };
  while (in_use() > 0 && !timeout.expired()) std::this_thread::yield();
  EXPECT_EQ(in_use(), 0U);
  endpoint.reset();
  ExpectAsMuchAvailable(before_endpoint, AvailableMemory(devices_), "this process");
}

}  // namespace
}  // namespace ferry::tests
