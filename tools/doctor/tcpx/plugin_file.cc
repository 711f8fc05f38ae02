// Looks at the file of a plug-in as the loader would.
#include "tools/doctor/tcpx/plugin_file.h"

#include <fmt/core.h>

#include <algorithm>

#include "tools/doctor/checks.h"

namespace ferry::tools {
namespace {

// "version `GLIBC_2.38' not found", "libssl.so.3 => not found", "undefined symbol: foo (./lib.so)"
bool IsMissing(std::string_view line) {
  return line.find("not found") != std::string_view::npos ||
         line.find("undefined symbol") != std::string_view::npos;
}

// The libraries and symbols that the loader does not find, without running code of the library.
void AddMissing(const PluginSetup& setup, const std::string& path, Check* check) {
  // Programs are started without the user's variables; of these the loader needs one.
  std::vector<std::string> command = {"ldd", "-r", path};
  if (const auto folders = setup.Variable("LD_LIBRARY_PATH")) {
    command.insert(command.begin(), {"env", fmt::format("LD_LIBRARY_PATH={}", *folders)});
  }
  const auto listed = setup.system->Run(command, setup.deadline);
  if (!listed) return check->Find(Verdict::kNote, "{}", listed.error().message());
  for (const std::string& line : SplitAt(listed->out + "\n" + listed->err, '\n')) {
    if (!IsMissing(line)) continue;
    check->Find(Verdict::kProblem, "{}", line.substr(line.find_first_not_of(" \t")));
    check->fix = fmt::format("ldd -r {}  # then install what is not found", ShellWord(path));
  }
  if (check->verdict == Verdict::kOk && listed->exit_code != 0) {
    check->Find(Verdict::kProblem, "which ldd does not take for a shared library (exit code {})",
                listed->exit_code);
  }
}

}  // namespace

std::optional<std::string> PluginSetup::Variable(const std::string& name) const {
  const auto found = environment.find(name);
  if (found == environment.end() || found->second.empty()) return std::nullopt;
  return found->second;
}

std::optional<MajorMinor> MajorMinorOf(std::string_view text) {
  const std::size_t dot = text.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const std::size_t end = text.find_first_not_of("0123456789", dot + 1);
  const auto major = NumberIn(text.substr(0, dot));
  const auto minor = NumberIn(text.substr(dot + 1, end - dot - 1));
  if (!major || !minor) return std::nullopt;
  return MajorMinor(*major, *minor);
}

std::string FolderOf(const std::string& path) { return path.substr(0, path.rfind('/')); }

std::vector<std::string> SplitAt(std::string_view text, char mark) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(mark, at), text.size());
    if (end > at) parts.emplace_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

void AddLoading(const PluginSetup& setup, const std::string& path, Check* check) {
  const auto state = setup.system->StateOf(path);
  if (!state) {
    check->Find(Verdict::kProblem, "{}", state.error().message());
  } else if (state->kind != PathState::Kind::kFile || !state->readable) {
    check->Find(Verdict::kProblem, "which is not a readable file");
    check->fix = fmt::format("ls -ld {}", ShellWord(path));
  } else if (state->noexec) {
    check->Find(Verdict::kProblem, "on a mount with noexec, from where nothing can be loaded");
  } else {
    AddMissing(setup, path, check);
  }
}

}  // namespace ferry::tools
