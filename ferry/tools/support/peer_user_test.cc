// Tests of the lookup of a local peer's user.

#include "ferry/tools/support/peer_user.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <unistd.h>

#include <string>

#include "ferry/core/check.h"
#include "ferry/core/fd.h"
#include "ferry/net/address.h"

namespace ferry::tools {
namespace {

using ::testing::HasSubstr;

std::string NameOf(int fd, int (*ask)(int, sockaddr*, socklen_t*)) {
  net::RawAddress raw;
  raw.length = sizeof raw.storage;
  FERRY_CHECK(ask(fd, reinterpret_cast<sockaddr*>(&raw.storage), &raw.length) == 0, errno);
  return net::FromRaw(raw).ToString();
}

// Both ends of a connection of the loopback interface, seen from the accepting one.
class SocketPair : public testing::Test {
 protected:
  void Connect(int family) {
    const UniqueFd listener(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const auto any = net::ToRaw({family == AF_INET ? "127.0.0.1" : "::1", 0});
    ASSERT_TRUE(any);
    if (::bind(listener.get(), any->get(), any->length) != 0) {
      GTEST_SKIP() << "this machine has no such address";
    }
    ASSERT_EQ(::listen(listener.get(), 1), 0);
    net::RawAddress to = *net::ToRaw(*net::ParseAddress(NameOf(listener.get(), ::getsockname), 0));
    dialed_ = UniqueFd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::connect(dialed_.get(), to.get(), to.length), 0);
    accepted_ = UniqueFd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    ASSERT_TRUE(accepted_);
    local_ = NameOf(accepted_.get(), ::getsockname);
    remote_ = NameOf(accepted_.get(), ::getpeername);
  }

  // For the pair, without a secret.
  Status CheckWith(const Config& config, bool authenticated = false) const {
    transfer::ConnectionInfo info;
    info.lanes.resize(1);
    info.lanes[0].local = local_;
    info.lanes[0].remote = remote_;
    info.lanes[0].authenticated = authenticated;
    return CheckUser(info, config);
  }

  UniqueFd dialed_;
  UniqueFd accepted_;
  std::string local_;
  std::string remote_;
};

TEST_F(SocketPair, IsOfTheUserWhoDialed) {
  for (const int family : {AF_INET, AF_INET6}) {
    Connect(family);
    if (IsSkipped()) return;
    EXPECT_EQ(UserOfPeer(local_, remote_), ::geteuid()) << family;
  }
}

TEST_F(SocketPair, ThatNobodyHoldsHasNoUser) {
  Connect(AF_INET);
  dialed_.reset();  // the kernel shows it as root's until it is gone
  EXPECT_EQ(UserOfPeer(local_, remote_), std::nullopt);
}

TEST_F(SocketPair, OfWhichThereIsNoneHasNoUser) {
  Connect(AF_INET);
  EXPECT_EQ(UserOfPeer(remote_, remote_), std::nullopt);
  EXPECT_EQ(UserOfPeer(local_, "192.0.2.1:1"), std::nullopt);
  EXPECT_EQ(UserOfPeer("", remote_), std::nullopt);
}

TEST_F(SocketPair, MayBeServedAsThisUsersOrWhereAnythingElseTellsWhoItIs) {
  Connect(AF_INET);
  const Status own = CheckWith(Config());
  EXPECT_EQ(own.has_value(), ::geteuid() != 65534) << "the id of all unknown users";
  dialed_.reset();
  const Status refused = CheckWith(Config());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kRefused);
  EXPECT_THAT(refused.error().message(), HasSubstr("belongs to no known process"));
  EXPECT_TRUE(CheckWith(Config(), /*authenticated=*/true));
  Config secret;
  secret.secret = "a secret of some length";
  EXPECT_TRUE(CheckWith(secret));
  Config insecure;
  insecure.insecure = OnOff::kOn;
  EXPECT_TRUE(CheckWith(insecure));
}

}  // namespace
}  // namespace ferry::tools
