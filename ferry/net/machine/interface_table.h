// A cache of local interfaces and addresses.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ferry/core/fd.h"
#include "ferry/net/address.h"
#include "ferry/net/machine/local_addresses.h"

namespace ferry::net {

// The interfaces by which an address can be reached.
struct Ways {
  std::string route;                // that the routing table chooses; "" if there is no route
  std::vector<std::string> usable;  // those that a list allows, in order of preference
};

// Caches the interfaces and addresses of a network namespace. Reads them at the first look-up and
// again after rtnetlink(7) has reported a change of a link or an address. A look-up costs one
// system call, whatever the number of interfaces. Any thread.
class InterfaceTable {
 public:
  // The table of the calling thread's network namespace; shared by all callers in that namespace.
  static std::shared_ptr<InterfaceTable> OfThisNamespace();
  InterfaceTable();

  // As the function in address.h.
  std::string InterfaceOf(const Address& local);
  // The addresses that ChooseAddresses() tells peers of.
  std::vector<LocalAddress> Told(const std::string& list, IpFamily family = IpFamily::kAny);
  // The whole choice. `setting`: what has the list, with its value. Errors: kInvalidArgument where
  // it selects nothing (NothingSelected()), kUnavailable where the interfaces cannot be read.
  Result<AddressChoice> Choose(std::string_view setting, const std::string& list,
                               IpFamily family = IpFamily::kAny);
  // The ways to a numeric address. For an address of this machine only the first, whatever the
  // list says. Otherwise that of the routing table precedes other interfaces that peers are told
  // of: those in the subnet of `to`, and where the list does not allow the first, any that leads
  // there.
  Ways WaysTo(const Address& to, const std::string& list);
  // Those of the addresses that peers are told of whose subnet another interface is in as well.
  // `excluded`: only where the list does not allow that other one.
  std::vector<LocalAddress> InSharedSubnets(const std::string& list, bool excluded);
  // How many times the full list was read from the system; for tests.
  std::uint64_t reads();

 private:
  void RefreshLocked();
  const std::vector<LocalAddress>& ToldLocked(const std::string& list, IpFamily family);
  std::vector<std::string> OthersLocked(const Address& to, const std::string& list, bool any);
  bool HasChangedLocked();

  std::mutex mutex_;
  // All under mutex_.
  UniqueFd changes_;  // a socket of rtnetlink; without one nothing is remembered
  bool filled_ = false;
  std::unordered_map<std::string, std::string> by_host_;
  std::vector<InterfaceAddress> all_;
  std::vector<InterfaceAddress> shared_;                                        // SharedSubnets()
  std::map<std::pair<std::string, IpFamily>, std::vector<LocalAddress>> told_;  // since the read
  std::uint64_t reads_ = 0;
};

}  // namespace ferry::net
