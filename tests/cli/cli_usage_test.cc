// Tests the program's messages to people at a terminal: progress, warnings, and what is wrong with
// how it was called.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
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
using testing::Not;

std::size_t Occurrences(const std::string& text, const std::string& of) {
  std::size_t count = 0;
  for (auto at = text.find(of); at != std::string::npos; at = text.find(of, at + 1)) ++count;
  return count;
}

TEST(CliUsage, AMisspeltVariableIsWarnedOfOnceByEverySubcommand) {
  const ClosedPort closed;
  for (const Arguments& arguments :
       {Arguments{"info", "--json"}, Arguments{"doctor", "--json"},
        Arguments{"perf", "loopback", "--size", "8", "--iters", "1", "--rounds", "1", "--json"},
        Arguments{"perf", "client", closed.address()},
        Arguments{"perf", "server", "--listen", "x y"},
        Arguments{"transfer", "client", closed.address(), "--message", "hello"},
        Arguments{"transfer", "server", "--dir", "/no/such/folder"}, Arguments{"copy-bench"},
        Arguments{"kernel-bench"}}) {
    const ProgramEnd ended = Ferry(arguments, {"FERRY_LANSE=2", "FERRY_DEVICES=none"});
    EXPECT_EQ(Occurrences(ended.err, "FERRY_LANSE is not a setting; did you mean FERRY_LANES?"), 1U)
        << arguments.front() << ' ' << arguments.back() << ": " << ended.err;
  }
}

TEST(CliUsage, APortInUseIsNamedWithTheOptionThatChoosesAnother) {
  Program first({"perf", "server", "--listen", "127.0.0.1", "--port", "0", "--json"});
  const json announced = json::parse(first.ReadLine(), nullptr, false);
  const std::string port = std::to_string(announced.value("port", 0));
  for (const char* const command : {"perf", "transfer"}) {
    const ProgramEnd ended = Ferry({command, "server", "--listen", "127.0.0.1", "--port", port});
    EXPECT_EQ(ended.exit_code, 1);
    EXPECT_THAT(ended.err, AllOf(HasSubstr("another program uses port " + port),
                                 HasSubstr("--port"), Not(HasSubstr("widen"))));
  }
}

TEST(CliUsage, AServerWithoutItsFolderDoesNotStart) {
  const ProgramEnd ended = Ferry(
      {"transfer", "server", "--dir", "/no/such/folder", "--listen", "127.0.0.1", "--port", "0"});
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_EQ(ended.out, "");
  EXPECT_THAT(ended.err, Sentence("ferry transfer server", "--dir /no/such/folder cannot be used"));
}

TEST(CliUsage, BenchmarksOfOneMachineOfferNoTls) {
  for (const char* const command : {"copy-bench", "kernel-bench"}) {
    const ProgramEnd help = Ferry({command, "--help"});
    EXPECT_THAT(help.out, AllOf(HasSubstr("--set "), Not(HasSubstr("--tls")),
                                Not(HasSubstr("--secret-file")), Not(HasSubstr("--insecure"))));
  }
  EXPECT_THAT(Ferry({"perf", "client", "--help"}).out, HasSubstr("--tls"));
}

TEST(CliUsage, AMachineWithoutADriverIsToldSo) {
  const ProgramEnd ended = Ferry({"info", "--json"});
  const json info = json::parse(ended.out, nullptr, false);
  if (!info.value("build", json()).value("cuda", false)) GTEST_SKIP() << "built without CUDA";
  if (void* const driver = ::dlopen("libcuda.so.1", RTLD_LAZY); driver != nullptr) {
    (void)::dlclose(driver);
    GTEST_SKIP() << "there is a driver";
  }
  EXPECT_THAT(info.value("devices", json()).value("why_none", ""),
              AllOf(HasSubstr("no NVIDIA driver is installed"), Not(HasSubstr("insufficient"))));
}

// ---- transfer -----------------------------------------------------------------------------------

TEST(CliUsage, TransfersThatSucceedWarnOfNothing) {
  const Folder here;
  const Folder there;
  WriteFile(here / "file", SomeBytes(300'000));
  Program server({"transfer", "server", "--dir", there.text(), "--listen", "127.0.0.1", "--port",
                  "0", "--overwrite", "--json"});
  const std::string address = AddressOf(&server);
  for (int i = 0; i < 12; ++i) {
    const ProgramEnd client =
        Ferry({"transfer", "client", address, "--file", (here / "file").string(), "--json"});
    EXPECT_EQ(client.exit_code, 0);
    EXPECT_EQ(client.err, "");
  }
  server.Signal(SIGINT);
  const ProgramEnd ended = server.Finish();
  EXPECT_EQ(ended.exit_code, 0);
  EXPECT_EQ(ended.err, "");
}

// At 2 MiB/s it takes two seconds.
TEST(CliUsage, ProgressIsShownOnATerminalOnly) {
  const Folder here;
  const Folder there;
  WriteFile(here / "file", SomeBytes(4 << 20));
  Program server({"transfer", "server", "--dir", there.text(), "--listen", "127.0.0.1", "--port",
                  "0", "--overwrite", "--json"});
  const std::string address = AddressOf(&server);
  for (const Stderr err : {Stderr::kTerminal, Stderr::kPipe}) {
    Program client({"transfer", "client", address, "--file", (here / "file").string(), "--json",
                    "--set", "lane_rate_bytes=2MiB", "--set", "lanes=1"},
                   {}, err);
    const ProgramEnd ended = client.Finish();
    EXPECT_EQ(ended.exit_code, 0);
    if (err == Stderr::kPipe) {
      EXPECT_EQ(ended.err, "");
    } else {
      EXPECT_THAT(ended.err,
                  ContainsRegex("[0-9]+ of 4 MiB .[0-9]+ %., [0-9]+.[0-9] MB/s, [0-9]+ s left"));
    }
  }
}

}  // namespace
}  // namespace ferry::tests
