// Tests of the interfaces by which a socket's packets leave, in a network namespace.
#include "ferry/net/machine/egress.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/fsuid.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>

#include "ferry/core/fd.h"

namespace ferry::net {
namespace {

constexpr uid_t kRuledUser = 65534;
constexpr std::uint16_t kRuledPort = 4010;
constexpr std::uint16_t kOtherPort = 4011;
constexpr int kMark = 7;

bool Ip(const std::string& command) {
  return std::system(("ip " + command + " 2>/dev/null").c_str()) == 0;
}

sockaddr_in AddressOf(const char* host, std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  (void)::inet_pton(AF_INET, host, &address.sin_addr);
  return address;
}

// A datagram socket, which connects without a peer.
UniqueFd DatagramSocket(std::uint16_t from, std::uint16_t to) {
  UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const sockaddr_in local = AddressOf("10.9.0.1", from);
  const sockaddr_in remote = AddressOf("10.9.0.2", to);
  EXPECT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&local), sizeof local), 0);
  EXPECT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&remote), sizeof remote), 0);
  return socket;
}

std::string InterfaceName(int interface) {
  char name[IF_NAMESIZE] = "";
  return ::if_indextoname(static_cast<unsigned>(interface), name) != nullptr ? name : "";
}

// Takes a rule away when it ends.
class RoutingRule {
 public:
  explicit RoutingRule(std::string selector) : selector_(std::move(selector)) {
    EXPECT_TRUE(Ip("rule add " + selector_ + " table 100")) << selector_;
  }
  RoutingRule(const RoutingRule&) = delete;
  RoutingRule& operator=(const RoutingRule&) = delete;
  ~RoutingRule() { EXPECT_TRUE(Ip("rule del " + selector_ + " table 100")) << selector_; }

 private:
  const std::string selector_;
};

bool MakeLinks() {
  return ::unshare(CLONE_NEWNET) == 0 && Ip("link set lo up") &&
         Ip("link add v0 type veth peer name w0") && Ip("link add v1 type veth peer name w1") &&
         Ip("link set w0 up") && Ip("link set w1 up") && Ip("addr add 10.9.0.1/24 dev v0") &&
         Ip("link set v0 up") && Ip("link set v1 up") && Ip("route add default dev v1 table 100");
}

void ExpectRulesAreFollowed() {
  EXPECT_EQ(InterfaceName(EgressOf(DatagramSocket(0, kRuledPort).get())), "v0");
  {
    const RoutingRule rule("ipproto udp dport " + std::to_string(kRuledPort));
    EXPECT_EQ(InterfaceName(EgressOf(DatagramSocket(0, kRuledPort).get())), "v1");
    EXPECT_EQ(InterfaceName(EgressOf(DatagramSocket(0, kOtherPort).get())), "v0");
  }
  {
    const RoutingRule rule("sport " + std::to_string(kRuledPort));
    EXPECT_EQ(InterfaceName(EgressOf(DatagramSocket(kRuledPort, kOtherPort).get())), "v1");
  }
  {
    const RoutingRule rule("fwmark " + std::to_string(kMark));
    const UniqueFd socket = DatagramSocket(0, kOtherPort);
    EXPECT_EQ(InterfaceName(EgressOf(socket.get())), "v0");
    ASSERT_EQ(::setsockopt(socket.get(), SOL_SOCKET, SO_MARK, &kMark, sizeof kMark), 0);
    EXPECT_EQ(InterfaceName(EgressOf(socket.get())), "v1");
  }
  const RoutingRule rule("uidrange 65534-65534");
  EXPECT_EQ(InterfaceName(EgressOf(DatagramSocket(0, kOtherPort).get())), "v0");
  (void)::setfsuid(kRuledUser);  // of this thread only
  const UniqueFd theirs = DatagramSocket(0, kOtherPort);
  (void)::setfsuid(0);
  EXPECT_EQ(InterfaceName(EgressOf(theirs.get())), "v1");
}

// Regression: the kernel was asked with the addresses only.
TEST(Egress, FollowsRoutingRulesByPortsMarkAndUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "network namespaces need root";
  bool made = false;
  std::thread([&] {
    made = MakeLinks() && Ip("rule add ipproto udp dport 1 uidrange 1-1 table 100");
    if (made) ExpectRulesAreFollowed();
  }).join();
  if (!made) GTEST_SKIP() << "no network namespaces, veth interfaces or such rules here";
}

}  // namespace
}  // namespace ferry::net
