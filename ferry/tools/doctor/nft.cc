// Parses the output of `nft -j list ruleset`, libnftables-json(5).
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <map>

#include "ferry/tools/doctor/firewall.h"
#include "ferry/tools/support/json.h"

namespace ferry::tools {
namespace {

constexpr std::uint64_t kLastPort = 65535;
constexpr int kTcp = 6;  // its number as an IP protocol

using Does = FilterRule::Does;
// The elements of the sets with a name, by family, table and name.
using Sets = std::map<std::string, Json>;

// The member of an object, or null for what is none.
// Lets a chain of members be followed without a check at each step: nft's output is trusted for
// nothing, and whatever is of another form counts as a condition that perhaps holds.
const Json& Member(const Json& object, const char* name) {
  static const Json null;
  if (!object.is_object()) return null;
  const auto found = object.find(name);
  return found == object.end() ? null : *found;
}

std::string Text(const Json& object, const char* name) {
  const Json& member = Member(object, name);
  return member.is_string() ? member.get<std::string>() : std::string();
}

// Sets and chains of different families or tables may have the same name.
std::string KeyOf(const Json& object, const std::string& name) {
  return fmt::format("{} {} {}", Text(object, "family"), Text(object, "table"), name);
}

// ---- text for the report ------------------------------------------------------------------------

std::string Shown(const Json& value);

std::string ShownList(const Json& list) {
  std::string text;
  for (const Json& one : list) text += (text.empty() ? "" : ", ") + Shown(one);
  return text;
}

std::string Shown(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_array()) return ShownList(value);
  if (!value.is_object() || value.empty()) return DumpJson(value);
  const std::string& key = value.begin().key();
  const Json& body = value.begin().value();
  if (key == "payload") return Text(body, "protocol") + " " + Text(body, "field");
  if (key == "meta") return Text(body, "key");
  if (key == "ct") return "ct " + Text(body, "key");
  if (key == "set") return body.is_array() ? "{ " + ShownList(body) + " }" : Shown(body);
  if (key == "prefix") {
    return fmt::format("{}/{}", Shown(Member(body, "addr")), Shown(Member(body, "len")));
  }
  if (key == "range" && body.is_array() && body.size() == 2) {
    return fmt::format("{}-{}", Shown(body[0]), Shown(body[1]));
  }
  return DumpJson(value);
}

std::string ShownStatement(const Json& statement) {
  if (!statement.is_object() || statement.empty()) return DumpJson(statement);
  const std::string& key = statement.begin().key();
  const Json& body = statement.begin().value();
  if (key == "jump" || key == "goto") return key + " " + Text(body, "target");
  if (key == "xt") return Text(body, "name");
  if (key != "match") return key;
  const std::string op = Text(body, "op");
  return fmt::format("{}{} {}", Shown(Member(body, "left")),
                     op == "==" || op == "in" ? "" : " " + op, Shown(Member(body, "right")));
}

std::string RuleText(const Json& rule) {
  std::string text;
  for (const Json& statement : Member(rule, "expr")) {
    text += (text.empty() ? "" : " ") + ShownStatement(statement);
  }
  const Json& handle = Member(rule, "handle");
  if (!handle.is_number_unsigned()) return fmt::format("\"{}\"", text);
  return fmt::format("\"{}\" (handle {})", text, DumpJson(handle));
}

// ---- conditions ---------------------------------------------------------------------------------

// The values that the right side of a comparison names; nothing where it is of another form.
std::optional<std::vector<Json>> ValuesOf(const Json& right, const Json& rule, const Sets& sets) {
  if (right.is_string() && right.get<std::string>().starts_with('@')) {
    const auto set = sets.find(KeyOf(rule, right.get<std::string>().substr(1)));
    if (set == sets.end()) return std::nullopt;
    return std::vector<Json>(set->second.begin(), set->second.end());
  }
  // Forms of the right side: a named set, an anonymous set, a list of flags, a single value.
  const Json& list = right.is_array() ? right : Member(right, "set");
  if (list.is_array()) return std::vector<Json>(list.begin(), list.end());
  return std::vector<Json>{right};
}

std::optional<std::pair<std::uint64_t, std::uint64_t>> RangeOf(const Json& value) {
  if (value.is_number_unsigned()) {
    return std::pair{value.get<std::uint64_t>(), value.get<std::uint64_t>()};
  }
  const Json& range = Member(value, "range");
  if (range.is_array() && range.size() == 2 && range[0].is_number_unsigned() &&
      range[1].is_number_unsigned()) {
    return std::pair{range[0].get<std::uint64_t>(), range[1].get<std::uint64_t>()};
  }
  const Json& element = Member(Member(value, "elem"), "val");  // with a timeout or a counter
  return element.is_null() ? std::nullopt : RangeOf(element);
}

std::optional<PortMatch> PortsOf(const std::string& op, const std::vector<Json>& values) {
  PortMatch match;
  for (const Json& value : values) {
    const auto range = RangeOf(value);
    if (!range) return std::nullopt;
    match.ranges.push_back(*range);
  }
  if (op == "==" || op == "in") return match;
  match.inverted = true;
  if (op == "!=") return match;
  if (match.ranges.size() != 1) return std::nullopt;
  const std::uint64_t bound = match.ranges.front().first;
  // A comparison becomes the range of the ports from the bound on, or its complement.
  if (op == "<") match.ranges = {{bound, kLastPort}};
  if (op == ">=") match.ranges = {{bound, kLastPort}};
  if (op == "<=") match.ranges = {{bound + 1, kLastPort}};
  if (op == ">") match.ranges = {{bound + 1, kLastPort}};
  match.inverted = op == "<" || op == "<=";
  return match;
}

// Whether a comparison with names holds for what is ours by any of its names.
Holds HoldsFor(const std::string& op, const std::vector<Json>& values,
               std::initializer_list<Json> ours) {
  const bool named =
      std::find_first_of(values.begin(), values.end(), ours.begin(), ours.end()) != values.end();
  const Holds holds = named ? Holds::kYes : Holds::kNo;
  if (op == "==" || op == "in") return holds;
  return op == "!=" ? Not(holds) : Holds::kPerhaps;
}

bool IsPort(const Json& left) {
  const Json& payload = Member(left, "payload");
  const std::string protocol = Text(payload, "protocol");
  return (protocol == "tcp" || protocol == "th") && Text(payload, "field") == "dport";
}

// Conditions on anything but ports.
Holds HoldsOf(const Json& left, const std::string& op, const std::vector<Json>& values) {
  const Json& payload = Member(left, "payload");
  const std::string protocol = Text(payload, "protocol");
  const std::string field = Text(payload, "field");
  const std::string key = Text(Member(left, "meta"), "key");
  if (key == "l4proto" || field == "protocol" || field == "nexthdr") {
    return HoldsFor(op, values, {"tcp", kTcp});
  }
  constexpr std::array kOfTcp = {"tcp", "th", "ip", "ip6", "ether", "vlan"};
  if (!protocol.empty() && std::find(kOfTcp.begin(), kOfTcp.end(), protocol) == kOfTcp.end()) {
    return Holds::kNo;  // a packet of UDP, ICMP, ...
  }
  if (key == "iifname" || key == "oifname" || key == "iif" || key == "oif") {
    // Which interface a peer's packets take is not known; that it is not the loopback is.
    if (values != std::vector<Json>{"lo"}) return Holds::kPerhaps;
    return op == "!=" ? Holds::kYes : Holds::kNo;
  }
  // A connection's first packet is what counts: those behind it are let pass as "established".
  if (Text(Member(left, "ct"), "key") == "state") return HoldsFor(op, values, {"new"});
  return Holds::kPerhaps;
}

void AddMatch(const Json& match, const Json& rule, const Sets& sets, FilterRule* parsed) {
  const Json& left = Member(match, "left");
  const std::string op = Text(match, "op");
  const auto values = ValuesOf(Member(match, "right"), rule, sets);
  // Ports are kept apart from other conditions, since the walk tries them one by one.
  if (values && IsPort(left)) {
    if (auto ports = PortsOf(op, *values)) {
      parsed->ports.push_back(*std::move(ports));
      return;
    }
  }
  const Holds holds = values && !IsPort(left) ? HoldsOf(left, op, *values) : Holds::kPerhaps;
  parsed->others = And(parsed->others, holds);
}

// ---- rules --------------------------------------------------------------------------------------

// Whether the statement says what becomes of the packet.
bool SetVerdict(const Json& statement, FilterRule* rule) {
  constexpr std::array kVerdicts = {
      std::pair{"accept", Does::kAccept}, std::pair{"drop", Does::kDrop},
      std::pair{"reject", Does::kDrop},   std::pair{"return", Does::kReturn},
      std::pair{"jump", Does::kJump},     std::pair{"goto", Does::kGoto}};
  for (const auto& [name, does] : kVerdicts) {
    if (!statement.is_object() || !statement.contains(name)) continue;
    rule->does = does;
    rule->target = Text(statement[name], "target");
    return true;
  }
  const Json& foreign = Member(statement, "xt");
  const std::string target = Text(foreign, "type") == "target" ? Text(foreign, "name") : "";
  if (target == "REJECT" || target == "DROP") rule->does = Does::kDrop;
  return !target.empty();
}

// A map of verdicts is a rule for each of its elements.
void AddMap(const Json& map, const Json& json, const FilterRule& before,
            std::vector<FilterRule>* rules) {
  const Json& elements = Member(Member(map, "data"), "set");
  if (!elements.is_array()) {
    FilterRule unknown = before;
    unknown.others = And(before.others, Holds::kPerhaps);
    unknown.does = Does::kAccept;
    rules->push_back(std::move(unknown));
    return;
  }
  for (const Json& element : elements) {
    if (!element.is_array() || element.size() != 2) continue;
    FilterRule one = before;
    const Json match{{"op", "=="}, {"left", Member(map, "key")}, {"right", element[0]}};
    AddMatch(match, json, {}, &one);
    if (SetVerdict(element[1], &one)) rules->push_back(std::move(one));
  }
}

std::vector<FilterRule> ParseRule(const Json& json, const Sets& sets) {
  FilterRule rule;
  std::vector<FilterRule> rules;
  rule.text = RuleText(json);
  for (const Json& statement : Member(json, "expr")) {
    if (!statement.is_object()) continue;
    if (statement.contains("match")) {
      AddMatch(statement["match"], json, sets, &rule);
    } else if (statement.contains("vmap")) {
      AddMap(statement["vmap"], json, rule, &rules);
      // Counters, logs and comments decide nothing; limits and foreign matches may or may not let a
      // packet through to the verdict.
    } else if (!SetVerdict(statement, &rule) &&
               (statement.contains("limit") || statement.contains("xt") ||
                statement.contains("quota") || statement.contains("connlimit") ||
                statement.contains("ct count"))) {
      rule.others = And(rule.others, Holds::kPerhaps);
    }
  }
  if (rule.does != Does::kNothing) rules.push_back(std::move(rule));
  return rules;
}

FilterChain::Way WayOf(const Json& chain) {
  // A chain that translates addresses or marks packets sees them, too, but filters in passing only.
  if (Text(chain, "type") != "filter") return FilterChain::Way::kNone;
  const std::string hook = Text(chain, "hook");
  if (hook == "input" || hook == "prerouting") return FilterChain::Way::kIn;
  return hook == "output" || hook == "postrouting" ? FilterChain::Way::kOut
                                                   : FilterChain::Way::kNone;
}

bool OfIp(const Json& object) {
  const std::string family = Text(object, "family");
  return family == "inet" || family == "ip" || family == "ip6";
}

}  // namespace

Result<std::vector<FilterChain>> ParseNft(std::string_view text) {
  const Json all = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const Json& objects = Member(all, "nftables");
  if (!objects.is_array()) {
    return Error(Code::kCorrupt,
                 fmt::format("nft printed {} bytes that are not a list of rules", text.size()));
  }
  Sets sets;
  std::vector<FilterChain> chains;
  std::map<std::string, std::size_t> index;  // of the chains, by family, table and name
  for (const Json& object : objects) {
    const Json& set = Member(object, "set");
    const Json& elements = Member(set, "elem");
    if (set.is_object()) {
      sets[KeyOf(set, Text(set, "name"))] = elements.is_array() ? elements : Json::array();
    }
    const Json& chain = Member(object, "chain");
    if (!OfIp(chain)) continue;
    FilterChain parsed;
    parsed.family = Text(chain, "family");
    parsed.table = Text(chain, "table");
    parsed.name = Text(chain, "name");
    parsed.way = WayOf(chain);
    parsed.drops = Text(chain, "policy") == "drop";
    index.emplace(KeyOf(chain, parsed.name), chains.size());
    chains.push_back(std::move(parsed));
  }
  // In a second pass, because rules refer to sets and chains that may come after them.
  for (const Json& object : objects) {
    const Json& rule = Member(object, "rule");
    const auto chain = index.find(KeyOf(rule, Text(rule, "chain")));
    if (chain == index.end()) continue;
    for (FilterRule& parsed : ParseRule(rule, sets)) {
      chains[chain->second].rules.push_back(std::move(parsed));
    }
  }
  return chains;
}

bool HasForeignRules(std::string_view nft_text) noexcept {
  return nft_text.find("\"xt\":") != std::string_view::npos;
}

}  // namespace ferry::tools
