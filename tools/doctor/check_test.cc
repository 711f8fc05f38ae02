// Tests of the doctor's verdicts, text and JSON.

#include "tools/doctor/check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tools/support/json.h"
#include "tools/testing/fake_system.h"

namespace ferry::tools {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(DoctorReport, TheWorstDecidesTheExitCode) {
  const auto code = [](const std::vector<Verdict>& verdicts) {
    std::vector<Check> checks;
    for (const Verdict verdict : verdicts) checks.push_back({"x", verdict, "", ""});
    return static_cast<int>(ExitCodeOf(WorstOf(checks)));
  };
  EXPECT_EQ(code({}), 0);
  EXPECT_EQ(code({Verdict::kNote, Verdict::kSkipped, Verdict::kOk}), 0);
  EXPECT_EQ(code({Verdict::kOk, Verdict::kWarning, Verdict::kNote}), 5);
  EXPECT_EQ(code({Verdict::kProblem, Verdict::kWarning}), 6);
}

TEST(DoctorReport, JsonHasEveryField) {
  const Json json = ToJson({{"swap", Verdict::kNote, "in use", "swapoff -a"}});
  EXPECT_EQ(DumpJson(json), R"({"checks":[{"id":"swap","verdict":"note","evidence":"in use",)"
                            R"("fix":"swapoff -a"}],"worst":"note"})");
}

TEST(DoctorReport, TextIsAlignedAndCommandsAreNotBroken) {
  std::string evidence;
  for (int i = 0; i < 40; ++i) evidence += "word ";
  const std::string command = "sysctl -w " + std::string(200, 'x');
  const std::string text = DoctorText({{"swap", Verdict::kWarning, evidence, command}});
  EXPECT_THAT(text, AllOf(HasSubstr("warning  swap                  word word"),
                          HasSubstr("\n" + std::string(31, ' ') + "word"),
                          HasSubstr("\n" + std::string(31, ' ') + "$ " + command + "\n"),
                          HasSubstr("problem 0, warning 1, note 0, ok 0, skipped 0"),
                          HasSubstr("/etc/sysctl.d")));
  EXPECT_THAT(DoctorText({}), Not(HasSubstr("sysctl")));
}

TEST(DoctorReport, ControlCharactersOfEvidenceAreShown) {
  EXPECT_THAT(DoctorText({{"peer", Verdict::kProblem, "a\x1b[2J", ""}}), HasSubstr("a\\x1b[2J"));
}

TEST(DoctorReport, WordsForTheShellAreQuotedWhereTheyNeedIt) {
  EXPECT_EQ(ShellWord("node7.example:80"), "node7.example:80");
  EXPECT_EQ(ShellWord(""), "''");
  EXPECT_EQ(ShellWord("-rf"), "'-rf'");
  EXPECT_EQ(ShellWord("a b"), "'a b'");
  EXPECT_EQ(ShellWord("a'b"), "'a'\\''b'");
  EXPECT_EQ(ShellWord("[::1]"), "'[::1]'");
}

TEST(DoctorNumbers, OnlyWholeNumbersAreNumbers) {
  EXPECT_EQ(NumberIn(" 12\n"), 12U);
  for (const char* text : {"", " ", "-1", "1.5", "1 2", "0x1", "99999999999999999999"}) {
    EXPECT_FALSE(NumberIn(text)) << text;
  }
}

TEST(DoctorNumbers, CoreListsAreParsed) {
  EXPECT_EQ(CoreList("8,0-2"), (std::vector<int>{0, 1, 2, 8}));
  for (const char* text : {"", "x", "2-1", "1-", "-", "0-1000000000"}) {
    EXPECT_TRUE(CoreList(text).empty()) << text;
  }
}

// ---- settings -----------------------------------------------------------------------------------

TEST(DoctorSettings, VariablesThatFitAreListed) {
  FakeSystem system;
  EXPECT_EQ(CheckSettings(&system, {}).evidence, "no FERRY_ variable is set");
  system.environment = {{"FERRY_LANES", "4"}, {"HOME", "/"}};
  const Check check = CheckSettings(&system, {});
  EXPECT_EQ(check.verdict, Verdict::kOk);
  EXPECT_EQ(check.evidence, "from the environment: FERRY_LANES");
}

TEST(DoctorSettings, AnUnknownVariableIsAWarning) {
  FakeSystem system;
  system.environment = {{"FERRY_LANE", "4"}};
  const Check check = CheckSettings(&system, {});
  EXPECT_EQ(check.verdict, Verdict::kWarning);
  EXPECT_EQ(check.evidence, "FERRY_LANE is not a setting; did you mean FERRY_LANES?");
  EXPECT_EQ(check.fix, "unset FERRY_LANE");
}

TEST(DoctorSettings, ABadValueIsAProblem) {
  FakeSystem system;
  system.environment = {{"FERRY_LANES", "many"}, {"FERRY_SPIN", "1ms"}};
  const Check check = CheckSettings(&system, Error(Code::kInvalidArgument, "FERRY_LANES is bad"));
  EXPECT_EQ(check.verdict, Verdict::kProblem);
  EXPECT_THAT(check.evidence, HasSubstr("FERRY_LANES is bad"));
  EXPECT_EQ(check.fix, "unset FERRY_LANES");
}

TEST(DoctorSecret, NoneIsANoteAndAnUnreadableOneAProblem) {
  FakeSystem system;
  Context context = RunAlone(&system);
  EXPECT_EQ(CheckSecret(context).verdict, Verdict::kNote);
  EXPECT_THAT(CheckSecret(context).fix, HasSubstr("openssl rand"));
  context.config.insecure = OnOff::kOn;
  EXPECT_EQ(CheckSecret(context).verdict, Verdict::kNote);
  EXPECT_EQ(CheckSecret(context).fix, "");
  context.config.insecure = OnOff::kOff;
  context.config.secret = "0123456789abcdef";
  EXPECT_EQ(CheckSecret(context).verdict, Verdict::kOk);
  EXPECT_THAT(CheckSecret(context).evidence, Not(HasSubstr("0123456789abcdef")));
  context.config.secret.clear();
  context.config.secret_file = "/nowhere/secret";
  EXPECT_EQ(CheckSecret(context).verdict, Verdict::kProblem);
}

// ---- all checks ---------------------------------------------------------------------------------

TEST(DoctorContext, NothingIsWrongWithAHealthyMachine) {
  FakeSystem system;
  Context context;
  context.system = &system;
  context.peer = net::Address{"node7", 7471};
  context.config.secret = "0123456789abcdef";
  std::set<std::string> ids;
  for (const Check& check : Examine(context)) {
    const bool is_asked_for = check.id != "tcpx" && check.id != "nccl" && check.id != "nixl";
    const Verdict expected = is_asked_for ? Verdict::kOk : Verdict::kSkipped;
    EXPECT_EQ(check.verdict, expected) << check.id << ": " << check.evidence;
    EXPECT_EQ(check.fix, "") << check.id;
    EXPECT_TRUE(ids.insert(check.id).second) << check.id;
  }
  EXPECT_EQ(ids.size(), 23U);
}

TEST(DoctorContext, AMachineThatTellsNothingIsLookedAtToTheEnd) {
  FakeSystem system;
  system.files.clear();
  system.commands.clear();
  system.cores.clear();
  system.addresses.clear();
  Context context;
  context.system = &system;
  const auto checks = Examine(context);
  EXPECT_GT(checks.size(), 15U);
  for (const Check& check : checks) {
    EXPECT_NE(check.verdict, Verdict::kProblem) << check.id;
    EXPECT_NE(check.evidence, "") << check.id;
  }
}

}  // namespace
}  // namespace ferry::tools
