// Tests the proof that a process of ours has the other end of a connection.
#include "ferry/net/machine/socket_owner.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ferry/core/check.h"
#include "ferry/core/fd.h"
#include "ferry/net/machine/egress.h"
#include "ferry/net/testing/raw_peer.h"

namespace ferry::net {
namespace {

constexpr uid_t kNobody = 65534;

struct Pair {
  RawListener listener;
  RawPeer dialed = RawPeer::ConnectTo(listener.address());
  UniqueFd accepted = listener.Accept();
};

TEST(SocketOwner, OfAListedSocketIsItsProcess) {
  const Pair pair;
  EXPECT_FALSE(IsHeldBy(ThisProcess(), pair.accepted.get())) << "nothing is listed yet";
  {
    const ListedSocket listed(pair.dialed.fd());
    EXPECT_TRUE(IsHeldBy(ThisProcess(), pair.accepted.get()));
    EXPECT_FALSE(IsHeldBy(ThisProcess(), pair.dialed.fd())) << "its other end is not listed";
    EXPECT_FALSE(IsHeldBy({}, pair.accepted.get()));
  }
  EXPECT_FALSE(IsHeldBy(ThisProcess(), pair.accepted.get()));
}

// Several sockets share a bucket of the list, and each leaves it by itself.
TEST(SocketOwner, IsFoundForEachOfManySockets) {
  RawListener listener;
  std::vector<RawPeer> dialed;
  std::vector<UniqueFd> accepted;
  std::vector<std::unique_ptr<ListedSocket>> listed;
  for (int i = 0; i < 100; ++i) {
    dialed.push_back(RawPeer::ConnectTo(listener.address()));
    accepted.push_back(listener.Accept());
    listed.push_back(std::make_unique<ListedSocket>(dialed.back().fd()));
  }
  for (std::size_t i = 0; i < accepted.size(); i += 2) listed[i].reset();
  for (std::size_t i = 0; i < accepted.size(); ++i) {
    EXPECT_EQ(IsHeldBy(ThisProcess(), accepted[i].get()), i % 2 == 1) << i;
  }
}

// Regression: most places of the list lie beyond a small limit, at which a write ends the process.
TEST(SocketOwner, IsFoundWhereFilesMustBeSmall) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{.rlim_cur = 64 << 10, .rlim_max = before.rlim_max};
  for (int i = 0; i < 8; ++i) {
    const Pair pair;
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    auto listed = std::make_unique<ListedSocket>(pair.dialed.fd());
    const bool held = IsHeldBy(ThisProcess(), pair.accepted.get());
    listed.reset();
    const bool still_held = IsHeldBy(ThisProcess(), pair.accepted.get());
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_TRUE(held) << i;
    EXPECT_FALSE(still_held) << i;
  }
}

TEST(SocketOwner, IsFoundForBothFamilies) {
  UniqueFd listening(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  RawAddress raw = *ToRaw({"", 0});
  if (!listening || ::bind(listening.get(), raw.get(), raw.length) != 0) GTEST_SKIP() << "no IPv6";
  ASSERT_EQ(::listen(listening.get(), 4), 0);
  auto* name = reinterpret_cast<sockaddr*>(&raw.storage);  // as in RawAddress::get()
  ASSERT_EQ(::getsockname(listening.get(), name, &raw.length), 0);
  for (const char* host : {"127.0.0.1", "::1"}) {
    const RawPeer dialed = RawPeer::ConnectTo({host, FromRaw(raw).port});
    const UniqueFd accepted(::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const ListedSocket here(dialed.fd());
    const ListedSocket there(accepted.get());
    EXPECT_TRUE(IsHeldBy(ThisProcess(), accepted.get())) << host;
    EXPECT_TRUE(IsHeldBy(ThisProcess(), dialed.fd())) << host;
  }
}

bool IpCommands(const std::string& command) {
  return std::system((command + " 2>/dev/null").c_str()) == 0;
}

// A connection to an address of this machine. The listener is bound to v0 where that is asked.
void ExpectFound(const char* host, bool bound) {
  RawAddress raw = *ToRaw({host, 0});
  const UniqueFd listening(::socket(raw.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (bound) {
    ASSERT_EQ(::setsockopt(listening.get(), SOL_SOCKET, SO_BINDTODEVICE, "v0", 2), 0);
  }
  ASSERT_EQ(::bind(listening.get(), raw.get(), raw.length), 0) << host;
  ASSERT_EQ(::listen(listening.get(), 4), 0);
  auto* name = reinterpret_cast<sockaddr*>(&raw.storage);  // as in RawAddress::get()
  ASSERT_EQ(::getsockname(listening.get(), name, &raw.length), 0);
  const RawPeer dialed = RawPeer::ConnectTo(FromRaw(raw));
  const UniqueFd accepted(::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
  const ListedSocket here(dialed.fd());
  const ListedSocket there(accepted.get());
  EXPECT_TRUE(IsHeldBy(ThisProcess(), accepted.get())) << host;
  EXPECT_TRUE(IsHeldBy(ThisProcess(), dialed.fd())) << host;
}

// Regression: neither is found without the interface that it is bound to. A machine with two
// interfaces in one subnet listens by bound sockets, and link-local addresses bind both ends.
TEST(SocketOwner, IsFoundWhereASocketIsBoundToAnInterface) {
  if (::geteuid() != 0) GTEST_SKIP() << "network namespaces need root";
  bool made = false;
  std::thread([&made] {
    made = ::unshare(CLONE_NEWNET) == 0 &&
           IpCommands(
               "ip link set lo up && ip link add v0 type veth peer name w0 &&"
               " ip addr add 10.9.0.1/24 dev v0 && ip link set w0 up && ip link set v0 up");
    if (!made) return;
    ExpectFound("10.9.0.1", /*bound=*/false);
    ExpectFound("10.9.0.1", /*bound=*/true);
    if (!IpCommands("ip addr add fd00::1/64 dev v0 nodad && ip addr add fe80::5/64 dev v0 nodad"))
      return;
    ExpectFound("fd00::1", /*bound=*/true);
    ExpectFound("fe80::5%v0", /*bound=*/false);
  }).join();
  if (!made) GTEST_SKIP() << "no network namespaces or veth interfaces here";
}

// The socket that asks the kernel is kept while a socket is listed, and asks one network namespace.
TEST(SocketOwner, IsFoundInEachNetworkNamespaceInTurn) {
  if (::geteuid() != 0) GTEST_SKIP() << "network namespaces need root";
  const Pair pair;
  const ListedSocket listed(pair.dialed.fd());
  const ListedSocket other(pair.accepted.get());
  ExpectFound("127.0.0.1", /*bound=*/false);
  bool made = false;
  std::thread([&] {
    made = ::unshare(CLONE_NEWNET) == 0 && IpCommands("ip link set lo up");
    if (!made) return;
    ExpectFound("127.0.0.1", /*bound=*/false);
    EXPECT_FALSE(IsHeldBy(ThisProcess(), pair.accepted.get()))
        << "of a namespace that is not asked";
  }).join();
  if (!made) GTEST_SKIP() << "no network namespaces here";
  ExpectFound("127.0.0.1", /*bound=*/false);
  EXPECT_TRUE(IsHeldBy(ThisProcess(), pair.accepted.get()));
}

// Bytes that this process passes on between two connections, as ssh -L does, are not its own: the
// one at the far end may say what it likes.
TEST(SocketOwner, OfAForwardedConnectionIsNobody) {
  const Pair to_forwarder;
  const Pair from_forwarder;
  const ListedSocket listed(to_forwarder.dialed.fd());
  EXPECT_TRUE(IsHeldBy(ThisProcess(), to_forwarder.accepted.get()));
  EXPECT_FALSE(IsHeldBy(ThisProcess(), from_forwarder.accepted.get()));
}

TEST(SocketOwner, IsNotBelievedFromAForgedHint) {
  const Pair pair;
  const ListedSocket listed(pair.dialed.fd());
  const ProcessHint own = ThisProcess();
  // A file with the right cookie everywhere, but no list; as a memfd under the list's name it would
  // have to be in the process that has the socket.
  std::uint64_t cookie = 0;
  socklen_t bytes = sizeof cookie;
  ASSERT_EQ(::getsockopt(pair.dialed.fd(), SOL_SOCKET, SO_COOKIE, &cookie, &bytes), 0);
  const UniqueFd forged(::memfd_create("other", MFD_CLOEXEC));
  for (int i = 0; i < 1024; ++i) ASSERT_EQ(::write(forged.get(), &cookie, sizeof cookie), 8);
  for (const ProcessHint& hint :
       {ProcessHint{own.pid, forged.get()}, ProcessHint{own.pid, 1 << 20}, ProcessHint{own.pid, -1},
        ProcessHint{1, own.list}, ProcessHint{-1, own.list}, ProcessHint{own.pid, 0},
        ProcessHint{::getppid(), own.list}, ProcessHint{own.pid, pair.dialed.fd()}}) {
    EXPECT_FALSE(IsHeldBy(hint, pair.accepted.get())) << hint.pid << " " << hint.list;
  }
  EXPECT_TRUE(IsHeldBy(own, pair.accepted.get()));
}

// Whether a child process that becomes what `change` makes of it is believed. nullopt: it could not
// change.
std::optional<bool> IsChildBelieved(const std::function<bool()>& change) {
  RawListener listener;
  const pid_t child = ::fork();
  FERRY_CHECK(child >= 0, errno);
  if (child == 0) {
    const bool has_changed = change();
    RawPeer dialed = RawPeer::ConnectTo(listener.address());
    if (!has_changed) ::_exit(1);  // connected, because the parent waits for that
    const ListedSocket listed(dialed.fd());
    const ProcessHint hint = ThisProcess();
    (void)dialed.Write(std::as_bytes(std::span(&hint, 1)));
    (void)dialed.ReadToEnd();
    ::_exit(0);
  }
  std::optional<bool> believed;
  {
    RawPeer accepted(listener.Accept());
    ProcessHint hint;
    const auto said = accepted.Read(sizeof hint);
    if (said.size() == sizeof hint) {
      std::memcpy(&hint, said.data(), sizeof hint);
      believed = hint.pid == child && IsHeldBy(hint, accepted.fd());
    }
  }
  int status = 0;
  FERRY_CHECK(::waitpid(child, &status, 0) == child, errno);
  return status == 0 ? believed : std::nullopt;
}

TEST(SocketOwner, IsBelievedFromAnotherProcessOfThisUser) {
  EXPECT_EQ(IsChildBelieved([] { return true; }), true);
}

TEST(SocketOwner, StaysTheParentOfAChildThatHasInheritedTheSocket) {
  const Pair pair;
  const ListedSocket listed(pair.dialed.fd());
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const UniqueFd reads(ends[0]);
  UniqueFd writes(ends[1]);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const ProcessHint hint = ThisProcess();
    (void)!::write(writes.get(), &hint, sizeof hint);
    (void)::pause();
    ::_exit(0);
  }
  writes.reset();
  ProcessHint hint;
  EXPECT_EQ(::read(reads.get(), &hint, sizeof hint), sizeof hint);
  EXPECT_EQ(hint.pid, child);
  EXPECT_FALSE(IsHeldBy(hint, pair.accepted.get()));
  EXPECT_TRUE(IsHeldBy(ThisProcess(), pair.accepted.get()));
  EXPECT_EQ(::kill(child, SIGKILL), 0);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
}

// Regression: a list that may be executed is refused there.
TEST(SocketOwner, HasAListWhereTheKernelMakesNoneThatMayBeExecuted) {
  constexpr int kCannot = 2;
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    // The setting belongs to the pid namespace, which only a further child enters.
    if (::unshare(CLONE_NEWPID) != 0) ::_exit(kCannot);
    const pid_t first = ::fork();
    if (first == 0) {
      const UniqueFd setting(::open("/proc/sys/vm/memfd_noexec", O_WRONLY | O_CLOEXEC));
      if (!setting || ::write(setting.get(), "2", 1) != 1) ::_exit(kCannot);
      ::_exit(ThisProcess().pid != 0 ? 0 : 1);
    }
    int ended = 0;
    const bool has_ended = first > 0 && ::waitpid(first, &ended, 0) == first;
    ::_exit(has_ended && WIFEXITED(ended) ? WEXITSTATUS(ended) : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kCannot) GTEST_SKIP() << "no pid namespaces or no such setting here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(SocketOwner, IsNotBelievedFromAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "another user needs root";
  EXPECT_EQ(IsChildBelieved([] { return ::setresuid(kNobody, kNobody, kNobody) == 0; }), false);
}

// What it made while it was ours it has kept.
TEST(SocketOwner, IsNotBelievedFromAProcessThatHasGivenUpOurUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "another user needs root";
  const auto drop = [] {
    (void)ThisProcess();
    return ::setresuid(kNobody, kNobody, kNobody) == 0;
  };
  EXPECT_EQ(IsChildBelieved(drop), false);
}

TEST(SocketOwner, IsNotBelievedFromAnotherUserNamespace) {
  const auto believed = IsChildBelieved([] { return ::unshare(CLONE_NEWUSER) == 0; });
  if (!believed) GTEST_SKIP() << "no user namespace can be made here";
  EXPECT_FALSE(*believed);
}

TEST(Egress, OfLoopbackIsNoDevice) {
  const Pair pair;
  EXPECT_FALSE(LeavesThroughDevice(pair.accepted.get()));
  EXPECT_FALSE(LeavesThroughDevice(-1));
}

}  // namespace
}  // namespace ferry::net
