// Tests of the doctor's firewall check with rules from nft and iptables.

#include "ferry/tools/doctor/firewall.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ferry/tools/testing/fake_system.h"

namespace ferry::tools {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Way = FilterChain::Way;

// A ruleset of one base chain "input" and one chain "other"; rules are (chain, expr).
using RuleList = std::vector<std::pair<std::string, std::string>>;
std::string Nft(const std::string& policy, const RuleList& rules, const std::string& more = "") {
  std::string text =
      R"({"nftables": [{"metainfo": {"version": "1.0.6"}}, )"
      R"({"table": {"family": "inet", "name": "filter", "handle": 1}}, )"
      R"({"chain": {"family": "inet", "table": "filter", "name": "other", "handle": 2}}, )"
      R"({"chain": {"family": "inet", "table": "filter", "name": "input", "handle": 3, )"
      R"("type": "filter", "hook": "input", "prio": 0, "policy": ")" +
      policy + "\"}}";
  int handle = 10;
  for (const auto& [chain, expression] : rules) {
    text += fmt::format(R"(, {{"rule": {{"family": "inet", "table": "filter", "chain": "{}", )"
                        R"("handle": {}, "expr": [{}]}}}})",
                        chain, handle++, expression);
  }
  return text + more + "]}";
}

std::string Match(const std::string& left, const std::string& right, const char* op = "==") {
  return fmt::format(R"({{"match": {{"op": "{}", "left": {}, "right": {}}}}})", op, left, right);
}
const std::string kPort = R"({"payload": {"protocol": "tcp", "field": "dport"}})";
const std::string kState = R"({"ct": {"key": "state"}})";
const std::string kSource = R"({"payload": {"protocol": "ip", "field": "saddr"}})";
const std::string kInterface = R"({"meta": {"key": "iifname"}})";
const std::string kDrop = R"(, {"drop": null})";
const std::string kAccept = R"(, {"accept": null})";

enum class Outcome { kOpen, kPartly, kBlocked };

Outcome OutcomeOf(const std::vector<FilterChain>& chains, std::uint16_t port = 7471) {
  const auto blocked = WhatBlocks(chains, Way::kIn, port);
  if (!blocked) return Outcome::kOpen;
  return blocked->certain ? Outcome::kBlocked : Outcome::kPartly;
}

Outcome OutcomeOf(const std::string& nft, std::uint16_t port = 7471) {
  const auto chains = ParseNft(nft);
  if (!chains) {
    ADD_FAILURE() << chains.error().message();
    return Outcome::kOpen;
  }
  return OutcomeOf(*chains, port);
}

// ---- nftables -----------------------------------------------------------------------------------

TEST(DoctorNft, APolicyOfDropBlocksWhatNoRuleAccepts) {
  EXPECT_EQ(OutcomeOf(Nft("accept", {})), Outcome::kOpen);
  EXPECT_EQ(OutcomeOf(Nft("drop", {})), Outcome::kBlocked);
  const std::string established = Match(kState, R"(["established", "related"])", "in") + kAccept;
  const std::string loopback = Match(kInterface, "\"lo\"") + kAccept;
  EXPECT_EQ(OutcomeOf(Nft("drop", {{"input", established}, {"input", loopback}})),
            Outcome::kBlocked);
  EXPECT_EQ(OutcomeOf(Nft("drop", {{"input", Match(kPort, "7471") + kAccept}})), Outcome::kOpen);
  EXPECT_EQ(OutcomeOf(Nft("drop", {{"input", Match(kState, "\"new\"", "in") + kAccept}})),
            Outcome::kOpen);
}

TEST(DoctorNft, PortsAreComparedInEveryForm) {
  struct Row {
    const char* op;
    const char* right;
    Outcome outcome;
  };
  for (const Row& row : {Row{"==", "7471", Outcome::kBlocked}, Row{"==", "7472", Outcome::kOpen},
                         Row{"!=", "7472", Outcome::kBlocked}, Row{"!=", "7471", Outcome::kOpen},
                         Row{">=", "7471", Outcome::kBlocked}, Row{">", "7471", Outcome::kOpen},
                         Row{"<=", "7471", Outcome::kBlocked}, Row{"<", "7471", Outcome::kOpen},
                         Row{"==", R"({"range": [7000, 8000]})", Outcome::kBlocked},
                         Row{"==", R"({"set": [22, {"range": [7471, 7471]}]})", Outcome::kBlocked},
                         Row{"==", R"({"set": [22, 23]})", Outcome::kOpen},
                         Row{"!=", R"({"set": [22, 7471]})", Outcome::kOpen},
                         Row{"==", R"("@ports")", Outcome::kBlocked}}) {
    const std::string set =
        R"(, {"set": {"family": "inet", "table": "filter", "name": "ports", )"
        R"("elem": [{"elem": {"val": {"range": [7000, 7500]}, "timeout": 5}}]}})";
    const std::string rules =
        Nft("accept", {{"input", Match(kPort, row.right, row.op) + kDrop}}, set);
    EXPECT_EQ(OutcomeOf(rules), row.outcome) << row.op << row.right;
  }
}

TEST(DoctorNft, WhatIsForOthersIsPassedOver) {
  for (const std::string& condition :
       {Match(kState, "\"invalid\"", "in"), Match(kSource, "\"@bad\""),
        Match(R"({"payload": {"protocol": "udp", "field": "dport"}})", "7471"),
        Match(R"({"meta": {"key": "l4proto"}})", "\"udp\""), Match(kInterface, "\"lo\""),
        Match(R"({"payload": {"protocol": "ip", "field": "protocol"}})", "1"),
        Match(R"({"payload": {"protocol": "icmp", "field": "type"}})", "\"echo-request\"")}) {
    EXPECT_EQ(OutcomeOf(Nft("accept", {{"input", condition + kDrop}})), Outcome::kOpen)
        << condition;
  }
  const std::string tcp = Match(R"({"meta": {"key": "l4proto"}})", R"({"set": ["tcp", "udp"]})");
  EXPECT_EQ(OutcomeOf(Nft("accept", {{"input", tcp + kDrop}})), Outcome::kBlocked);
}

TEST(DoctorNft, ConditionsOnThePeerBlockInPart) {
  const std::string lan = Match(kSource, R"({"prefix": {"addr": "10.0.0.0", "len": 8}})");
  EXPECT_EQ(OutcomeOf(Nft("drop", {{"input", lan + kAccept}})), Outcome::kPartly);
  EXPECT_EQ(OutcomeOf(Nft("accept", {{"input", lan + ", " + Match(kPort, "7471") + kDrop}})),
            Outcome::kPartly);
}

TEST(DoctorNft, RulesAreReadInOrder) {
  const std::string accept = Match(kPort, "7471") + kAccept;
  const std::string drop = Match(kPort, "7471") + R"(, {"reject": {"type": "tcp reset"}})";
  EXPECT_EQ(OutcomeOf(Nft("accept", {{"input", accept}, {"input", drop}})), Outcome::kOpen);
  EXPECT_EQ(OutcomeOf(Nft("accept", {{"input", drop}, {"input", accept}})), Outcome::kBlocked);
}

TEST(DoctorNft, OtherChainsAreFollowedAndReturnedFrom) {
  const std::string jump = R"({"jump": {"target": "other"}})";
  const std::string go = R"({"goto": {"target": "other"}})";
  const std::string drop = Match(kPort, "7471") + kDrop;
  const std::string back = R"({"return": null})";
  EXPECT_EQ(OutcomeOf(Nft("accept", {{"other", drop}})), Outcome::kOpen);
  EXPECT_EQ(OutcomeOf(Nft("accept", {{"other", drop}, {"input", jump}})), Outcome::kBlocked);
  EXPECT_EQ(OutcomeOf(Nft("accept", {{"other", back}, {"other", drop}, {"input", jump}})),
            Outcome::kOpen);
  EXPECT_EQ(OutcomeOf(Nft("accept", {{"other", back}, {"input", jump}, {"input", drop}})),
            Outcome::kBlocked);
  EXPECT_EQ(OutcomeOf(Nft("accept", {{"other", back}, {"input", go}, {"input", drop}})),
            Outcome::kOpen);
  const std::string lan = Match(kSource, "\"10.0.0.1\"");
  EXPECT_EQ(OutcomeOf(Nft("accept", {{"other", drop}, {"input", lan + ", " + jump}})),
            Outcome::kPartly);
  EXPECT_EQ(
      OutcomeOf(Nft("accept", {{"other", R"({"drop": null})"}, {"input", lan + ", " + jump}})),
      Outcome::kOpen);
}

TEST(DoctorNft, ChainsThatEnterEachOtherEnd) {
  const std::string jump = R"({"jump": {"target": "other"}})";
  RuleList rules{{"input", jump}};
  for (int i = 0; i < 50; ++i) rules.emplace_back("other", jump);
  EXPECT_EQ(OutcomeOf(Nft("accept", rules)), Outcome::kOpen);
}

TEST(DoctorNft, MapsOfVerdictsAreRulesOfTheirElements) {
  const std::string by_port = R"({"vmap": {"key": )" + kPort +
                              R"(, "data": {"set": [[22, {"accept": null}], )"
                              R"([{"range": [7471, 7480]}, {"drop": null}]]}}})";
  EXPECT_EQ(OutcomeOf(Nft("accept", {{"input", by_port}})), Outcome::kBlocked);
  EXPECT_EQ(OutcomeOf(Nft("drop", {{"input", by_port}}), 22), Outcome::kOpen);
  const std::string by_state = R"({"vmap": {"key": )" + kState +
                               R"(, "data": {"set": [["invalid", {"drop": null}], )"
                               R"(["established", {"accept": null}]]}}})";
  EXPECT_EQ(OutcomeOf(Nft("accept", {{"input", by_state}})), Outcome::kOpen);
  EXPECT_EQ(OutcomeOf(Nft("drop", {{"input", by_state}})), Outcome::kBlocked);
  const std::string elsewhere = R"({"vmap": {"key": )" + kPort + R"(, "data": "@map"}})";
  EXPECT_EQ(OutcomeOf(Nft("drop", {{"input", elsewhere}})), Outcome::kPartly);
}

TEST(DoctorNft, ALimitedRateBlocksInPart) {
  const std::string limit = Match(kPort, "7471") + R"(, {"limit": {"rate": 5}})";
  EXPECT_EQ(OutcomeOf(Nft("accept", {{"input", limit + kDrop}})), Outcome::kPartly);
}

TEST(DoctorNft, GarbageIsAnErrorOrPassedOver) {
  for (const char* text : {"", "[]", "{}", "{\"nftables\": 1}", "not json", "{\"nftables\": [}"}) {
    EXPECT_FALSE(ParseNft(text)) << text;
  }
  for (const char* text :
       {R"({"nftables": [1, null, "x", [], {"chain": 5}, {"rule": []}, {"set": {}}]})",
        R"({"nftables": [{"chain": {"family": 1, "name": {}}}, {"rule": {"family": "ip"}}]})"}) {
    const auto chains = ParseNft(text);
    ASSERT_TRUE(chains) << text;
    EXPECT_TRUE(chains->empty()) << text;
  }
  for (const char* expression :
       {"1", "null", "{}", R"({"match": 1})", R"({"match": {"op": 1, "left": [], "right": {}}})",
        R"({"vmap": 1})", R"({"vmap": {"key": 1, "data": {"set": [1, [], [1, 2]]}}})",
        R"({"jump": null})", R"({"jump": {"target": 5}})", R"({"xt": 1})"}) {
    EXPECT_EQ(OutcomeOf(Nft("accept", {{"input", expression}})), Outcome::kOpen) << expression;
  }
  const std::string odd = Match(kPort, R"({"range": [1, "x"]})");
  EXPECT_EQ(OutcomeOf(Nft("accept", {{"input", odd + kDrop}})), Outcome::kOpen);
}

// ---- iptables -----------------------------------------------------------------------------------

Outcome OutcomeOfRules(const std::string& rules, const std::string& policy = "ACCEPT") {
  return OutcomeOf(ParseIptables("*filter\n:INPUT " + policy +
                                     " [0:0]\n:OUTPUT ACCEPT [0:0]\n:X - [0:0]\n" + rules +
                                     "\nCOMMIT\n",
                                 "ip"));
}

TEST(DoctorIptables, RulesAreReadInEveryForm) {
  struct Row {
    const char* rule;
    Outcome outcome;
  };
  for (const Row& row :
       {Row{"-A INPUT -p tcp -m tcp --dport 7471 -j DROP", Outcome::kBlocked},
        Row{"-A INPUT -p tcp -m tcp --dport 7000:8000 -j REJECT --reject-with tcp-reset",
            Outcome::kBlocked},
        Row{"-A INPUT -p tcp -m multiport --dports 22,7471 -j DROP", Outcome::kBlocked},
        Row{"-A INPUT -p tcp -m tcp ! --dport 22 -j DROP", Outcome::kBlocked},
        Row{"-A INPUT -p tcp -m tcp ! --dport 7471 -j DROP", Outcome::kOpen},
        Row{"-A INPUT -p udp -m udp --dport 7471 -j DROP", Outcome::kOpen},
        Row{"-A INPUT ! -p udp -j DROP", Outcome::kBlocked},
        Row{"-A INPUT -i lo -j DROP", Outcome::kOpen},
        Row{"-A INPUT ! -i lo -j DROP", Outcome::kBlocked},
        Row{"-A INPUT -m conntrack --ctstate INVALID -j DROP", Outcome::kOpen},
        Row{"-A INPUT -m conntrack --ctstate INVALID,NEW -j DROP", Outcome::kBlocked},
        Row{"-A INPUT -s 10.0.0.0/8 -j DROP", Outcome::kOpen},
        Row{"-A INPUT -s 10.0.0.0/8 -p tcp -m tcp --dport 7471 -j DROP", Outcome::kPartly},
        Row{"-A INPUT -m comment --comment \"-j DROP \\\" x\" -j LOG", Outcome::kOpen},
        Row{"-A X -p tcp --dport 7471 -j DROP\n-A INPUT -j X", Outcome::kBlocked},
        Row{"-A X -j RETURN\n-A X -j DROP\n-A INPUT -j X", Outcome::kOpen},
        Row{"-A INPUT -p tcp --dport 99999999999999999999 -j DROP", Outcome::kOpen},
        Row{"-A INPUT -p tcp --dport", Outcome::kOpen},
        Row{"-A INPUT -j", Outcome::kOpen},
        Row{"-A NOWHERE -j DROP", Outcome::kOpen},
        Row{"-A \"INPUT", Outcome::kOpen}}) {
    EXPECT_EQ(OutcomeOfRules(row.rule), row.outcome) << row.rule;
  }
  EXPECT_EQ(OutcomeOfRules("", "DROP"), Outcome::kBlocked);
  EXPECT_EQ(OutcomeOfRules("-A INPUT -p tcp --dport 7471 -j ACCEPT", "DROP"), Outcome::kOpen);
  EXPECT_EQ(OutcomeOfRules("-A INPUT -s 10.0.0.0/8 -j ACCEPT", "DROP"), Outcome::kPartly);
}

// ---- the check ----------------------------------------------------------------------------------

TEST(DoctorFirewall, NamesChainRuleAndTheCommandThatLetsPass) {
  FakeSystem system;
  system.Answer("nft", CommandEnd{0, Nft("accept", {{"input", Match(kPort, "7471") + kDrop}}), ""});
  const auto checks = CheckFirewall(RunAlone(&system), Soon());
  ASSERT_EQ(checks.size(), 1U);
  EXPECT_EQ(checks[0].id, "firewall_in");
  EXPECT_EQ(checks[0].verdict, Verdict::kWarning);
  EXPECT_EQ(checks[0].evidence,
            "connections from other machines to port 7471 are blocked by chain inet filter input, "
            "rule \"tcp dport 7471 drop\" (handle 10)");
  EXPECT_EQ(checks[0].fix, "nft insert rule inet filter input tcp dport 7471-7472 accept");
}

TEST(DoctorFirewall, LooksAtTheRangeThatIsSetAndAtTheWayOut) {
  FakeSystem system;
  system.Answer("nft", CommandEnd{1, "", "Operation not permitted\n"});
  system.Answer("iptables-save", CommandEnd{0,
                                            "*filter\n:INPUT ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n"
                                            "-A INPUT -p tcp --dport 9001 -j DROP\n"
                                            "-A OUTPUT -p tcp --dport 7471 -j DROP\nCOMMIT\n",
                                            ""});
  Context context = RunTo(&system);
  context.config.port_first = 9000;
  context.config.port_last = 9002;
  const auto checks = CheckFirewall(context, Soon());
  ASSERT_EQ(checks.size(), 2U);
  EXPECT_THAT(checks[0].evidence, AllOf(HasSubstr("to port 9001"), HasSubstr("ip filter INPUT")));
  EXPECT_EQ(checks[0].fix, "iptables -t filter -I INPUT -p tcp --dport 9000:9002 -j ACCEPT");
  EXPECT_EQ(checks[1].id, "firewall_out");
  EXPECT_THAT(checks[1].evidence, HasSubstr("-A OUTPUT -p tcp --dport 7471 -j DROP"));
}

// nft shows iptables' own conditions by their names only.
TEST(DoctorFirewall, TablesOfIptablesAreReadFromIptables) {
  FakeSystem system;
  std::string rules =
      Nft("drop", {{"input", R"({"xt": {"type": "match", "name": "multiport"}})" + kAccept}});
  for (auto at = rules.find("\"inet\""); at != std::string::npos; at = rules.find("\"inet\"")) {
    rules.replace(at, 6, "\"ip\"");
  }
  system.Answer("nft", CommandEnd{0, rules, ""});
  EXPECT_EQ(CheckFirewall(RunAlone(&system), Soon())[0].verdict, Verdict::kNote);
  system.Answer("iptables-save",
                CommandEnd{0,
                           "*filter\n:input DROP [0:0]\n:INPUT DROP [0:0]\n"
                           "-A INPUT -p tcp -m multiport --dports 7471,7472 -j ACCEPT\nCOMMIT\n",
                           ""});
  EXPECT_EQ(CheckFirewall(RunAlone(&system), Soon())[0].verdict, Verdict::kOk);
}

TEST(DoctorFirewall, WhereNobodyMayAskItIsSkippedWithTheReason) {
  FakeSystem system;
  system.Answer("nft", CommandEnd{1, "", "Operation not permitted (you must be root)\nmore"});
  Check check = CheckFirewall(RunAlone(&system), Soon())[0];
  EXPECT_EQ(check.verdict, Verdict::kSkipped);
  EXPECT_THAT(check.evidence, AllOf(HasSubstr("you must be root"), HasSubstr("root's to read")));
  EXPECT_EQ(check.fix, "sudo ferry doctor");
  system.commands.clear();
  check = CheckFirewall(RunAlone(&system), Soon())[0];
  EXPECT_EQ(check.verdict, Verdict::kSkipped);
  EXPECT_THAT(check.evidence, HasSubstr("not installed"));
  system.Answer("nft", Error(Code::kTimedOut, "nft was killed"));
  check = CheckFirewall(RunAlone(&system), Soon())[0];
  EXPECT_EQ(check.verdict, Verdict::kSkipped);
  EXPECT_EQ(check.evidence, "nft was killed");
  system.Answer("nft", CommandEnd{0, "garbage", ""});
  EXPECT_EQ(CheckFirewall(RunAlone(&system), Soon())[0].verdict, Verdict::kSkipped);
}

}  // namespace
}  // namespace ferry::tools
