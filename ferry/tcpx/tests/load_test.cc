// Plugins of every version, by way of toys (toy_plugin.cc) that note what they are asked.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <thread>

#include "ferry/core/log.h"
#include "ferry/core/testing/forked_child.h"
#include "ferry/tcpx/host/comm.h"
#include "ferry/tcpx/host/plugin.h"
#include "ferry/tcpx/host/plugin_log.h"
#include "ferry/tcpx/lane/payload_in.h"
#include "ferry/tcpx/lane/payload_out.h"
#include "ferry/tcpx/tests/testing/standin.h"

namespace ferry::tcpx {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::LibraryCopy;
using testing::ScopedVariables;
using testing::Variables;

// A copy of a toy that is loaded anew, and what was asked of it.
class Toy {
 public:
  explicit Toy(const std::string& name, const Variables& variables = {})
      : file_(std::string(FERRY_TOY_FOLDER) + "/ferry_toy_" + name + ".so"),
        log_(file_.path() + ".log"),
        variables_(variables) {
    variables_.emplace_back("TOY_LOG", log_);
    set_.emplace(variables_);
  }
  ~Toy() {
    std::error_code ignored;
    std::filesystem::remove(log_, ignored);
  }
  Toy(const Toy&) = delete;
  Toy& operator=(const Toy&) = delete;

  Result<Plugin*> Open() { return Plugin::Open(path()); }
  const std::string& path() const { return file_.path(); }
  // Lines since the last time.
  std::string Asked() {
    std::ifstream in(log_);
    std::stringstream all;
    all << in.rdbuf();
    std::string text = all.str();
    std::string fresh = text.substr(seen_);
    seen_ = text.size();
    return fresh;
  }

 private:
  const LibraryCopy file_;
  const std::string log_;
  Variables variables_;
  std::optional<ScopedVariables> set_;
  std::size_t seen_ = 0;
};

Deadline Briefly() { return Deadline::After(std::chrono::seconds(20)); }

class EveryVersion : public ::testing::TestWithParam<int> {};

TEST_P(EveryVersion, IsLoadedAndItsFactsAreRead) {
  Toy toy("v" + std::to_string(GetParam()));
  const auto plugin = toy.Open();
  ASSERT_TRUE(plugin) << plugin.error().message();
  EXPECT_EQ((*plugin)->version(), GetParam());
  EXPECT_EQ((*plugin)->name(), "Toy");
  ASSERT_EQ((*plugin)->nics().size(), 1U);
  const NicFacts& nic = (*plugin)->nics().front();
  EXPECT_EQ(nic.name, "toy0");
  EXPECT_EQ(nic.pci_path, "/sys/devices/toy");
  EXPECT_EQ(nic.guid, 0x1122334455667788U);
  EXPECT_TRUE(nic.host_memory);
  EXPECT_TRUE(nic.cuda_memory);
  EXPECT_FALSE(nic.dma_buf);
  EXPECT_EQ(nic.megabits, 200'000U);
  EXPECT_EQ(nic.port, 3);
  EXPECT_EQ(nic.latency, 1.5F);
  EXPECT_EQ(nic.most_comms, 70'000);
  EXPECT_EQ(nic.most_receives, 2);
  EXPECT_EQ(nic.unpacks, GetParam() >= 7);
  EXPECT_EQ(nic.most_message_bytes, std::uint64_t{1} << (GetParam() >= 9 ? 33 : 30));
  EXPECT_THAT(toy.Asked(), HasSubstr(GetParam() >= 11 ? "init traffic class -1\n" : "init \n"));
}

TEST_P(EveryVersion, IsGivenWhatItsVersionIsGiven) {
  Toy toy("v" + std::to_string(GetParam()));
  const auto plugin = toy.Open();
  ASSERT_TRUE(plugin) << plugin.error().message();
  toy.Asked();
  {
    auto listening = Listening::Open(*plugin, 0);
    ASSERT_TRUE(listening) << listening.error().message();
    Connecting connecting(*plugin, 0, (*listening)->handle());
    auto sender = testing::AskUntil(Briefly(), [&] { return connecting.Connect(); });
    ASSERT_TRUE(sender) << sender.error().message();
    auto receiver = testing::AskUntil(Briefly(), [&] { return (*listening)->Accept(); });
    ASSERT_TRUE(receiver) << receiver.error().message();
    std::byte memory[64];
    auto from = (*sender)->Register(memory, sizeof memory, /*on_gpu=*/false);
    auto into = (*receiver)->Register(memory, sizeof memory, /*on_gpu=*/true);
    ASSERT_TRUE(from && into);
    EXPECT_TRUE(*(*sender)->Send({memory, 50, 7, from->mr()}));
    EXPECT_TRUE(*(*receiver)->Receive({memory, 60, 8, into->mr()}));
    EXPECT_TRUE(*(*sender)->Test());
    const auto arrival = (*receiver)->Test();
    ASSERT_TRUE(arrival && arrival->done);
    EXPECT_EQ(arrival->bytes, 77);
    EXPECT_TRUE((*receiver)->Consume());
  }
  const bool unpacks = GetParam() >= 7;
  std::string expected = "listen device 0\nconnect device 0\n";
  expected += unpacks ? "accept device 1\n" : "accept device 0\n";
  expected += "regMr 64 kind 1\nregMr 64 kind 2\nisend 50 tag 7 mr 1\nirecv 60 tag 8 mr 1\n";
  expected += "test \ntest \n";
  if (unpacks) expected += "irecvConsumed 1 1\n";
  expected += "deregMr 1\nderegMr 1\ncloseRecv 1\ncloseSend 1\ncloseListen 1\n";
  EXPECT_EQ(toy.Asked(), expected);
}

TEST_P(EveryVersion, RefusesWhatItsSizesCannotSay) {
  Toy toy("v" + std::to_string(GetParam()));
  const auto plugin = toy.Open();
  ASSERT_TRUE(plugin) << plugin.error().message();
  Driver& driver = (*plugin)->driver();
  void* mr = nullptr;
  const std::size_t much = std::size_t{3} << 30;
  const int registered = driver.Register(nullptr, nullptr, much, abi::kPointerHost, &mr);
  EXPECT_EQ(registered, GetParam() >= 8 ? abi::kSuccess : abi::kInvalidArgument);
  void* request = nullptr;
  const int sent = driver.Send(nullptr, {nullptr, much, 0, mr}, &request);
  EXPECT_EQ(sent, GetParam() >= 9 ? abi::kSuccess : abi::kInvalidArgument);
}

TEST_P(EveryVersion, IsAskedForNoMoreThanItHasRoomFor) {
  Toy toy("v" + std::to_string(GetParam()));
  const auto plugin = toy.Open();
  ASSERT_TRUE(plugin) << plugin.error().message();
  auto ends = testing::Connect(*plugin, 1, Briefly());
  ASSERT_TRUE(ends) << ends.error().message();
  const std::size_t most = GetParam() >= 7 ? 16 : 8;
  EXPECT_LE(ends->senders[0]->room(), most);
  EXPECT_LE(ends->receivers[0]->room(), most);
}

TEST_P(EveryVersion, IsNotAskedToUnpackWhereItDoesNot) {
  Toy toy("v" + std::to_string(GetParam()), {{"TOY_HOST", "1"}});
  const auto plugin = toy.Open();
  ASSERT_TRUE(plugin) << plugin.error().message();
  EXPECT_FALSE((*plugin)->nics().front().unpacks);
  auto ends = testing::Connect(*plugin, 1, Briefly());
  ASSERT_TRUE(ends) << ends.error().message();
  ReceiveComm& comm = *ends->receivers[0];
  std::byte memory[8];
  auto mr = comm.Register(memory, sizeof memory, /*on_gpu=*/false);
  ASSERT_TRUE(mr);
  EXPECT_TRUE(*comm.Receive({memory, sizeof memory, 0, mr->mr()}));
  const auto arrival = comm.Test();
  ASSERT_TRUE(arrival && arrival->done);
  EXPECT_TRUE(comm.Consume());
  EXPECT_THAT(toy.Asked(), ::testing::Not(HasSubstr("irecvConsumed")));
}

INSTANTIATE_TEST_SUITE_P(Plugin, EveryVersion, ::testing::Range(5, 13));

TEST(PluginLoad, TakesTheNewestVersionThatALibraryHas) {
  Toy toy("v7v12");
  const auto plugin = toy.Open();
  ASSERT_TRUE(plugin) << plugin.error().message();
  EXPECT_EQ((*plugin)->version(), 12);
}

TEST(PluginLoad, AFileIsInitialisedOnce) {
  Toy toy("v7");
  const auto first = toy.Open();
  const auto second = toy.Open();
  ASSERT_TRUE(first && second);
  EXPECT_EQ(*first, *second);
  const std::string asked = toy.Asked();
  EXPECT_EQ(asked.find("init"), asked.rfind("init"));
}

TEST(PluginLoad, AFileThatThereIsNotIsNamedWithTheSetting) {
  const auto plugin = Plugin::Open("/nowhere/libnccl-net.so");
  ASSERT_FALSE(plugin);
  EXPECT_EQ(plugin.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(
      plugin.error().message(),
      AllOf(HasSubstr("no network plugin /nowhere/libnccl-net.so"), HasSubstr("FERRY_NET_PLUGIN")));
}

TEST(PluginLoad, AFileThatIsNoLibraryIsNamedWithTheLoadersReason) {
  const auto plugin = Plugin::Open("/etc/passwd");
  ASSERT_FALSE(plugin);
  EXPECT_EQ(plugin.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(plugin.error().message(),
              AllOf(HasSubstr("/etc/passwd"), HasSubstr("invalid ELF header"), HasSubstr("ldd")));
}

TEST(PluginLoad, ALibraryWithoutThePluginSaysWhatItLacks) {
  Toy toy("none");
  const auto plugin = toy.Open();
  ASSERT_FALSE(plugin);
  EXPECT_EQ(plugin.error().code(), Code::kUnsupported);
  EXPECT_THAT(plugin.error().message(),
              AllOf(HasSubstr(toy.path()), HasSubstr("not a network plugin"),
                    HasSubstr("ncclNetPlugin_v5 to v12")));
}

TEST(PluginLoad, AnOlderVersionIsNamed) {
  Toy toy("v4");
  const auto plugin = toy.Open();
  ASSERT_FALSE(plugin);
  EXPECT_EQ(plugin.error().code(), Code::kUnsupported);
  EXPECT_THAT(plugin.error().message(), AllOf(HasSubstr("of version 4"), HasSubstr("5 to 12")));
}

TEST(PluginLoad, ANewerVersionIsNamed) {
  Toy toy("v13");
  const auto plugin = toy.Open();
  ASSERT_FALSE(plugin);
  EXPECT_EQ(plugin.error().code(), Code::kUnsupported);
  EXPECT_THAT(plugin.error().message(),
              AllOf(HasSubstr("of version 13"), HasSubstr("a newer release of this library")));
}

TEST(PluginLoad, AnInitThatFailsIsToldWithThePluginsWordsAndCanBeTriedAgain) {
  Toy toy("v7", {{"TOY_FAIL", "init"}});
  const auto plugin = toy.Open();
  ASSERT_FALSE(plugin);
  EXPECT_EQ(plugin.error().code(), Code::kUnavailable);
  EXPECT_THAT(plugin.error().message(),
              AllOf(HasSubstr("init of network plugin"), HasSubstr(toy.path()),
                    HasSubstr("2 (ncclSystemError)"), HasSubstr("toy of version 7 says hello"),
                    HasSubstr("ferry doctor")));
  const ScopedVariables well(Variables{{"TOY_FAIL", "nothing"}});
  EXPECT_TRUE(toy.Open());
}

TEST(PluginLoad, APluginThatHasStartedIsNotStartedAgain) {
  for (const char* const fails : {"devices", "getProperties"}) {
    Toy toy("v7", {{"TOY_FAIL", fails}});
    ASSERT_FALSE(toy.Open());
    const ScopedVariables well(Variables{{"TOY_FAIL", "nothing"}});
    const auto plugin = toy.Open();
    ASSERT_TRUE(plugin) << plugin.error().message();
    EXPECT_EQ((*plugin)->nics().size(), 1U);
    const std::string asked = toy.Asked();
    EXPECT_EQ(asked.find("init"), asked.rfind("init")) << asked;
  }
}

TEST(PluginLoad, AListenThatFailsHasNothingToClose) {
  Toy toy("v7");
  const auto plugin = toy.Open();
  ASSERT_TRUE(plugin) << plugin.error().message();
  toy.Asked();
  const ScopedVariables ill(Variables{{"TOY_FAIL", "listen"}});
  ASSERT_FALSE(Listening::Open(*plugin, 0));
  EXPECT_EQ(toy.Asked(), "listen device 0\n");
}

// Both ends of a toy's connection, whose messages have no bytes and come at once. Chunks are late
// when they are polled for the second time.
class ToyBed {
 public:
  explicit ToyBed(Plugin* plugin) {
    auto ends = *testing::Connect(plugin, 1, Briefly());
    const ChunkTerms terms{4096, 9, std::chrono::milliseconds(0)};
    out = *PayloadOut::Create(std::move(ends.senders[0]), terms);
    in = *PayloadIn::Create(nullptr, {}, std::move(ends.receivers[0]), terms);
    frame.payload = {{memory, sizeof memory}};
    frame.payload_bytes = sizeof memory;
  }
  template <class Side>
  static Status Run(Side* side) {
    for (const Deadline timeout = Briefly(); side->busy() && !timeout.expired();) {
      FERRY_TRY(side->Progress());
    }
    return Ok();
  }
  // What is logged about a side for which the plugin begins nothing.
  template <class Side>
  static std::string LogOfWaiting(Side* side) {
    SetLogLevel(LogLevel::kInfo);
    ::testing::internal::CaptureStderr();
    for (int i = 0; i < 5; ++i) EXPECT_TRUE(side->Progress());
    EXPECT_TRUE(side->busy());
    SetLogLevel(LogLevel::kWarn);
    return ::testing::internal::GetCapturedStderr();
  }
  std::byte memory[4] = {};
  net::OutFrame frame;
  std::unique_ptr<PayloadOut> out;
  std::unique_ptr<PayloadIn> in;
};

TEST(PluginToy, MemoryThatCannotBeGivenBackIsAnErrorOfItsChunkAndTheReceiverGoes) {
  Toy toy("v7", {{"TOY_FAIL", "irecvConsumed"}});
  ToyBed bed(*toy.Open());
  ASSERT_TRUE(bed.in->Begin(4, {}));
  const Status ended = ToyBed::Run(bed.in.get());
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code(), Code::kPeerLost);
  EXPECT_THAT(ended.error().message(), AllOf(HasSubstr("irecvConsumed"),
                                             HasSubstr("receiving chunk=0 tag=9 size=4 offset=0")));
  bed.in.reset();
}

TEST(PluginToy, AReceiveThatIsNotBegunIsLoggedOnceAndTriedAgain) {
  Toy toy("v7", {{"TOY_NULL", "irecv"}});
  ToyBed bed(*toy.Open());
  ASSERT_TRUE(bed.in->Begin(4, {}));
  const std::string log = ToyBed::LogOfWaiting(bed.in.get());
  const std::string line = "device 0): the plugin has not begun to receive it";
  EXPECT_THAT(log, AllOf(HasSubstr("receiving chunk=0 "), HasSubstr(line)));
  EXPECT_EQ(log.find(line), log.rfind(line)) << log;
  const ScopedVariables well(Variables{{"TOY_NULL", "nothing"}});
  ASSERT_TRUE(ToyBed::Run(bed.in.get()));
  EXPECT_EQ(bed.in->received_bytes(), 4U);
}

TEST(PluginToy, ASendThatIsNotBegunIsLoggedOnceAndTriedAgain) {
  Toy toy("v7", {{"TOY_NULL", "isend"}});
  ToyBed bed(*toy.Open());
  EXPECT_EQ(bed.out->Push(bed.frame), 1U);
  const std::string log = ToyBed::LogOfWaiting(bed.out.get());
  const std::string line = "device 0): the plugin has not begun to send it";
  EXPECT_THAT(log, AllOf(HasSubstr("sending chunk=0 tag=9 size=4 offset=0"), HasSubstr(line)));
  EXPECT_EQ(log.find(line), log.rfind(line)) << log;
  const ScopedVariables well(Variables{{"TOY_NULL", "nothing"}});
  ASSERT_TRUE(ToyBed::Run(bed.out.get()));
  EXPECT_EQ(bed.out->sent_frames(), 1U);
}

TEST(PluginLoad, APluginWithoutDevicesIsToldWithItsSettings) {
  Toy toy("v12", {{"TOY_DEVICES", "0"}});
  const auto plugin = toy.Open();
  ASSERT_FALSE(plugin);
  EXPECT_EQ(plugin.error().code(), Code::kUnavailable);
  EXPECT_THAT(plugin.error().message(), AllOf(HasSubstr("finds no interface"), HasSubstr("Toy"),
                                              HasSubstr("NCCL_GPUDIRECTTCPX_SOCKET_IFNAME")));
  EXPECT_THAT(toy.Asked(), HasSubstr("finalize 1"));
}

TEST(PluginLoad, GpuDirectTcpxWithoutAChunkSizeIsNotEvenStarted) {
  ::unsetenv("NCCL_DYNAMIC_CHUNK_SIZE");
  const LibraryCopy copy(FERRY_STANDIN_LIBRARY);
  const auto plugin = Plugin::Open(copy.path());
  ASSERT_FALSE(plugin);
  EXPECT_EQ(plugin.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(plugin.error().message(), HasSubstr("set NCCL_DYNAMIC_CHUNK_SIZE=524288"));
}

// As lanes that poll read it: a child that waited for its parent's lock would never end.
TEST(PluginLog, AChildHasALogOfItsOwnWhateverItsParentReads) {
  FERRY_SKIP_FORK_TEST();
  std::jthread reads([](const std::stop_token& stop) {
    while (!stop.stop_requested()) (void)PluginLogMark();
  });
  for (int i = 0; i < 20; ++i) {
    const int status = StatusOfChild([] {
      ::alarm(20);
      return PluginLogMark() == 0 ? 3 : 4;
    });
    ASSERT_EQ(status, 3);
  }
}

TEST(PluginLog, HasTheLinesThatNcclsVariablesAskFor) {
  constexpr unsigned long kNet = 16;
  constexpr unsigned long kInit = 1;
  struct {
    const char* debug;
    const char* subsystems;
    int level;
    unsigned long flags;
    bool asked;
  } const kCases[] = {
      {nullptr, nullptr, abi::kLogInfo, kInit, false},
      {nullptr, "NET", abi::kLogInfo, kNet, false},
      {"INFO", nullptr, abi::kLogInfo, kInit, true},
      {"INFO", nullptr, abi::kLogInfo, kNet, false},
      {"INFO", "NET", abi::kLogInfo, kNet, true},
      {"info", "init,net", abi::kLogInfo, kNet, true},
      {"INFO", "NET", abi::kLogInfo, kInit, false},
      {"INFO", "NET", abi::kLogInfo, kInit | kNet, true},
      {"INFO", "^NET", abi::kLogInfo, kNet, false},
      {"INFO", "^NET", abi::kLogInfo, kInit, true},
      {"INFO", "ALL", abi::kLogInfo, kNet, true},
      {"INFO", "NETWORK", abi::kLogInfo, kNet, false},
      {"WARN", "ALL", abi::kLogInfo, kNet, false},
      {"VERSION", "ALL", abi::kLogInfo, kNet, false},
      {"INFO", "ALL", abi::kLogTrace, kNet, false},
      {"TRACE", "NET", abi::kLogTrace, kNet, true},
      {"TRACE", "NET", abi::kLogInfo, kNet, true},
      {"nonsense", "ALL", abi::kLogInfo, kNet, false},
      {"", "", abi::kLogInfo, kNet, false},
  };
  for (const auto& one : kCases) {
    EXPECT_EQ(AsksForLine(one.debug, one.subsystems, one.level, one.flags), one.asked)
        << (one.debug == nullptr ? "unset" : one.debug) << " "
        << (one.subsystems == nullptr ? "unset" : one.subsystems);
  }
}

TEST(PluginLog, KeepsTheLastWarningsOnly) {
  const std::uint64_t mark = PluginLogMark();
  const abi::Logger log = PluginLogger();
  for (int i = 0; i < 20; ++i) log(abi::kLogWarn, 0, "a.cc", i, "warning %d", i);
  log(abi::kLogInfo, 0, nullptr, 1, "%s", "not kept");
  const auto lines = PluginWarnings(mark);
  ASSERT_EQ(lines.size(), 8U);
  EXPECT_EQ(lines.front().text, "warning 12");
  EXPECT_EQ(lines.back().text, "warning 19");
  EXPECT_TRUE(PluginWarnings(PluginLogMark()).empty());
}

TEST(PluginLog, KeepsTheFormatOfALineThatCannotBeWrittenOut) {
  const std::uint64_t mark = PluginLogMark();
  const wchar_t no_character[] = {wchar_t{0x110000}, 0};
  PluginLogger()(abi::kLogWarn, 0, "a.cc", 1, "what is %ls", no_character);
  const auto lines = PluginWarnings(mark);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines.front().text, "what is %ls");
}

}  // namespace
}  // namespace ferry::tcpx
