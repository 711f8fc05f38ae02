// The admission policy for peers that are not authenticated yet.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "ferry/core/deadline.h"

namespace ferry::net {

// Decides which pending peers stay when more connect than there are places. A pending peer is an
// accepted lane whose peer has not been authenticated yet. A pure table: the caller passes the
// time, closes the lane that Enter() returns, and stops accepting until WhenRoom() (AcceptGate does
// that). Not thread-safe.
//
// A pending peer is in one of three states. Silent: it has sent nothing. Expected: it comes from a
// host whose peer is authenticated and opens its further lanes. Spoken: it has sent the well-formed
// beginning of its handshake. When the table is full, the oldest silent peer is evicted, once it
// has had kGrace to speak. A spoken or expected peer is evicted only after kStall without progress.
// While nobody may be evicted there is no room: a flood is then accepted at a bounded rate, and a
// connection in the kernel's queue waits for a bounded time.
//
// Anybody can send the beginning of a handshake, so speaking protects at most kMaxSpoken peers of
// one source at a time, and those who have proved who they are; further ones still count as silent.
//
// The silent peers of one source, an IPv4 address or an IPv6 /64, hold at most half of the places,
// or kMaxLanes; beyond that the source's own oldest peer is evicted. Addresses of this machine are
// exempt from this limit, because all its users, and all who come through its proxies, share them.
class Admission {
 public:
  using Id = std::uint64_t;
  using Time = Clock::time_point;

  // A peer opens all its lanes at once.
  static constexpr std::size_t kMaxLanes = 64;
  static constexpr std::size_t kMaxSpoken = 8;
  static constexpr milliseconds kGrace{100};
  static constexpr milliseconds kStall{1000};

  explicit Admission(std::size_t places);

  // The key by which sources are counted: an IPv4 address unchanged, or the /64 of an IPv6 address;
  // brackets and scope are accepted.
  static std::string SourceOf(std::string_view host);

  // Enters `id`, which must be greater than all before it. Returns the id that is evicted for it
  // and has left the table. An entry before WhenRoom() exceeds the places, up to twice as many.
  std::optional<Id> Enter(Id id, std::string_view host, bool same_machine, Time now);
  // Call when the peer has sent the beginning of a handshake, or more of it. `proven`: the bytes
  // also prove that it knows our secret, or that it is a process of this machine.
  void MarkSpoken(Id id, Time now, bool proven = false);
  // Whether MarkSpoken() protects this peer only if it is `proven`.
  bool NeedsProof(Id id) const;
  // Call when the peer is authenticated or its lane has closed.
  void Leave(Id id);
  // An authenticated peer at `host` will open `lanes` further lanes before `until`.
  void Expect(std::string_view host, std::size_t lanes, Time until);
  // When another peer may enter: `now`, or later where nobody may be evicted yet.
  Time WhenRoom(Time now) const;

  std::size_t size() const noexcept { return all_.size(); }
  std::size_t places() const noexcept { return places_; }
  std::size_t share() const noexcept { return share_; }

 private:
  // Ordered by time, oldest first.
  using Queue = std::set<std::pair<Time, Id>>;
  struct Entry {
    std::string source;
    Time since;            // entered, or last progress
    bool silent = false;   // neither expected nor protected by having spoken
    bool counted = false;  // in Source::spoken
  };
  struct Source {
    Queue silent;
    std::size_t entries = 0;   // all of them
    std::size_t spoken = 0;    // entries protected by having spoken
    std::size_t expected = 0;  // lanes still to come
    Time expected_until;
  };

  std::optional<Id> WhoLeaves(const Source& source, bool same_machine, Time now) const;
  void Unqueue(Id id, const Entry& entry);
  void ForgetExpired(Time now);
  void ForgetIfUnused(const std::string& source);

  const std::size_t places_;
  const std::size_t share_;
  std::unordered_map<Id, Entry> all_;
  Queue silent_;
  Queue protected_;  // spoken or expected
  std::unordered_map<std::string, Source> sources_;
  std::set<std::pair<Time, std::string>> expectations_;  // by when they end
};

}  // namespace ferry::net
