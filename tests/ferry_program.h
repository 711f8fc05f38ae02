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
inline constexpr std::chrono::seconds kProgramPatience{100};

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

// What the program's stderr is.
enum class Stderr { kPipe, kTerminal };

// The program, running; killed when the test lets go of it. One thread.
class Program {
 public:
  // `variables` as "NAME=value"; of the test's own, those of ferry are not passed on.
  explicit Program(const Arguments& arguments, const Arguments& variables = {},
                   Stderr err = Stderr::kPipe);
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program();

  pid_t pid() const { return pid_; }
  void Signal(int signal) const;

  // The next line of its stdout; "" when there is none in time.
  std::string ReadLine();
  // Reads both outputs to their ends and waits for the program's.
  ProgramEnd Finish();

 private:
  void Spawn(const Arguments& arguments, const Arguments& variables, UniqueFd out, UniqueFd err);
  void Drain(ProgramEnd* ended) const;

  const Deadline deadline_ = Deadline::After(kProgramPatience);
  pid_t pid_ = -1;
  UniqueFd gone_;
  UniqueFd out_;
  UniqueFd err_;
  std::string text_;  // of stdout, read and not taken
};

ProgramEnd Ferry(const Arguments& arguments, const Arguments& variables = {});
// The address of a server that was started with --json and --listen 127.0.0.1.
std::string AddressOf(Program* server);
// A port at which nobody listens, nor anybody else can.
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

// A temporary folder; goes with all that is in it.
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
