// The way to the peer, and whether it is open.
#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <span>

#include "tools/doctor/checks.h"

namespace ferry::tools {
namespace {

constexpr unsigned kMaxDialedPorts = 64;  // of a range, at once
constexpr std::size_t kMaxAddresses = 8;
constexpr int kUsualMtu = 1500;
constexpr int kJumboMtu = 9000;
constexpr std::uint64_t kFastLink = 10'000;  // Mbit/s; from here on small packets cost a core
constexpr int kHeaders = 40 + 12;            // IPv4, TCP and its timestamps

bool IsIpv6(const net::Address& address) { return address.host.find(':') != std::string::npos; }

std::string ReadWord(const Context& context, const std::string& interface, const char* file) {
  const auto text = context.system->ReadFile(fmt::format("/sys/class/net/{}/{}", interface, file));
  const auto words = text ? WordsOf(*text) : std::vector<std::string>{};
  return words.size() == 1 ? words.front() : std::string();
}

// "bridge", "wlan", "vlan", "bond"; empty: an ordinary one.
std::string KindOf(const Context& context, const std::string& interface) {
  constexpr std::string_view kKey = "DEVTYPE=";
  const auto text = context.system->ReadFile(fmt::format("/sys/class/net/{}/uevent", interface));
  if (!text) return "";
  for (const std::string& word : WordsOf(*text)) {
    if (word.starts_with(kKey)) return word.substr(kKey.size());
  }
  return "";
}

// ---- without a peer -----------------------------------------------------------------------------

// Without a peer: which addresses peers would be told and why not others, and which interfaces the
// other checks look at.
Check CheckInterfaces(Context* context) {
  Check check{"interfaces", Verdict::kOk, "", ""};
  const std::string& list = context->config.interfaces;
  const auto all = context->system->Addresses();
  const net::AddressChoice choice = net::ChooseAddresses(all, list);
  std::string left_out;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::string why = net::WhyLeftOut(choice.left_out[i], all[i].kind, list);
    if (why.empty()) continue;
    left_out += fmt::format("{}{}{}{} ({})", left_out.empty() ? "; not: " : ", ", all[i].interface,
                            all[i].host.empty() ? "" : " ", all[i].host, why);
  }
  if (choice.told.empty()) {
    const std::string setting = fmt::format("FERRY_INTERFACES={}", list);
    check.verdict = Verdict::kProblem;
    check.evidence = net::NothingSelected(setting, all, choice).message();
    check.fix = "ferry info --addresses";
    return check;
  }
  for (const net::LocalAddress& local : choice.told) {
    check.evidence += fmt::format("{}{} {}", check.evidence.empty() ? "peers are told: " : ", ",
                                  local.interface, local.host);
    auto& known = context->interfaces;
    const bool is_new = std::find(known.begin(), known.end(), local.interface) == known.end();
    if (is_new && local.interface != "lo") known.push_back(local.interface);
  }
  check.evidence += left_out;
  if (choice.warning.empty()) return check;
  check.verdict = Verdict::kWarning;
  check.evidence = choice.warning + left_out;
  check.fix = "ip -brief address";
  return check;
}

// ---- name and route -----------------------------------------------------------------------------

Check CheckName(Context* context, Deadline deadline) {
  Check check{"name", Verdict::kOk, "", ""};
  auto resolved = context->system->Resolve(*context->peer, deadline);
  if (!resolved) {
    check.verdict = Verdict::kProblem;
    check.evidence = resolved.error().message();
    check.fix = fmt::format("getent ahosts {}", ShellWord(context->peer->host));
    return check;
  }
  for (const net::Address& address : *resolved) {
    const auto& known = context->resolved;
    if (std::find(known.begin(), known.end(), address) != known.end()) continue;
    check.evidence += (context->resolved.empty() ? "" : ", ") + address.host;
    context->resolved.push_back(address);
    // A name may have any number of addresses, and each is dialled.
    if (context->resolved.size() == kMaxAddresses) break;
  }
  check.evidence = fmt::format("{} is {}", context->peer->host, check.evidence);
  return check;
}

std::string Described(const Route& route) {
  std::string text = fmt::format("{} from {}", route.interface, route.source);
  text += route.gateway.empty() ? ", directly" : fmt::format(", via {}", route.gateway);
  if (route.mtu > 0) text += fmt::format(", MTU {}", route.mtu);
  return text;
}

void AddInterfaceState(const Context& context, const Route& route, Check* check) {
  const std::string state = ReadWord(context, route.interface, "operstate");
  const std::string kind = KindOf(context, route.interface);
  if (!kind.empty()) check->evidence += fmt::format(", a {}", kind);
  if (state == "down" || state == "lowerlayerdown") {
    check->verdict = Verdict::kProblem;
    check->evidence += fmt::format(", which is {}", state);
    check->fix = fmt::format("ip link set dev {} up", ShellWord(route.interface));
  } else if (kind == "wlan" || kind == "bridge") {
    check->verdict = Verdict::kNote;
    check->evidence += kind == "wlan" ? ": a cable is faster and steadier"
                                      : ": it leads to containers or virtual machines here, or "
                                        "costs a copy on the way out";
  }
}

Check CheckRouteTo(Context* context, const net::Address& address, bool another_way) {
  Check check{IsIpv6(address) ? "route_ipv6" : "route_ipv4", Verdict::kOk, "", ""};
  const auto route = context->system->RouteTo(address);
  if (!route) {
    // One family without a route is usual; the other one carries the connection.
    check.verdict = another_way ? Verdict::kNote : Verdict::kProblem;
    check.evidence = fmt::format("no route to {}: {}", address.host, route.error().message());
    check.fix = fmt::format("ip route get {}", ShellWord(address.host));
    return check;
  }
  auto& known = context->interfaces;
  if (std::find(known.begin(), known.end(), route->interface) == known.end()) {
    known.push_back(route->interface);
  }
  check.evidence = Described(*route);
  if (route->local) {
    // Later checks then leave out what matters between machines only.
    context->loopback = true;
    check.evidence += "; the peer is this machine";
    return check;
  }
  AddInterfaceState(*context, *route, &check);
  return check;
}

const net::Address* FirstOf(const std::vector<net::Address>& addresses, bool ipv6) {
  const auto found = std::find_if(addresses.begin(), addresses.end(),
                                  [ipv6](const auto& address) { return IsIpv6(address) == ipv6; });
  return found == addresses.end() ? nullptr : &*found;
}

// ---- reach --------------------------------------------------------------------------------------

std::string WhatBecame(const Dialed& dialed) {
  const std::string at = dialed.at.ToString();
  switch (dialed.error) {
    case 0: return fmt::format("{} answers in {:.0f} us", at, dialed.rtt_us);
    case ECONNREFUSED: return fmt::format("{} refused: the machine is there, nothing listens", at);
    case ETIMEDOUT:
      return fmt::format("{} timed out: a firewall drops the packets, or no such machine is up",
                         at);
    case EHOSTUNREACH:
    case ENETUNREACH: return fmt::format("{} unreachable: {}", at, std::strerror(dialed.error));
    case EPERM:
    case EACCES: return fmt::format("{} not permitted: a firewall of this machine rejects it", at);
    default: return fmt::format("{} failed: {}", at, std::strerror(dialed.error));
  }
}

std::string FixFor(const Context& context, const Dialed& dialed) {
  const std::string host = ShellWord(context.peer->host);
  switch (dialed.error) {
    case 0: return "";
    case ECONNREFUSED:
      return fmt::format("ferry perf server --port {}  # on {}", dialed.at.port, host);
    case ETIMEDOUT:
      return fmt::format("nft list ruleset  # as root on {}: which rule drops TCP port {}", host,
                         dialed.at.port);
    case EPERM:
    case EACCES: return "nft list ruleset";
    default: return fmt::format("ip route get {}", ShellWord(dialed.at.host));
  }
}

// Some addresses may fail where others answer: a connection still comes about, but perhaps late.
Check CheckPeerPort(Context* context, std::span<const Dialed> dialed) {
  Check check{"reach", Verdict::kOk, "", ""};
  std::size_t open = 0;
  for (const Dialed& one : dialed) {
    check.evidence += (check.evidence.empty() ? "" : "; ") + WhatBecame(one);
    if (one.error == 0) {
      ++open;
      context->reached = true;
      context->rtt_us = context->rtt_us > 0 ? std::min(context->rtt_us, one.rtt_us) : one.rtt_us;
    } else if (check.fix.empty()) {
      check.fix = FixFor(*context, one);
    }
  }
  if (open < dialed.size()) check.verdict = open > 0 ? Verdict::kWarning : Verdict::kProblem;
  return check;
}

// At most kMaxDialedPorts ports of a range at even distances, both ends among them.
std::vector<net::Address> PortsToDial(const std::string& host, const PortRange& range) {
  const unsigned count = range.last - range.first + 1U;
  const unsigned tried = std::min(count, kMaxDialedPorts);
  std::vector<net::Address> ports{{host, range.first}};
  for (unsigned i = 1; i < tried; ++i) {
    ports.push_back(
        {host, static_cast<std::uint16_t>(range.first + i * (count - 1) / (tried - 1))});
  }
  return ports;
}

// "20000, 20002-20004": a run ends at a dialed port with another outcome.
std::string PortsText(std::span<const Dialed> dialed, int error) {
  std::string text;
  for (std::size_t i = 0; i < dialed.size(); ++i) {
    if (dialed[i].error != error) continue;
    const std::uint16_t first = dialed[i].at.port;
    while (i + 1 < dialed.size() && dialed[i + 1].error == error) ++i;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", first);
    if (dialed[i].at.port != first) text += fmt::format("-{}", dialed[i].at.port);
  }
  return text;
}

// The ports of a range that had one outcome.
Check CheckOutcome(const Context& context, const PortRange& range, std::span<const Dialed> dialed,
                   const Dialed& example) {
  const std::string ports = PortsText(dialed, example.error);
  Check check{range.id, Verdict::kWarning, "", FixFor(context, example)};
  switch (example.error) {
    case 0:
      check.verdict = Verdict::kOk;
      check.evidence = fmt::format("{} answered", ports);
      break;
    case ECONNREFUSED:
      check.id += "_refused";
      check.verdict = Verdict::kNote;
      check.evidence = fmt::format("{} refused: nothing listens, or a filter rejects it", ports);
      break;
    case ETIMEDOUT:
      check.id += "_timed_out";
      check.evidence = fmt::format("{} timed out: a filter drops the packets", ports);
      break;
    default:
      check.id += "_failed";
      check.evidence = fmt::format("{} failed: {}", ports, std::strerror(example.error));
  }
  const std::size_t count = range.last - range.first + std::size_t{1};
  if (count > dialed.size()) {
    check.evidence += fmt::format("; {} ports of {} were dialed", dialed.size(), count);
  }
  return check;
}

// One check for each outcome.
std::vector<Check> CheckRange(const Context& context, const PortRange& range,
                              std::span<const Dialed> dialed) {
  std::vector<Check> checks;
  std::set<int> errors;
  for (const Dialed& one : dialed) {
    if (!errors.insert(one.error).second) continue;
    checks.push_back(CheckOutcome(context, range, dialed, one));
  }
  return checks;
}

// ---- packet sizes -------------------------------------------------------------------------------

Check CheckMtu(const Context& context, std::span<const Dialed> dialed) {
  Check check{"mtu", Verdict::kOk, "", ""};
  const auto reached =
      std::find_if(dialed.begin(), dialed.end(), [](const Dialed& one) { return one.error == 0; });
  if (reached == dialed.end() || context.interfaces.empty()) {
    return Skipped(check.id,
                   "it shows on a connection, and there is "
                   "none");
  }
  const std::string& interface = context.interfaces.front();
  const auto link = NumberIn(ReadWord(context, interface, "mtu"));
  const int here = link && *link < (1U << 20) ? static_cast<int>(*link) : reached->path_mtu;
  check.evidence = fmt::format("{} {}, path {}, segments of {}", interface, here, reached->path_mtu,
                               reached->peer_segment);
  if (context.loopback) return check;
  const auto speed = NumberIn(ReadWord(context, interface, "speed"));
  if (reached->path_mtu > 0 && reached->path_mtu < here) {
    check.verdict = Verdict::kWarning;
    check.evidence += ": something on the way carries less than this interface";
    check.fix = fmt::format("tracepath -n {}", ShellWord(reached->at.host));
    // The segment is less than the MTU by the headers and by TCP options, which differ a little.
  } else if (here > kUsualMtu && reached->peer_segment + kHeaders + 100 < here) {
    check.verdict = Verdict::kWarning;
    check.evidence +=
        fmt::format(": the peer takes packets of about {} only", reached->peer_segment + kHeaders);
    check.fix = fmt::format("ip link set dev INTERFACE mtu {}  # on {}", here,
                            ShellWord(context.peer->host));
  } else if (here <= kUsualMtu && speed && *speed >= kFastLink && *speed < kNoSpeed) {
    check.verdict = Verdict::kNote;
    check.evidence += fmt::format(
        ": on a link of {} Mbit/s larger packets save CPU time, where "
        "peer and switches carry them, too",
        *speed);
    check.fix = fmt::format("ip link set dev {} mtu {}", ShellWord(interface), kJumboMtu);
  }
  return check;
}

}  // namespace

std::vector<Check> CheckRoute(Context* context, Deadline deadline) {
  if (!context->peer) return {CheckInterfaces(context)};
  std::vector<Check> checks{CheckName(context, deadline)};
  const net::Address* const ipv4 = FirstOf(context->resolved, /*ipv6=*/false);
  const net::Address* const ipv6 = FirstOf(context->resolved, /*ipv6=*/true);
  if (ipv4 != nullptr) checks.push_back(CheckRouteTo(context, *ipv4, ipv6 != nullptr));
  if (ipv6 != nullptr) checks.push_back(CheckRouteTo(context, *ipv6, ipv4 != nullptr));
  // Two families may fail each for itself; then there is no other way.
  // The first check is that of the name.
  const bool any = std::any_of(checks.begin() + 1, checks.end(),
                               [](const Check& check) { return check.verdict == Verdict::kOk; });
  if (!any && ipv4 != nullptr && ipv6 != nullptr && context->interfaces.empty()) {
    for (auto check = checks.begin() + 1; check != checks.end(); ++check) {
      check->verdict = Verdict::kProblem;
    }
  }
  return checks;
}

std::vector<Check> CheckReach(Context* context, Deadline deadline) {
  if (!context->peer) {
    return {Skipped("reach", "no peer was given; use --peer HOST")};
  }
  if (context->resolved.empty()) {
    return {Skipped("reach", "the peer has no address")};
  }
  std::vector<PortRange> ranges = context->ranges;
  if (context->config.port_first != 0) {
    ranges.push_back({"port_range", context->config.port_first, context->config.port_last});
  }
  std::vector<net::Address> all = context->resolved;
  for (const PortRange& range : ranges) {
    const auto ports = PortsToDial(context->resolved.front().host, range);
    all.insert(all.end(), ports.begin(), ports.end());
  }
  // All at once, because each address that does not answer takes the whole time.
  const std::vector<Dialed> dialed = context->system->Dial(all, deadline);
  std::span<const Dialed> rest(dialed);
  const auto take = [&rest](std::size_t count) {
    const auto first = rest.first(count);
    rest = rest.subspan(count);
    return first;
  };
  const auto at_port = take(context->resolved.size());
  std::vector<Check> checks{CheckPeerPort(context, at_port)};
  for (const PortRange& range : ranges) {
    const unsigned count = range.last - range.first + 1U;
    for (Check& check : CheckRange(*context, range, take(std::min(count, kMaxDialedPorts)))) {
      checks.push_back(std::move(check));
    }
  }
  checks.push_back(CheckMtu(*context, at_port));
  return checks;
}

Check CheckPeer(const Context& context, Deadline deadline) {
  Check check{"peer", Verdict::kOk, "", ""};
  if (!context.peer) {
    return Skipped(check.id, "no peer was given; use --peer HOST");
  }
  if (!context.reached) {
    return Skipped(check.id, "nothing answers at {}", context.peer->ToString());
  }
  const auto met = context.system->TryConnect(context.config, context.resolved, deadline);
  if (!met) {
    check.verdict = Verdict::kProblem;
    check.evidence = met.error().message();
    if (met.error().code() == Code::kCorrupt) {
      check.fix = fmt::format("ss -ltnp 'sport = :{}'  # on {}: what listens there",
                              context.peer->port, ShellWord(context.peer->host));
      // The most common reason: a peer on another machine lets nobody in without a secret.
    } else if (met.error().code() == Code::kRefused && context.config.secret.empty() &&
               context.config.secret_file.empty()) {
      check.fix = kMakeSecret;
    }
    return check;
  }
  check.evidence =
      fmt::format("endpoint {} over {}, {} lanes", met->endpoint, met->provider, met->lanes.size());
  std::string last;
  for (const net::LaneInfo& lane : met->lanes) {
    const std::string text = fmt::format("{} {}", lane.interface, lane.congestion_control);
    if (text != last) check.evidence += "; " + text;
    last = text;
  }
  return check;
}

}  // namespace ferry::tools
