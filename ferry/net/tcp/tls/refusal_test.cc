// Tests of both sides' messages when TLS refuses a peer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ferry/core/check.h"
#include "ferry/net/tcp/factory.h"
#include "ferry/net/tcp/tls/acceptor.h"
#include "ferry/net/tcp/tls/stream.h"
#include "ferry/net/testing/certificates.h"
#include "ferry/net/testing/lane_end.h"
#include "ferry/net/testing/raw_peer.h"

// Which peers get no lane, or lose it at once, and the messages on both sides.
namespace ferry::net::tcp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Config WithKey(const std::string& secret = "sixteen letters!") {
  Config config;
  config.tls = TlsMode::kPsk;
  config.secret = secret;
  return config;
}

// Captures the log while it lives.
class LogCapture {
 public:
  LogCapture() : file_(std::tmpfile()), before_(::dup(STDERR_FILENO)) {
    FERRY_CHECK(file_ != nullptr && before_);
    FERRY_CHECK(::dup2(::fileno(file_), STDERR_FILENO) >= 0, errno);
  }
  ~LogCapture() {
    (void)::dup2(before_.get(), STDERR_FILENO);
    (void)std::fclose(file_);
  }
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;

  // Waits for a line: the accepting side may learn of the refusal later than the other.
  std::string Await() const {
    const Deadline deadline = Deadline::After(kTimeout);
    std::string text(4096, '\0');
    ssize_t bytes = 0;
    while (bytes <= 0 && !deadline.expired()) {
      bytes = ::pread(::fileno(file_), text.data(), text.size(), 0);
      std::this_thread::yield();
    }
    text.resize(static_cast<std::size_t>(std::max<ssize_t>(bytes, 0)));
    return text;
  }

 private:
  std::FILE* const file_;
  const UniqueFd before_;
};

class TlsRefusalTest : public ::testing::Test {
 protected:
  void Listen(const Config& config) {
    const auto address = far_.Listen({"127.0.0.1", 0}, config);
    ASSERT_TRUE(address) << address.error().ToString();
    address_ = *address;
  }
  // The error of the connecting side, from the connect or from the lane that it got.
  Error Refusal(const Config& config) {
    auto lane = near_.Connect(address_, config);
    if (!lane) return lane.error();
    end_ = std::make_unique<LaneEnd>(*std::move(lane), near_.loop());
    end_->Attach();
    end_->Send(end_->Make("hello"));
    return end_->AwaitClosed().value_or(Error(Code::kInternal, "the lane lives on"));
  }
  // Checks both messages: the connecting side's error and the accepting side's log.
  void ExpectRefusal(const Config& far, const Config& near, const std::string& error,
                     const std::string& log) {
    Listen(far);
    const LogCapture capture;
    const Error refusal = Refusal(near);
    const std::string logged = capture.Await();
    EXPECT_THAT(refusal.message(), AllOf(HasSubstr(address_.ToString()), HasSubstr(error)));
    EXPECT_THAT(refusal.message(), AllOf(HasSubstr("; "), HasSubstr("FERRY_TLS")));
    EXPECT_THAT(logged, AllOf(HasSubstr(" refused on " + address_.ToString()), HasSubstr(log)));
    far_.StopListening();
    Destroy(&end_);
  }

  TestHost near_{CreateProvider()};
  TestHost far_{CreateProvider()};
  Address address_;
  std::unique_ptr<LaneEnd> end_;
  TestAuthority authority_;
};

TEST_F(TlsRefusalTest, OfAnotherSecret) {
  Listen(WithKey());
  const Error error = Refusal(WithKey("Sixteen letters!"));
  EXPECT_EQ(error.code(), Code::kRefused);
  EXPECT_THAT(error.message(), AllOf(HasSubstr(address_.ToString()), HasSubstr("different secrets"),
                                     HasSubstr("FERRY_SECRET_FILE")));
}

TEST_F(TlsRefusalTest, OfAKeyWhereCertificatesAreAskedFor) {
  ExpectRefusal(authority_.Use({}, "far"), WithKey(), "set FERRY_TLS to the same", "");
}

TEST_F(TlsRefusalTest, OfACertificateWhereAKeyIsAskedFor) {
  ExpectRefusal(WithKey(), authority_.Use({}, "near"), "set FERRY_TLS to the same",
                "set FERRY_TLS to the same");
}

TEST_F(TlsRefusalTest, OfAListenerFromAnotherAuthority) {
  TestAuthority other("Other Authority");
  Config far = other.Use({}, "far");
  far.tls_ca = authority_.file();
  ExpectRefusal(far, authority_.Use({}, "near"), "its certificate is not accepted here",
                "unknown CA");
}

TEST_F(TlsRefusalTest, OfACallerFromAnotherAuthority) {
  TestAuthority other("Other Authority");
  Config near = other.Use({}, "near");
  near.tls_ca = authority_.file();
  ExpectRefusal(authority_.Use({}, "far"), near, "unknown CA",
                "its certificate is not accepted here");
}

TEST_F(TlsRefusalTest, OfACertificateThatHasExpired) {
  Config expired = authority_.Use({}, "old");
  const auto issued = authority_.Issue("old", {}, -1);
  expired.tls_cert = issued.cert;
  expired.tls_key = issued.key;
  ExpectRefusal(authority_.Use({}, "far"), expired, "has expired", "certificate has expired");
  ExpectRefusal(expired, authority_.Use({}, "near"), "certificate has expired", "has expired");
}

TEST_F(TlsRefusalTest, OfACertificateForAnotherName) {
  Config near = authority_.Use({}, "near");
  near.tls_name = "somebody";
  ExpectRefusal(authority_.Use({}, "far"), near, "FERRY_TLS_NAME", "FERRY_TLS_NAME");
  Config far = authority_.Use({}, "far");
  far.tls_name = "10.0.0.1";
  ExpectRefusal(far, authority_.Use({}, "near"), "FERRY_TLS_NAME", "FERRY_TLS_NAME");
}

TEST_F(TlsRefusalTest, IsNotMetByACertificateForTheName) {
  Config far = authority_.Use({}, "far");
  Config near = authority_.Use({}, "near");
  const auto issued = authority_.Issue("node7", "10.0.0.1");
  far.tls_cert = issued.cert;
  far.tls_key = issued.key;
  far.tls_name = "near";
  for (const char* name : {"node7", "10.0.0.1"}) {
    near.tls_name = name;
    Listen(far);
    const auto lane = near_.Connect(address_, near);
    ASSERT_TRUE(lane) << lane.error().ToString();
    EXPECT_EQ((*lane)->Info().security, "TLSv1.3 TLS_AES_256_GCM_SHA384, certificate CN=node7");
    EXPECT_TRUE((*lane)->Info().authenticated);
    EXPECT_NE(far_.Accept(), nullptr);
  }
}

TEST_F(TlsRefusalTest, OfACallerWithoutACertificate) {
  Listen(authority_.Use({}, "far"));
  // OpenSSL's client, in blocking mode.
  RawPeer peer = RawPeer::ConnectTo(address_);
  UniqueHandle<SslContextTraits> context(::SSL_CTX_new(::TLS_client_method()));
  UniqueHandle<SslTraits> ssl(::SSL_new(context.get()));
  ASSERT_EQ(::SSL_set_fd(ssl.get(), peer.fd()), 1);
  const LogCapture log;
  (void)::SSL_connect(ssl.get());
  char byte = 0;
  EXPECT_LE(::SSL_read(ssl.get(), &byte, 1), 0);
  const std::string reason = TakeOpenSslReason();
  const std::string logged = log.Await();
  EXPECT_THAT(reason, HasSubstr("certificate required"));
  EXPECT_THAT(logged, HasSubstr("it shows no certificate; set FERRY_TLS_CERT"));
}

TEST_F(TlsRefusalTest, OfACallerWithoutTls) {
  ExpectRefusal(WithKey(), {}, "speaks TLS here, where none is expected",
                "it is a Tensorferry endpoint without TLS");
}

TEST_F(TlsRefusalTest, OfAPendingPeerWhoSpeaksSomethingElse) {
  Listen(WithKey());
  RawPeer peer = RawPeer::ConnectTo(address_);
  const LogCapture log;
  EXPECT_TRUE(peer.Write(AsBytes("SSH-2.0-OpenSSH_9.2\r\n and so on and on and on")));
  (void)peer.ReadToEnd();
  EXPECT_THAT(log.Await(), HasSubstr("it does not speak TLS"));
}

TEST_F(TlsRefusalTest, OfAListenerWithoutTls) {
  Listen({});
  std::optional<Error> refusal;
  std::thread caller([&] { refusal = Refusal(WithKey()); });
  LaneEnd accepted(far_.Accept(), far_.loop());
  accepted.Attach();
  const auto closed = accepted.AwaitClosed();
  caller.join();
  ASSERT_TRUE(closed);
  EXPECT_THAT(closed->message(), HasSubstr("speaks TLS here, where none is expected"));
  EXPECT_EQ(refusal->code(), Code::kPeerLost);
  EXPECT_THAT(refusal->message(),
              AllOf(HasSubstr(address_.ToString()), HasSubstr("set FERRY_TLS to the same")));
}

TEST_F(TlsRefusalTest, OfFilesThatCannotBeReadEndsListenAndConnect) {
  Config config = authority_.Use({}, "node");
  config.tls_key = "/not/there";
  const auto listening = far_.Listen({"127.0.0.1", 0}, config);
  ASSERT_FALSE(listening);
  EXPECT_THAT(listening.error().message(), HasSubstr("tls_key /not/there"));
  const auto lane = near_.Connect({"127.0.0.1", 1}, config);
  ASSERT_FALSE(lane);
  EXPECT_THAT(lane.error().message(), HasSubstr("tls_key /not/there"));
}

// ---- silent peers -------------------------------------------------------------------------------

TEST_F(TlsRefusalTest, OfAPendingPeerWhoSaysNothingComesWithTheHandshakesTimeout) {
  Config config = WithKey();
  config.handshake_timeout = milliseconds(50);
  Listen(config);
  const LogCapture log;
  RawPeer peer = RawPeer::ConnectTo(address_);
  (void)peer.ReadToEnd();  // takes at most a minute
  EXPECT_THAT(log.Await(), HasSubstr("did not finish the TLS handshake within 50 ms"));
}

TEST_F(TlsRefusalTest, OfAListenerThatSaysNothingComesAtTheDeadline) {
  RawListener silent;
  const auto lane =
      near_.Connect(silent.address(), WithKey(), Deadline::After(std::chrono::seconds(1)));
  ASSERT_FALSE(lane);
  EXPECT_EQ(lane.error().code(), Code::kTimedOut);
  EXPECT_THAT(lane.error().message(),
              AllOf(HasSubstr("TLS handshake with " + silent.address().ToString()),
                    HasSubstr("did not end in time")));
}

TEST_F(TlsRefusalTest, OfSilentPendingPeersMakesRoomForThoseWhoCome) {
  Config config = WithKey();
  config.handshake_timeout = std::chrono::minutes(1);
  Listen(config);
  std::vector<RawPeer> waiting;
  for (std::size_t i = 0; i < TlsAcceptor::kMaxHandshakes; ++i) {
    waiting.push_back(RawPeer::ConnectTo(address_));
  }
  const LogCapture log;
  const auto lane = near_.Connect(address_, config);
  EXPECT_TRUE(lane) << lane.error().ToString();
  EXPECT_THAT(log.Await(), HasSubstr("256 handshakes are in flight"));
  EXPECT_EQ(waiting.front().ReadToEnd(), ECONNRESET);
}

TEST_F(TlsRefusalTest, OfManyIsLoggedOnceASecond) {
  Listen(WithKey());
  const LogCapture log;
  for (int i = 0; i < 20; ++i) {
    RawPeer peer = RawPeer::ConnectTo(address_);
    EXPECT_TRUE(peer.Write(AsBytes("GET / HTTP/1.1\r\n\r\n")));
    (void)peer.ReadToEnd();
  }
  RunOn(*far_.loop(), [] {});
  const std::string logged = log.Await();
  EXPECT_GE(std::count(logged.begin(), logged.end(), '\n'), 1);
  EXPECT_LT(std::count(logged.begin(), logged.end(), '\n'), 20);
}

}  // namespace
}  // namespace ferry::net::tcp
