// Parses the output of iptables-save(8).
#include <algorithm>
#include <charconv>
#include <sstream>

#include "ferry/tools/doctor/firewall.h"

namespace ferry::tools {
namespace {

using Does = FilterRule::Does;

// Words, of which a quoted one may hold blanks; a backslash takes the next letter as it is.
std::vector<std::string> Split(const std::string& line) {
  std::vector<std::string> words;
  std::string word;
  bool inside = false;
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (c == '\\' && i + 1 < line.size()) {
      word += line[++i];
      inside = true;
    } else if (c == '"') {
      quoted = !quoted;
      inside = true;
    } else if (c == ' ' && !quoted) {
      if (inside) words.push_back(std::move(word));
      word.clear();
      inside = false;
    } else {
      word += c;
      inside = true;
    }
  }
  if (inside) words.push_back(std::move(word));
  return words;
}

// "22,80:90"
std::optional<PortMatch> PortsOf(const std::string& text, bool inverted) {
  PortMatch match;
  match.inverted = inverted;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    std::uint64_t first = 0;
    std::uint64_t last = 0;
    const char* const end = part.data() + part.size();
    auto parsed = std::from_chars(part.data(), end, first);
    last = first;
    if (parsed.ec == std::errc() && parsed.ptr != end && *parsed.ptr == ':') {
      parsed = std::from_chars(parsed.ptr + 1, end, last);
    }
    if (parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;
    match.ranges.emplace_back(first, last);
  }
  return match;
}

bool ListHas(const std::string& list, const std::string& word) {
  return ("," + list + ",").find("," + word + ",") != std::string::npos;
}

// An option that is a condition, with its value.
void AddCondition(const std::string& option, const std::string& value, bool inverted,
                  FilterRule* rule) {
  const auto add = [&](Holds holds) {
    rule->others = And(rule->others, inverted ? Not(holds) : holds);
  };
  if (option == "-m" || option == "--comment") return;
  if (option == "-p") return add(value == "tcp" || value == "all" ? Holds::kYes : Holds::kNo);
  if (option == "-i" || option == "-o") return add(value == "lo" ? Holds::kNo : Holds::kPerhaps);
  if (option == "--ctstate" || option == "--state") {
    return add(ListHas(value, "NEW") ? Holds::kYes : Holds::kNo);
  }
  if (option == "--dport" || option == "--dports" || option == "--ports") {
    // --ports is content with the source's port, too; that is of no use to somebody who dials.
    if (auto ports = PortsOf(value, inverted)) {
      rule->ports.push_back(*std::move(ports));
      return;
    }
  }
  add(Holds::kPerhaps);
}

void SetTarget(const std::string& option, const std::string& target, FilterRule* rule) {
  if (target == "ACCEPT") {
    rule->does = Does::kAccept;
  } else if (target == "DROP" || target == "REJECT") {
    rule->does = Does::kDrop;
  } else if (target == "RETURN") {
    rule->does = Does::kReturn;
  } else {
    // A chain, or something that goes on with the next rule; the walk knows which.
    rule->does = option == "-g" ? Does::kGoto : Does::kJump;
    rule->target = target;
  }
}

// Parses a rule, "-A CHAIN ...".
FilterRule ParseRule(const std::string& line, const std::vector<std::string>& words) {
  FilterRule rule;
  rule.text = "\"" + line + "\"";
  bool inverted = false;
  for (std::size_t i = 2; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "!") {
      inverted = true;
      continue;
    }
    if (!word.starts_with('-')) continue;  // another value of the option before
    const std::string value = i + 1 < words.size() ? words[i + 1] : std::string();
    if (word == "-j" || word == "-g") {
      SetTarget(word, value, &rule);
      break;  // the rest are the target's own options
    }
    AddCondition(word, value, inverted, &rule);
    if (word == "--comment") ++i;  // which may begin with a dash
    inverted = false;
  }
  return rule;
}

FilterChain::Way WayOf(const std::string& table, const std::string& name) {
  if (table == "nat") return FilterChain::Way::kNone;
  if (name == "INPUT" || name == "PREROUTING") return FilterChain::Way::kIn;
  return name == "OUTPUT" || name == "POSTROUTING" ? FilterChain::Way::kOut
                                                   : FilterChain::Way::kNone;
}

}  // namespace

std::vector<FilterChain> ParseIptables(std::string_view text, const std::string& family) {
  std::vector<FilterChain> chains;
  std::string table;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('*')) table = line.substr(1);
    const auto words = Split(line);
    if (words.size() < 2) continue;
    if (line.starts_with(':')) {
      FilterChain chain;
      chain.family = family;
      chain.table = table;
      chain.name = words[0].substr(1);
      chain.way = WayOf(table, chain.name);
      chain.drops = words[1] == "DROP";
      chain.of_iptables = true;
      chains.push_back(std::move(chain));
    } else if (words[0] == "-A") {
      const auto chain = std::find_if(chains.begin(), chains.end(), [&](const FilterChain& one) {
        return one.table == table && one.name == words[1];
      });
      if (chain != chains.end()) chain->rules.push_back(ParseRule(line, words));
    }
  }
  return chains;
}

}  // namespace ferry::tools
