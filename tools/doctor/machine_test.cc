// The real machine, as far as every machine is the same.
#include "tools/doctor/machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "ferry/core/fd.h"

namespace ferry::tools {
namespace {

using testing::HasSubstr;

constexpr auto kTimeout = std::chrono::seconds(30);
Deadline TestDeadline() { return Deadline::After(kTimeout); }

// A socket of this machine's loopback, bound to a port that nobody else has.
struct Bound {
  UniqueFd fd;
  std::uint16_t port = 0;
};
Bound Bind() {
  Bound bound{UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0))};
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(::bind(bound.fd.get(), raw, length), 0);
  EXPECT_EQ(::getsockname(bound.fd.get(), raw, &length), 0);
  bound.port = ntohs(address.sin_port);
  return bound;
}

TEST(DoctorMachine, FilesAreReadWithoutTheirLastLineEnd) {
  const auto machine = CreateMachine();
  const auto text = machine->ReadFile("/proc/sys/kernel/ostype");
  ASSERT_TRUE(text);
  EXPECT_EQ(*text, "Linux");
  for (const char* path : {"/nowhere", "/proc", ""}) {
    const auto none = machine->ReadFile(path);
    ASSERT_FALSE(none) << path;
    EXPECT_THAT(none.error().message(), HasSubstr(path));
  }
}

TEST(DoctorMachine, WhatEveryMachineHasIsThere) {
  const auto machine = CreateMachine();
  EXPECT_FALSE(machine->Cores().empty());
  EXPECT_GT(machine->LimitOf(RLIMIT_NOFILE).soft, 0U);
  EXPECT_EQ(machine->Environment().count("PATH"), 1U);
  EXPECT_FALSE(machine->MayUse("no_such_thing"));
  EXPECT_TRUE(machine->ProbeVmsplice());
}

TEST(DoctorMachine, PathsAreTold) {
  const auto machine = CreateMachine();
  const auto folder = machine->StateOf("/proc");
  ASSERT_TRUE(folder);
  EXPECT_EQ(folder->kind, PathState::Kind::kFolder);
  EXPECT_TRUE(folder->readable);
  const auto file = machine->StateOf("/proc/self/exe");
  ASSERT_TRUE(file);
  EXPECT_EQ(file->kind, PathState::Kind::kFile);
  EXPECT_FALSE(file->noexec);
  EXPECT_FALSE(machine->StateOf("/nowhere"));
  const auto names = machine->List("/proc/self");
  ASSERT_TRUE(names);
  EXPECT_THAT(*names, testing::Contains("exe"));
  EXPECT_TRUE(std::is_sorted(names->begin(), names->end()));
  EXPECT_FALSE(machine->List("/nowhere"));
  const auto real = machine->RealPath("/proc/self/exe");
  ASSERT_TRUE(real);
  EXPECT_THAT(*real, HasSubstr("ferry_tools_test"));
  EXPECT_FALSE(machine->RealPath("/nowhere"));
}

TEST(DoctorMachine, TheKernelIsAskedForOptionsAndInterfacesForSwitches) {
  const auto machine = CreateMachine();
  EXPECT_TRUE(machine->TakesTokens(80));  // either answer is one
  const auto never = machine->TakesTokens(12345);
  ASSERT_TRUE(never);
  EXPECT_FALSE(*never);
  const auto loopback = machine->SwitchesOf("lo");
  ASSERT_TRUE(loopback) << loopback.error().message();
  EXPECT_EQ(loopback->private_flags.count("enable-header-split"), 0U);
  const auto none = machine->SwitchesOf("no-such-interface-at-all");
  ASSERT_FALSE(none);
  EXPECT_THAT(none.error().message(), HasSubstr("no-such-interface-at-all"));
}

TEST(DoctorCommand, GivesBothOutputsAndTheExitCode) {
  const auto end = RunCommand({"sh", "-c", "echo out; echo err >&2; exit 3"}, TestDeadline());
  ASSERT_TRUE(end) << end.error().message();
  EXPECT_EQ(end->exit_code, 3);
  EXPECT_EQ(end->out, "out\n");
  EXPECT_EQ(end->err, "err\n");
  const auto killed = RunCommand({"sh", "-c", "kill -9 $$"}, TestDeadline());
  ASSERT_TRUE(killed);
  EXPECT_EQ(killed->exit_code, 128 + 9);
}

TEST(DoctorCommand, OneThatIsMissingIsUnsupported) {
  const auto end = RunCommand({"no-such-program"}, TestDeadline());
  ASSERT_FALSE(end);
  EXPECT_EQ(end.error().code(), Code::kUnsupported);
}

TEST(DoctorCommand, OneThatDoesNotEndIsKilled) {
  for (const char* script : {"exec sleep 1000", "exec >&- 2>&-; exec sleep 1000"}) {
    const auto end = RunCommand({"sh", "-c", script}, Deadline::After(milliseconds(50)));
    ASSERT_FALSE(end) << script;
    EXPECT_EQ(end.error().code(), Code::kTimedOut);
    EXPECT_THAT(end.error().message(), HasSubstr("sh was killed"));
  }
}

TEST(DoctorCommand, OneThatPrintsWithoutEndIsKilled) {
  const auto end = RunCommand({"sh", "-c", "exec cat /dev/zero"}, TestDeadline());
  ASSERT_FALSE(end);
  EXPECT_EQ(end.error().code(), Code::kUnavailable);
}

TEST(DoctorSockets, LoopbackIsReachedByItsOwnInterface) {
  const auto route = FindRoute({"127.0.0.1", 80});
  ASSERT_TRUE(route) << route.error().message();
  EXPECT_EQ(route->interface, "lo");
  EXPECT_EQ(route->source, "127.0.0.1");
  EXPECT_EQ(route->gateway, "");
  EXPECT_TRUE(route->local);
  EXPECT_GT(route->mtu, 0);
  EXPECT_FALSE(FindRoute({"not numeric", 80}));
}

TEST(DoctorSockets, AllAreDialledAtOnceAndToldApart) {
  const Bound open = Bind();
  ASSERT_EQ(::listen(open.fd.get(), 8), 0);
  const Bound closed = Bind();
  const auto dialed = DialAll(
      {{"127.0.0.1", open.port}, {"127.0.0.1", closed.port}, {"not numeric", 1}}, TestDeadline());
  ASSERT_EQ(dialed.size(), 3U);
  EXPECT_EQ(dialed[0].error, 0);
  EXPECT_GT(dialed[0].path_mtu, 0);
  EXPECT_GT(dialed[0].peer_segment, 0);
  EXPECT_EQ(dialed[1].error, ECONNREFUSED);
  EXPECT_EQ(dialed[1].at.port, closed.port);
  EXPECT_EQ(dialed[2].error, EINVAL);
}

// A backlog that is full: the kernel drops what comes after.
TEST(DoctorSockets, NoAnswerIsTimedOut) {
  const Bound full = Bind();
  ASSERT_EQ(::listen(full.fd.get(), 0), 0);
  const std::vector<net::Address> many(8, {"127.0.0.1", full.port});
  const auto dialed = DialAll(many, Deadline::After(milliseconds(200)));
  EXPECT_EQ(dialed.back().error, ETIMEDOUT);
}

}  // namespace
}  // namespace ferry::tools
