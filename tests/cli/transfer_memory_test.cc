// `ferry transfer` between two processes of which either may use GPU memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/cli/ferry_program.h"
#include "tests/support/engine_peer.h"

namespace ferry::tests {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

const Arguments kTwoGpus = {"FERRY_DEVICES=simulated:2"};

Arguments ServerWith(const std::string& memory, const Folder& folder) {
  return {"transfer", "server", "--dir",  folder.text(), "--listen", "127.0.0.1",
          "--port",   "0",      "--json", "--memory",    memory};
}

ProgramEnd Send(const std::string& address, const std::filesystem::path& file,
                const std::string& memory, const Arguments& variables = kTwoGpus) {
  return Ferry(
      {"transfer", "client", address, "--file", file.string(), "--memory", memory, "--json"},
      variables);
}

// Both sides' reports of a file, which must be there and whole.
void ExpectArrived(const ProgramEnd& client, Program* server, const std::string& sent_from,
                   const std::string& put_into) {
  ASSERT_EQ(client.exit_code, 0) << client.err;
  const json sent = json::parse(client.out, nullptr, false);
  EXPECT_TRUE(sent.value("identical", false)) << client.out;
  EXPECT_EQ(sent.value("memory", ""), sent_from);
  EXPECT_EQ(sent.value("peer_memory", ""), put_into);
  const json received = json::parse(server->ReadLine(), nullptr, false);
  EXPECT_EQ(received.value("sha256", "none"), sent.value("sha256", ""));
  EXPECT_EQ(received.value("memory", ""), put_into);
  EXPECT_EQ(received.value("peer_memory", ""), sent_from);
}

struct Way {
  const char* from;
  const char* into;
};

class TransferThroughMemory : public testing::TestWithParam<Way> {};

TEST_P(TransferThroughMemory, FilesOfAnySizeArriveIdentical) {
  const Folder here;
  const Folder there;
  Program server(ServerWith(GetParam().into, there), kTwoGpus);
  const std::string address = AddressOf(&server);
  for (const std::size_t size :
       {0U, 1U, 4097U, (3U << 20) + 1, (kSanitized ? 9U << 20 : 33U << 20) + 4321}) {
    const std::string name = "file-" + std::to_string(size);
    WriteFile(here / name, SomeBytes(size));
    ExpectArrived(Send(address, here / name, GetParam().from), &server, GetParam().from,
                  GetParam().into);
    EXPECT_TRUE(ReadFile(there / name) == SomeBytes(size)) << size;
  }
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Finish().exit_code, 0);
}

// All of the 128 MiB that a GPU holds at a time are used again, and some a third time; where
// sanitizers make that slow, only some.
TEST_P(TransferThroughMemory, AFileThatIsMoreThanAGpuHoldsAtATimeArrivesIdentical) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "130 MiB take a minute under the thread sanitizer, and the way of smaller files";
#endif
  const Folder here;
  const Folder there;
  Program server(ServerWith(GetParam().into, there), kTwoGpus);
  const std::string bytes = SomeBytes((kSanitized ? 130U << 20 : 260U << 20) + 4321);
  WriteFile(here / "model", bytes);
  ExpectArrived(Send(AddressOf(&server), here / "model", GetParam().from), &server, GetParam().from,
                GetParam().into);
  EXPECT_TRUE(ReadFile(there / "model") == bytes);
}

std::string NameOf(const testing::TestParamInfo<Way>& way) {
  std::string name = std::string(way.param.from) + way.param.into;
  std::erase(name, ':');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Ways, TransferThroughMemory,
                         testing::Values(Way{"cuda:0", "cuda:1"}, Way{"cuda:1", "host"},
                                         Way{"host", "cuda:0"}),
                         NameOf);

TEST(TransferMemory, AMessagePassesGpuMemoryToo) {
  const Folder folder;
  Program server(ServerWith("cuda:1", folder), kTwoGpus);
  const std::string address = AddressOf(&server);
  for (const std::string text : {"", "hello", "a longer message, of an odd number of bytes"}) {
    const ProgramEnd client = Ferry(
        {"transfer", "client", address, "--message", text, "--memory", "cuda", "--json"}, kTwoGpus);
    ASSERT_EQ(client.exit_code, 0) << client.err;
    EXPECT_EQ(json::parse(client.out, nullptr, false).value("peer_memory", ""), "cuda:1");
    const json received = json::parse(server.ReadLine(), nullptr, false);
    EXPECT_EQ(received.value("name", "-"), text);
    EXPECT_EQ(received.value("peer_memory", ""), "cuda:0");
  }
}

TEST(TransferMemory, TheReportSaysWhichMemoryEitherSideUsed) {
  const Folder here;
  const Folder there;
  WriteFile(here / "file", SomeBytes(5000));
  Program server({"transfer", "server", "--dir", there.text(), "--listen", "127.0.0.1", "--port",
                  "0", "--once", "--memory", "cuda:1"},
                 kTwoGpus);
  const std::string listening = server.ReadLine();
  EXPECT_THAT(listening, HasSubstr(" by way of cuda:1;"));
  const auto at = listening.find("127.0.0.1:");
  const ProgramEnd client =
      Ferry({"transfer", "client", listening.substr(at, listening.find(',') - at), "--file",
             (here / "file").string(), "--memory", "cuda"},
            kTwoGpus);
  EXPECT_EQ(client.exit_code, 0) << client.err;
  EXPECT_THAT(client.out, AllOf(HasSubstr("writing through 5000 B on cuda:0 into 5000 B on the "
                                          "server's cuda:1"),
                                HasSubstr("moved 5000 bytes from cuda:0 to cuda:1 memory")));
  EXPECT_THAT(server.Finish().out, HasSubstr("done: 5000 bytes from cuda:0 to cuda:1 memory"));
}

TEST(TransferMemory, HelpSaysHowMuchAGpuHoldsAtATime) {
  for (const char* side : {"server", "client"}) {
    EXPECT_THAT(Ferry({"transfer", side, "--help"}).out,
                AllOf(HasSubstr("host, cuda (GPU 0) or cuda:N"), HasSubstr("at most 128 MiB")));
  }
}

TEST(TransferMemory, AGpuThatThereIsNotIsCode2AndASentence) {
  const Folder folder;
  WriteFile(folder / "file", "text");
  WriteFile(folder / "empty", "");
  struct Mistake {
    std::string memory;
    std::string devices;
    std::string about;
  };
  for (const Mistake& mistake :
       {Mistake{"cuda:2", "simulated:2", "GPU 2 does not exist: 2 are visible, numbered from 0"},
        Mistake{"cuda", "none", "devices=none"}, Mistake{"gpu", "simulated:2", "\"gpu\""}}) {
    const Arguments variables = {"FERRY_DEVICES=" + mistake.devices};
    for (const char* name : {"file", "empty"}) {
      // Before it connects: nothing listens there.
      const ProgramEnd client = Send("127.0.0.1:1", folder / name, mistake.memory, variables);
      EXPECT_EQ(client.exit_code, 2) << mistake.memory;
      EXPECT_THAT(client.err, Sentence("ferry transfer client", mistake.about));
    }
    const ProgramEnd server = Ferry(ServerWith(mistake.memory, folder), variables);
    EXPECT_EQ(server.exit_code, 2) << mistake.memory;
    EXPECT_THAT(server.err, Sentence("ferry transfer server", mistake.about));
  }
}

}  // namespace
}  // namespace ferry::tests
