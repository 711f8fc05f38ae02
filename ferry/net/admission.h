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

// Which pending peers stay when more come than there are places for. A pending peer is a lane that
// was accepted and whose peer is not known yet. A pure table: the caller passes the time, closes
// whom Enter() returns, and stops accepting until WhenRoom() (AcceptGate does that).
//
// A pending peer is silent, expected (it comes from a host whose peer has proved itself and opens
// its further lanes) or has spoken: it has sent the well-formed beginning of its handshake. When
// the table is full the oldest silent one leaves, once it has had kGrace to speak. One that has
// spoken, or is expected, never leaves for others before it has made no progress for kStall. Where
// nobody may leave yet there is no room until then: so a flood is accepted at a bounded rate, and
// who waits in the system's queue waits for a bounded time.
//
// Anybody can send the beginning of a handshake, so speaking protects kMaxSpoken of one source at a
// time; further ones still count as silent. Addresses of this machine are not held to that either.
//
// The silent ones of one source, an IPv4 address or an IPv6 /64, have at most half of the places,
// or kMaxLanes: then its own oldest leaves. Addresses of this machine are not held to that: all its
// users share them.
class Admission {
 public:
  using Id = std::uint64_t;
  using Time = Clock::time_point;

  // A peer's lanes come all at once.
  static constexpr std::size_t kMaxLanes = 64;
  static constexpr std::size_t kMaxSpoken = 8;
  static constexpr milliseconds kGrace{100};
  static constexpr milliseconds kStall{1000};

  explicit Admission(std::size_t places);

  // What counts as one source: an IPv4 address as it is, the /64 of an IPv6 address, with or
  // without brackets and scope.
  static std::string SourceOf(std::string_view host);

  // Enters `id`, which is greater than any before. Returns who has to leave for it and is no longer
  // in the table. Whoever enters before WhenRoom() is taken beyond the places, up to twice as many.
  std::optional<Id> Enter(Id id, std::string_view host, bool same_machine, Time now);
  // It has sent the beginning of a handshake, or more of it. `proven`: and has shown by it that it
  // knows a secret of ours.
  void MarkSpoken(Id id, Time now, bool proven = false);
  // It is known, or gone.
  void Leave(Id id);
  // A peer at `host` has proved itself and opens so many further lanes until then.
  void Expect(std::string_view host, std::size_t lanes, Time until);
  // When another may enter: `now`, or later where none may leave yet.
  Time WhenRoom(Time now) const;

  std::size_t size() const noexcept { return all_.size(); }
  std::size_t places() const noexcept { return places_; }
  std::size_t share() const noexcept { return share_; }

 private:
  // Oldest first.
  using Queue = std::set<std::pair<Time, Id>>;
  struct Entry {
    std::string source;
    Time since;           // entered, or last progress
    bool silent = false;  // and not expected; or it has spoken and is not protected by that
    bool same_machine = false;
    bool counted = false;  // in Source::spoken
  };
  struct Source {
    Queue silent;
    std::size_t entries = 0;   // all of them
    std::size_t spoken = 0;    // protected by that
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
