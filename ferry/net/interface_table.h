// A cache of local interfaces and addresses.
#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "ferry/core/fd.h"
#include "ferry/net/address.h"

namespace ferry::net {

// Caches the interfaces and addresses of a network namespace. Reads them at the first look-up and
// again after rtnetlink(7) has reported a change of a link or an address. A look-up costs one
// system call, whatever the number of interfaces. Any thread.
class InterfaceTable {
 public:
  // The table of the calling thread's network namespace; shared by all callers in that namespace.
  static std::shared_ptr<InterfaceTable> OfThisNamespace();
  InterfaceTable();

  // The same results as the functions in address.h.
  std::string InterfaceOf(const Address& local);
  std::vector<LocalAddress> Advertisable();
  // How many times the full list was read from the system; for tests.
  std::uint64_t reads();

 private:
  void RefreshLocked();
  bool HasChangedLocked();

  std::mutex mutex_;
  // All under mutex_.
  UniqueFd changes_;  // a socket of rtnetlink; without one nothing is remembered
  bool filled_ = false;
  std::unordered_map<std::string, std::string> by_host_;
  std::vector<LocalAddress> advertisable_;
  std::uint64_t reads_ = 0;
};

}  // namespace ferry::net
