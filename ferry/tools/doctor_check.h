// A finding of `ferry doctor`: verdict, evidence and fix.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "ferry/tools/command.h"
#include "ferry/tools/json_fwd.h"

namespace ferry::tools {

// From harmless to grave.
enum class Verdict {
  kOk,
  kSkipped,  // could not be looked at; the evidence says why
  kNote,     // good to know; nothing needs to change
  kWarning,  // costs speed, or will bite later
  kProblem,  // keeps transfers from working
};

// What one look at the machine found.
struct Check {
  std::string id;  // "socket_buffers"; stable, for scripts
  Verdict verdict = Verdict::kOk;
  std::string evidence;  // the values that were read
  std::string mend;      // a command to paste; empty: nothing to do, or nothing that we know
};

const char* VerdictName(Verdict verdict) noexcept;
// kOk of no checks.
Verdict WorstOf(const std::vector<Check>& checks) noexcept;
// kExitOk, kExitWarning or kExitProblem.
ExitCode ExitCodeOf(Verdict worst) noexcept;

// {"checks": [{"id", "verdict", "evidence", "mend"}], "worst": ...}
Json ToJson(const std::vector<Check>& checks);
// A line for each check, with what is longer and the command below it; then the count of each
// verdict. Without the last line end.
std::string DoctorText(const std::vector<Check>& checks);

// The text in single quotes where a shell would not read it as one plain word.
std::string ShellWord(std::string_view text);

}  // namespace ferry::tools
