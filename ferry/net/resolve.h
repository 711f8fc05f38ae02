// Host name resolution with a deadline.
#pragma once
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/result.h"
#include "ferry/net/address.h"

namespace ferry::net {

// Resolves host names with a deadline. getaddrinfo(3) cannot be interrupted, so each look-up runs
// on its own thread, which owns its data and may outlive the caller and this object. Concurrent
// requests for one host share a look-up; the process runs at most kMaxLookups such threads. Any
// thread.
class NameResolver {
 public:
  using Ask = std::function<Result<std::vector<Address>>(const Address&)>;
  static constexpr std::size_t kMaxLookups = 16;

  NameResolver();
  // `ask` replaces the system's resolver and may block; for tests.
  explicit NameResolver(Ask ask) : ask_(std::move(ask)) {}
  NameResolver(const NameResolver&) = delete;
  NameResolver& operator=(const NameResolver&) = delete;

  // All numeric addresses of a host, in the system's order of preference; a numeric host returns at
  // once. Blocks until the answer or the deadline, so do not call it on a loop. Errors:
  // kInvalidArgument (no such host), kUnavailable (the name servers cannot answer now, or no thread
  // is available), kTimedOut, kCancelled; each names the host.
  Result<std::vector<Address>> Resolve(const Address& address, Deadline deadline);
  // Ends all waits with kCancelled, including later ones.
  void Cancel();

 private:
  const Ask ask_;
  bool cancelled_ = false;  // under the mutex of all lookups
};

// As NameResolver::Resolve().
Result<std::vector<Address>> Resolve(const Address& address, Deadline deadline);

}  // namespace ferry::net
