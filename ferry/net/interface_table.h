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

// The interfaces of a network namespace and their addresses, read from the system when they are
// first asked for and after rtnetlink(7) has reported a change of a link or an address. A look-up
// costs one system call and does not grow with the number of interfaces. Any thread.
class InterfaceTable {
 public:
  // The table of the calling thread's network namespace; shared by all who ask in it.
  static std::shared_ptr<InterfaceTable> OfThisNamespace();
  InterfaceTable();

  // As the functions of address.h.
  std::string InterfaceOf(const Address& local);
  std::vector<LocalAddress> Advertisable();
  // How often the system was asked for all of them.
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
