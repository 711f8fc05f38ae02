// Doctor check of packet filters, from the rules that nft and iptables print.

#include "ferry/tools/doctor/firewall.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "ferry/tools/doctor/checks.h"

namespace ferry::tools {
namespace {

constexpr int kMaxDepth = 16;     // of chains that enter chains
constexpr int kMaxSteps = 20000;  // of a walk; rules may fork without end
constexpr std::size_t kMaxCheckedPorts = 64;

// ---- walking the rules --------------------------------------------------------------------------

Holds Matches(const FilterRule& rule, std::uint16_t port) {
  for (const PortMatch& match : rule.ports) {
    const bool inside = std::any_of(
        match.ranges.begin(), match.ranges.end(),
        [port](const auto& range) { return range.first <= port && port <= range.second; });
    if (inside == match.inverted) return Holds::kNo;
  }
  return rule.others;
}

// Chains by their names: container hosts have thousands.
using Index = std::map<std::string, const FilterChain*, std::less<>>;

std::string KeyOf(const FilterChain& chain, const std::string& name) {
  return fmt::format("{} {} {}", chain.family, chain.table, name);
}

// Follows a packet for one port through the rules, as the kernel does, with three-valued
// conditions: what cannot be decided here (addresses, interfaces, rates) perhaps holds. The
// question is whether a new connection from some peer can be dropped, and whether that is certain
// for every peer.
class Walk {
 public:
  Walk(const Index& chains, std::uint16_t port) : chains_(chains), port_(port) {}

  std::optional<Blocked> Enter(const FilterChain& base) {
    base_ = &base;
    // Decided without blocked_: it is accepted.
    if (Rules(base, 0)) return blocked_;
    if (!base.drops) return std::nullopt;
    return Blocked{fmt::format("{}, policy drop", NameOf(base)), &base, !perhaps_accepted_};
  }

 private:
  static std::string NameOf(const FilterChain& chain) {
    return "chain " + KeyOf(chain, chain.name);
  }

  enum class Next { kRule, kLeave, kDecided };

  // True when the packet's fate is decided: blocked_ is set, or it is accepted.
  bool Rules(const FilterChain& chain, int depth) {
    for (const FilterRule& rule : chain.rules) {
      // Given up; counts as accepted, so that the doctor reports only what it has found.
      if (++steps_ > kMaxSteps) return true;
      const Holds holds = Matches(rule, port_);
      const Next next = holds == Holds::kNo ? Next::kRule : Take(chain, rule, holds, depth);
      if (next != Next::kRule) return next == Next::kDecided;
    }
    return false;
  }

  Next Take(const FilterChain& chain, const FilterRule& rule, Holds holds, int depth) {
    const bool surely = holds == Holds::kYes;
    switch (rule.does) {
      case FilterRule::Does::kNothing: return Next::kRule;
      case FilterRule::Does::kReturn: return surely ? Next::kLeave : Next::kRule;
      case FilterRule::Does::kAccept:
        if (surely) return Next::kDecided;
        perhaps_accepted_ = true;
        return Next::kRule;
      case FilterRule::Does::kDrop: return Drop(chain, rule, holds) ? Next::kDecided : Next::kRule;
      case FilterRule::Does::kJump:
        return Follow(chain, rule, holds, depth) ? Next::kDecided : Next::kRule;
      case FilterRule::Does::kGoto:
        if (Follow(chain, rule, holds, depth)) return Next::kDecided;
        return surely ? Next::kLeave : Next::kRule;
    }
    return Next::kRule;
  }

  // A rule that perhaps drops counts when it names the port; others drop what is odd (invalid
  // packets, listed addresses), and every firewall has some.
  bool Drop(const FilterChain& chain, const FilterRule& rule, Holds holds) {
    if (holds == Holds::kPerhaps && rule.ports.empty()) return false;
    blocked_ = Blocked{fmt::format("{}, rule {}", NameOf(chain), rule.text), base_,
                       holds == Holds::kYes && !perhaps_accepted_};
    drop_names_port_ = !rule.ports.empty();
    return true;
  }

  bool Follow(const FilterChain& from, const FilterRule& rule, Holds holds, int depth) {
    const auto to = chains_.find(KeyOf(from, rule.target));
    // A chain that is missing cannot drop anything; the depth bounds chains that enter each other.
    if (to == chains_.end() || depth == kMaxDepth) return false;
    if (!Rules(*to->second, depth + 1)) return false;
    if (holds == Holds::kYes) return true;
    // Whoever comes into that chain is decided there, and perhaps nobody of ours does.
    if (!blocked_) {
      perhaps_accepted_ = true;
      return false;
    }
    // Neither the jump nor the drop has to do with this port: odd packets, as in Drop().
    if (rule.ports.empty() && !drop_names_port_) {
      blocked_.reset();
      return false;
    }
    blocked_->certain = false;
    return true;
  }

  const Index& chains_;
  const std::uint16_t port_;
  const FilterChain* base_ = nullptr;
  std::optional<Blocked> blocked_;
  bool drop_names_port_ = false;
  bool perhaps_accepted_ = false;
  int steps_ = 0;
};

// ---- asking for the rules -----------------------------------------------------------------------

Error NotPermitted(const char* program, const CommandEnd& end) {
  const auto line = end.err.substr(0, std::min(end.err.find('\n'), std::size_t{200}));
  return Error(Code::kRefused, fmt::format("{} ended with {}: {}", program, end.exit_code,
                                           line.empty() ? "it says nothing" : line));
}

Result<std::string> Output(SystemView* system, const std::vector<std::string>& arguments,
                           Deadline deadline) {
  FERRY_TRY_ASSIGN(CommandEnd end, system->Run(arguments, deadline));
  if (end.exit_code != 0) return NotPermitted(arguments.front().c_str(), end);
  return std::move(end.out);
}

Result<std::vector<FilterChain>> AskIptables(SystemView* system, Deadline deadline) {
  FERRY_TRY_ASSIGN(const std::string ipv4, Output(system, {"iptables-save"}, deadline));
  std::vector<FilterChain> chains = ParseIptables(ipv4, "ip");
  if (const auto ipv6 = Output(system, {"ip6tables-save"}, deadline)) {
    for (FilterChain& chain : ParseIptables(*ipv6, "ip6")) chains.push_back(std::move(chain));
  }
  return chains;
}

// ---- the verdict --------------------------------------------------------------------------------

std::vector<std::uint16_t> ListeningPorts(const Config& config) {
  if (config.port_first == 0) return {kPerfPort, kTransferPort};
  std::vector<std::uint16_t> ports;
  for (unsigned port = config.port_first;
       port <= config.port_last && ports.size() < kMaxCheckedPorts; ++port) {
    ports.push_back(static_cast<std::uint16_t>(port));
  }
  return ports;
}

// One check for each way, because both may be blocked, by different rules.
Check CheckWay(const FilterRules& rules, FilterChain::Way way,
               const std::vector<std::uint16_t>& ports) {
  const bool in = way == FilterChain::Way::kIn;
  Check check{in ? "firewall_in" : "firewall_out", Verdict::kOk, "", ""};
  std::string last;
  for (const std::uint16_t port : ports) {
    const auto blocked = WhatBlocks(rules.chains, way, port);
    // Ports next to each other are usually blocked by the same rule, which is told once.
    if (!blocked || blocked->by == last) continue;
    last = blocked->by;
    check.verdict = std::max(check.verdict, blocked->certain ? Verdict::kWarning : Verdict::kNote);
    check.evidence += fmt::format(
        "{}connections {} port {} are blocked by {}{}", check.evidence.empty() ? "" : "; ",
        in ? "from other machines to" : "to a peer's", port, blocked->by,
        blocked->certain ? "" : ", but for some that its conditions or a rule before it let pass");
    if (check.fix.empty()) {
      check.fix = CommandToPass(*blocked->base, ports.front(), ports.back());
    }
  }
  if (!check.evidence.empty()) return check;
  check.evidence =
      fmt::format("no rule of {} blocks TCP port {}{}", rules.source, ports.front(),
                  ports.size() == 1 ? std::string() : fmt::format(" to {}", ports.back()));
  return check;
}

}  // namespace

// nft shows all rules of the kernel but cannot express some conditions of iptables; iptables-save
// shows those, but only its own tables. So each is asked for what it knows better.
Result<FilterRules> AskForRules(SystemView* system, Deadline deadline) {
  const auto nft = Output(system, {"nft", "-j", "list", "ruleset"}, deadline);
  auto chains = nft ? ParseNft(*nft) : Result<std::vector<FilterChain>>(nft.error());
  if (chains && !HasForeignRules(*nft)) return FilterRules{*std::move(chains), "nft"};
  auto older = AskIptables(system, deadline);
  if (!older) {
    if (chains) return FilterRules{*std::move(chains), "nft"};
    // The reason why nft failed says more, unless nft is not installed.
    return chains.error().code() == Code::kUnsupported ? older.error() : chains.error();
  }
  if (!chains) return FilterRules{*std::move(older), "iptables-save"};
  // nft shows those tables, too, without the conditions that it does not know.
  const auto told_better = [&](const FilterChain& chain) {
    return std::any_of(older->begin(), older->end(), [&](const FilterChain& other) {
      return other.family == chain.family && other.table == chain.table && other.name == chain.name;
    });
  };
  chains->erase(std::remove_if(chains->begin(), chains->end(), told_better), chains->end());
  for (FilterChain& chain : *older) chains->push_back(std::move(chain));
  return FilterRules{*std::move(chains), "nft and iptables-save"};
}

Holds And(Holds a, Holds b) noexcept {
  if (a == Holds::kNo || b == Holds::kNo) return Holds::kNo;
  return a == Holds::kYes && b == Holds::kYes ? Holds::kYes : Holds::kPerhaps;
}

Holds Not(Holds holds) noexcept {
  if (holds == Holds::kPerhaps) return holds;
  return holds == Holds::kYes ? Holds::kNo : Holds::kYes;
}

std::string CommandToPass(const FilterChain& base, std::uint16_t first, std::uint16_t last) {
  const auto ports = [&](char dash) {
    return first == last ? std::to_string(first) : fmt::format("{}{}{}", first, dash, last);
  };
  if (!base.of_iptables) {
    return fmt::format("nft insert rule {} {} {} tcp dport {} accept", base.family,
                       ShellWord(base.table), ShellWord(base.name), ports('-'));
  }
  return fmt::format("{} -t {} -I {} -p tcp --dport {} -j ACCEPT",
                     base.family == "ip6" ? "ip6tables" : "iptables", base.table,
                     ShellWord(base.name), ports(':'));
}

std::optional<Blocked> WhatBlocks(const std::vector<FilterChain>& chains, FilterChain::Way way,
                                  std::uint16_t port) {
  Index index;
  for (const FilterChain& chain : chains) index.emplace(KeyOf(chain, chain.name), &chain);
  std::optional<Blocked> found;
  for (const FilterChain& chain : chains) {
    if (chain.way != way) continue;
    auto blocked = Walk(index, port).Enter(chain);
    // Each base chain decides by itself, and one that drops is enough; the first certain one is
    // told.
    if (!blocked || (found && (found->certain || !blocked->certain))) continue;
    found = std::move(blocked);
  }
  return found;
}

std::vector<Check> CheckFirewall(const Context& context, Deadline deadline) {
  const auto rules = AskForRules(context.system, deadline);
  if (!rules) {
    const bool refused = rules.error().code() == Code::kRefused;
    Check check = Skipped("firewall", rules.error());
    if (refused) check.evidence += "; the rules are root's to read";
    check.fix = refused ? "sudo ferry doctor" : "sudo nft list ruleset";
    return {check};
  }
  std::vector<Check> checks{
      CheckWay(*rules, FilterChain::Way::kIn, ListeningPorts(context.config))};
  // Nothing goes out to a peer on this machine.
  if (context.peer && !context.loopback) {
    checks.push_back(CheckWay(*rules, FilterChain::Way::kOut, {context.peer->port}));
  }
  return checks;
}

}  // namespace ferry::tools
