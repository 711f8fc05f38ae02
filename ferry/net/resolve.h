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

// Looks host names up, and waits for that no longer than it is asked to. Nothing interrupts
// getaddrinfo(3), so it runs on a thread of its own, which owns all it needs and ends when the
// system answers, however long the caller and this object have been gone by then. A host is asked
// for once at a time, and there are at most kMaxLookups such threads in the process. Any thread.
class NameResolver {
 public:
  using Ask = std::function<Result<std::vector<Address>>(const Address&)>;
  static constexpr std::size_t kMaxLookups = 16;

  NameResolver();
  // `ask` answers in the system's place, and may block.
  explicit NameResolver(Ask ask) : ask_(std::move(ask)) {}
  NameResolver(const NameResolver&) = delete;
  NameResolver& operator=(const NameResolver&) = delete;

  // All numeric addresses of a host, in the system's order of preference; a numeric one at once.
  // Not on a loop. Errors: kInvalidArgument (there is no such host), kUnavailable (the name servers
  // cannot tell now, or there is no thread), kTimedOut, kCancelled: each names the host.
  Result<std::vector<Address>> Resolve(const Address& address, Deadline deadline);
  // Ends every wait by kCancelled, those to come too.
  void Cancel();

 private:
  const Ask ask_;
  bool cancelled_ = false;  // under the mutex of all lookups
};

// As NameResolver::Resolve().
Result<std::vector<Address>> Resolve(const Address& address, Deadline deadline);

}  // namespace ferry::net
