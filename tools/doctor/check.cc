// Formats findings of `ferry doctor` as text and JSON.

#include "tools/doctor/check.h"

#include <fmt/core.h>

#include <algorithm>
#include <sstream>

#include "tools/support/json.h"
#include "tools/support/report.h"

namespace ferry::tools {
namespace {

constexpr std::size_t kIndent = 31;      // verdict and id come before
constexpr std::size_t kTextWidth = 100;  // of whole lines

// Words in lines of at most kTextWidth characters; all but the first line begin with the indent.
std::string Wrapped(const std::string& text) {
  std::istringstream words(text);
  std::string wrapped;
  std::size_t column = kIndent;
  for (std::string word; words >> word;) {
    if (column > kIndent && column + 1 + word.size() > kTextWidth) {
      wrapped += "\n" + std::string(kIndent, ' ');
      column = kIndent;
    } else if (column > kIndent) {
      wrapped += ' ';
      ++column;
    }
    wrapped += word;
    column += word.size();
  }
  return wrapped;
}

std::size_t CountOf(const std::vector<Check>& checks, Verdict verdict) {
  return static_cast<std::size_t>(
      std::count_if(checks.begin(), checks.end(),
                    [verdict](const Check& check) { return check.verdict == verdict; }));
}

bool AnyFix(const std::vector<Check>& checks, std::string_view part) {
  return std::any_of(checks.begin(), checks.end(), [part](const Check& check) {
    return check.fix.find(part) != std::string::npos;
  });
}

}  // namespace

// The names are part of the JSON output.
const char* VerdictName(Verdict verdict) noexcept {
  switch (verdict) {
    case Verdict::kOk: return "ok";
    case Verdict::kSkipped: return "skipped";
    case Verdict::kNote: return "note";
    case Verdict::kWarning: return "warning";
    case Verdict::kProblem: return "problem";
  }
  return "unknown";
}

Verdict WorstOf(const std::vector<Check>& checks) noexcept {
  Verdict worst = Verdict::kOk;
  for (const Check& check : checks) worst = std::max(worst, check.verdict);
  return worst;
}

ExitCode ExitCodeOf(Verdict worst) noexcept {
  switch (worst) {
    case Verdict::kOk:
    case Verdict::kSkipped:
    case Verdict::kNote: return kExitOk;
    case Verdict::kWarning: return kExitWarning;
    case Verdict::kProblem: return kExitProblem;
  }
  return kExitFailed;
}

Json ToJson(const std::vector<Check>& checks) {
  Json rows = Json::array();
  for (const Check& check : checks) {
    rows.push_back(Json{{"id", check.id},
                        {"verdict", VerdictName(check.verdict)},
                        {"evidence", check.evidence},
                        {"fix", check.fix}});
  }
  return Json{{"checks", std::move(rows)}, {"worst", VerdictName(WorstOf(checks))}};
}

std::string DoctorText(const std::vector<Check>& checks) {
  std::string text;
  for (const Check& check : checks) {
    text += fmt::format("{:<8} {:<21} {}\n", VerdictName(check.verdict), check.id,
                        Wrapped(Printable(check.evidence)));
    // Never broken: it is there to be pasted.
    if (!check.fix.empty()) text += fmt::format("{:<30} $ {}\n", "", Printable(check.fix));
  }
  text += fmt::format("problem {}, warning {}, note {}, ok {}, skipped {}",
                      CountOf(checks, Verdict::kProblem), CountOf(checks, Verdict::kWarning),
                      CountOf(checks, Verdict::kNote), CountOf(checks, Verdict::kOk),
                      CountOf(checks, Verdict::kSkipped));
  if (AnyFix(checks, "sysctl -w ")) {
    text +=
        "\nwhat sysctl -w sets lasts until the next start; to keep it, write the same without "
        "\"sysctl -w\" to a file in /etc/sysctl.d";
  }
  return text;
}

std::string ShellWord(std::string_view text) {
  // A first "-" would be taken for an option, and is quoted, though the shell does not need it.
  const bool plain =
      !text.empty() && text.front() != '-' && std::all_of(text.begin(), text.end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               std::string_view("_-./:@%+,=").find(c) != std::string_view::npos;
      });
  if (plain) return std::string(text);
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

}  // namespace ferry::tools
