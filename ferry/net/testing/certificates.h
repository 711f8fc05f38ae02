// A certificate authority for tests.
#pragma once
#include <memory>
#include <string>

#include "ferry/core/config.h"

namespace ferry::net {

// An authority for tests, with the certificates that it issues, as PEM files in a folder of their
// own that goes with it. What cannot be made aborts.
class TestAuthority {
 public:
  // A certificate and its key.
  struct Issued {
    std::string cert;
    std::string key;
  };

  explicit TestAuthority(const std::string& name = "Test Authority");
  ~TestAuthority();
  TestAuthority(const TestAuthority&) = delete;
  TestAuthority& operator=(const TestAuthority&) = delete;

  // Of the authority's own certificate.
  const std::string& file() const noexcept { return file_; }
  // For DNS:`name` and, where it is not empty, IP:`address`, valid until so many days from now,
  // which may be in the past.
  Issued Issue(const std::string& name, const std::string& address = {}, int days = 30);
  // `base` with tls=cert, a new certificate for `name`, and this authority for that of the peer.
  Config Use(Config base, const std::string& name);

 private:
  struct Keys;

  std::string folder_;
  std::string file_;
  std::unique_ptr<Keys> keys_;
  int issued_ = 0;
};

}  // namespace ferry::net
