// Runs the built program `ferry` as users run it, and makes files for it.
#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/types.h>

#include <csignal>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/fd.h"

namespace ferry::tests {

// Ten times what the slowest command of a test needs under a sanitizer.
inline constexpr std::chrono::seconds kProgramTimeout{100};

using Arguments = std::vector<std::string>;

bool WaitReadable(int fd, Deadline deadline);
// Becomes readable when the process ends.
UniqueFd OpenProcess(pid_t pid);

struct ProgramEnd {
  int exit_code = -1;  // or minus the signal
  std::string out;
  std::string err;

  std::vector<std::string> out_lines() const;
};

// The kind of file that the program's stderr is; kBroken: a pipe that nobody has open for reading.
// After the last two only the destructor ends the program.
enum class Stderr { kPipe, kTerminal, kBroken, kClosed };

// A running program; killed by the destructor. For one thread.
class Program {
 public:
  // `variables` are "NAME=value"; FERRY_ variables of the test process are not inherited.
  explicit Program(const Arguments& arguments, const Arguments& variables = {},
                   Stderr err = Stderr::kPipe);
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program();

  pid_t pid() const { return pid_; }
  void Signal(int signal) const;

  // Blocks for the next line of its stdout; "" if none comes in time.
  std::string ReadLine();
  // Reads both outputs to their ends and waits for the program's exit.
  ProgramEnd Finish();

 private:
  void Spawn(const Arguments& arguments, const Arguments& variables, UniqueFd out, UniqueFd err);
  void Drain(ProgramEnd* ended) const;

  const Deadline deadline_ = Deadline::After(kProgramTimeout);
  pid_t pid_ = -1;
  UniqueFd gone_;
  UniqueFd out_;
  UniqueFd err_;
  std::string text_;  // of stdout, read and not taken
};

ProgramEnd Ferry(const Arguments& arguments, const Arguments& variables = {});
// The address of a server that was started with --json and --listen 127.0.0.1.
std::string AddressOf(Program* server);
// A port at which nobody listens and which no other process can take.
class ClosedPort {
 public:
  ClosedPort();
  const std::string& address() const { return address_; }

 private:
  UniqueFd fd_;
  std::string address_;
};
// One sentence: a single line that begins with the command's name.
testing::Matcher<const std::string&> Sentence(const std::string& command, const std::string& about);

// A temporary folder; the destructor deletes it with its contents.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  std::string text() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

std::string ReadFile(const std::filesystem::path& path);
void WriteFile(const std::filesystem::path& path, const std::string& text);
// Bytes that repeat at no power of two.
std::string SomeBytes(std::size_t size);

}  // namespace ferry::tests
