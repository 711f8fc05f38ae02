// Requests and attributes of netlink.
#include "ferry/net/machine/netlink.h"

#include <linux/rtnetlink.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstring>

namespace ferry::net {
namespace {

constexpr std::size_t kMaxAnswer = 16 * 1024;
constexpr int kNamespaceOption = 71;  // SO_NETNS_COOKIE, which older headers lack

template <class T>
void Append(std::vector<std::byte>* bytes, const T& value) {
  const auto added = std::as_bytes(std::span(&value, 1));
  bytes->insert(bytes->end(), added.begin(), added.end());
}

}  // namespace

Netlink::Netlink(int protocol)
    : fd_(ClosedInChildren(UniqueFd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, protocol)))) {}

std::optional<std::vector<std::byte>> Netlink::Ask(std::uint16_t type,
                                                   std::span<const std::byte> body,
                                                   std::uint16_t answer_type) {
  nlmsghdr header{};
  header.nlmsg_seq = ++asked_;
  header.nlmsg_len = static_cast<std::uint32_t>(sizeof header + body.size());
  header.nlmsg_type = type;
  header.nlmsg_flags = NLM_F_REQUEST;
  std::vector<std::byte> bytes;
  Append(&bytes, header);
  bytes.insert(bytes.end(), body.begin(), body.end());
  if (!fd_ || ::send(fd_.get(), bytes.data(), bytes.size(), 0) < 0) return std::nullopt;
  bytes.resize(kMaxAnswer);
  ssize_t got = 0;
  // The answer to an earlier request, whose recv() has failed, may come first.
  do {
    got = ::recv(fd_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got < static_cast<ssize_t>(sizeof header)) return std::nullopt;
    std::memcpy(&header, bytes.data(), sizeof header);
  } while (header.nlmsg_seq != asked_);
  if (header.nlmsg_type != answer_type || header.nlmsg_len < sizeof header ||
      header.nlmsg_len > static_cast<std::size_t>(got)) {
    return std::nullopt;
  }
  bytes.resize(header.nlmsg_len);
  bytes.erase(bytes.begin(), bytes.begin() + sizeof header);
  return bytes;
}

std::optional<std::vector<std::byte>> AskLink(int index) {
  ifinfomsg request{};
  request.ifi_index = index;
  auto answer =
      Netlink(NETLINK_ROUTE).Ask(RTM_GETLINK, std::as_bytes(std::span(&request, 1)), RTM_NEWLINK);
  if (!answer || answer->size() < sizeof request) return std::nullopt;
  answer->erase(answer->begin(), answer->begin() + sizeof request);
  return answer;
}

std::uint64_t Netlink::network() const { return NamespaceOf(fd_.get()); }

std::uint64_t NamespaceOf(int socket) {
  std::uint64_t number = 0;
  socklen_t bytes = sizeof number;
  return ::getsockopt(socket, SOL_SOCKET, kNamespaceOption, &number, &bytes) == 0 ? number : 0;
}

int BoundTo(int socket) {
  int interface = 0;
  socklen_t bytes = sizeof interface;
  return ::getsockopt(socket, SOL_SOCKET, SO_BINDTOIFINDEX, &interface, &bytes) == 0 ? interface : 0;
}

int AskHolder(int family, std::span<const std::byte> address) {
  rtmsg request{};
  request.rtm_family = static_cast<unsigned char>(family);
  request.rtm_dst_len = static_cast<unsigned char>(address.size() * CHAR_BIT);
  // The entry itself: packets to all addresses of this machine leave by the loopback interface.
  request.rtm_flags = RTM_F_FIB_MATCH;
  std::vector<std::byte> body;
  Append(&body, request);
  AppendAttribute(&body, RTA_DST, address);
  const auto answer = Netlink(NETLINK_ROUTE).Ask(RTM_GETROUTE, body, RTM_NEWROUTE);
  if (!answer || answer->size() < sizeof request) return 0;
  const auto holder = AttributeIn(std::span(*answer).subspan(sizeof request), RTA_OIF);
  int index = 0;
  if (holder && holder->size() == sizeof index) std::memcpy(&index, holder->data(), sizeof index);
  return index;
}

std::optional<std::span<const std::byte>> AttributeIn(std::span<const std::byte> list,
                                                      std::uint16_t type) {
  rtattr attribute{};
  while (list.size() >= sizeof attribute) {
    std::memcpy(&attribute, list.data(), sizeof attribute);
    const std::size_t bytes = attribute.rta_len;
    if (bytes < sizeof attribute || bytes > list.size()) return std::nullopt;
    if (attribute.rta_type == type) return list.first(bytes).subspan(sizeof attribute);
    list = list.subspan(std::min(NetlinkAligned(bytes), list.size()));
  }
  return std::nullopt;
}

void AppendAttribute(std::vector<std::byte>* list, std::uint16_t type,
                     std::span<const std::byte> value) {
  rtattr attribute{};
  attribute.rta_len = static_cast<std::uint16_t>(sizeof attribute + value.size());
  attribute.rta_type = type;
  Append(list, attribute);
  list->insert(list->end(), value.begin(), value.end());
  list->resize(NetlinkAligned(list->size()));
}

}  // namespace ferry::net
