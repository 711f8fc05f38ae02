// `ferry perf` and `ferry transfer` with the provider of network plugins, over the stand-in for
// GPUDirect-TCPX, between two processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/cli/ferry_program.h"

namespace ferry::tests {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

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

constexpr const char* kName = "plugin:GPUDirectTCPX_v7";

TEST(ProviderOfPerf, MovesBothWaysInAnySizeOverSeveralChannelsAndVerifies) {
  const ProgramEnd ended =
      Ferry(Loopback({"--op", "write,read,send", "--channels", "3", "--chunk", "64KiB", "--crc",
                      "--size", "1,4096,4097,65536,65537,1000003"}),
            {kChunkSize, "FERRY_STANDIN_NICS=2", "FERRY_STANDIN_FRAGMENTS=random"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const auto lines = ended.out_lines();
  ASSERT_EQ(lines.size(), 18U) << ended.out;
  for (const std::string& line : lines) {
    const json row = json::parse(line, nullptr, false);
    EXPECT_TRUE(row.value("verified", false)) << line;
    EXPECT_EQ(row.value("provider", ""), kName);
    EXPECT_EQ(row.value("lanes", 0), 3);
    EXPECT_GT(row.value("gbps", 0.0), 0);
  }
}

TEST(ProviderOfPerf, MovesScatteredBlocksAndTellsHowLongChunksWaited) {
  const ProgramEnd ended =
      Ferry(Loopback({"--op", "write,read", "--size", "64MiB", "--block-size", "16KiB"}),
            {kChunkSize, "FERRY_STANDIN_NICS=2", "FERRY_STANDIN_FRAGMENTS=random"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  ASSERT_EQ(ended.out_lines().size(), 2U) << ended.out;
  for (const std::string& line : ended.out_lines()) {
    const json row = json::parse(line, nullptr, false);
    EXPECT_TRUE(row.value("verified", false)) << line;
    EXPECT_GT(row.value("launch_us", 0.0), 0) << line;
    EXPECT_GE(row.value("longest_launch_us", 0.0), row.value("launch_us", 0.0)) << line;
  }
}

TEST(ProviderOfTransfer, MovesFilesOfAnySizeAndMessages) {
  const Folder here;
  const Folder there;
  const Arguments through{"--provider", kStandIn, "--channels", "3", "--chunk", "300000", "--json"};
  Arguments serve{"transfer", "server",    "--dir",  there.text(),
                  "--listen", "127.0.0.1", "--port", "0"};
  serve.insert(serve.end(), through.begin(), through.end());
  Program server(serve, {kChunkSize});
  const std::string address = AddressOf(&server);
  for (const std::size_t size : {0U, 1U, 4097U, 3'000'001U, (100U << 20) + 7}) {
    const std::string name = "file-" + std::to_string(size);
    WriteFile(here / name, SomeBytes(size));
    Arguments arguments{"transfer", "client", address, "--file", (here / name).string()};
    arguments.insert(arguments.end(), through.begin(), through.end());
    const ProgramEnd client = Ferry(arguments, {kChunkSize});
    ASSERT_EQ(client.exit_code, 0) << client.err;
    const json sent = json::parse(client.out, nullptr, false);
    EXPECT_EQ(sent.value("identical", false), true);
    EXPECT_EQ(sent.value("provider", ""), kName);
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

// With the same fault on both sides: what the client's and the server's ends are.
std::pair<ProgramEnd, ProgramEnd> TransferWith(const std::string& fault, const Folder& here,
                                               const Folder& there) {
  const std::string variable = "FERRY_STANDIN_FAULT=" + fault;
  const Arguments quick{"--provider", kStandIn, "--set", "connect_timeout=3s"};
  Arguments serve{"transfer",  "server", "--dir", there.text(), "--listen",
                  "127.0.0.1", "--port", "0",     "--json",     "--once"};
  serve.insert(serve.end(), quick.begin(), quick.end());
  Program server(serve, {kChunkSize, variable});
  Arguments send{"transfer", "client", AddressOf(&server), "--file", (here / "file").string()};
  send.insert(send.end(), quick.begin(), quick.end());
  ProgramEnd client = Ferry(send, {kChunkSize, variable});
  return {std::move(client), server.Finish()};
}

TEST(ProviderOfTransfer, ATransferThatBreaksIsAnErrorOnBothSidesAndLeavesNoFile) {
  const Folder here;
  const Folder there;
  WriteFile(here / "file", SomeBytes(10'000'000));
  const auto [client, server] = TransferWith("oversize", here, there);
  EXPECT_GT(client.exit_code, 0);
  EXPECT_GT(server.exit_code, 0);
  EXPECT_THAT(client.err + server.err, ContainsRegex("chunk=[0-9]+ tag="));
  EXPECT_TRUE(std::filesystem::is_empty(there.text()));
}

TEST(ProviderOfTransfer, LanesThatBreakInTheMiddleLoseNoBytes) {
  const Folder here;
  const Folder there;
  WriteFile(here / "file", SomeBytes(10'000'000));
  const auto [client, server] = TransferWith("half_close@3", here, there);
  EXPECT_EQ(client.exit_code, 0) << client.err;
  EXPECT_EQ(server.exit_code, 0) << server.err;
  EXPECT_TRUE(ReadFile(there / "file") == SomeBytes(10'000'000));
}

// Each side's sentence names the fix.
TEST(ProviderOfTransfer, AServerWithoutAPluginAndItsClientSayHowToFixIt) {
  for (const bool server_has_it : {false, true}) {
    Arguments serve{"transfer", "server", "--listen", "127.0.0.1", "--port", "0", "--json"};
    if (server_has_it) serve.insert(serve.end(), {"--provider", kStandIn});
    Program server(serve, {kChunkSize});
    Arguments send{"transfer", "client", AddressOf(&server),  "--message",
                   "hello",    "--set",  "connect_timeout=5s"};
    if (!server_has_it) send.insert(send.end(), {"--provider", kStandIn});
    const ProgramEnd ended = Ferry(send, {kChunkSize});
    EXPECT_GT(ended.exit_code, 0);
    EXPECT_THAT(ended.err, HasSubstr("FERRY_PROVIDER")) << server_has_it;
    server.Signal(SIGTERM);
    if (!server_has_it) continue;
    EXPECT_THAT(server.Finish().err, HasSubstr("FERRY_PROVIDER"));
  }
}

TEST(ProviderOfPerf, RefusesAPeerWithOtherChunksOrTags) {
  Program server(
      {"perf", "server", "--json", "--listen", "127.0.0.1", "--port", "0", "--provider", kStandIn},
      {kChunkSize});
  const std::string address = AddressOf(&server);
  struct {
    const char* setting;
    const char* about;
  } const kCases[] = {{"plugin_chunk_bytes=64KiB", "FERRY_PLUGIN_CHUNK_BYTES"},
                      {"plugin_tag_base=7", "FERRY_PLUGIN_TAG_BASE"}};
  for (const auto& [setting, about] : kCases) {
    const ProgramEnd ended =
        Ferry({"perf", "client", address, "--provider", kStandIn, "--no-floor", "--set", setting},
              {kChunkSize});
    EXPECT_GT(ended.exit_code, 0) << setting;
    EXPECT_THAT(ended.err, HasSubstr(about));
  }
}

TEST(ProviderOfPerf, HasAsManyChannelsAsItSays) {
  const ProgramEnd ended = Ferry(
      Loopback({"--op", "write,read", "--channels", "64", "--chunk", "4KiB", "--size", "1000000"}),
      {kChunkSize, "FERRY_STANDIN_SOCKETS=1", "FERRY_STANDIN_POLLS=0"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  ASSERT_EQ(ended.out_lines().size(), 2U) << ended.out;
  EXPECT_EQ(json::parse(ended.out_lines().front(), nullptr, false).value("lanes", 0), 64);
}

TEST(CopyBench, UnpackingIsMeasuredByItself) {
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

TEST(ProviderOfPerf, LogsEachStep) {
  const ProgramEnd ended =
      Ferry(Loopback({"--op", "read", "--size", "100000", "--set", "log_level=info", "--channels",
                      "1", "--set", "plugin_tag_base=7000000"}),
            {kChunkSize});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  for (const char* step :
       {"loaded .*standin.so .GPUDirectTCPX_v7, version 7, 2 devices",
        "device 1: standin1, .*leaves what it receives in pieces",
        "listening on device [01] for .*; the handle begins ([0-9a-f]{2} ){15}[0-9a-f]{2}",
        "accepted a comm of 127.0.0.1", "connected a comm of 127.0.0.1",
        "registered [0-9]+ bytes of host memory to receive into",
        "device handle: meta=0x[0-9a-f]+ bounce_buf=0x[0-9a-f]+ head=18446744073709551615, pool of",
        "waiting for client data, expected bytes=100000: chunk=0 tag=7000000 size=100000 offset=0",
        "sending 100000 bytes with tag 7000000: chunk=0 tag=7000000 size=100000 offset=0",
        "send completed: chunk=0 tag=7000000",
        "received chunk=0 tag=7000000 size=100000 offset=0 .payload 0, channel 0, device [01].: 25",
        "request metadata: request_ptr=0x[0-9a-f]+ active=1 idx=0 cnt_cache=25 size=100000 size_p",
        "descriptor.0. src_off=[0-9]+ len=[0-9]+ dst_off=[0-9]+",
        "bounce probe .32B. from src_off=[0-9]+: ([0-9a-f]{2} ){31}[0-9a-f]{2}",
        "launching device unpack .host., total_bytes=100000",
        "device unpack completed: chunk=0 tag=7000000"}) {
    EXPECT_THAT(ended.err, ContainsRegex(step));
  }
  EXPECT_THAT(ended.err, Not(HasSubstr("tag=7010000"))) << "later chunks are not logged";
}

// Its bytes are shown where the plugin has left them.
TEST(ProviderOfTransfer, ATextGoesOverThePluginFromHostAndGpuMemory) {
  for (const char* memory : {"host", "cuda:0"}) {
    const Arguments way{"--provider",    kStandIn,       "--memory",
                        memory,          "--set",        "devices=simulated:1:1:open",
                        "--set",         "cuda_ipc=off", "--set",
                        "log_level=info"};
    Arguments serve{"transfer", "server", "--listen", "127.0.0.1",
                    "--port",   "0",      "--json",   "--once"};
    serve.insert(serve.end(), way.begin(), way.end());
    Program server(serve, {kChunkSize});
    Arguments send{"transfer", "client", AddressOf(&server), "--message",
                   "Hello from TCPX client!"};
    send.insert(send.end(), way.begin(), way.end());
    const ProgramEnd client = Ferry(send, {kChunkSize});
    ASSERT_EQ(client.exit_code, 0) << client.err;
    EXPECT_THAT(client.err, AllOf(HasSubstr("sending 23 bytes with tag 0: chunk=0 tag=0 size=23"),
                                  HasSubstr("send completed: chunk=0 tag=0 size=23 offset=0")))
        << memory;
    const ProgramEnd served = server.Finish();
    EXPECT_EQ(json::parse(served.out, nullptr, false).value("name", ""), "Hello from TCPX client!");
    EXPECT_THAT(served.err,
                AllOf(HasSubstr("waiting for client data, expected bytes=23"),
                      ContainsRegex("descriptor.0. src_off=[0-9]+ len=23 dst_off=0"),
                      ContainsRegex("bounce probe .23B. from src_off=[0-9]+: 48 65 6c 6c 6f 20 66 "
                                    "72 6f 6d 20 54 43 50 58 20 63 6c 69 65 6e 74 21"),
                      HasSubstr("device unpack completed: chunk=0 tag=0 size=23")))
        << memory;
  }
}

TEST(ProviderOfPerf, AChunkThatDoesNotComeIsNamedAsAWarningAndAtTheDeadline) {
  const Arguments lost{kChunkSize, "FERRY_STANDIN_FAULT=stuck_count"};
  const auto run = [](const char* op) {
    Arguments words = Loopback({"--op", op, "--size", "1MiB", "--channels", "1"});
    *std::find(words.begin(), words.end(), "60s") = "8s";
    return words;
  };
  Program reads(run("read"), lost);  // the client receives
  Program writes(run("write"), lost);
  Program sends(run("send"), lost);
  const char* const late =
      "\\[warn\\] plugin: receiving chunk=0 tag=0 size=524288 offset=0 .payload 0, channel 0, "
      "device [01].: nothing has come for [0-9.]+ s, with 2 chunks in flight";
  const ProgramEnd read = reads.Finish();
  EXPECT_EQ(read.exit_code, 4) << read.err;
  EXPECT_THAT(read.err, ContainsRegex(late));
  EXPECT_THAT(json::parse(read.out, nullptr, false).dump(),
              ContainsRegex("read of 1 MiB did not end within 8 s .--deadline.: .*; lane 0 is "
                            "receiving chunk=0 tag=0 size=524288 offset=0 .*: nothing has come "
                            "for [0-9.]+ s"));
  const auto expect_named_by_sender = [&](const std::string& op, const ProgramEnd& ended) {
    EXPECT_EQ(ended.exit_code, 4) << ended.err;
    EXPECT_THAT(ended.err, ContainsRegex(late)) << "of the server";
    EXPECT_THAT(
        json::parse(ended.out, nullptr, false).dump(),
        ContainsRegex(op + " of 1 MiB did not end within 8 s .--deadline.: .*; lane 0 is "
                           ".*waiting for the peer to acknowledge chunk=0 tag=0 size=524288 "
                           "offset=0 .payload 0, channel 0, device [01]. to chunk=1 tag=1: all "
                           "of it left [0-9.]+ s ago"));
  };
  expect_named_by_sender("write", writes.Finish());
  expect_named_by_sender("send", sends.Finish());
}

TEST(ProviderOfPerf, NcclsVariablesGovernThePluginsOwnLines) {
  const char* const line = "standin: a stand-in for GPUDirectTCPX";
  const auto log = [](const Arguments& more) {
    Arguments variables{kChunkSize};
    variables.insert(variables.end(), more.begin(), more.end());
    return Ferry(Loopback({"--size", "4KiB"}), variables).err;
  };
  EXPECT_THAT(log({}), Not(HasSubstr(line)));
  EXPECT_THAT(log({"NCCL_DEBUG=INFO", "NCCL_DEBUG_SUBSYS=NET"}), HasSubstr(line));
  EXPECT_THAT(log({"NCCL_DEBUG=INFO", "NCCL_DEBUG_SUBSYS=^NET"}), Not(HasSubstr(line)));
  EXPECT_THAT(log({"NCCL_DEBUG=WARN", "NCCL_DEBUG_SUBSYS=NET"}), Not(HasSubstr(line)));
}

TEST(ProviderOfPerf, LanesAreForTheGpuThatIsNamedOnEachSide) {
  const Arguments two{
      "--memory", "cuda:1",       "--peer-memory", "cuda:1",  "--set", "devices=simulated:2:1:open",
      "--set",    "cuda_ipc=off", "--size",        "1000003", "--op",  "write,read"};
  const ProgramEnd ended = Ferry(Loopback(two), {kChunkSize});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  for (const std::string& line : ended.out_lines()) {
    EXPECT_TRUE(json::parse(line, nullptr, false).value("verified", false)) << line;
  }
  EXPECT_THAT(ended.err, Not(HasSubstr("by way of the host")));
  const ProgramEnd absent = Ferry({"perf", "server", "--provider", kStandIn, "--gpu", "9", "--set",
                                   "devices=simulated:2:1:open"},
                                  {kChunkSize});
  EXPECT_EQ(absent.exit_code, 2);
  EXPECT_THAT(absent.err, Sentence("ferry perf server",
                                   "GPU 9 does not exist: 2 are visible, numbered from 0"));
}

TEST(ProviderOfPerf, TakesTheVariablesThatItsUsersKnow) {
  Arguments arguments = Loopback({"--size", "100000"});
  arguments[3] = "plugin";
  const std::string path = std::string("UCCL_TCPX_PLUGIN_PATH=") + FERRY_STANDIN_LIBRARY;
  const ProgramEnd ended =
      Ferry(arguments, {path, kChunkSize, "UCCL_TCPX_NUM_CHANNELS=2", "UCCL_TCPX_CHUNK_BYTES=4096",
                        "UCCL_TCPX_UNPACK_IMPL=host"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(json::parse(ended.out, nullptr, false).value("lanes", 0), 2) << ended.out;
  Arguments chosen = arguments;
  chosen.insert(chosen.end(), {"--channels", "1"});
  const ProgramEnd by_option = Ferry(chosen, {path, kChunkSize, "UCCL_TCPX_NUM_CHANNELS=2"});
  EXPECT_EQ(json::parse(by_option.out, nullptr, false).value("lanes", 0), 1) << by_option.out;
  arguments.resize(arguments.size() - 2);  // its size
  const ProgramEnd wordy =
      Ferry(arguments, {path, kChunkSize, "UCCL_TCPX_NUM_CHANNELS=1", "UCCL_TCPX_UNPACK_IMPL=host",
                        "UCCL_TCPX_PERF_SIZE=600000", "UCCL_TCPX_LAUNCH_DEBUG=1",
                        "UCCL_TCPX_HOST_RECV_DEBUG=1"});
  ASSERT_EQ(wordy.exit_code, 0) << wordy.err;
  EXPECT_EQ(json::parse(wordy.out, nullptr, false).value("size", 0), 600000) << wordy.out;
  for (const char* of_a_later_chunk :
       {"sending 75712 bytes with tag 1: chunk=1 tag=1 size=75712 offset=524288",
        "received chunk=1 tag=1 size=75712 offset=524288 .*: 19 fragments",
        "received chunk=1 tag=10001 size=75712", "launching device unpack .*total_bytes=75712"}) {
    EXPECT_THAT(wordy.err, ContainsRegex(of_a_later_chunk));
  }
  EXPECT_THAT(wordy.err, ContainsRegex("a payload of 600000 bytes in host memory begins "
                                       "([0-9a-f]{2} ){15}[0-9a-f]{2}"));
  const ProgramEnd info = Ferry({"info"}, {"UCCL_TCPX_PERF_SIZE=600000"});
  EXPECT_THAT(info.out, ContainsRegex("UCCL_TCPX_PERF_SIZE +600000 +--size of perf"));
  const ProgramEnd wrong = Ferry(arguments, {path, "UCCL_TCPX_UNPACK_IMPL=wood"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.err,
              Sentence("ferry perf loopback", "UCCL_TCPX_UNPACK_IMPL wood cannot be used"));
}

TEST(ProviderOfPerf, AutoIsTcpOnAMachineThatIsNotSetUpForTcpxAndSaysWhy) {
  Arguments arguments = Loopback({"--size", "4KiB", "--set", "log_level=info"});
  arguments[3] = "auto";
  const ProgramEnd ended = Ferry(arguments, {});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(json::parse(ended.out, nullptr, false).value("provider", ""), "tcp");
  EXPECT_THAT(ended.err, HasSubstr("provider auto is tcp: no GPUDirect-TCPX: "));
  const ProgramEnd info = Ferry({"info", "--set", "provider=auto"}, {});
  EXPECT_THAT(info.out, HasSubstr("Provider of endpoints: tcp, because no GPUDirect-TCPX: "));
}

TEST(ProviderOfPerf, MistakesAreRefusedBeforeAnythingBegins) {
  struct {
    Arguments more;
    const char* about;
  } const kCases[] = {
      {{"--unpack", "wood"},
       "plugin_unpack cannot be used: 'wood' is not recognised; allowed is "
       "auto | kernel | dma | host"},
      {{"--unpack", "kernel", "--set", "devices=none"}, "choose auto or host"},
      {{"--chunk", "1"}, "plugin_chunk_bytes cannot be used: '1' is out of range"},
      {{"--chunk", "1GiB"}, "allowed is 4 KiB..8 MiB"},
      {{"--channels", "65"}, "lanes cannot be used: '65' is out of range"},
      {{"--channels", "many"}, "lanes cannot be used: 'many'"},
      {{"--provider", "smoke"}, "allowed is tcp | plugin"},
      {{"--provider", "plugin:"}, "allowed is tcp | plugin"},
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

TEST(ProviderOfPerf, FaultsOfAPluginEndInTheirOwnErrorInTime) {
  struct {
    const char* fault;
    const char* about;
  } const kCases[] = {
      {"init_fail", "init of network plugin .*failed"},
      {"no_devices", "finds no interface"},
      {"connect_fail", "connect from device [01] .*failed"},
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

// Every way to unpack, into host memory and into that of a simulated GPU that plugins reach.
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
    {"host", "write", "host", "host"}, {"dma", "read", "host", "host"},
    {"host", "write", "host", "cuda"}, {"dma", "write", "cuda", "cuda"},
    {"auto", "write", "host", "cuda"}, {"kernel", "read", "cuda", "host"},
};

class Unpacks : public testing::TestWithParam<Unpacking> {
 protected:
  static ProgramEnd Run(const char* fault) {
    const Unpacking& how = GetParam();
    Arguments variables{kChunkSize};
    if (fault != nullptr) variables.push_back(std::string("FERRY_STANDIN_FAULT=") + fault);
    return Ferry(Loopback({"--op", how.op, "--unpack", how.by, "--memory", how.memory,
                           "--peer-memory", how.peer_memory, "--set", "devices=simulated:1:1:open",
                           "--set", "cuda_ipc=off", "--size", "1000003"}),
                 variables);
  }
};

TEST_P(Unpacks, AndVerifies) {
  const ProgramEnd ended = Run(nullptr);
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_TRUE(json::parse(ended.out, nullptr, false).value("verified", false)) << ended.out;
}

TEST_P(Unpacks, FragmentsThatDoNotLieInThePoolAreRefused) {
  const ProgramEnd ended = Run("out_of_pool");
  EXPECT_NE(ended.exit_code, 0);
  EXPECT_THAT(ended.err, HasSubstr("does not lie within the pool of 67108864 bytes"));
}
INSTANTIATE_TEST_SUITE_P(StandIn, Unpacks, testing::ValuesIn(kUnpackings));

TEST(ProviderOfPerf, StagesTheMemoryOfAGpuThatPluginsDoNotReach) {
  const ProgramEnd ended =
      Ferry(Loopback({"--op", "write,read", "--memory", "cuda", "--peer-memory", "cuda", "--set",
                      "devices=simulated:1:1", "--set", "cuda_ipc=off", "--size", "1000003"}),
            {kChunkSize});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  for (const std::string& line : ended.out_lines()) {
    EXPECT_TRUE(json::parse(line, nullptr, false).value("verified", false)) << line;
  }
}

TEST(ProviderOfPerf, AServerThatIsKilledInTheMiddleIsTold) {
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
