// Addresses at which no peer answers, for tests of what a dial does about them.
#pragma once
#include <array>
#include <thread>
#include <vector>

#include "ferry/core/fd.h"
#include "ferry/net/address.h"

namespace ferry::net {

enum class Bad : unsigned char {
  kRefuses,  // nobody listens
  kDrops,    // the kernel ignores connects, because the port's queue is full
  kMute,     // connects succeed, and nobody reads
  kCloses,   // each connection is accepted and closed
  kHttp,     // each connection is accepted and answered as by a web server
};
inline constexpr std::array kAllBad{Bad::kRefuses, Bad::kDrops, Bad::kMute, Bad::kCloses,
                                    Bad::kHttp};
const char* BadName(Bad bad);

// Holds a port of a local address and behaves like this. Aborts if the port is taken.
class BadAddress {
 public:
  // Port 0: a free one.
  explicit BadAddress(Bad bad, const Address& at = {"127.0.0.1", 0});
  ~BadAddress();
  BadAddress(const BadAddress&) = delete;
  BadAddress& operator=(const BadAddress&) = delete;

  const Address& address() const noexcept { return address_; }

 private:
  void Accept(Bad bad);

  UniqueFd socket_;
  Address address_;
  std::vector<UniqueFd> connections_;  // those that fill the queue, or the accepted ones
  std::thread thread_;
};

}  // namespace ferry::net
