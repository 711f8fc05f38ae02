// Caches local interfaces until rtnetlink reports a change.
#include "ferry/net/interface_table.h"

#include <linux/rtnetlink.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <utility>

#include "ferry/core/fork.h"

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

std::vector<LocalAddress> InterfaceTable::Advertisable() {
  const std::lock_guard lock(mutex_);
  RefreshLocked();
  return advertisable_;
}

std::uint64_t InterfaceTable::reads() {
  const std::lock_guard lock(mutex_);
  return reads_;
}

// A change that comes after this check is seen by the next look-up.
void InterfaceTable::RefreshLocked() {
  if (!HasChangedLocked() && filled_) return;
  filled_ = false;
  auto now = ReadLocalAddresses();
  if (!now) return;  // keep the old list; the next look-up tries again
  by_host_.clear();
  for (LocalAddress& local : now->all) {
    by_host_.emplace(std::move(local.host), std::move(local.interface));
  }
  advertisable_ = std::move(now->advertisable);
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
