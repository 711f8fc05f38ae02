// Tests servers whose stderr is full, closed or not read while pending peers cause log lines.

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <string>

#include "ferry/net/address.h"
#include "ferry/transfer/endpoint.h"
#include "tests/cli/ferry_program.h"
#include "tests/support/peer_process.h"

namespace ferry::tests {
namespace {

const Arguments kServer{"perf", "server", "--listen", "127.0.0.1",      "--port",
                        "0",    "--json", "--set",    "log_level=debug"};

// Connects that send no frame: each causes lines of the server's log.
void DisturbBy(int connects, const std::string& address) {
  const auto to = net::ToRaw(*net::ParseAddress(address, 0));
  ASSERT_TRUE(to);
  for (int i = 0; i < connects; ++i) {
    const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::connect(fd.get(), to->get(), to->length), 0);
    const std::string words(64, 'x');
    (void)::send(fd.get(), words.data(), words.size(), MSG_NOSIGNAL);
    std::array<char, 64> answer{};
    (void)::recv(fd.get(), answer.data(), answer.size(), 0);  // until the server has closed it
  }
}

void ExpectServes(const std::string& address) {
  const ProgramEnd client = Ferry(
      {"perf", "client", address, "--size", "1MiB", "--rounds", "1", "--iters", "3", "--no-floor"});
  EXPECT_EQ(client.exit_code, 0) << client.err;
}

// Each connection causes about 100 lines of the server's log.
void ExpectServesMany(int connections, const std::string& address) {
  Config config;
  config.lanes = 16;
  auto endpoint = Must(transfer::Endpoint::Create(config));
  for (int i = 0; i < connections; ++i) {
    auto connection = endpoint.Connect(address, Deadline::After(kProgramTimeout));
    ASSERT_TRUE(connection) << connection.error().ToString();
    connection->Close();
  }
}

// Regression: the loop waited in write(2), and everybody was lost.
TEST(BlockedLog, AServerWhoseStderrNobodyReadsServesOn) {
  Program server(kServer);
  const std::string address = AddressOf(&server);
  ExpectServesMany(50, address);
  ExpectServes(address);
}

TEST(BlockedLog, AServerWhoseTerminalHasStoppedServesOn) {
  Program server(kServer, {}, Stderr::kTerminal);
  const std::string address = AddressOf(&server);
  ExpectServesMany(50, address);
  ExpectServes(address);
}

// Regression: the first line ended the server by SIGPIPE.
TEST(BlockedLog, AServerWhoseLogCollectorHasEndedServesOn) {
  Program server(kServer, {}, Stderr::kBroken);
  const std::string address = AddressOf(&server);
  DisturbBy(20, address);
  ExpectServes(address);
}

// Regression: a connection got the number of stderr, and log lines were written into it.
TEST(BlockedLog, AServerWithoutStderrWritesNoLinesIntoConnections) {
  Program server(kServer, {}, Stderr::kClosed);
  const std::string address = AddressOf(&server);
  DisturbBy(20, address);
  ExpectServes(address);
}

}  // namespace
}  // namespace ferry::tests
