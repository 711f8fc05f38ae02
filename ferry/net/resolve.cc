// Resolves host names on threads of their own.
#include "ferry/net/resolve.h"

#include <fmt/core.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "ferry/core/fork.h"
#include "ferry/core/loop/thread.h"

namespace ferry::net {
namespace {

using Found = Result<std::vector<Address>>;

// One host name that is being resolved.
struct Lookup {
  std::optional<Found> found;  // under the mutex of all
};

// All look-ups of the process.
struct Lookups {
  std::mutex mutex;  // guards all below
  std::condition_variable changed;
  std::map<std::string, std::shared_ptr<Lookup>> running;  // by host
};

// Never destroyed: a look-up thread may outlive main(). A forked child gets its own object, because
// it has none of the threads.
Lookups& AllLookups() {
  static PerProcess<Lookups> all;
  return all.Get();
}

Error CannotResolve(const std::string& host, int reason, int error_number) {
  const char* const why =
      reason == EAI_SYSTEM ? std::strerror(error_number) : ::gai_strerror(reason);
  // Failures that may succeed on a later attempt.
  const bool for_now = reason == EAI_AGAIN || reason == EAI_MEMORY || reason == EAI_SYSTEM;
  return for_now ? Error(Code::kUnavailable,
                         fmt::format("cannot resolve host \"{}\" now: {}; check /etc/resolv.conf "
                                     "and try again, or give an IP address",
                                     host, why))
                 : Error(Code::kInvalidArgument,
                         fmt::format("cannot resolve host \"{}\": {}; check the name or give an IP "
                                     "address",
                                     host, why));
}

// Blocks for as long as getaddrinfo(3) does.
Found AskSystem(const Address& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_ADDRCONFIG;
  addrinfo* list = nullptr;
  // AI_ADDRCONFIG: no IPv6 addresses where this machine has no IPv6, which would all fail to
  // connect.
  const int reason = ::getaddrinfo(address.host.c_str(), nullptr, &hints, &list);
  if (reason != 0) return CannotResolve(address.host, reason, errno);
  std::vector<Address> found;
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    const bool is_ip = entry->ai_family == AF_INET || entry->ai_family == AF_INET6;
    if (!is_ip || entry->ai_addrlen > sizeof(sockaddr_storage)) continue;
    RawAddress raw;
    raw.length = entry->ai_addrlen;
    std::memcpy(&raw.storage, entry->ai_addr, entry->ai_addrlen);
    found.push_back({FromRaw(raw).host, address.port});
  }
  ::freeaddrinfo(list);
  if (!found.empty()) return found;
  return Error(Code::kInvalidArgument, fmt::format("host \"{}\" has no IP address", address.host));
}

// The address in numeric form, in any notation that getaddrinfo(3) accepts; sends no query.
std::optional<Address> AsNumeric(const Address& address) {
  if (address.host.empty()) return std::nullopt;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* list = nullptr;
  if (::getaddrinfo(address.host.c_str(), nullptr, &hints, &list) != 0) return std::nullopt;
  RawAddress raw;
  raw.length = list->ai_addrlen;
  std::memcpy(&raw.storage, list->ai_addr, list->ai_addrlen);
  ::freeaddrinfo(list);
  return Address{FromRaw(raw).host, address.port};
}

// On the look-up's own thread, which nobody joins: it holds the only work that cannot be
// interrupted. Those who wait stop at their own deadlines.
void Run(const NameResolver::Ask& ask, const std::string& host,
         const std::shared_ptr<Lookup>& lookup) {
  Found found = ask({host, 0});
  Lookups& all = AllLookups();
  const std::lock_guard lock(all.mutex);
  lookup->found.emplace(std::move(found));
  const auto it = all.running.find(host);
  // An answer is not cached: those who wait now share it, and a later call asks again.
  if (it != all.running.end() && it->second == lookup) all.running.erase(it);
  all.changed.notify_all();
}

// The look-up of this host, started if necessary; null when kMaxLookups others are running. Needs
// the mutex.
Result<std::shared_ptr<Lookup>> JoinLocked(Lookups* all, const NameResolver::Ask& ask,
                                           const std::string& host) {
  if (const auto it = all->running.find(host); it != all->running.end()) return it->second;
  if (all->running.size() >= NameResolver::kMaxLookups) return std::shared_ptr<Lookup>();
  auto lookup = std::make_shared<Lookup>();  // with its thread and those who wait
  FERRY_TRY_ASSIGN(std::thread thread,
                   StartThread(fmt::format("looking up host \"{}\"", host),
                               [ask, host, lookup] { Run(ask, host, lookup); }));
  thread.detach();
  // Still under the mutex, which the thread takes before it looks for this entry.
  all->running.emplace(host, lookup);
  return lookup;
}

Error NotInTime(const std::string& host, Clock::time_point begin, Deadline deadline, bool begun) {
  const auto waited = std::max(Clock::duration::zero(), deadline.when() - begin);
  const auto ms = std::chrono::ceil<milliseconds>(waited).count();
  if (!begun) {
    return Error(Code::kTimedOut,
                 fmt::format("host \"{}\" was not looked up within {} ms: {} other names wait for "
                             "the name servers already; check /etc/resolv.conf or give an IP "
                             "address",
                             host, ms, NameResolver::kMaxLookups));
  }
  return Error(Code::kTimedOut,
               fmt::format("the name servers did not answer for host \"{}\" within {} ms; check "
                           "/etc/resolv.conf, allow more time or give an IP address",
                           host, ms));
}

}  // namespace

NameResolver::NameResolver() : ask_(AskSystem) {}

Result<std::vector<Address>> NameResolver::Resolve(const Address& address, Deadline deadline) {
  // The common case needs neither thread nor lock.
  if (auto numeric = AsNumeric(address)) return std::vector{*std::move(numeric)};
  const auto begin = Clock::now();
  Lookups& all = AllLookups();
  std::unique_lock lock(all.mutex);
  std::shared_ptr<Lookup> lookup;  // with its thread
  // Wakes for every change of any look-up: a result, a free place, a cancellation.
  while (!cancelled_) {
    if (!lookup) {
      FERRY_TRY_ASSIGN(lookup, JoinLocked(&all, ask_, address.host));
    }
    if (lookup && lookup->found) {
      Found found = *lookup->found;  // others may wait for the same
      if (!found) return found.error();
      for (Address& each : *found) each.port = address.port;
      return found;
    }
    if (deadline.expired()) return NotInTime(address.host, begin, deadline, lookup != nullptr);
    if (deadline.never()) {
      all.changed.wait(lock);
    } else {
      all.changed.wait_until(lock, deadline.when());
    }
  }
  return Error(Code::kCancelled,
               fmt::format("the lookup of host \"{}\" was cancelled: this endpoint was closed",
                           address.host));
}

void NameResolver::Cancel() {
  Lookups& all = AllLookups();
  const std::lock_guard lock(all.mutex);
  cancelled_ = true;
  all.changed.notify_all();
}

Result<std::vector<Address>> Resolve(const Address& address, Deadline deadline) {
  return NameResolver().Resolve(address, deadline);
}

}  // namespace ferry::net
