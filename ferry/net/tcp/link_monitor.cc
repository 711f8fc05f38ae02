// Reads link changes from rtnetlink.
#include "ferry/net/tcp/link_monitor.h"

#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "ferry/net/machine/netlink.h"

namespace ferry::net::tcp {
namespace {

// The interface name among the attributes; "" if there is none.
std::string NameIn(std::span<const std::byte> attributes) {
  const auto value = AttributeIn(attributes, IFLA_IFNAME);
  if (!value) return {};
  std::string name(value->size(), '\0');
  std::memcpy(name.data(), value->data(), value->size());
  return name.substr(0, name.find('\0'));
}

}  // namespace

void ParseLinkChanges(std::span<const std::byte> datagram, Provider::LinkChanged& changed) {
  nlmsghdr header{};
  while (datagram.size() >= sizeof header) {
    std::memcpy(&header, datagram.data(), sizeof header);
    // Lengths are checked although the kernel writes them: a wrong one must not leave the datagram.
    if (header.nlmsg_len < sizeof header || header.nlmsg_len > datagram.size()) return;
    auto body = datagram.subspan(sizeof header, header.nlmsg_len - sizeof header);
    datagram = datagram.subspan(std::min(NetlinkAligned(header.nlmsg_len), datagram.size()));
    ifinfomsg link{};
    const bool known = header.nlmsg_type == RTM_NEWLINK || header.nlmsg_type == RTM_DELLINK;
    if (!known || body.size() < sizeof link) continue;
    std::memcpy(&link, body.data(), sizeof link);
    body = body.subspan(sizeof link);
    LinkChange change;
    change.interface = NameIn(body);
    // IFF_RUNNING: up, with a carrier (netdevice(7)).
    change.up = header.nlmsg_type == RTM_NEWLINK && (link.ifi_flags & IFF_UP) != 0 &&
                (link.ifi_flags & IFF_RUNNING) != 0;
    if (!change.interface.empty()) changed(change);
  }
}

Result<std::unique_ptr<LinkWatch>> LinkMonitor::Create(EventLoop* loop,
                                                       Provider::LinkChanged changed) {
  UniqueFd fd = ClosedInChildren(
      UniqueFd(::socket(AF_NETLINK, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, NETLINK_ROUTE)));
  if (!fd) return ErrnoError("cannot open a socket of rtnetlink", errno);
  sockaddr_nl address{};
  address.nl_family = AF_NETLINK;
  address.nl_groups = RTMGRP_LINK;
  sockaddr_storage storage{};
  std::memcpy(&storage, &address, sizeof address);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&storage), sizeof address) != 0) {
    return ErrnoError("cannot watch links through rtnetlink", errno);
  }
  std::unique_ptr<LinkMonitor> monitor(new LinkMonitor(std::move(fd), loop, std::move(changed)));
  FERRY_TRY(loop->WatchOnLoop(monitor->fd_.get(), EPOLLIN, monitor.get()));
  return std::unique_ptr<LinkWatch>(std::move(monitor));
}

LinkMonitor::~LinkMonitor() { loop_->UnwatchOnLoop(fd_.get(), this); }

void LinkMonitor::OnEvents(std::uint32_t /*events*/) {
  // One message of a link with all its attributes is about 1.5 KiB.
  std::array<std::byte, 16384> buffer;
  for (;;) {
    const ssize_t got = ::recv(fd_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    // Until EAGAIN, because the socket is watched edge-triggered.
    if (got > 0) {
      ParseLinkChanges(std::span(buffer).first(static_cast<std::size_t>(got)), changed_);
      // ENOBUFS: messages were lost; heartbeats remain.
    } else if (errno != EINTR && errno != ENOBUFS) {
      return;
    }
  }
}

}  // namespace ferry::net::tcp
