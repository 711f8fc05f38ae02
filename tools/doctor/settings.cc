// The settings themselves, and the secret that they name.
#include <fmt/core.h>

#include "ferry/core/secret.h"
#include "ferry/core/unknown_variables.h"
#include "tools/doctor/checks.h"

namespace ferry::tools {
namespace {

// Variables whose text alone is refused; where each is fine by itself, none.
std::vector<std::string> BadVariables(const std::map<std::string, std::string>& environment) {
  std::vector<std::string> bad;
  Config config;
  for (const ConfigEntry& entry : Config().Describe()) {
    const auto found = environment.find(entry.variable);
    if (found == environment.end() || found->second.empty()) continue;
    if (!config.Set(entry.name, found->second)) bad.push_back(entry.variable);
  }
  return bad;
}

// UnknownVariables() takes an array as environ(7) is; only the names matter.
std::vector<std::string> UnknownIn(const std::map<std::string, std::string>& environment) {
  std::vector<std::string> lines;
  std::vector<const char*> pointers;
  lines.reserve(environment.size());
  for (const auto& [name, value] : environment) {
    lines.push_back(name + "=");
    pointers.push_back(lines.back().c_str());
  }
  pointers.push_back(nullptr);
  return UnknownVariables(pointers.data());
}

std::string Unset(const std::vector<std::string>& variables) {
  std::string command = variables.empty() ? "" : "unset";
  for (const std::string& variable : variables) command += " " + ShellWord(variable);
  return command;
}

}  // namespace

Check CheckSettings(SystemView* system, const std::optional<Error>& wrong) {
  const auto environment = system->Environment();
  Check check{"settings", Verdict::kOk, "", ""};
  std::vector<std::string> to_unset;
  if (wrong) {
    check.verdict = Verdict::kProblem;
    check.evidence = wrong->message() + "; the defaults were looked at";
    to_unset = BadVariables(environment);
  }
  const auto unknown = UnknownIn(environment);
  for (const std::string& variable : unknown) {
    check.verdict = std::max(check.verdict, Verdict::kWarning);
    check.evidence +=
        fmt::format("{}{}", check.evidence.empty() ? "" : "; ", DescribeUnknown(variable));
    to_unset.push_back(variable);
  }
  check.fix = Unset(to_unset);
  if (!check.evidence.empty()) return check;
  for (const ConfigEntry& entry : Config().Describe()) {
    if (environment.find(entry.variable) == environment.end()) continue;
    check.evidence += fmt::format("{}{}", check.evidence.empty() ? "" : ", ", entry.variable);
  }
  check.evidence = check.evidence.empty() ? "no FERRY_ variable is set"
                                          : "from the environment: " + check.evidence;
  return check;
}

Check CheckSecret(const Context& context) {
  Check check{"secret", Verdict::kOk, "", ""};
  const auto secret = Secret::FromConfig(context.config);
  if (!secret) {
    check.verdict = Verdict::kProblem;
    check.evidence = secret.error().message();
    check.fix = kMakeSecret;
    return check;
  }
  if (*secret) {
    check.evidence = "set; peers must know the same";
    return check;
  }
  if (context.config.insecure == OnOff::kOn) {
    check.verdict = Verdict::kNote;
    check.evidence = "none; FERRY_INSECURE=on: whoever reaches the port is a peer";
    return check;
  }
  check.verdict = Verdict::kNote;
  check.evidence = "none: only processes of this user on this machine are let in and dialled";
  check.fix = kMakeSecret;
  return check;
}

}  // namespace ferry::tools
