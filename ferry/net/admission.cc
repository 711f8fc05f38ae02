// Decides which pending peers stay when too many connect.
#include "ferry/net/admission.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <netinet/in.h>

#include <algorithm>

namespace ferry::net {

Admission::Admission(std::size_t places)
    : places_(places), share_(std::max(places / 2, kMaxLanes)) {}

// A host gets a whole /64 and may use any address of it, so IPv6 is counted by prefix; whoever has
// several /64s counts as several sources. An IPv4 address that came over IPv6 counts as IPv4.
std::string Admission::SourceOf(std::string_view host) {
  if (!host.empty() && host.front() == '[') host.remove_prefix(1);
  host = host.substr(0, host.find_first_of("]%"));
  std::string text(host);
  in6_addr v6{};
  if (::inet_pton(AF_INET6, text.c_str(), &v6) != 1) return text;
  if (IN6_IS_ADDR_V4MAPPED(&v6)) return text.substr(text.rfind(':') + 1);
  std::string prefix;
  for (std::size_t i = 0; i < 8; ++i) prefix += fmt::format("{:02x}", v6.s6_addr[i]);
  return prefix + "/64";
}

std::optional<Admission::Id> Admission::Enter(Id id, std::string_view host, bool same_machine,
                                              Time now) {
  ForgetExpired(now);
  Entry entry{SourceOf(host), now, /*silent=*/true};
  // May insert an empty source, which gets its entry below.
  std::optional<Id> leaving = WhoLeaves(sources_[entry.source], same_machine, now);
  if (leaving) Leave(*leaving);
  // Looked up again: the source may have lost its last entry.
  Source& source = sources_[entry.source];
  ++source.entries;
  // One of the lanes that an authenticated peer of this source has announced: it needs no grace
  // period and does not count as silent, so that a flood cannot displace it.
  if (source.expected > 0) {
    if (--source.expected == 0) expectations_.erase({source.expected_until, entry.source});
    entry.silent = false;
    protected_.emplace(now, id);
  } else {
    source.silent.emplace(now, id);
    silent_.emplace(now, id);
  }
  all_.emplace(id, std::move(entry));
  return leaving;
}

// In this order: the source's own oldest silent peer, if the source has used up its share; nobody,
// while there are places; the oldest silent peer, after its grace; the oldest protected one, after
// its stall; nobody, up to twice the places, because the caller stops accepting then (WhenRoom());
// beyond that the oldest, whatever it has done.
std::optional<Admission::Id> Admission::WhoLeaves(const Source& source, bool same_machine,
                                                  Time now) const {
  const bool has_share = !same_machine && source.expected == 0 && source.silent.size() >= share_;
  if (has_share) return source.silent.begin()->second;
  if (all_.size() < places_) return std::nullopt;
  if (!silent_.empty() && silent_.begin()->first + kGrace <= now) return silent_.begin()->second;
  if (!protected_.empty() && protected_.begin()->first + kStall <= now) {
    return protected_.begin()->second;
  }
  if (all_.size() < 2 * places_) return std::nullopt;
  return silent_.empty() ? protected_.begin()->second : silent_.begin()->second;
}

void Admission::MarkSpoken(Id id, Time now, bool proven) {
  const auto it = all_.find(id);
  if (it == all_.end()) return;
  Entry& entry = it->second;
  Source& source = sources_.at(entry.source);
  Unqueue(id, entry);
  entry.since = now;
  // Protection is limited for a source whose peers have proven nothing. Who is protected already,
  // or has proven something, does not count against the limit.
  const bool any_may = proven || !entry.silent;
  // Still silent, but as if it had come now: it has sent something, so it is evicted last among
  // them.
  if (!any_may && source.spoken >= kMaxSpoken) {
    source.silent.emplace(now, id);
    silent_.emplace(now, id);
    return;
  }
  if (!any_may) {
    entry.counted = true;
    ++source.spoken;
  }
  entry.silent = false;
  protected_.emplace(now, id);
}

bool Admission::NeedsProof(Id id) const {
  const auto it = all_.find(id);
  return it != all_.end() && it->second.silent &&
         sources_.at(it->second.source).spoken >= kMaxSpoken;
}

void Admission::Leave(Id id) {
  const auto node = all_.extract(id);
  if (node.empty()) return;
  Unqueue(id, node.mapped());
  Source& source = sources_.at(node.mapped().source);
  --source.entries;
  if (node.mapped().counted) --source.spoken;
  ForgetIfUnused(node.mapped().source);
}

void Admission::Expect(std::string_view host, std::size_t lanes, Time until) {
  if (lanes == 0) return;
  const std::string name = SourceOf(host);
  Source& source = sources_[name];
  if (source.expected > 0) expectations_.erase({source.expected_until, name});
  // No more than the table holds, whatever a peer announces.
  source.expected = std::min(source.expected + lanes, places_);
  source.expected_until = std::max(source.expected_until, until);
  expectations_.emplace(source.expected_until, name);
}

// Agrees with WhoLeaves(): at this time one of the entries may be evicted.
Admission::Time Admission::WhenRoom(Time now) const {
  if (all_.size() < places_) return now;
  Time when = Time::max();
  if (!silent_.empty()) when = silent_.begin()->first + kGrace;
  if (!protected_.empty()) when = std::min(when, protected_.begin()->first + kStall);
  return std::max(when, now);
}

void Admission::Unqueue(Id id, const Entry& entry) {
  if (!entry.silent) {
    protected_.erase({entry.since, id});
    return;
  }
  silent_.erase({entry.since, id});
  sources_.at(entry.source).silent.erase({entry.since, id});
}

// Removes expectations of lanes that did not come in time.
void Admission::ForgetExpired(Time now) {
  while (!expectations_.empty() && expectations_.begin()->first < now) {
    const std::string name = expectations_.begin()->second;
    expectations_.erase(expectations_.begin());
    sources_.at(name).expected = 0;
    ForgetIfUnused(name);
  }
}

void Admission::ForgetIfUnused(const std::string& source) {
  const auto it = sources_.find(source);
  const bool used = it == sources_.end() || it->second.entries > 0 || it->second.expected > 0;
  if (!used) sources_.erase(it);
}

}  // namespace ferry::net
