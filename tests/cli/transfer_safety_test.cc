// What `ferry transfer` and `ferry perf server` refuse, and what they leave when a side fails in
// the middle: between processes, one of them of another user where the test may start one.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "tests/cli/ferry_program.h"

namespace ferry::tests {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr uid_t kNobody = 65534;
constexpr const char* kNotUs = "it is not proved that a process of user 0 is there itself";
constexpr std::uint64_t kBigBytes = std::uint64_t{512} << 20;
// So that a file of that size takes about 25 seconds: no test waits for its end.
constexpr const char* kSlow = "lane_rate_bytes=20MiB";

Arguments Joined(Arguments first, const Arguments& more) {
  first.insert(first.end(), more.begin(), more.end());
  return first;
}

Arguments ServerOf(const Folder& folder, const Arguments& more = {}) {
  return Joined({"transfer", "server", "--dir", folder.text(), "--listen", "127.0.0.1", "--port",
                 "0", "--json"},
                more);
}

bool IsEmpty(const Folder& folder) { return fs::is_empty(folder.text()); }

// Waits for what another process does to a folder.
bool BecomesEmpty(const Folder& folder) {
  const Deadline deadline = Deadline::After(kProgramTimeout);
  while (!IsEmpty(folder) && !deadline.expired()) ::sched_yield();
  return IsEmpty(folder);
}

// ---- other users --------------------------------------------------------------------------------

// The program's end as another user, without that user's need to reach its folder.
ProgramEnd FerryAs(uid_t user, Arguments arguments) {
  const UniqueFd program(::open(FERRY_BINARY, O_RDONLY | O_CLOEXEC));
  arguments.insert(arguments.begin(), FERRY_BINARY);
  const Folder folder;
  const UniqueFd out(::open((folder / "err").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  std::vector<char*> pointers;
  for (std::string& text : arguments) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  std::array<char*, 1> no_variables{};
  const pid_t child = ::fork();
  if (child == 0) {
    const bool ready = ::dup2(out.get(), STDERR_FILENO) >= 0 &&
                       ::dup2(out.get(), STDOUT_FILENO) >= 0 && ::setgid(user) == 0 &&
                       ::setuid(user) == 0 && ::chdir("/") == 0;
    if (ready) ::fexecve(program.get(), pointers.data(), no_variables.data());
    ::_exit(127);
  }
  const UniqueFd gone = OpenProcess(child);
  if (!WaitReadable(gone.get(), Deadline::After(kProgramTimeout))) (void)::kill(child, SIGKILL);
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  ProgramEnd ended;
  ended.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  ended.err = ReadFile(folder / "err");  // and its stdout
  EXPECT_NE(ended.exit_code, 127);
  return ended;
}

class OtherUsers : public testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can start a process of another user";
    WriteFile(there_ / "secret", "a secret of some length, for this test");
  }
  static Arguments Message(const std::string& address, const Arguments& more = {}) {
    return Joined({"transfer", "client", address, "--message", "x"}, more);
  }
  // Readable to the other user without its folder.
  std::string Secret() const { return "secret=" + ReadFile(there_ / "secret"); }

  const Folder there_;
  const Folder received_;
};

TEST_F(OtherUsers, AreRefusedByATransferServerWithoutASecretAndOwnProcessesAreNot) {
  Program server(ServerOf(received_));
  const std::string address = AddressOf(&server);
  const ProgramEnd refused = FerryAs(kNobody, Message(address));
  EXPECT_EQ(refused.exit_code, 1) << refused.err;
  EXPECT_THAT(refused.err, AllOf(HasSubstr(kNotUs), HasSubstr("FERRY_SECRET_FILE")));
  const ProgramEnd own = Ferry(Message(address));
  EXPECT_EQ(own.exit_code, 0) << own.err;
}

TEST_F(OtherUsers, AreRefusedOverIpv6AndByTheMappedFormOfIpv4) {
  Program server(
      Joined({"transfer", "server", "--dir", received_.text(), "--port", "0"}, {"--json"}));
  const std::string listening = AddressOf(&server);
  const std::string port = listening.substr(listening.rfind(':'));
  for (const std::string host : {"[::1]", "[::ffff:127.0.0.1]"}) {
    const ProgramEnd own = Ferry(Message(host + port));
    if (own.exit_code != 0) continue;  // no IPv6 on this machine
    const ProgramEnd refused = FerryAs(kNobody, Message(host + port));
    EXPECT_EQ(refused.exit_code, 1) << refused.err;
    EXPECT_THAT(refused.err, HasSubstr(kNotUs)) << host;
  }
}

TEST_F(OtherUsers, MayUseATransferServerWithTheSecretOrWhereBothAreInsecure) {
  Program server(ServerOf(received_, {"--secret-file", (there_ / "secret").string()}));
  const std::string address = AddressOf(&server);
  const ProgramEnd with = FerryAs(kNobody, Message(address, {"--set", Secret()}));
  EXPECT_EQ(with.exit_code, 0) << with.err;
  EXPECT_NE(FerryAs(kNobody, Message(address)).exit_code, 0);
  Program insecure(ServerOf(received_, {"--insecure"}));
  const std::string open = AddressOf(&insecure);
  const ProgramEnd trusted = FerryAs(kNobody, Message(open, {"--insecure"}));
  EXPECT_EQ(trusted.exit_code, 0) << trusted.err;
  const ProgramEnd cautious = FerryAs(kNobody, Message(open));
  EXPECT_EQ(cautious.exit_code, 1) << cautious.err;
  EXPECT_THAT(cautious.err, HasSubstr("it is not proved that a process of user 65534"));
}

TEST_F(OtherUsers, DoNotUseUpTheOneTransferOfOnce) {
  Program server(ServerOf(received_, {"--once"}));
  const std::string address = AddressOf(&server);
  EXPECT_EQ(FerryAs(kNobody, Message(address)).exit_code, 1);
  EXPECT_EQ(Ferry(Message(address)).exit_code, 0);
  EXPECT_EQ(server.Finish().exit_code, 0);
}

TEST_F(OtherUsers, AreRefusedByAPerfServerWithoutASecretAndOwnProcessesAreNot) {
  Program server({"perf", "server", "--listen", "127.0.0.1", "--port", "0", "--json"});
  const std::string address = AddressOf(&server);
  const Arguments measure{"perf",    "client", address,    "--size", "4096",
                          "--iters", "1",      "--rounds", "1",      "--no-floor"};
  const ProgramEnd refused = FerryAs(kNobody, measure);
  EXPECT_EQ(refused.exit_code, 1) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr(kNotUs));
  const ProgramEnd own = Ferry(measure);
  EXPECT_EQ(own.exit_code, 0) << own.err;
}

// ---- what a client may name ---------------------------------------------------------------------

TEST(TransferNames, AnExistingFileIsKept) {
  const Folder here;
  const Folder there;
  WriteFile(here / "model", "new");
  WriteFile(there / "model", "old");
  Program server(ServerOf(there));
  const ProgramEnd client =
      Ferry({"transfer", "client", AddressOf(&server), "--file", (here / "model").string()});
  EXPECT_EQ(client.exit_code, 1);
  EXPECT_THAT(client.err, Sentence("ferry transfer client", "--overwrite"));
  EXPECT_EQ(ReadFile(there / "model"), "old");
}

TEST(TransferNames, OneThatBeginsWithADotNeedsAFolderThatWasNamed) {
  const Folder here;
  const Folder there;
  const std::string name = ".ferry-test-" + std::to_string(::getpid());
  WriteFile(here / name, "alias ls=evil");
  const auto send = [&](Program* server) {
    return Ferry({"transfer", "client", AddressOf(server), "--file", (here / name).string()});
  };
  Program unnamed({"transfer", "server", "--listen", "127.0.0.1", "--port", "0", "--json"});
  const ProgramEnd refused = send(&unnamed);
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, Sentence("ferry transfer client", "begins with a dot"));
  EXPECT_FALSE(fs::exists(name));
  Program named(ServerOf(there));
  const ProgramEnd taken = send(&named);
  EXPECT_EQ(taken.exit_code, 0) << taken.err;
  EXPECT_EQ(ReadFile(there / name), "alias ls=evil");
}

TEST(TransferNames, OneWithALineEndOrAnEscapeSequenceIsPrintedWithoutThem) {
  const Folder here;
  const Folder there;
  const std::string name = "a\n\x1b[2Jb";
  WriteFile(here / name, "x");
  Program server({"transfer", "server", "--dir", there.text(), "--listen", "127.0.0.1", "--port",
                  "0", "--once"});
  const std::string listening = server.ReadLine();
  const auto at = listening.find("127.0.0.1:");
  const std::string address = listening.substr(at, listening.find(',') - at);
  const ProgramEnd client =
      Ferry({"transfer", "client", address, "--file", (here / name).string()});
  EXPECT_EQ(client.exit_code, 0) << client.err;
  const ProgramEnd ended = server.Finish();
  for (const std::string& text : {client.out, ended.out}) {
    EXPECT_THAT(text, AllOf(HasSubstr("file a\\x0a\\x1b[2Jb"), Not(HasSubstr("\x1b"))));
  }
  EXPECT_EQ(ReadFile(there / name), "x");
}

// ---- failures in the middle ---------------------------------------------------------------------

// A client that has begun to write a file, which takes seconds more.
class SlowTransfer : public testing::Test {
 protected:
  SlowTransfer() {
    WriteFile(here_ / "big", "");
    fs::resize_file(here_ / "big", kBigBytes);  // sparse
    WriteFile(here_ / "secret", "a secret of some length, for this test");
    fs::permissions(here_ / "secret", fs::perms::owner_read);
  }
  std::string big() const { return (here_ / "big").string(); }

  // Both sides with `more`.
  void Begin(const Arguments& more = {}, const Arguments& of_server = {}) {
    server_.emplace(ServerOf(there_, Joined(more, of_server)));
    client_.emplace(Joined({"transfer", "client", AddressOf(&*server_), "--file", big(), "--lanes",
                            "1", "--set", kSlow},
                           more));
    std::string line = "none yet";
    while (!line.empty() && line.find("one-sided") == std::string::npos) {
      line = client_->ReadLine();
    }
    ASSERT_NE(line, "");
  }

  const Folder here_;
  const Folder there_;
  std::optional<Program> server_;
  std::optional<Program> client_;
};

TEST_F(SlowTransfer, AFileThatShrinksOrGrowsOrIsWrittenMeanwhileIsNamedAndNotKept) {
  const std::string secret = (here_ / "secret").string();
  const std::vector<Arguments> kSides = {
      {}, {"--secret-file", secret, "--tls", "psk"}, {"--set", "checksum=on"}};
  for (std::size_t i = 0; i < kSides.size(); ++i) {
    fs::resize_file(here_ / "big", kBigBytes);
    Begin(kSides[i]);
    if (i == 0) fs::resize_file(here_ / "big", 0);
    if (i == 1) fs::resize_file(here_ / "big", 4097);
    if (i == 2) fs::resize_file(here_ / "big", kBigBytes + 1);
    const ProgramEnd ended = client_->Finish();
    EXPECT_EQ(ended.exit_code, 1) << i << ended.err;
    EXPECT_THAT(ended.err, Sentence("ferry transfer client", "big changed while it was sent")) << i;
    server_->Signal(SIGTERM);
    EXPECT_EQ(server_->Finish().exit_code, 0);
    EXPECT_TRUE(IsEmpty(there_));
  }
}

TEST_F(SlowTransfer, AClientThatIsKilledLeavesNothingAtTheServer) {
  Begin();
  client_->Signal(SIGKILL);
  (void)client_->Finish();
  EXPECT_TRUE(BecomesEmpty(there_));
  WriteFile(here_ / "next", "x");
  const std::string next = (here_ / "next").string();
  server_->Signal(SIGTERM);
  EXPECT_EQ(server_->Finish().exit_code, 0);
  EXPECT_TRUE(IsEmpty(there_));
}

TEST_F(SlowTransfer, AServerThatIsToldToEndLeavesNothingAndItsClientSaysThatItIsLost) {
  Begin();
  server_->Signal(SIGTERM);
  EXPECT_EQ(server_->Finish().exit_code, 0);
  EXPECT_TRUE(IsEmpty(there_));
  const ProgramEnd ended = client_->Finish();
  EXPECT_EQ(ended.exit_code, 3) << ended.err;
}

// As on a disk that fills up, or where space cannot be reserved.
TEST(TransferToAFullDisk, IsTheClientsErrorAndTheServerGoesOn) {
  const Folder here;
  const Folder there;
  WriteFile(here / "big", SomeBytes(3 << 20));
  WriteFile(here / "small", "x");
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit tight{.rlim_cur = 1 << 20, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &tight), 0);  // the server inherits it
  Program server(ServerOf(there));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  const std::string address = AddressOf(&server);
  const ProgramEnd big =
      Ferry({"transfer", "client", address, "--file", (here / "big").string(), "--json"});
  EXPECT_EQ(big.exit_code, 1) << big.err;
  EXPECT_THAT(big.err, Sentence("ferry transfer client", "writing big: File too large"));
  EXPECT_TRUE(BecomesEmpty(there));
  const ProgramEnd small =
      Ferry({"transfer", "client", address, "--file", (here / "small").string(), "--json"});
  EXPECT_EQ(small.exit_code, 0) << small.err;
  EXPECT_EQ(ReadFile(there / "small"), "x");
}

// Otherwise a file or socket gets the number of a closed stream, and then what is printed there.
TEST(Program, OpensTheStandardStreamsThatItsStarterHasClosed) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    for (int fd = 0; fd <= STDERR_FILENO; ++fd) (void)::close(fd);
    ::execl(FERRY_BINARY, "ferry", "perf", "server", "--port", "0", nullptr);
    ::_exit(1);
  }
  const fs::path open = "/proc/" + std::to_string(child) + "/fd";
  const Deadline deadline = Deadline::After(std::chrono::seconds(30));
  for (const char* stream : {"0", "1", "2"}) {
    std::error_code closed;
    while (fs::read_symlink(open / stream, closed) != "/dev/null") {
      if (deadline.expired()) ADD_FAILURE() << stream << " is not open";
      if (deadline.expired()) break;
    }
  }
  EXPECT_EQ(::kill(child, SIGKILL), 0);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
}

}  // namespace
}  // namespace ferry::tests
