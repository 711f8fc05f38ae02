// Endpoints over a plugin: the stand-in carries what they write, read, send and notify.
#include "ferry/transfer/endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "ferry/core/testing/random_bytes.h"
#include "ferry/tcpx/tests/testing/standin.h"
#include "ferry/transfer/testing/linked_endpoints.h"

namespace ferry::transfer {
namespace {

using tcpx::testing::StandIn;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using transfer::Connection;
using transfer::Endpoint;
using transfer::Region;
using transfer::Rights;

constexpr std::size_t kTransferBytes = std::size_t{24} << 20;
constexpr std::size_t kLateBytes = std::size_t{64} << 10;

Config ConfigFor(const std::string& provider, int lanes = 3) {
  Config config;
  config.provider = provider;
  config.listen_host = "127.0.0.1";
  config.devices = DeviceChoice::None();
  config.lanes = lanes;
  return config;
}

// Two endpoints of this process, connected over a stand-in.
class EndpointsOverAPlugin : public ::testing::Test {
 protected:
  void Connect(const tcpx::testing::Variables& variables, int lanes = 3) {
    standin_ = std::make_unique<StandIn>(variables);
    (void)Must(standin_->Open());
    const Config config = ConfigFor("plugin:" + standin_->path(), lanes);
    near_ = std::make_unique<Endpoint>(Must(Endpoint::Create(config)));
    far_ = std::make_unique<Endpoint>(Must(Endpoint::Create(config)));
    to_far_ = std::make_unique<Connection>(Must(near_->Connect(far_->address(), Soon())));
    to_near_ = std::make_unique<Connection>(Must(far_->Accept(Soon())));
  }
  // Expires an operation whose chunks the peer's plugin has lost.
  static void ExpectNamed(Operation late) {
    EXPECT_FALSE(late.Wait(Deadline::After(std::chrono::seconds(1))));
    late.Expire();
    const Status status = late.Wait(Soon());
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code(), Code::kTimedOut) << status.error().ToString();
    EXPECT_THAT(status.error().message(),
                ContainsRegex("; lane 0 is waiting for the peer to acknowledge chunk=0 tag=0 "
                              "size=65536 offset=0 .payload 0, channel [0-9]+, device [0-9]+.: all "
                              "of it left [0-9.]+ s ago"));
  }
  void TearDown() override {
    to_near_.reset();
    to_far_.reset();
    far_.reset();
    near_.reset();
    if (standin_ == nullptr) return;
    EXPECT_EQ(standin_->Misuse(), "");
  }

  std::unique_ptr<StandIn> standin_;
  std::unique_ptr<Endpoint> near_;
  std::unique_ptr<Endpoint> far_;
  std::unique_ptr<Connection> to_far_;
  std::unique_ptr<Connection> to_near_;
};

TEST_F(EndpointsOverAPlugin, WriteReadSendAndNotify) {
  Connect({});
  EXPECT_EQ(to_far_->Info().provider, "plugin:GPUDirectTCPX_v7");
  std::vector<std::byte> here = RandomBytes(kTransferBytes, 1);
  std::vector<std::byte> there(kTransferBytes);
  const Region local = Must(near_->Register(here, Rights::kNone));
  const Region target = Must(far_->Register(there, Rights::kReadWrite));
  const auto remote = Must(to_far_->Import(target.key()));
  const std::string text = "written";
  auto write = Must(to_far_->Write(
      local, 0, remote, 0, kTransferBytes,
      {.deadline = Soon(), .notification = std::as_bytes(std::span(text)), .checksum = true}));
  const auto heard = Must(to_near_->TakeNotification(Soon()));
  EXPECT_EQ(heard.size(), text.size());
  ASSERT_TRUE(write.Wait());
  EXPECT_TRUE(here == there);

  std::fill(here.begin(), here.end(), std::byte{0});
  auto read = Must(to_far_->Read(local, 0, remote, 0, kTransferBytes, {.deadline = Soon()}));
  ASSERT_TRUE(read.Wait());
  EXPECT_TRUE(here == there);

  for (const std::size_t bytes : {std::size_t{8}, std::size_t{5000}, kTransferBytes}) {
    std::vector<std::byte> got(bytes);
    auto receive = Must(to_near_->Recv(7, ~std::uint64_t{0}, got));
    auto send = Must(to_far_->Send(7, std::span(here).first(bytes)));
    ASSERT_TRUE(send.Wait(Soon()));
    ASSERT_TRUE(receive.Wait(Soon()));
    EXPECT_TRUE(std::equal(got.begin(), got.end(), here.begin()));
  }
  ASSERT_TRUE(Must(to_near_->Notify(std::as_bytes(std::span(text)))).Wait(Soon()));
  EXPECT_EQ(Must(to_far_->TakeNotification(Soon())).size(), text.size());
}

TEST_F(EndpointsOverAPlugin, ScatteredBlocksArriveWhereTheyBelong) {
  constexpr std::uint64_t kBlock = 4096;
  constexpr std::uint64_t kBlocks = 1024;
  Connect({{"FRAGMENTS", "random"}});
  std::vector<std::byte> here = RandomBytes(2 * kBlocks * kBlock, 2);
  std::vector<std::byte> there(here.size(), std::byte{0x11});
  const Region local = Must(near_->Register(here, Rights::kNone));
  const Region target = Must(far_->Register(there, Rights::kWrite));
  const auto remote = Must(to_far_->Import(target.key()));
  std::vector<std::byte> expected = there;
  BlockList blocks;
  for (std::uint64_t i = 0; i < kBlocks; ++i) {
    const std::uint64_t from = 2 * i * kBlock;
    const std::uint64_t to = (2 * (kBlocks - 1 - i) + 1) * kBlock;
    blocks.Add({to, from, kBlock});
    std::copy_n(here.begin() + static_cast<std::ptrdiff_t>(from), kBlock,
                expected.begin() + static_cast<std::ptrdiff_t>(to));
  }
  std::vector<TransferPart> parts;
  parts.push_back({&local, &remote, std::move(blocks)});
  const auto prepared = Must(to_far_->PrepareWrite(std::move(parts)));
  ASSERT_TRUE(Must(to_far_->Write(prepared)).Wait(Soon()));
  EXPECT_TRUE(there == expected);
}

// The engine replaces the lane and sends again what the peer has not acknowledged.
TEST_F(EndpointsOverAPlugin, AWriteOutlivesALaneThatThePluginLost) {
  Connect({{"FAULT", "half_close@20"}});
  std::vector<std::byte> here = RandomBytes(kTransferBytes, 3);
  std::vector<std::byte> there(kTransferBytes);
  const Region local = Must(near_->Register(here, Rights::kNone));
  const Region target = Must(far_->Register(there, Rights::kWrite));
  const auto remote = Must(to_far_->Import(target.key()));
  auto write = Must(to_far_->Write(local, 0, remote, 0, kTransferBytes, {.deadline = Soon()}));
  const Status written = write.Wait();
  EXPECT_TRUE(written) << written.error().ToString();
  EXPECT_TRUE(here == there);
}

// All chunks have left, so only the window of the sender's lane has what the peer waits for.
TEST_F(EndpointsOverAPlugin, AWriteThatIsLateNamesTheChunk) {
  Connect({{"FAULT", "stuck_count"}}, /*lanes=*/1);
  std::vector<std::byte> here = RandomBytes(kLateBytes, 4);
  std::vector<std::byte> there(kLateBytes);
  const Region local = Must(near_->Register(here, Rights::kNone));
  const Region target = Must(far_->Register(there, Rights::kWrite));
  const auto remote = Must(to_far_->Import(target.key()));
  ExpectNamed(Must(to_far_->Write(local, 0, remote, 0, kLateBytes)));
}

TEST_F(EndpointsOverAPlugin, ASendThatIsLateNamesTheChunk) {
  Connect({{"FAULT", "stuck_count"}}, /*lanes=*/1);
  const std::vector<std::byte> here = RandomBytes(kLateBytes, 5);
  std::vector<std::byte> there(kLateBytes);
  auto receive = Must(to_near_->Recv(7, ~std::uint64_t{0}, there));
  ExpectNamed(Must(to_far_->Send(7, here)));
  EXPECT_FALSE(receive.Wait(Soon()));
}

TEST(EndpointOverAPlugin, IsRefusedByAPeerThatUsesNone) {
  StandIn standin({});
  (void)Must(standin.Open());
  Endpoint near = Must(Endpoint::Create(ConfigFor("plugin:" + standin.path())));
  Endpoint far = Must(Endpoint::Create(ConfigFor("tcp")));
  const auto there = near.Connect(far.address(), Soon());
  ASSERT_FALSE(there);
  EXPECT_EQ(there.error().code(), Code::kRefused) << there.error().ToString();
  EXPECT_THAT(there.error().message(), HasSubstr("the other one is an endpoint"));
  const auto back = far.Connect(near.address(), Soon());
  ASSERT_FALSE(back);
  EXPECT_EQ(back.error().code(), Code::kRefused) << back.error().ToString();
}

// TLS would not cover the payloads.
TEST(EndpointOverAPlugin, IsNotCreatedWithTls) {
  StandIn standin({});
  (void)Must(standin.Open());
  Config config = ConfigFor("plugin:" + standin.path());
  config.tls = TlsMode::kCert;
  const auto created = Endpoint::Create(config);
  ASSERT_FALSE(created);
  EXPECT_EQ(created.error().code(), Code::kUnsupported) << created.error().ToString();
  EXPECT_THAT(created.error().message(), HasSubstr("has no TLS"));
}

TEST(EndpointOverAPlugin, IsNotCreatedWithoutItsPlugin) {
  const auto created = Endpoint::Create(ConfigFor("plugin:/nowhere/libnccl-net.so"));
  ASSERT_FALSE(created);
  EXPECT_EQ(created.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(created.error().message(), HasSubstr("/nowhere/libnccl-net.so"));
}

}  // namespace
}  // namespace ferry::transfer
