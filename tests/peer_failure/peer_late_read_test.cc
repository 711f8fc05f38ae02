// Tests that memory which was given back is not read by a peer later. The peer acknowledges what it
// has not read, so that its operation ends, the region is deregistered or the staging slot is used
// for somebody else, and reads its socket only then: it must get the bytes as they were sent. On a
// path within the machine a kernel hands spliced pages over as they are, so only a process that is
// proved to be ours may get those.

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "ferry/core/units.h"
#include "ferry/cuda/open_devices.h"
#include "ferry/net/address.h"
#include "ferry/transfer/endpoint.h"
#include "ferry/transfer/testing/device_mirror.h"
#include "ferry/transfer/testing/raw_peer.h"
#include "tests/links/network_pair.h"
#include "tests/support/peer_process.h"

namespace ferry::tests {
namespace {

using transfer::Connection;
using transfer::Endpoint;
using transfer::MirroredMemory;
using transfer::Operation;
using transfer::Pod;
using transfer::RawLane;
using transfer::Region;
using transfer::RemoteRegion;
using transfer::Rights;
namespace wire = transfer::wire;

constexpr std::uint64_t kLateBytes = 256 * kKiB;  // one slice, and one staging slot
constexpr std::byte kEarly{0x11};
constexpr std::byte kLate{0xEE};
constexpr uid_t kNobody = 65534;

Config VictimConfig(const std::string& devices) {
  Config config;
  for (const auto& [name, value] :
       std::vector<std::pair<std::string, std::string>>{{"insecure", "on"},
                                                        {"zero_copy_send", "on"},
                                                        {"slice_bytes", "256KiB"},
                                                        {"stage_slice_bytes", "256KiB"},
                                                        {"stage_bytes", "1MiB"},
                                                        {"cuda_ipc", "off"},
                                                        {"drain_grace", "2s"},
                                                        {"devices", devices}}) {
    MustDo(config.Set(name, value));
  }
  return config;
}

// The endpoint whose memory the peer reads. Commands: "listen": its port and its region's key;
// "deregister"; "write KEY": to the peer that has connected, then "end": waits for that. After
// "deregister" and "end" the memory is filled anew. "serve": another peer reads a region of kLate.
class Victim {
 public:
  explicit Victim(bool on_gpu) : config_(VictimConfig(on_gpu ? "simulated:1:7" : "none")) {
    if (on_gpu) {
      cuda::DeviceApi* const api = tests::Must(cuda::OpenDevices(config_));
      gpu_.emplace(api, 0, kLateBytes, 1);
      gpu_->Fill(std::vector<std::byte>(kLateBytes, kEarly));
      secret_.emplace(api, 0, kLateBytes, 2);
      secret_->Fill(std::vector<std::byte>(kLateBytes, kLate));
    }
    endpoint_.emplace(tests::Must(Endpoint::Create(config_)));
    region_.emplace(
        tests::Must(endpoint_->Register(gpu_ ? gpu_->span() : std::span(host_), Rights::kRead)));
  }

  Result<std::string> Do(const std::string& line) {
    std::istringstream words(line);
    std::string command;
    std::string argument;
    words >> command >> argument;
    if (command == "listen") {
      return fmt::format("{} {}", endpoint_->port(), ToHex(region_->remote().Serialize()));
    }
    if (command == "write") return Write(argument);
    if (command == "serve") return Serve();
    if (command == "end") {
      FERRY_TRY(write_->Wait(TestDeadline()));
    } else {
      FERRY_TRY(region_->Deregister(TestDeadline()));
    }
    std::fill(host_.begin(), host_.end(), kLate);
    return std::string();
  }

 private:
  Result<std::string> Write(const std::string& id) {
    FERRY_TRY_ASSIGN(peer_, endpoint_->Accept(TestDeadline()));
    RemoteRegion theirs;
    const std::vector<std::byte> bytes = FromHex(id);
    std::memcpy(theirs.endpoint.bytes.data(), bytes.data(), bytes.size());
    theirs.key = {1, 1, 1};
    theirs.rights = Rights::kReadWrite;
    theirs.length = kLateBytes;
    FERRY_TRY_ASSIGN(write_, peer_->Write(*region_, 0, theirs, 0, kLateBytes));
    return std::string();
  }

  // More often than there are slots.
  Result<std::string> Serve() {
    FERRY_TRY_ASSIGN(const Region secret, endpoint_->Register(secret_->span(), Rights::kRead));
    FERRY_TRY_ASSIGN(Endpoint other, Endpoint::Create(VictimConfig("none")));
    FERRY_TRY_ASSIGN(Connection connection,
                     other.Connect(fmt::format("127.0.0.1:{}", endpoint_->port()), TestDeadline()));
    std::vector<std::byte> memory(kLateBytes);
    FERRY_TRY_ASSIGN(const Region here, other.Register(memory, Rights::kNone));
    FERRY_TRY_ASSIGN(const RemoteRegion there, connection.Import(secret.remote().Serialize()));
    for (int round = 0; round < 8; ++round) {
      FERRY_TRY_ASSIGN(Operation read, connection.Read(here, 0, there, 0, kLateBytes));
      FERRY_TRY(read.Wait(TestDeadline()));
    }
    return std::string();
  }

  const Config config_;
  std::vector<std::byte> host_ = std::vector<std::byte>(kLateBytes, kEarly);
  std::optional<MirroredMemory> gpu_;
  std::optional<MirroredMemory> secret_;
  std::optional<Endpoint> endpoint_;
  std::optional<Region> region_;
  std::optional<Connection> peer_;
  std::optional<Operation> write_;
};

// The peer. Commands: "meet HOST PORT": its endpoint id; "read KEY"; "acknowledge": once a payload
// begins to arrive, without reading it; "count": reads everything, and counts the late bytes.
class LateReader {
 public:
  Result<std::string> Do(const std::string& line) {
    std::istringstream words(line);
    std::string command;
    std::string argument;
    words >> command >> argument;
    if (command == "meet") {
      std::uint16_t port = 0;
      words >> port;
      return Meet(argument, port);
    }
    if (command == "read") {
      FERRY_TRY_ASSIGN(const RemoteRegion region, RemoteRegion::Parse(FromHex(argument)));
      auto body = Pod(wire::WriteBody{.key = region.key, .blocks = 1});
      wire::Append(&body, wire::BlockOnWire{0, kLateBytes});
      (void)lane_->Say({.type = wire::Type::kReadRequest, .operation = 1, .body = body});
    } else if (command == "acknowledge") {
      lane_->AwaitInput(1000);  // more than a ping
      (void)lane_->Say({.type = wire::Type::kAck, .ack = 1});
    } else {
      return Count();
    }
    return std::string();
  }

 private:
  Result<std::string> Meet(const std::string& host, std::uint16_t port) {
    FERRY_TRY_ASSIGN(const net::RawAddress to, net::ToRaw({host, port}));
    socket_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(socket_.get(), to.get(), to.length) != 0) return ErrnoError("connect", errno);
    lane_.emplace(UniqueFd(::dup(socket_.get())));
    const Uuid id = Uuid::Random();
    (void)lane_->Say({.type = wire::Type::kHello, .body = Pod(transfer::Hello(id, 1, kMiB))});
    (void)lane_->Expect(wire::Type::kWelcome);
    return ToHex(id.bytes);
  }

  Status AwaitInput() const {
    pollfd input{socket_.get(), POLLIN, 0};
    if (::poll(&input, 1, TestDeadline().PollMillis()) == 1) return Ok();
    return Error(Code::kTimedOut, "nothing arrives");
  }

  Result<std::string> Count() {
    std::vector<std::byte> bytes(kLateBytes);
    std::uint64_t all = 0;
    std::ptrdiff_t late = 0;
    while (all < kLateBytes) {
      FERRY_TRY(AwaitInput());
      const ssize_t got = ::recv(socket_.get(), bytes.data(), bytes.size(), 0);
      if (got <= 0) break;  // the other side has given up this peer
      all += static_cast<std::uint64_t>(got);
      late += std::count(bytes.begin(), bytes.begin() + got, kLate);
    }
    return std::to_string(late);
  }

  UniqueFd socket_;
  std::optional<RawLane> lane_;
};

enum class Reader { kWithoutProof, kOtherUser, kOtherNetwork };

class LateReadTest : public testing::TestWithParam<Reader> {
 protected:
  void SetUp() override {
    if (GetParam() == Reader::kOtherUser && ::geteuid() != 0) {
      GTEST_SKIP() << "another user needs root";
    }
    if (GetParam() != Reader::kOtherNetwork) return;
    if (const auto missing = NetworkPair::Missing()) GTEST_SKIP() << *missing;
    networks_ = std::make_unique<NetworkPair>(PairOptions{.links = {{}}});
  }

  void Begin(bool on_gpu) {
    const std::string here = networks_ ? networks_->far() : "";
    victim_ = Must(PeerProcess::Fork([&](LinePipe& parent) {
      EnterNetwork(here);
      Victim victim(on_gpu);
      return Obey(parent, [&](const std::string& line) { return victim.Do(line); });
    }));
    const std::string there = networks_ ? networks_->near() : "";
    const bool other_user = GetParam() == Reader::kOtherUser;
    reader_ = Must(PeerProcess::Fork([&](LinePipe& parent) {
      EnterNetwork(there);
      if (other_user && ::setresuid(kNobody, kNobody, kNobody) != 0) return 1;
      (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a change of the user has cleared it
      LateReader reader;
      return Obey(parent, [&](const std::string& line) { return reader.Do(line); });
    }));
    const std::string listens = Ask(*victim_, "listen");
    const auto space = listens.find(' ');
    key_ = listens.substr(space + 1);
    id_ =
        Ask(*reader_, fmt::format("meet {} {}", networks_ ? networks_->FarAddress(0) : "127.0.0.1",
                                  listens.substr(0, space)));
  }
  static std::string Ask(PeerProcess& process, const std::string& line) {
    process.Command(line);
    return process.Answer();
  }

  std::unique_ptr<NetworkPair> networks_;
  std::unique_ptr<PeerProcess> victim_;
  std::unique_ptr<PeerProcess> reader_;
  std::string key_;
  std::string id_;
};

TEST_P(LateReadTest, GetsNothingThatCameIntoARegionAfterItsDeregistration) {
  Begin(/*on_gpu=*/false);
  (void)Ask(*reader_, "read " + key_);
  (void)Ask(*reader_, "acknowledge");
  EXPECT_EQ(Ask(*victim_, "deregister"), "");
  EXPECT_EQ(Ask(*reader_, "count"), "0");
}

TEST_P(LateReadTest, GetsNothingThatCameIntoTheSourceAfterTheEndOfAWrite) {
  Begin(/*on_gpu=*/false);
  (void)Ask(*victim_, "write " + id_);
  (void)Ask(*reader_, "acknowledge");
  EXPECT_EQ(Ask(*victim_, "end"), "");
  EXPECT_EQ(Ask(*reader_, "count"), "0");
}

TEST_P(LateReadTest, GetsNoGpuDataOfAnotherPeerThroughAStagingSlot) {
  Begin(/*on_gpu=*/true);
  (void)Ask(*reader_, "read " + key_);
  (void)Ask(*reader_, "acknowledge");
  EXPECT_EQ(Ask(*victim_, "serve"), "");
  EXPECT_EQ(Ask(*reader_, "count"), "0");
}

INSTANTIATE_TEST_SUITE_P(From, LateReadTest,
                         testing::Values(Reader::kWithoutProof, Reader::kOtherUser,
                                         Reader::kOtherNetwork),
                         [](const auto& tested) -> std::string {
                           switch (tested.param) {
                             case Reader::kWithoutProof: return "a_peer_without_proof";
                             case Reader::kOtherUser: return "another_user";
                             case Reader::kOtherNetwork: return "another_network_namespace";
                           }
                           return "";
                         });

}  // namespace
}  // namespace ferry::tests
