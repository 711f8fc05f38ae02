// Transfers of the program through a network plugin: the stand-in for GPUDirect-TCPX, between two
// processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/cli/ferry_program.h"

namespace ferry::tests {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

const std::string kStandIn = std::string("plugin:") + FERRY_STANDIN_LIBRARY;

// The plugin cannot send without it.
constexpr const char* kChunkSize = "NCCL_DYNAMIC_CHUNK_SIZE=524288";

// Little of everything, and no floor.
Arguments Loopback(const Arguments& more) {
  Arguments all{"perf", "loopback",   "--provider", kStandIn,   "--json", "--rounds",
                "1",    "--iters",    "3",          "--warmup", "1",      "--depth",
                "2",    "--no-floor", "--deadline", "60s"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

TEST(Carrier, MovesBothWaysInAnySizeOverSeveralChannelsAndVerifies) {
  const ProgramEnd ended =
      Ferry(Loopback({"--op", "write,read", "--channels", "3", "--chunk", "64KiB", "--size",
                      "1,4095,65536,65537,1000003"}),
            {kChunkSize, "FERRY_STANDIN_NICS=2", "FERRY_STANDIN_FRAGMENTS=random"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const auto lines = ended.out_lines();
  ASSERT_EQ(lines.size(), 10U) << ended.out;
  for (const std::string& line : lines) {
    const json row = json::parse(line, nullptr, false);
    EXPECT_TRUE(row.value("verified", false)) << line;
    EXPECT_EQ(row.value("provider", ""), "plugin GPUDirectTCPX_v7");
    EXPECT_EQ(row.value("lanes", 0), 3);
    EXPECT_GT(row.value("gbps", 0.0), 0);
  }
}

TEST(Carrier, TransfersFilesOfAnySizeAndMessages) {
  const Folder here;
  const Folder there;
  Program server({"transfer", "server", "--dir", there.text(), "--listen", "127.0.0.1", "--port",
                  "0", "--json", "--provider", kStandIn},
                 {kChunkSize});
  const std::string address = AddressOf(&server);
  const Arguments through{"--provider", kStandIn, "--channels", "3", "--chunk", "300000", "--json"};
  // The last in more pieces than the window has at once.
  for (const std::size_t size : {0U, 1U, 4097U, 3'000'001U, (100U << 20) + 7}) {
    const std::string name = "file-" + std::to_string(size);
    WriteFile(here / name, SomeBytes(size));
    Arguments arguments{"transfer", "client", address, "--file", (here / name).string()};
    arguments.insert(arguments.end(), through.begin(), through.end());
    const ProgramEnd client = Ferry(arguments, {kChunkSize});
    ASSERT_EQ(client.exit_code, 0) << client.err;
    const json sent = json::parse(client.out, nullptr, false);
    EXPECT_EQ(sent.value("identical", false), true);
    EXPECT_EQ(sent.value("provider", ""), size == 0 ? "tcp" : "plugin GPUDirectTCPX_v7");
    const json received = json::parse(server.ReadLine(), nullptr, false);
    EXPECT_EQ(received.value("sha256", "none"), sent.value("sha256", ""));
    EXPECT_TRUE(ReadFile(there / name) == SomeBytes(size)) << size;
  }
  Arguments arguments{"transfer", "client", address, "--message", "hello"};
  arguments.insert(arguments.end(), through.begin(), through.end());
  const ProgramEnd client = Ferry(arguments, {kChunkSize});
  EXPECT_EQ(client.exit_code, 0) << client.err;
  EXPECT_EQ(json::parse(server.ReadLine(), nullptr, false).value("name", ""), "hello");
}

TEST(Carrier, ATransferThatBreaksIsAnErrorOnBothSidesAndLeavesNoFile) {
  const Folder here;
  const Folder there;
  WriteFile(here / "file", SomeBytes(10'000'000));
  struct {
    const char* fault;
    const char* about;
  } const kCases[] = {{"oversize", "the server says.*chunk [0-9]+"},
                      {"half_close@3", "chunk [0-9]+"}};
  for (const auto& one : kCases) {
    Program server({"transfer", "server", "--dir", there.text(), "--listen", "127.0.0.1", "--port",
                    "0", "--json", "--once", "--provider", kStandIn},
                   {kChunkSize, std::string("FERRY_STANDIN_FAULT=") + one.fault});
    const ProgramEnd client = Ferry({"transfer", "client", AddressOf(&server), "--file",
                                     (here / "file").string(), "--provider", kStandIn},
                                    {kChunkSize, std::string("FERRY_STANDIN_FAULT=") + one.fault});
    EXPECT_GT(client.exit_code, 0) << one.fault;
    EXPECT_THAT(client.err, ContainsRegex(one.about)) << one.fault;
    EXPECT_GT(server.Finish().exit_code, 0) << one.fault;
    EXPECT_TRUE(std::filesystem::is_empty(there.text())) << one.fault;
  }
}

TEST(Carrier, ATransferServerWithoutAPluginSaysSo) {
  Program server({"transfer", "server", "--listen", "127.0.0.1", "--port", "0", "--json"});
  const ProgramEnd ended = Ferry(
      {"transfer", "client", AddressOf(&server), "--message", "hello", "--provider", kStandIn},
      {kChunkSize});
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_THAT(ended.err, Sentence("ferry transfer client", "start it with --provider plugin:PATH"));
}

TEST(Carrier, HasAsManyChannelsAsItSays) {
  const ProgramEnd ended = Ferry(
      Loopback({"--op", "write,read", "--channels", "64", "--chunk", "4KiB", "--size", "1000000"}),
      {kChunkSize, "FERRY_STANDIN_SOCKETS=1", "FERRY_STANDIN_POLLS=0"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(ended.out_lines().size(), 2U) << ended.out;
}

TEST(Carrier, UnpackingIsMeasuredByItself) {
  const Arguments bench{
      "copy-bench", "--unpack", "--json", "--rounds", "1", "--set", "devices=simulated:1:1",
      "--size"};
  Arguments right = bench;
  right.emplace_back("1MiB");
  const ProgramEnd ended = Ferry(right);
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(ended.out_lines().size(), 15U) << ended.out;
  for (const std::string& line : ended.out_lines()) {
    EXPECT_TRUE(json::parse(line, nullptr, false).value("verified", false)) << line;
  }
  for (const char* size : {"5GiB", "1000"}) {
    Arguments wrong = bench;
    wrong.emplace_back(size);
    EXPECT_EQ(Ferry(wrong).exit_code, 2) << size;
  }
}

TEST(Carrier, SaysEachStep) {
  const ProgramEnd ended = Ferry(
      Loopback({"--op", "read", "--size", "100000", "--set", "log_level=info", "--channels", "2"}),
      {kChunkSize});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  for (const char* step :
       {"loaded .*standin.so .GPUDirectTCPX_v7, version 7, 2 devices",
        "device 1: standin1, .*leaves what it receives in pieces", "listening on 2 channels",
        "accepted 2 channels; registered [0-9]+ bytes of host with each",
        "metadata of the first chunk .tag 0, 100000 bytes.: 25 fragments: 4096 bytes at",
        "the pool at [0-9]+ begins ([0-9a-f]{2} ){15}[0-9a-f]{2}",
        "unpacking 25 fragments by host"}) {
    EXPECT_THAT(ended.err, ContainsRegex(step));
  }
}

TEST(Carrier, TakesTheVariablesThatItsUsersKnow) {
  Arguments arguments = Loopback({"--size", "100000"});
  arguments[3] = "plugin";
  const std::string path = std::string("UCCL_TCPX_PLUGIN_PATH=") + FERRY_STANDIN_LIBRARY;
  const ProgramEnd ended =
      Ferry(arguments, {path, kChunkSize, "UCCL_TCPX_NUM_CHANNELS=2", "UCCL_TCPX_CHUNK_BYTES=4096",
                        "UCCL_TCPX_UNPACK_IMPL=host"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(json::parse(ended.out, nullptr, false).value("lanes", 0), 2) << ended.out;
  arguments.resize(arguments.size() - 2);  // its size
  const ProgramEnd wordy =
      Ferry(arguments, {path, kChunkSize, "UCCL_TCPX_UNPACK_IMPL=host",
                        "UCCL_TCPX_PERF_SIZE=600000", "UCCL_TCPX_LAUNCH_DEBUG=1"});
  ASSERT_EQ(wordy.exit_code, 0) << wordy.err;
  EXPECT_EQ(json::parse(wordy.out, nullptr, false).value("size", 0), 600000) << wordy.out;
  EXPECT_THAT(wordy.err, ContainsRegex("chunk with tag 1, 75712 bytes, at 524288: 19 fragments"));
  const ProgramEnd info = Ferry({"info"}, {"UCCL_TCPX_PERF_SIZE=600000"});
  EXPECT_THAT(info.out, ContainsRegex("UCCL_TCPX_PERF_SIZE +600000 +--size of perf"));
  const ProgramEnd wrong = Ferry(arguments, {path, "UCCL_TCPX_UNPACK_IMPL=wood"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.err,
              Sentence("ferry perf loopback", "UCCL_TCPX_UNPACK_IMPL wood cannot be used"));
}

TEST(Carrier, WhatCannotBeCarriedIsRefusedBeforeAnythingBegins) {
  struct {
    Arguments more;
    const char* about;
  } const kCases[] = {
      {{"--unpack", "wood"}, "choose kernel, dma or host"},
      {{"--unpack", "kernel"}, "memory host cannot be unpacked by kernel"},
      {{"--chunk", "1"}, "67108864 bytes in chunks of 1 are more than the 10000 chunks"},
      {{"--size", "1GiB"}, "a plugin registers less than 2 GiB"},
      {{"--channels", "0"}, "0 channels cannot be used; give 1 to 64"},
      {{"--channels", "many"}, "--channels many cannot be used"},
      {{"--chunk", "1GiB"}, "give 1 to 8388608"},
      {{"--op", "send"}, "a plugin carries write and read"},
      {{"--block-size", "4KiB"}, "a plugin carries contiguous memory"},
      {{"--crc"}, "a plugin carries no checksums"},
      {{"--provider", "smoke"}, "choose tcp or plugin:PATH"},
      {{"--provider", "plugin:"}, "choose tcp or plugin:PATH"},
      {{"--provider", "plugin:/no/such.so"}, "there is no network plugin /no/such.so"},
  };
  for (const auto& one : kCases) {
    Arguments arguments{"perf", "loopback", "--no-floor"};
    if (one.more.front() != "--provider") {
      arguments.insert(arguments.end(), {"--provider", kStandIn});
    }
    arguments.insert(arguments.end(), one.more.begin(), one.more.end());
    const ProgramEnd ended = Ferry(arguments, {kChunkSize});
    EXPECT_EQ(ended.exit_code, 2) << one.about << ended.err;
    EXPECT_THAT(ended.err, HasSubstr(one.about));
  }
}

TEST(Carrier, AServerWithoutAPluginSaysSo) {
  Program server({"perf", "server", "--json", "--listen", "127.0.0.1", "--port", "0"});
  const std::string address = AddressOf(&server);
  const ProgramEnd ended =
      Ferry({"perf", "client", address, "--provider", kStandIn, "--no-floor"}, {kChunkSize});
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_THAT(ended.err, Sentence("ferry perf client", "start it with --provider plugin:PATH"));
}

TEST(Carrier, FaultsOfAPluginEndInTheirOwnErrorInTime) {
  struct {
    const char* fault;
    const char* about;
  } const kCases[] = {
      {"init_fail", "init of network plugin .*failed"},
      {"no_devices", "finds no interface"},
      {"oversize", "chunk [0-9]+"},
      {"stuck_count", "did not end within 3 s"},
      {"connect_fail", "connect from device 0 .*failed"},
  };
  for (const auto& one : kCases) {
    const ProgramEnd ended =
        Ferry({"perf", "loopback", "--provider", kStandIn, "--no-floor", "--size", "1MiB",
               "--deadline", "3s", "--set", "connect_timeout=3s"},
              {kChunkSize, std::string("FERRY_STANDIN_FAULT=") + one.fault});
    EXPECT_GT(ended.exit_code, 0) << one.fault;
    EXPECT_THAT(ended.err, ContainsRegex(one.about)) << one.fault;
  }
}

// Every way to unpack, on the side that receives: by the host in host memory, and by all three in
// that of a simulated GPU.
struct Unpacking {
  const char* by;
  const char* op;
  const char* memory;
  const char* peer_memory;
};
void PrintTo(const Unpacking& how, std::ostream* out) {
  *out << how.by << " of a " << how.op << " from " << how.memory << " to " << how.peer_memory;
}
constexpr Unpacking kUnpackings[] = {
    {"host", "write", "host", "host"},   {"host", "read", "host", "host"},
    {"host", "write", "host", "cuda"},   {"dma", "write", "host", "cuda"},
    {"kernel", "write", "host", "cuda"}, {"kernel", "read", "cuda", "host"},
};

class CarrierUnpacks : public testing::TestWithParam<Unpacking> {
 protected:
  static ProgramEnd Run(const char* fault) {
    const Unpacking& how = GetParam();
    Arguments variables{kChunkSize};
    if (fault != nullptr) variables.push_back(std::string("FERRY_STANDIN_FAULT=") + fault);
    return Ferry(
        Loopback({"--op", how.op, "--unpack", how.by, "--memory", how.memory, "--peer-memory",
                  how.peer_memory, "--set", "devices=simulated:1:1", "--size", "1000003"}),
        variables);
  }
};

TEST_P(CarrierUnpacks, AndVerifies) {
  const ProgramEnd ended = Run(nullptr);
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_TRUE(json::parse(ended.out, nullptr, false).value("verified", false)) << ended.out;
}

TEST_P(CarrierUnpacks, FragmentsThatDoNotLieInThePoolAreRefused) {
  const ProgramEnd ended = Run("out_of_pool");
  EXPECT_NE(ended.exit_code, 0);
  EXPECT_THAT(ended.err, HasSubstr("does not lie within the pool of 67108864 bytes"));
}
INSTANTIATE_TEST_SUITE_P(StandIn, CarrierUnpacks, testing::ValuesIn(kUnpackings));

TEST(Carrier, SendsNothingFromTheMemoryOfASimulatedDevice) {
  const ProgramEnd ended =
      Ferry(Loopback({"--op", "write", "--unpack", "host", "--memory", "cuda", "--peer-memory",
                      "host", "--set", "devices=simulated:1:1", "--size", "100000"}),
            {kChunkSize});
  EXPECT_EQ(ended.exit_code, 2) << ended.err;
  EXPECT_THAT(ended.err,
              HasSubstr("cannot read the memory of simulated cuda:0; send from memory host"));
}

TEST(Carrier, AServerThatIsKilledInTheMiddleIsTold) {
  Program server(
      {"perf", "server", "--json", "--listen", "127.0.0.1", "--port", "0", "--provider", kStandIn},
      {kChunkSize});
  Program client({"perf", "client", AddressOf(&server), "--provider", kStandIn, "--no-floor",
                  "--size", "64MiB", "--rounds", "100000"},
                 {kChunkSize});
  // Its table's head comes when it is connected.
  while (client.ReadLine().find("GB/s") == std::string::npos) {
  }
  server.Signal(SIGKILL);
  const ProgramEnd ended = client.Finish();
  EXPECT_EQ(ended.exit_code, 3) << ended.err;
}

}  // namespace
}  // namespace ferry::tests
