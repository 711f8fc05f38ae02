// A model of packet filters that tells whether a new TCP connection to a port passes.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/result.h"
#include "ferry/tools/doctor/system.h"

namespace ferry::tools {

// Whether a condition holds for a connection from or to another machine.
enum class Holds { kYes, kNo, kPerhaps };
Holds And(Holds a, Holds b) noexcept;
Holds Not(Holds holds) noexcept;

struct PortMatch {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;  // inclusive
  bool inverted = false;
};

struct FilterRule {
  enum class Does { kNothing, kAccept, kDrop, kJump, kGoto, kReturn };

  std::string text;  // for the report: quoted, and where to find it
  // Conditions: each of the ports, and all others together.
  std::vector<PortMatch> ports;
  Holds others = Holds::kYes;
  Does does = Does::kNothing;
  std::string target;  // the chain, of jump and goto
};

struct FilterChain {
  enum class Way { kNone, kIn, kOut };  // kNone: entered from other chains only

  std::string family;  // "inet", "ip" or "ip6"
  std::string table;
  std::string name;
  Way way = Way::kNone;
  bool drops = false;  // the policy for packets that no rule decides
  bool of_iptables = false;
  std::vector<FilterRule> rules;
};

// The rules of this machine.
struct FilterRules {
  std::vector<FilterChain> chains;
  std::string source;  // the programs that listed them
};
// Errors: kRefused where only root may read them, kUnsupported, kTimedOut, kCorrupt.
Result<FilterRules> AskForRules(SystemView* system, Deadline deadline);

// The output of `nft -j list ruleset`. Errors: kCorrupt.
Result<std::vector<FilterChain>> ParseNft(std::string_view text);
// Whether it has conditions that only iptables-save prints.
bool HasForeignRules(std::string_view nft_text) noexcept;
// The output of iptables-save ("ip") or ip6tables-save ("ip6"). An unknown option counts as a
// condition that may hold.
std::vector<FilterChain> ParseIptables(std::string_view text, const std::string& family);

// The rule or policy that blocks connections to a port.
struct Blocked {
  std::string by;           // "chain inet filter input, rule \"tcp dport 7471 drop\""
  const FilterChain* base;  // the base chain of the packet; an accept there lets it pass
  bool certain = true;      // false: some connections pass
};
std::optional<Blocked> WhatBlocks(const std::vector<FilterChain>& chains, FilterChain::Way way,
                                  std::uint16_t port);
// The command that lets the ports (both ends included) pass a base chain.
std::string CommandToPass(const FilterChain& base, std::uint16_t first, std::uint16_t last);

}  // namespace ferry::tools
