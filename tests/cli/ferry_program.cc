// Implements running the built program `ferry` from tests.

#include "tests/cli/ferry_program.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "ferry/core/fd.h"

namespace ferry::tests {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

namespace {

std::vector<char*> Pointers(Arguments* texts) {
  std::vector<char*> pointers;
  for (std::string& text : *texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

bool Append(int fd, std::string* text) {
  std::array<char, 4096> part{};
  const ssize_t got = ::read(fd, part.data(), part.size());
  if (got > 0) text->append(part.data(), static_cast<std::size_t>(got));
  return got > 0;
}

// To read from, and to write to.
std::pair<UniqueFd, UniqueFd> MakePipe() {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

// A pseudo-terminal to read from and write to.
std::pair<UniqueFd, UniqueFd> MakeTerminal() {
  UniqueFd master(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  EXPECT_TRUE(master);
  EXPECT_EQ(::grantpt(master.get()), 0);
  EXPECT_EQ(::unlockpt(master.get()), 0);
  std::array<char, 64> name{};
  EXPECT_EQ(::ptsname_r(master.get(), name.data(), name.size()), 0);
  UniqueFd terminal(::open(name.data(), O_RDWR | O_NOCTTY | O_CLOEXEC));
  EXPECT_TRUE(terminal);
  return {std::move(master), std::move(terminal)};
}

}  // namespace

bool WaitReadable(int fd, Deadline deadline) {
  pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&entry, 1, deadline.PollMillis()) > 0;
}

// glibc 2.36 declares its wrapper for C only.
UniqueFd OpenProcess(pid_t pid) {
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

std::vector<std::string> ProgramEnd::out_lines() const {
  std::istringstream stream(out);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// ---- Program ------------------------------------------------------------------------------------

Program::Program(const Arguments& arguments, const Arguments& variables, Stderr err) {
  std::array<int, 2> out{};
  EXPECT_EQ(::pipe2(out.data(), O_CLOEXEC), 0);
  out_ = UniqueFd(out[0]);
  auto [ours, its] = err == Stderr::kTerminal ? MakeTerminal() : MakePipe();
  if (err == Stderr::kClosed) its.reset();
  if (err == Stderr::kPipe || err == Stderr::kTerminal) err_ = std::move(ours);
  Spawn(arguments, variables, UniqueFd(out[1]), std::move(its));
  gone_ = OpenProcess(pid_);
  EXPECT_TRUE(gone_);
}

Program::~Program() {
  if (pid_ <= 0) return;
  Signal(SIGKILL);
  (void)::waitpid(pid_, nullptr, 0);
}

void Program::Signal(int signal) const { (void)::kill(pid_, signal); }

std::string Program::ReadLine() {
  while (text_.find('\n') == std::string::npos) {
    if (!WaitReadable(out_.get(), deadline_) || !Append(out_.get(), &text_)) return "";
  }
  const auto end = text_.find('\n');
  std::string line = text_.substr(0, end);
  text_.erase(0, end + 1);
  return line;
}

ProgramEnd Program::Finish() {
  ProgramEnd ended;
  ended.out = text_;
  Drain(&ended);
  if (!WaitReadable(gone_.get(), deadline_)) {
    ADD_FAILURE() << "still running; stdout: " << ended.out << " stderr: " << ended.err;
    Signal(SIGKILL);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(pid_, &status, 0), pid_);
  pid_ = -1;
  ended.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  return ended;
}

void Program::Spawn(const Arguments& arguments, const Arguments& variables, UniqueFd out,
                    UniqueFd err) {
  Arguments texts{FERRY_BINARY};
  texts.insert(texts.end(), arguments.begin(), arguments.end());
  Arguments environment = variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!std::string(*entry).starts_with("FERRY_")) environment.emplace_back(*entry);
  }
  posix_spawn_file_actions_t actions;
  (void)::posix_spawn_file_actions_init(&actions);
  (void)::posix_spawn_file_actions_adddup2(&actions, out.get(), STDOUT_FILENO);
  if (err) {
    (void)::posix_spawn_file_actions_adddup2(&actions, err.get(), STDERR_FILENO);
  } else {
    (void)::posix_spawn_file_actions_addclose(&actions, STDERR_FILENO);
  }
  const int rc = ::posix_spawn(&pid_, FERRY_BINARY, &actions, nullptr, Pointers(&texts).data(),
                               Pointers(&environment).data());
  EXPECT_EQ(rc, 0);
  (void)::posix_spawn_file_actions_destroy(&actions);
}

void Program::Drain(ProgramEnd* ended) const {
  std::array<pollfd, 2> entries{pollfd{.fd = out_.get(), .events = POLLIN, .revents = 0},
                                pollfd{.fd = err_.get(), .events = POLLIN, .revents = 0}};
  while (entries[0].fd >= 0 || entries[1].fd >= 0) {
    if (::poll(entries.data(), entries.size(), deadline_.PollMillis()) <= 0) return;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (entries[i].revents == 0) continue;
      if (!Append(entries[i].fd, i == 0 ? &ended->out : &ended->err)) entries[i].fd = -1;
    }
  }
}

ProgramEnd Ferry(const Arguments& arguments, const Arguments& variables) {
  return Program(arguments, variables).Finish();
}

std::string AddressOf(Program* server) {
  const json announcement = json::parse(server->ReadLine(), nullptr, false);
  return announcement.value("listening", "");
}

ClosedPort::ClosedPort() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(::bind(fd_.get(), raw, length), 0);
  EXPECT_EQ(::getsockname(fd_.get(), raw, &length), 0);
  address_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
}

testing::Matcher<const std::string&> Sentence(const std::string& command,
                                              const std::string& about) {
  return AllOf(StartsWith(command + ": "), HasSubstr(about),
               testing::ResultOf([](const std::string& s) { return s.find('\n') == s.size() - 1; },
                                 testing::IsTrue()));
}

// ---- files --------------------------------------------------------------------------------------

Folder::Folder() {
  std::string path = (fs::temp_directory_path() / "ferry-cli-XXXXXX").string();
  EXPECT_NE(::mkdtemp(path.data()), nullptr);
  path_ = path;
}

Folder::~Folder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::string ReadFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void WriteFile(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string SomeBytes(std::size_t size) {
  std::string text(size, '\0');
  for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>(i % 251);
  return text;
}

}  // namespace ferry::tests
