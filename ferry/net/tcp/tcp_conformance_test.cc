// Runs the provider conformance suite on TCP, plain and TLS.
#include <sys/socket.h>

#include "ferry/net/tcp/factory.h"
#include "ferry/net/tcp/socket_options.h"
#include "ferry/net/testing/bad_address.h"
#include "ferry/net/testing/certificates.h"
#include "ferry/net/testing/conformance.h"

namespace ferry::net::tcp {
namespace {

class TcpTarget : public ConformanceTarget {
 public:
  explicit TcpTarget(std::string host) : host_(std::move(host)) {}
  std::string Unavailable() override {
    const RawAddress raw = *ToRaw({host_, 0});
    auto fd = OpenSocket(raw.family(), {});
    if (fd && ::bind(fd->get(), raw.get(), raw.length) == 0) return {};
    return "this machine has no address " + host_;
  }
  std::unique_ptr<Provider> MakeProvider() override { return CreateProvider(); }
  Address ListenAddress() override { return {host_, 0}; }
  Address SilentAddress() override {
    if (!silent_) silent_ = std::make_unique<BadAddress>(Bad::kDrops, Address{host_, 0});
    return silent_->address();
  }

 private:
  std::string host_;
  std::unique_ptr<BadAddress> silent_;
};

// Makes system calls transfer less than requested.
class TinyBuffers final : public TcpTarget {
 public:
  TinyBuffers() : TcpTarget("127.0.0.1") {}
  Config MakeConfig() override {
    Config config;
    config.send_buffer_bytes = 8 << 10;
    config.recv_buffer_bytes = 8 << 10;
    return config;
  }
};

class SplicedPages final : public TcpTarget {
 public:
  SplicedPages() : TcpTarget("127.0.0.1") {}
  Config MakeConfig() override {
    Config config;
    config.zero_copy_send = AutoOnOff::kOn;
    return config;
  }
};

class TlsByKey : public TcpTarget {
 public:
  explicit TlsByKey(std::string host = "127.0.0.1") : TcpTarget(std::move(host)) {}
  Config MakeConfig() override {
    Config config;
    config.tls = TlsMode::kPsk;
    config.secret = "sixteen letters!";
    return config;
  }
};

class TlsByCertificate final : public TcpTarget {
 public:
  TlsByCertificate() : TcpTarget("127.0.0.1") {}
  Config MakeConfig() override { return authority_.Use({}, "node"); }

 private:
  TestAuthority authority_;
};

class TlsInTinyBuffers final : public TlsByKey {
 public:
  Config MakeConfig() override {
    Config config = TlsByKey::MakeConfig();
    config.send_buffer_bytes = 8 << 10;
    config.recv_buffer_bytes = 8 << 10;
    return config;
  }
};

template <class Target, class... Args>
std::unique_ptr<ConformanceTarget> Make(Args... args) {
  return std::make_unique<Target>(args...);
}

INSTANTIATE_TEST_SUITE_P(
    Tcp, ProviderConformance,
    ::testing::Values(ConformanceCase{"Ipv4", [] { return Make<TcpTarget>("127.0.0.1"); }},
                      ConformanceCase{"Ipv6", [] { return Make<TcpTarget>("::1"); }},
                      ConformanceCase{"TinyBuffers", [] { return Make<TinyBuffers>(); }},
                      ConformanceCase{"SplicedPages", [] { return Make<SplicedPages>(); }},
                      ConformanceCase{"TlsByKey", [] { return Make<TlsByKey>("127.0.0.1"); }},
                      ConformanceCase{"TlsByKeyIpv6", [] { return Make<TlsByKey>("::1"); }},
                      ConformanceCase{"TlsByCertificate", [] { return Make<TlsByCertificate>(); }},
                      ConformanceCase{"TlsInTinyBuffers", [] { return Make<TlsInTinyBuffers>(); }}),
    ConformanceCaseName);

}  // namespace
}  // namespace ferry::net::tcp
