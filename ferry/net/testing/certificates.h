// A certificate authority for tests.
#pragma once
#include <memory>
#include <string>

#include "ferry/core/config.h"

namespace ferry::net {

// A certificate authority for tests, and the certificates that it issues, as PEM files in a folder
// that is deleted with the object. Aborts on failure.
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

  // The file with the authority's own certificate.
  const std::string& file() const noexcept { return file_; }
  // A certificate for DNS:`name` and, if not empty, IP:`address`, valid for `days` days from now,
  // which may be negative.
  Issued Issue(const std::string& name, const std::string& address = {}, int days = 30);
  // `base` with tls=cert, a new certificate for `name`, and this authority for verifying the peer.
  Config Use(Config base, const std::string& name);

 private:
  struct Keys;

  std::string folder_;
  std::string file_;
  std::unique_ptr<Keys> keys_;
  int issued_ = 0;
};

}  // namespace ferry::net
