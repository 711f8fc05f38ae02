// Single questions to the kernel over netlink(7).
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ferry/core/fd.h"

namespace ferry::net {

// A socket for questions to the network namespace of the thread that makes it.
class Netlink {
 public:
  explicit Netlink(int protocol);

  // Sends one request of `type`, whose body is `body`, and returns the body of the kernel's answer;
  // nothing if that is an error or not of `answer_type`. Does not wait: the kernel answers within
  // the send. One thread at a time.
  std::optional<std::vector<std::byte>> Ask(std::uint16_t type, std::span<const std::byte> body,
                                            std::uint16_t answer_type);
  // False if socket(2) has failed, whose errno is kept.
  explicit operator bool() const { return static_cast<bool>(fd_); }
  // The network namespace that is asked, as NamespaceOf() says.
  std::uint64_t network() const;

 private:
  const UniqueFd fd_;
  std::uint32_t asked_ = 0;  // a number for each request
};

// The attributes of the interface of this index (rtnetlink(7)); nothing if there is none.
std::optional<std::vector<std::byte>> AskLink(int index);

// A number of a socket's network namespace, which the kernel never gives to two; 0 before
// Linux 5.14.
std::uint64_t NamespaceOf(int socket);

// The index of the interface that a socket is bound to: link-local addresses and listeners of one
// interface bind theirs. 0: none, or the kernel does not tell (before Linux 5.0).
int BoundTo(int socket);

// The index of the interface that has an address of this machine, in network order; 0 if none has,
// or if the kernel does not tell. From Linux 4.13 on; before that it is the loopback interface's.
int AskHolder(int family, std::span<const std::byte> address);

// The value of the first attribute of `type` in a list of attributes (rtnetlink(7)).
std::optional<std::span<const std::byte>> AttributeIn(std::span<const std::byte> list,
                                                      std::uint16_t type);

// Appends an attribute.
void AppendAttribute(std::vector<std::byte>* list, std::uint16_t type,
                     std::span<const std::byte> value);

// netlink aligns headers and attributes to 4 bytes.
constexpr std::size_t NetlinkAligned(std::size_t bytes) { return (bytes + 3) & ~std::size_t{3}; }

}  // namespace ferry::net
