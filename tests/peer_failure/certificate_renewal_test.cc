// Tests certificates that are replaced on disk while processes live.

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "ferry/net/testing/certificates.h"
#include "tests/support/engine_peer.h"

namespace ferry::tests {
namespace {

class CertificateRenewal : public testing::Test {
 protected:
  static void Replace(const std::string& from, const std::string& to) {
    std::filesystem::copy_file(from, to + ".new");
    std::filesystem::rename(to + ".new", to);
  }
  Settings settings() const {
    return FastSettings({"tls=cert", "tls_cert=" + used_.tls_cert, "tls_key=" + used_.tls_key,
                         "tls_ca=" + used_.tls_ca});
  }
  // Processes look at their files once a second.
  static bool MovesSoon(transfer::Endpoint& from, EnginePeer& to) {
    const Deadline deadline = TestDeadline();
    while (!from.Connect(to.address(), deadline)) {
      if (deadline.expired()) return false;
    }
    return true;
  }
  static bool Moves(transfer::Endpoint& from, EnginePeer& to) {
    auto connection = from.Connect(to.address(), TestDeadline());
    EXPECT_TRUE(connection) << connection.error().ToString();
    return connection.has_value();
  }

  net::TestAuthority before_{"Before"};
  net::TestAuthority after_{"After"};
  const Config used_ = before_.Use({}, "node");
  const Config fresh_ = after_.Use({}, "node");
};

// Regression: processes that had read the former files refused, and were refused by, all who came
// after the renewal, until they were started again.
TEST_F(CertificateRenewal, ProcessesThatLivedBeforeItConnectToThoseStartedAfterIt) {
  EnginePeer old_peer(settings());
  old_peer.AcceptAll();
  transfer::Endpoint endpoint = Must(transfer::Endpoint::Create(ConfigOf(settings())));
  ASSERT_TRUE(Moves(endpoint, old_peer));
  Replace(fresh_.tls_cert, used_.tls_cert);
  Replace(fresh_.tls_key, used_.tls_key);
  Replace(fresh_.tls_ca, used_.tls_ca);
  EnginePeer young_peer(settings());
  young_peer.AcceptAll();
  transfer::Endpoint young = Must(transfer::Endpoint::Create(ConfigOf(settings())));
  EXPECT_TRUE(MovesSoon(endpoint, young_peer));
  EXPECT_TRUE(MovesSoon(young, old_peer));
  EXPECT_TRUE(MovesSoon(endpoint, old_peer));
}

TEST_F(CertificateRenewal, ThatIsNotCompleteLeavesTheFormerFilesInUse) {
  EnginePeer peer(settings());
  peer.AcceptAll();
  transfer::Endpoint endpoint = Must(transfer::Endpoint::Create(ConfigOf(settings())));
  ASSERT_TRUE(Moves(endpoint, peer));
  Replace(fresh_.tls_key, used_.tls_key);
  EXPECT_TRUE(Moves(endpoint, peer));
}

}  // namespace
}  // namespace ferry::tests
