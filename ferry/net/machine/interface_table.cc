// Caches local interfaces until rtnetlink reports a change.
#include "ferry/net/machine/interface_table.h"

#include <linux/rtnetlink.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "ferry/core/fork.h"
#include "ferry/net/machine/egress.h"

namespace ferry::net {
namespace {

UniqueFd OpenChangeSocket() {
  UniqueFd fd = ClosedInChildren(
      UniqueFd(::socket(AF_NETLINK, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, NETLINK_ROUTE)));
  if (!fd) return fd;
  sockaddr_nl address{};
  address.nl_family = AF_NETLINK;
  // The kernel sends a message for each change of a link or address; only that one came matters.
  address.nl_groups = RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR;
  RawAddress raw;
  std::memcpy(&raw.storage, &address, sizeof address);
  if (::bind(fd.get(), raw.get(), sizeof address) != 0) fd.reset();
  return fd;
}

using NamespaceId = std::pair<dev_t, ino_t>;

NamespaceId ThisNamespace() {
  struct stat info {};
  // A thread may have left the network namespace of its process (setns(2)), and sees other
  // interfaces.
  if (::stat("/proc/thread-self/ns/net", &info) != 0) return {};
  return {info.st_dev, info.st_ino};
}

struct Tables {
  std::mutex mutex;
  std::map<NamespaceId, std::weak_ptr<InterfaceTable>> by_namespace;  // under mutex
};

}  // namespace

std::shared_ptr<InterfaceTable> InterfaceTable::OfThisNamespace() {
  static PerProcess<Tables> all;
  Tables& tables = all.Get();
  const std::lock_guard lock(tables.mutex);
  // The table's socket keeps its namespace alive, so the namespace's number is not reused.
  std::weak_ptr<InterfaceTable>& kept = tables.by_namespace[ThisNamespace()];
  auto table = kept.lock();  // with its users
  if (!table) kept = table = std::make_shared<InterfaceTable>();
  return table;
}

InterfaceTable::InterfaceTable() : changes_(OpenChangeSocket()) {}

std::string InterfaceTable::InterfaceOf(const Address& local) {
  if (const auto raw = ToRaw(local); raw && IsLoopback(*raw)) return "lo";
  const std::lock_guard lock(mutex_);
  RefreshLocked();
  const auto it = by_host_.find(local.host);
  return it == by_host_.end() ? std::string() : it->second;
}

std::vector<LocalAddress> InterfaceTable::Told(const std::string& list, IpFamily family) {
  const std::lock_guard lock(mutex_);
  RefreshLocked();
  return ToldLocked(list, family);
}

const std::vector<LocalAddress>& InterfaceTable::ToldLocked(const std::string& list,
                                                            IpFamily family) {
  const auto [told, is_new] = told_.try_emplace({list, family});
  if (is_new) told->second = ChooseAddresses(all_, list, family).told;
  return told->second;
}

Result<AddressChoice> InterfaceTable::Choose(std::string_view setting, const std::string& list,
                                             IpFamily family) {
  const std::lock_guard lock(mutex_);
  RefreshLocked();
  if (!filled_) {
    return Error(Code::kUnavailable,
                 "cannot read the interfaces of this machine; raise the limit of open files "
                 "(ulimit -n)");
  }
  AddressChoice choice = ChooseAddresses(all_, list, family);
  if (choice.told.empty()) return NothingSelected(setting, all_, choice);
  return choice;
}

std::vector<std::string> InterfaceTable::OthersLocked(const Address& to, const std::string& list,
                                                      bool any) {
  constexpr std::size_t kMaxOthers = 16;  // each costs a question to the kernel
  std::set<std::string> in_subnet;
  for (const InterfaceAddress& address : shared_) {
    if (IsInSubnet(to, address)) in_subnet.insert(address.interface);
  }
  std::vector<std::string> others;
  if (in_subnet.empty() && !any) return others;
  for (const LocalAddress& local : ToldLocked(list, IpFamily::kAny)) {
    const bool known = std::find(others.begin(), others.end(), local.interface) != others.end();
    const bool wanted = any || in_subnet.count(local.interface) != 0;
    if (wanted && !known && others.size() < kMaxOthers) others.push_back(local.interface);
  }
  return others;
}

Ways InterfaceTable::WaysTo(const Address& to, const std::string& list) {
  Ways ways;
  if (const auto source = SourceTo(to)) ways.route = InterfaceOf({*source, 0});
  const bool here = ways.route == "lo" || !InterfaceOf(to).empty();
  if (!ways.route.empty() && (here || InterfaceAllowed(list, ways.route))) {
    ways.usable = {ways.route};
  }
  if (here) return ways;
  std::vector<std::string> others;
  {
    const std::lock_guard lock(mutex_);
    RefreshLocked();
    others = OthersLocked(to, list, ways.usable.empty());
  }
  for (std::string& other : others) {
    if (other != ways.route && LeadsTo(other, to)) ways.usable.push_back(std::move(other));
  }
  return ways;
}

std::vector<LocalAddress> InterfaceTable::InSharedSubnets(const std::string& list, bool excluded) {
  const std::lock_guard lock(mutex_);
  RefreshLocked();
  std::vector<LocalAddress> found;
  if (shared_.empty()) return found;
  for (const LocalAddress& told : ToldLocked(list, IpFamily::kAny)) {
    const bool any = std::any_of(shared_.begin(), shared_.end(), [&](const auto& other) {
      return other.interface != told.interface && IsInSubnet({told.host, 0}, other) &&
             !(excluded && InterfaceAllowed(list, other.interface));
    });
    if (any) found.push_back(told);
  }
  return found;
}

std::uint64_t InterfaceTable::reads() {
  const std::lock_guard lock(mutex_);
  return reads_;
}

// A change that comes after this check is seen by the next look-up.
void InterfaceTable::RefreshLocked() {
  if (!HasChangedLocked() && filled_) return;
  filled_ = false;
  auto now = ReadInterfaces();
  if (!now) return;  // keep the old list; the next look-up tries again
  all_ = *std::move(now);
  by_host_.clear();
  for (const InterfaceAddress& local : all_) {
    if (!local.host.empty()) by_host_.emplace(local.host, local.interface);
  }
  shared_ = SharedSubnets(all_);
  told_.clear();
  filled_ = true;
  ++reads_;
}

bool InterfaceTable::HasChangedLocked() {
  // Without a socket each look-up reads the interfaces anew: slower, but right.
  if (!changes_) changes_ = OpenChangeSocket();
  if (!changes_) return true;
  bool changed = false;
  std::array<std::byte, 16384> dropped;
  for (;;) {
    const ssize_t got = ::recv(changes_.get(), dropped.data(), dropped.size(), MSG_DONTWAIT);
    if (got >= 0 || errno == ENOBUFS) {  // ENOBUFS: messages were lost
      changed = true;
    } else if (errno != EINTR) {
      return changed;
    }
  }
}

}  // namespace ferry::net
