// Runs the provider conformance suite on the provider of plugins, over the stand-in.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <utility>

#include "ferry/cuda/open_devices.h"
#include "ferry/net/choose_provider.h"
#include "ferry/net/tcp/factory.h"
#include "ferry/net/testing/conformance.h"
#include "ferry/tcpx/factory.h"
#include "ferry/tcpx/tests/testing/nccl_plugin_file.h"
#include "ferry/tcpx/tests/testing/standin.h"

namespace ferry::tcpx {
namespace {

using net::Address;
using net::ChooseProvider;
using net::ConformanceCase;
using net::ConformanceCaseName;
using net::ConformanceTarget;
using net::CutInto;
using net::Destroy;
using net::kTimeout;
using net::Lane;
using net::LaneEnd;
using net::Listener;
using net::Provider;
using net::ProviderConformance;
using net::RunOn;
using net::TestHost;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::StandIn;
using testing::Variables;

constexpr const char* kHost = "127.0.0.1";

// A simulated GPU that network cards reach.
DeviceChoice OneGpu() { return DeviceChoice::Simulated("1:1:open"); }

std::unique_ptr<Provider> Over(StandIn& standin, std::uint64_t chunk_bytes = 512 * 1024,
                               const DeviceChoice& devices = DeviceChoice::None()) {
  // Before the provider, with the variables that the plugin needs.
  const auto opened = standin.Open();
  EXPECT_TRUE(opened) << opened.error().ToString();
  Config config;
  config.provider = "plugin:" + standin.path();
  config.devices = devices;
  config.plugin_chunk_bytes = chunk_bytes;
  auto provider = CreateProvider(config, net::tcp::CreateProvider());
  EXPECT_TRUE(provider) << provider.error().ToString();
  return *std::move(provider);
}

// ---- the whole contract -------------------------------------------------------------------------

class PluginTarget : public ConformanceTarget {
 public:
  Address ListenAddress() override { return {kHost, 0}; }
  // Never accepts: what connects waits for an answer to its hello.
  Address SilentAddress() override {
    if (silent_ == nullptr) {
      silent_host_ = std::make_unique<TestHost>(net::tcp::CreateProvider());
      silent_ = std::make_unique<Address>(*silent_host_->Listen({kHost, 0}, {}));
    }
    return *silent_;
  }
  std::size_t LargeBytes() override { return std::size_t{16} << 20; }

 private:
  std::unique_ptr<TestHost> silent_host_;
  std::unique_ptr<Address> silent_;
};

class StandInTarget final : public PluginTarget {
 public:
  explicit StandInTarget(const Variables& variables,
                         const DeviceChoice& devices = DeviceChoice::None())
      : standin_(variables), devices_(devices) {}
  ~StandInTarget() override { EXPECT_EQ(standin_.Misuse(), ""); }
  std::unique_ptr<Provider> MakeProvider() override { return Over(standin_, 512 * 1024, devices_); }

 private:
  StandIn standin_;
  const DeviceChoice devices_;
};

// The library's own plugin for NCCL, which receives straight into memory.
class StraightTarget final : public PluginTarget {
 public:
  explicit StraightTarget(const DeviceChoice& devices = DeviceChoice::None()) : devices_(devices) {}
  std::unique_ptr<Provider> MakeProvider() override {
    Config config;
    config.provider = "plugin:" + testing::NcclPluginFile();
    config.devices = devices_;
    auto provider = CreateProvider(config, net::tcp::CreateProvider());
    EXPECT_TRUE(provider) << provider.error().ToString();
    return *std::move(provider);
  }

 private:
  const DeviceChoice devices_;
};

std::unique_ptr<ConformanceTarget> Make(const Variables& variables) {
  return std::make_unique<StandInTarget>(variables);
}

INSTANTIATE_TEST_SUITE_P(
    Plugin, ProviderConformance,
    ::testing::Values(
        ConformanceCase{"StandIn", [] { return Make({}); }},
        ConformanceCase{
            "RandomFragments",
            [] {
              return Make({{"FRAGMENTS", "random"}, {"SOCKETS", "3"}, {"POLLS", "immediate"}});
            }},
        ConformanceCase{"Straight",
                        []() -> std::unique_ptr<ConformanceTarget> {
                          return std::make_unique<StraightTarget>();
                        }},
        // Host memory on a machine with a GPU.
        ConformanceCase{
            "StandInWithGpu",
            []() -> std::unique_ptr<ConformanceTarget> {
              return std::make_unique<StandInTarget>(Variables{{"FRAGMENTS", "random"}}, OneGpu());
            }},
        ConformanceCase{"StraightWithGpu",
                        []() -> std::unique_ptr<ConformanceTarget> {
                          return std::make_unique<StraightTarget>(OneGpu());
                        }}),
    ConformanceCaseName);

TEST(PluginProvider, RefusesToRegisterGpuMemoryThatNetworkCardsDoNotReach) {
  StandIn standin(Variables{});
  ASSERT_TRUE(standin.Open());
  Config config;
  config.provider = "plugin:" + standin.path();
  config.devices = DeviceChoice::Simulated("1");
  const auto devices = cuda::OpenDevices(config);
  ASSERT_TRUE(devices) << devices.error().ToString();
  auto memory = (*devices)->AllocateDevice(0, 4096);
  ASSERT_TRUE(memory) << memory.error().ToString();
  auto provider = CreateProvider(config, net::tcp::CreateProvider());
  ASSERT_TRUE(provider) << provider.error().ToString();
  const auto refused =
      (*provider)->Register({static_cast<std::byte*>(memory->data()), memory->size()});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kUnsupported);
  EXPECT_THAT(refused.error().message(), HasSubstr("GPU memory"));
}

// ---- sides that do not fit together -------------------------------------------------------------

// The error of a connect from one provider to another.
Error ConnectError(std::unique_ptr<Provider> near, std::unique_ptr<Provider> far,
                   Deadline deadline = Deadline::After(kTimeout)) {
  TestHost near_host(std::move(near));
  TestHost far_host(std::move(far));
  const auto address = far_host.Listen({kHost, 0}, {});
  if (!address) return address.error();
  auto lane = near_host.Connect(*address, {}, deadline);
  if (!lane) return lane.error();
  RunOn(*near_host.loop(), [&] { *lane = nullptr; });
  return Error(Code::kInternal, "they are connected");
}

TEST(PluginProvider, RefusesAPeerWithAnotherChunkSize) {
  StandIn standin({});
  const Error error = ConnectError(Over(standin), Over(standin, 256 * 1024));
  EXPECT_EQ(error.code(), Code::kRefused) << error.ToString();
  EXPECT_THAT(error.message(), AllOf(HasSubstr("chunks of 512 KiB"), HasSubstr("of 256 KiB"),
                                     HasSubstr("FERRY_PLUGIN_CHUNK_BYTES")));
  EXPECT_EQ(standin.Misuse(), "");
}

TEST(PluginProvider, RefusesAPeerWithAnotherPlugin) {
  StandIn standin({});
  StandIn other(Variables{{"NAME", "GPUDirectTCPX_other"}});
  const Error error = ConnectError(Over(standin), Over(other));
  EXPECT_EQ(error.code(), Code::kRefused) << error.ToString();
  EXPECT_THAT(error.message(), AllOf(HasSubstr("uses network plugin GPUDirectTCPX_v7"),
                                     HasSubstr("this side GPUDirectTCPX_other")));
}

TEST(PluginProvider, GivesUpAtTheDeadlineWhereThePluginNeverConnects) {
  StandIn standin(Variables{{"FAULT", "connect_never"}});
  const Error error =
      ConnectError(Over(standin), Over(standin), Deadline::After(std::chrono::seconds(2)));
  EXPECT_EQ(error.code(), Code::kTimedOut) << error.ToString();
  EXPECT_THAT(error.message(), HasSubstr("GPUDirectTCPX_v7"));
}

TEST(PluginProvider, TellsWhichCallOfThePluginFailedWhileALaneWasSetUp) {
  StandIn standin(Variables{{"FAULT", "connect_fail"}});
  const Error error = ConnectError(Over(standin), Over(standin));
  EXPECT_EQ(error.code(), Code::kPeerLost) << error.ToString();
}

TEST(PluginProvider, ReportsAPluginThatDoesNotExistAndAProviderThatIsNotKnown) {
  Config config;
  config.provider = "plugin:/nowhere/libnccl-net.so";
  const auto missing = ChooseProvider(config);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(missing.error().message(), HasSubstr("no network plugin /nowhere/libnccl-net.so"));
  config.provider = "plugin";
  const auto none = ChooseProvider(config);
  ASSERT_FALSE(none);
  EXPECT_THAT(none.error().message(), HasSubstr("no network plugin is named"));
  config.provider = "carrier pigeon";
  const auto unknown = ChooseProvider(config);
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(unknown.error().message(), HasSubstr("'carrier pigeon'"));
}

TEST(PluginProvider, AListenerMayGoAfterItsLoopHasStoppedWithASetUpInFlight) {
  StandIn standin({});
  const auto provider = Over(standin);
  TestHost silent(net::tcp::CreateProvider());
  auto loop = EventLoop::Create();
  ASSERT_TRUE(loop);
  ASSERT_TRUE((*loop)->StartWorker("test-short"));
  std::unique_ptr<Listener> listener;
  RunOn(**loop, [&] {
    auto listening = provider->Listen({kHost, 0}, {}, loop->get(), [](std::unique_ptr<Lane>) {});
    ASSERT_TRUE(listening) << listening.error().ToString();
    listener = *std::move(listening);
  });
  auto lane = silent.Connect(listener->address(), {});
  ASSERT_TRUE(lane) << lane.error().ToString();
  // Another lane is refused only after the first was accepted.
  LaneEnd end(*std::move(lane), silent.loop());
  end.Attach();
  auto other = silent.Connect(listener->address(), {});
  ASSERT_TRUE(other) << other.error().ToString();
  LaneEnd speaks(*std::move(other), silent.loop());
  speaks.Attach();
  speaks.Send(speaks.Make("no hello"));
  EXPECT_TRUE(speaks.AwaitClosed());
  (*loop)->Stop();
  listener.reset();
  EXPECT_TRUE(end.AwaitClosed());
}

// ---- a plugin that fails in the middle ----------------------------------------------------------

class FailingPlugin : public ::testing::TestWithParam<const char*> {};

TEST_P(FailingPlugin, EndsTheLaneOnBothSidesAndTheNextLaneWorks) {
  StandIn standin(Variables{{"FAULT", GetParam()}});
  TestHost near_host(Over(standin));
  TestHost far_host(Over(standin));
  const auto address = far_host.Listen({kHost, 0}, {});
  ASSERT_TRUE(address);
  for (const bool fails : {true, false}) {
    auto lane = near_host.Connect(*address, {});
    ASSERT_TRUE(lane) << lane.error().ToString();
    auto near = std::make_unique<LaneEnd>(*std::move(lane), near_host.loop());
    auto far = std::make_unique<LaneEnd>(far_host.Accept(), far_host.loop());
    near->Attach();
    far->Attach();
    near->Send(near->Make("payload", CutInto(8 << 20, {})));
    if (fails) {
      const auto here = near->AwaitClosed();
      const auto there = far->AwaitClosed();
      ASSERT_TRUE(here && there);
      EXPECT_THAT((std::array{here->code(), there->code()}), ::testing::Contains(Code::kPeerLost));
      EXPECT_EQ(far->log(), "FC");
    } else {
      EXPECT_EQ(far->Take(1).size(), 1U);
    }
    Destroy(&near);
    Destroy(&far);
  }
  EXPECT_EQ(standin.Misuse(), "");
}

// The payload has 16 chunks, and each takes a test at either end at least, so it is not complete at
// the tenth test.
INSTANTIATE_TEST_SUITE_P(Faults, FailingPlugin,
                         ::testing::Values("isend_rc2@3", "irecv_rc3@3", "test_rc2@10",
                                           "half_close@3", "out_of_pool@3", "overlap@3", "short@3",
                                           "bad_row@3"),
                         [](const auto& one) {
                           const std::string name = one.param;
                           return name.substr(0, name.find('@'));
                         });

}  // namespace
}  // namespace ferry::tcpx
