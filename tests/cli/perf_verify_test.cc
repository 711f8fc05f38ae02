// `verified: yes` of `ferry perf` speaks of the operations that were timed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "ferry/core/units.h"
#include "ferry/net/address.h"
#include "ferry/net/testing/fault_proxy.h"
#include "tests/cli/ferry_program.h"

namespace ferry::tests {
namespace {

using net::FaultProxy;
using net::ProxyDirection;
using nlohmann::json;
using testing::HasSubstr;

constexpr std::uint64_t kOpBytes = kMiB;

// A run of one round through a network that inverts one byte, in the middle of an operation: the
// first one finds out how long they take, and those after it are timed. Nothing else of size
// passes.
ProgramEnd RunWithOneWrongByte(const std::string& op, std::uint64_t timed, std::uint64_t wrong) {
  Program server(
      {"perf", "server", "--listen", "127.0.0.1", "--port", "0", "--json", "--insecure"});
  const auto target = net::ParseAddress(AddressOf(&server), 0);
  EXPECT_TRUE(target);
  auto proxy = FaultProxy::Start(*target);
  EXPECT_TRUE(proxy);
  (*proxy)->CorruptAt(op == "read" ? ProxyDirection::kToClient : ProxyDirection::kToTarget,
                      (1 + wrong) * kOpBytes + kOpBytes / 2);
  return Ferry({"perf", "client", (*proxy)->address().ToString(), "--op", op, "--size", "1MiB",
                "--lanes", "1", "--warmup", "0", "--iters", std::to_string(timed), "--rounds", "1",
                "--no-floor", "--json", "--insecure"});
}

class PerfVerify : public testing::TestWithParam<const char*> {};

TEST_P(PerfVerify, AWrongByteInTheLastOperationOfARoundIsFound) {
  const ProgramEnd ended = RunWithOneWrongByte(GetParam(), 5, 4);
  EXPECT_EQ(ended.exit_code, 1) << ended.out;
  EXPECT_THAT(ended.err, HasSubstr("operation 5 of 5 of a round has wrong bytes at the receiver"));
  EXPECT_THAT(ended.out, HasSubstr("\"verified\":false"));
}

// With two operations both are checked.
TEST_P(PerfVerify, AWrongByteInAnotherOperationIsFound) {
  const ProgramEnd ended = RunWithOneWrongByte(GetParam(), 2, 0);
  EXPECT_EQ(ended.exit_code, 1) << ended.out;
  EXPECT_THAT(ended.err, HasSubstr("operation 1 of 2 of a round has wrong bytes at the receiver"));
}

INSTANTIATE_TEST_SUITE_P(Ops, PerfVerify, testing::Values("write", "read", "send"),
                         [](const auto& op) { return std::string(op.param); });

TEST(PerfVerifyCount, SaysHowManyOperationsWereChecked) {
  const ProgramEnd ended =
      Ferry({"perf", "loopback", "--op", "write,read,send", "--size", "4096", "--depth", "3",
             "--iters", "300", "--rounds", "2", "--no-floor", "--json"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  for (const std::string& line : ended.out_lines()) {
    const json row = json::parse(line, nullptr, false);
    EXPECT_TRUE(row.value("verified", false)) << line;
    EXPECT_EQ(row.value("verified_operations", 0), 6) << line;  // the last and two others, twice
  }
  const ProgramEnd unchecked = Ferry({"perf", "loopback", "--size", "4096", "--iters", "5",
                                      "--rounds", "1", "--no-floor", "--no-verify", "--json"});
  const json row = json::parse(unchecked.out, nullptr, false);
  EXPECT_TRUE(row.contains("verified") && row["verified"].is_null()) << unchecked.out;
  EXPECT_EQ(row.value("verified_operations", 1), 0);
}

}  // namespace
}  // namespace ferry::tests
