// Tests that pending peers do not keep honest ones out, whatever number of addresses they come
// from, that honest peers do not keep each other out, and that the cost of a pending peer does not
// grow with the machine. With FERRY_TEST_FULL=1 the counts are those of the documented promises,
// and bench/strangers reads the printed figures.

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ferry/net/tcp/frame_prefix.h"
#include "ferry/transfer/region.h"
#include "ferry/transfer/testing/raw_peer.h"
#include "tests/limits/flood.h"
#include "tests/links/network_pair.h"
#include "tests/support/engine_peer.h"

namespace ferry::tests {
namespace {

using transfer::Connection;
using transfer::Endpoint;

constexpr const char* kAdmissionSecret = "secret=correct-horse-battery-staple";
constexpr std::uint16_t kAdmissionPort = 7471;

bool IsFull() {
  const char* const full = std::getenv("FERRY_TEST_FULL");
  return full != nullptr && std::string(full) == "1";
}

void AllowDescriptors() {
  rlimit files{};
  (void)::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = std::max<rlim_t>(files.rlim_cur, std::min<rlim_t>(files.rlim_max, 65536));
  (void)::setrlimit(RLIMIT_NOFILE, &files);
}

// One line of JSON that bench/strangers picks up.
void PrintFigure(const std::string& name, const std::string& fields) {
  fmt::print("FIGURE {{\"name\": \"{}\", {}}}\n", name, fields);
}

double MedianOf(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double MillisecondsSince(Clock::time_point since) {
  return std::chrono::duration<double, std::milli>(Clock::now() - since).count();
}

class AdmissionProcessTest : public testing::Test {
 protected:
  AdmissionProcessTest() {
    AllowDescriptors();
    testing::internal::CaptureStderr();  // the server's, too: a line for each address
  }
  ~AdmissionProcessTest() override {
    server_.reset();
    const std::string log = testing::internal::GetCapturedStderr();
    if (HasFailure()) fmt::print("{}\n", log.substr(0, 4000));
  }

  // On another machine, as far as addresses tell, or on this one.
  void Begin(bool elsewhere, Settings settings) {
    if (elsewhere) {
      network_.emplace();
      settings.push_back(fmt::format("port_range={}", kAdmissionPort));
      server_.emplace(network_->name(), settings);
      flood_.network = near_ = network_->name();
      flood_.host = host_ = OneNetwork::kHost;
      flood_.sources = OneNetwork::kSources;
      port_ = kAdmissionPort;
    } else {
      settings.emplace_back("listen_host=127.0.0.1");
      server_.emplace(settings);
      port_ = server_->address().at.front().port;
    }
    flood_.port = port_;
    server_->AcceptAll();
  }
  std::string where() const { return fmt::format("{}:{}", host_, port_); }

  // The body and the exception of a thread on the near side.
  template <class Work>
  void RunNear(Work work) {
    std::exception_ptr thrown;
    std::thread([&] {
      try {
        EnterNetwork(near_);
        work();
      } catch (...) {
        thrown = std::current_exception();
      }
    }).join();
    if (thrown) std::rethrow_exception(thrown);
  }

  // One after another; how many were let in.
  int Dial(const Settings& settings, int lanes, int dials, const std::string& figure) {
    int in = 0;
    std::vector<double> took;
    RunNear([&] {
      Config config = ConfigOf(settings);
      config.lanes = lanes;
      config.workers = 1;
      for (int i = 0; i < dials; ++i) {
        Endpoint endpoint = Must(Endpoint::Create(config));
        const auto since = Clock::now();
        const auto connection = endpoint.Connect(where(), TestDeadline());
        took.push_back(MillisecondsSince(since));
        if (connection && connection->Info().lanes.size() == static_cast<std::size_t>(lanes)) ++in;
        if (!connection) fmt::print("{} lanes: {}\n", lanes, connection.error().ToString());
      }
    });
    PrintFigure(figure, fmt::format("\"lanes\": {}, \"dials\": {}, \"let_in\": {}, \"median_ms\": "
                                    "{:.1f}, \"slowest_ms\": {:.1f}",
                                    lanes, dials, in, MedianOf(took),
                                    *std::max_element(took.begin(), took.end())));
    return in;
  }

  // CPU time of the server's process, in seconds.
  double CpuTime() {
    std::ifstream stat(fmt::format("/proc/{}/stat", server_->process().pid()));
    std::string word;
    double ticks = 0;
    for (int i = 1; i <= 15 && stat >> word; ++i) {
      if (i >= 14) ticks += std::stod(word);  // utime and stime
    }
    return ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
  }

  std::optional<OneNetwork> network_;
  std::optional<EnginePeer> server_;
  std::string near_;
  std::string host_ = "127.0.0.1";
  std::uint16_t port_ = 0;
  FloodOptions flood_;
};

// ---- floods -------------------------------------------------------------------------------------

struct FloodCase {
  const char* name;
  bool elsewhere;
  bool tls;
  bool speaks;  // a well-formed first frame, and nothing after it
};

Settings SettingsOf(const FloodCase& parameter) {
  if (parameter.tls) return {kAdmissionSecret, "tls=psk"};
  return {kAdmissionSecret};
}

std::vector<std::byte> FirstFrame() {
  transfer::wire::HelloBody hello = transfer::Hello(Uuid::Random(), 2);
  hello.flags = transfer::wire::kHasSecret;
  return transfer::RawLane(UniqueFd())
      .Encode({.type = transfer::wire::Type::kHello, .body = transfer::Pod(hello)});
}

class FloodTest : public AdmissionProcessTest, public testing::WithParamInterface<FloodCase> {
 protected:
  void SetUp() override {
    if (!GetParam().elsewhere) return;
    if (const auto missing = OneNetwork::Missing()) GTEST_SKIP() << *missing;
  }
};

TEST_P(FloodTest, FromManyAddressesKeepsNoPeerOut) {
  const Settings settings = SettingsOf(GetParam());
  Settings server = settings;
  server.insert(server.end(), {"lanes=64", "workers=1"});
  Begin(GetParam().elsewhere, server);
  if (GetParam().speaks) flood_.words = FirstFrame();
  const Flood flood(flood_);
  flood.AwaitBegun();
  const int dials = IsFull() ? 40 : 4;
  for (const int lanes : {1, 8, 16, 64}) {
    const int in = Dial(settings, lanes, dials, fmt::format("flood {}", GetParam().name));
    EXPECT_GE(in, IsFull() ? dials - 1 : dials) << lanes << " lanes";
  }
}

INSTANTIATE_TEST_SUITE_P(Silent, FloodTest,
                         testing::Values(FloodCase{"FromThisMachine", false, false, false},
                                         FloodCase{"FromThisMachineTls", false, true, false},
                                         FloodCase{"FromOtherMachines", true, false, false},
                                         FloodCase{"FromOtherMachinesTls", true, true, false},
                                         FloodCase{"WithFirstFramesFromOtherMachines", true, false,
                                                   true}),
                         [](const auto& parameter) { return parameter.param.name; });

// ---- many honest peers --------------------------------------------------------------------------

struct HerdCase {
  const char* name;
  bool elsewhere;
  bool tls;
  int peers;  // in full
  int lanes;
};

class HerdTest : public AdmissionProcessTest, public testing::WithParamInterface<HerdCase> {
 protected:
  void SetUp() override {
    if (!GetParam().elsewhere) return;
    if (const auto missing = OneNetwork::Missing()) GTEST_SKIP() << *missing;
  }
};

TEST_P(HerdTest, ThatStartsTogetherIsLetInWhole) {
  const int peers = IsFull() ? GetParam().peers : GetParam().peers / 6;
  Settings settings{kAdmissionSecret, "workers=1", "connect_timeout=30s",
                    fmt::format("lanes={}", GetParam().lanes)};
  if (GetParam().tls) settings.emplace_back("tls=psk");
  Settings server = settings;
  if (!IsFull()) server.emplace_back("max_pending_handshakes=64");
  Begin(GetParam().elsewhere, server);
  std::vector<double> took(static_cast<std::size_t>(peers), 0);
  std::mutex mutex;
  std::vector<std::string> failures;  // under mutex
  RunNear([&] {
    std::barrier together(peers);
    std::vector<std::jthread> threads;
    for (double& each : took) {
      threads.emplace_back([&] {
        auto endpoint = Endpoint::Create(ConfigOf(settings));
        together.arrive_and_wait();
        const auto since = Clock::now();
        auto connection = endpoint ? endpoint->Connect(where(), TestDeadline())
                                   : Result<Connection>(endpoint.error());
        each = MillisecondsSince(since);
        if (!connection) {
          const std::lock_guard lock(mutex);
          failures.push_back(connection.error().ToString());
        }
        together.arrive_and_wait();  // nobody leaves before all are in
      });
    }
  });
  const double slowest = *std::max_element(took.begin(), took.end());
  PrintFigure(fmt::format("herd {}", GetParam().name),
              fmt::format("\"peers\": {}, \"lanes\": {}, \"failed\": {}, \"median_ms\": {:.1f}, "
                          "\"slowest_ms\": {:.1f}",
                          peers, GetParam().lanes, failures.size(), MedianOf(took), slowest));
  EXPECT_EQ(failures.size(), 0u) << failures.front();
  if (RatesAreJudged()) {
    EXPECT_LT(slowest, 30000);
  }
}

INSTANTIATE_TEST_SUITE_P(Peers, HerdTest,
                         testing::Values(HerdCase{"256x4", false, false, 256, 4},
                                         HerdCase{"256x8", false, false, 256, 8},
                                         HerdCase{"400x2", false, false, 400, 2},
                                         HerdCase{"256x8Tls", false, true, 256, 8},
                                         HerdCase{"256x8FromOtherMachines", true, false, 256, 8}),
                         [](const auto& parameter) {
                           return std::string("Of") + parameter.param.name;
                         });

// ---- many interfaces ----------------------------------------------------------------------------

class ManyInterfacesTest : public AdmissionProcessTest {
 protected:
  void SetUp() override {
    if (const auto missing = OneNetwork::Missing()) GTEST_SKIP() << *missing;
  }
  // CPU time of the server for each of the connects that are made meanwhile, in milliseconds.
  double CostOfAConnect(const Flood& flood, milliseconds over) {
    const double cpu = CpuTime();
    const int connects = flood.connects();
    std::this_thread::sleep_for(over);  // time is what is measured
    return (CpuTime() - cpu) * 1e3 / std::max(flood.connects() - connects, 1);
  }
  // Times of 4 KiB writes by a peer, in milliseconds.
  std::vector<double> TimeWrites(const Settings& settings, const std::vector<std::byte>& key) {
    std::vector<double> took;
    RunNear([&] {
      Endpoint endpoint = Must(Endpoint::Create(ConfigOf(settings)));
      Connection connection = Must(endpoint.Connect(where(), TestDeadline()));
      const PatternRegion from(endpoint, 4096, kSourceSeed);
      const auto to = Must(connection.Import(key));
      for (int i = 0; i < 500; ++i) {
        const auto since = Clock::now();
        auto write = Must(connection.Write(from.region, 0, to, 0, 4096));
        MustDo(write.Wait(TestDeadline()));
        took.push_back(MillisecondsSince(since));
      }
    });
    return took;
  }
};

TEST_F(ManyInterfacesTest, MakePendingPeersNoMoreExpensive) {
  const int interfaces = IsFull() ? 500 : 250;
  const Settings settings{kAdmissionSecret, "workers=1", "lanes=2"};
  Begin(/*elsewhere=*/true, settings);
  network_->AddInterfaces(interfaces);
  const auto key = server_->Region("in", 4096, 0);
  const double quiet = MedianOf(TimeWrites(settings, key));
  const Flood flood(flood_);
  flood.AwaitBegun();
  const double cost = CostOfAConnect(flood, milliseconds(IsFull() ? 10000 : 2000));
  const auto beside = TimeWrites(settings, key);
  const double slowest = *std::max_element(beside.begin(), beside.end());
  PrintFigure("interfaces",
              fmt::format("\"interfaces\": {}, \"cpu_ms_per_connect\": {:.3f}, "
                          "\"cores_at_100_per_second\": {:.4f}, \"write_4k_quiet_ms\": {:.3f}, "
                          "\"write_4k_beside_ms\": {:.3f}, \"write_4k_slowest_ms\": {:.3f}",
                          interfaces, cost, cost / 10, quiet, MedianOf(beside), slowest));
  if (!RatesAreJudged()) return;
  EXPECT_LT(cost, 1.0) << "more than 10 % of a core at 100 connects a second";
  EXPECT_LT(MedianOf(beside), 100);
}

}  // namespace
}  // namespace ferry::tests
