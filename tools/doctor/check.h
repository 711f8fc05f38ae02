// A finding of `ferry doctor`: verdict, evidence and fix.
#pragma once
#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/support/command.h"
#include "tools/support/json_fwd.h"

namespace ferry::tools {

// Ordered by severity.
enum class Verdict {
  kOk,
  kSkipped,  // could not be checked; the evidence says why
  kNote,     // good to know; nothing needs to change
  kWarning,  // costs speed, or will bite later
  kProblem,  // keeps transfers from working
};

// The finding of one check.
struct Check {
  std::string id;  // "socket_buffers"; stable, for scripts
  Verdict verdict = Verdict::kOk;
  std::string evidence;  // the values that were read
  std::string fix;       // the fix, a command to paste; empty: none needed, or none known

  // Raises the verdict to at least this one and appends to the evidence.
  template <class... Args>
  void Find(Verdict least, fmt::format_string<Args...> format, Args&&... args) {
    verdict = std::max(verdict, least);
    evidence += (evidence.empty() ? "" : "; ") + fmt::format(format, std::forward<Args>(args)...);
  }
  // Appends a command to the fixes, unless they have it.
  template <class... Args>
  void Fix(fmt::format_string<Args...> format, Args&&... args) {
    const std::string command = fmt::format(format, std::forward<Args>(args)...);
    if (fix.find(command) != std::string::npos) return;
    fix += (fix.empty() ? "" : " && ") + command;
  }
};

const char* VerdictName(Verdict verdict) noexcept;
// The most severe verdict; kOk without checks.
Verdict WorstOf(const std::vector<Check>& checks) noexcept;
// kExitOk, kExitWarning or kExitProblem.
ExitCode ExitCodeOf(Verdict worst) noexcept;

// {"checks": [{"id", "verdict", "evidence", "fix"}], "worst": ...}
Json ToJson(const std::vector<Check>& checks);
// One line for each check, with longer evidence and the fix below it; then the count of each
// verdict. Has no final newline.
std::string DoctorText(const std::vector<Check>& checks);

// The text, in single quotes if a shell would not read it as one plain word.
std::string ShellWord(std::string_view text);

}  // namespace ferry::tools
