// The program as its users see it: exit codes, sentences, JSON, and two processes of it at work.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/fd.h"

namespace ferry {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

// Ten times what the slowest command here needs under a sanitizer.
constexpr auto kPatience = std::chrono::seconds(100);

// Operations in flight at once write the same bytes to the same place, as `perf` means them to;
// ThreadSanitizer rightly calls that a race.
#ifdef __SANITIZE_THREAD__
constexpr const char* kDepth = "1";
#else
constexpr const char* kDepth = "3";
#endif

using Arguments = std::vector<std::string>;

bool WaitReadable(int fd, Deadline deadline) {
  pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&entry, 1, deadline.PollMillis()) > 0;
}

// Becomes readable when the process ends. glibc 2.36 declares its wrapper for C only.
UniqueFd OpenProcess(pid_t pid) {
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

struct Ended {
  int exit_code = -1;  // or minus the signal
  std::string out;
  std::string err;

  std::vector<std::string> out_lines() const {
    std::istringstream stream(out);
    std::vector<std::string> lines;
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    return lines;
  }
};

// The program, running; killed when the test lets go of it.
class Program {
 public:
  explicit Program(const Arguments& arguments, const Arguments& variables = {}) {
    std::array<int, 2> out{};
    std::array<int, 2> err{};
    EXPECT_EQ(::pipe2(out.data(), O_CLOEXEC), 0);
    EXPECT_EQ(::pipe2(err.data(), O_CLOEXEC), 0);
    out_ = UniqueFd(out[0]);
    err_ = UniqueFd(err[0]);
    Spawn(arguments, variables, UniqueFd(out[1]), UniqueFd(err[1]));
    gone_ = OpenProcess(pid_);
    EXPECT_TRUE(gone_);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() {
    if (pid_ <= 0) return;
    Signal(SIGKILL);
    (void)::waitpid(pid_, nullptr, 0);
  }

  pid_t pid() const { return pid_; }
  void Signal(int signal) const { (void)::kill(pid_, signal); }

  // The next line of its stdout; "" when there is none in time.
  std::string ReadLine() {
    while (text_.find('\n') == std::string::npos) {
      if (!WaitReadable(out_.get(), deadline_) || !Append(out_.get(), &text_)) return "";
    }
    const auto end = text_.find('\n');
    std::string line = text_.substr(0, end);
    text_.erase(0, end + 1);
    return line;
  }

  // Reads both outputs to their ends and waits for the program's.
  Ended Finish() {
    Ended ended;
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

 private:
  void Spawn(const Arguments& arguments, const Arguments& variables, UniqueFd out, UniqueFd err) {
    Arguments texts{FERRY_BINARY};
    texts.insert(texts.end(), arguments.begin(), arguments.end());
    Arguments environment = variables;
    for (char** entry = environ; *entry != nullptr; ++entry) {
      if (!std::string(*entry).starts_with("FERRY_")) environment.emplace_back(*entry);
    }
    posix_spawn_file_actions_t actions;
    (void)::posix_spawn_file_actions_init(&actions);
    (void)::posix_spawn_file_actions_adddup2(&actions, out.get(), STDOUT_FILENO);
    (void)::posix_spawn_file_actions_adddup2(&actions, err.get(), STDERR_FILENO);
    const int rc = ::posix_spawn(&pid_, FERRY_BINARY, &actions, nullptr, Pointers(&texts).data(),
                                 Pointers(&environment).data());
    EXPECT_EQ(rc, 0);
    (void)::posix_spawn_file_actions_destroy(&actions);
  }

  static std::vector<char*> Pointers(Arguments* texts) {
    std::vector<char*> pointers;
    for (std::string& text : *texts) pointers.push_back(text.data());
    pointers.push_back(nullptr);
    return pointers;
  }

  static bool Append(int fd, std::string* text) {
    std::array<char, 4096> part{};
    const ssize_t got = ::read(fd, part.data(), part.size());
    if (got > 0) text->append(part.data(), static_cast<std::size_t>(got));
    return got > 0;
  }

  void Drain(Ended* ended) const {
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

  const Deadline deadline_ = Deadline::After(kPatience);
  pid_t pid_ = -1;
  UniqueFd gone_;
  UniqueFd out_;
  UniqueFd err_;
  std::string text_;  // of stdout, read and not taken
};

Ended Ferry(const Arguments& arguments, const Arguments& variables = {}) {
  return Program(arguments, variables).Finish();
}

// The address of a server that was started with --json and --listen 127.0.0.1.
std::string AddressOf(Program* server) {
  const json announcement = json::parse(server->ReadLine(), nullptr, false);
  return announcement.value("listening", "");
}

// One sentence: a single line that begins with the command's name.
testing::Matcher<const std::string&> Sentence(const std::string& command,
                                              const std::string& about) {
  return AllOf(StartsWith(command + ": "), HasSubstr(about),
               testing::ResultOf([](const std::string& s) { return s.find('\n') == s.size() - 1; },
                                 testing::IsTrue()));
}

// A port that was free a moment ago.
std::uint16_t ClosedPort() {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(::bind(fd.get(), raw, length), 0);
  EXPECT_EQ(::getsockname(fd.get(), raw, &length), 0);
  return ntohs(address.sin_port);
}

class Folder {
 public:
  Folder() {
    std::string path = (fs::temp_directory_path() / "ferry-cli-XXXXXX").string();
    EXPECT_NE(::mkdtemp(path.data()), nullptr);
    path_ = path;
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  fs::path operator/(const std::string& name) const { return path_ / name; }
  std::string text() const { return path_.string(); }

 private:
  fs::path path_;
};

std::string ReadFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void WriteFile(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

// Bytes that repeat at no power of two.
std::string SomeBytes(std::size_t size) {
  std::string text(size, '\0');
  for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>(i % 251);
  return text;
}

bool HasIpv6Loopback() {
  const UniqueFd fd(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_loopback;
  return fd && ::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
}

// ---- usage --------------------------------------------------------------------------------------

TEST(Help, ListsSubcommandsAndExitCodes) {
  const Ended help = Ferry({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  for (const char* name : {"perf", "transfer", "info"}) EXPECT_THAT(help.out, HasSubstr(name));
  EXPECT_THAT(help.out, HasSubstr("Exit codes:\n"
                                  "  0  ok\n"
                                  "  1  failed: the transfer, its verification, or a resource\n"
                                  "  2  wrong usage or setting\n"
                                  "  3  the peer could not be reached, or was lost\n"
                                  "  4  timed out\n"));
}

TEST(Help, EverySubcommandHasJson) {
  for (const Arguments& command :
       {Arguments{"perf", "server"}, Arguments{"perf", "client"}, Arguments{"perf", "loopback"},
        Arguments{"transfer", "server"}, Arguments{"transfer", "client"}, Arguments{"info"}}) {
    Arguments arguments = command;
    arguments.emplace_back("--help");
    const Ended help = Ferry(arguments);
    EXPECT_EQ(help.exit_code, 0) << command.back();
    EXPECT_THAT(help.out, HasSubstr("--json")) << command.back();
  }
}

TEST(Usage, MistakesEndWithCode2AndASentence) {
  struct Mistake {
    Arguments arguments;
    std::string command;
    std::string about;
  };
  const std::vector<Mistake> mistakes = {
      {{}, "ferry", "subcommand"},
      {{"teleport"}, "ferry", "\"teleport\""},
      {{"perf", "loopback", "--warp"}, "ferry perf loopback", "--warp"},
      {{"perf", "loopback", "--size", "0"}, "ferry perf loopback", "--size 0"},
      {{"perf", "loopback", "--size", "1XB"}, "ferry perf loopback", "'1XB'"},
      {{"perf", "loopback", "--op", "throw"}, "ferry perf loopback", "\"throw\""},
      {{"perf", "loopback", "--depth", "0"}, "ferry perf loopback", "--depth 0"},
      {{"perf", "loopback", "--rounds", "0"}, "ferry perf loopback", "--rounds 0"},
      {{"perf", "loopback", "--memory", "cuda"}, "ferry perf loopback", "no CUDA memory"},
      {{"perf", "loopback", "--set", "lanes=99"}, "ferry perf loopback", "lanes"},
      {{"perf", "loopback", "--set", "warp=9"}, "ferry perf loopback", "'warp'"},
      {{"perf", "client"}, "ferry perf client", "host"},
      {{"transfer", "client", "localhost"}, "ferry transfer client", "--file"},
      {{"transfer", "client", "localhost", "--file", "/"}, "ferry transfer client", "regular"},
  };
  for (const Mistake& mistake : mistakes) {
    const Ended ended = Ferry(mistake.arguments);
    EXPECT_EQ(ended.exit_code, 2) << mistake.about;
    EXPECT_THAT(ended.err, Sentence(mistake.command, mistake.about));
    EXPECT_EQ(ended.out, "");
  }
}

TEST(Usage, ABadVariableIsNamed) {
  const Ended ended = Ferry({"info"}, {"FERRY_LANES=many"});
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_THAT(ended.err, Sentence("ferry info", "FERRY_LANES"));
}

TEST(Usage, WithJsonAnErrorIsAnObjectToo) {
  for (const Arguments& arguments : {Arguments{"perf", "loopback", "--size", "0", "--json"},
                                     Arguments{"perf", "loopback", "--warp", "--json"}}) {
    const Ended ended = Ferry(arguments);
    EXPECT_EQ(ended.exit_code, 2);
    const json error = json::parse(ended.out, nullptr, false).value("error", json());
    EXPECT_EQ(error.value("code", ""), "InvalidArgument");
    EXPECT_THAT(ended.err, HasSubstr(error.value("message", "nothing")));
  }
}

// ---- peers --------------------------------------------------------------------------------------

TEST(Peer, AnUnknownHostIsCode3) {
  const Ended ended = Ferry({"perf", "client", "no-such-host.invalid"});
  EXPECT_EQ(ended.exit_code, 3);
  EXPECT_THAT(ended.err, Sentence("ferry perf client", "no-such-host.invalid"));
}

TEST(Peer, AClosedPortIsCode3) {
  const std::string address = "127.0.0.1:" + std::to_string(ClosedPort());
  for (const Arguments& arguments :
       {Arguments{"perf", "client", address},
        Arguments{"transfer", "client", address, "--message", "hello", "--json"}}) {
    const Ended ended = Ferry(arguments);
    EXPECT_EQ(ended.exit_code, 3);
    EXPECT_THAT(ended.err, Sentence("ferry " + arguments[0] + " client", address));
  }
}

TEST(Peer, AServerOfAnotherKindSaysSo) {
  Program server({"transfer", "server", "--listen", "127.0.0.1", "--port", "0", "--json"});
  const Ended ended = Ferry({"perf", "client", AddressOf(&server)});
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_THAT(ended.err, Sentence("ferry perf client", "ferry transfer server"));
}

// ---- perf ---------------------------------------------------------------------------------------

void ExpectWholeRow(const json& row) {
  for (const char* key : {"op",
                          "memory",
                          "provider",
                          "size",
                          "block_size",
                          "lanes",
                          "iterations",
                          "seconds_avg",
                          "seconds_p50",
                          "seconds_p99",
                          "gbps",
                          "floor_gbps",
                          "floor_ratio",
                          "cpu_seconds_per_gb",
                          "floor_cpu_seconds_per_gb",
                          "cpu_ratio",
                          "ops_per_second",
                          "verified",
                          "wait",
                          "rounds",
                          "congestion_control"}) {
    EXPECT_TRUE(row.contains(key)) << key;
    EXPECT_NE(row.value(key, json()), json()) << key;
  }
  EXPECT_EQ(row.value("memory", ""), "host");
  EXPECT_EQ(row.value("provider", ""), "tcp");
  EXPECT_EQ(row.value("verified", false), true);
  EXPECT_GT(row.value("gbps", 0.0), 0);
  EXPECT_GT(row.value("floor_gbps", 0.0), 0);
  EXPECT_LE(row.value("seconds_p50", 1.0), row.value("seconds_p99", 0.0));
  EXPECT_EQ(row.value("rounds", json()).size(), 1U);
}

TEST(Perf, WritesReadsAndSendsAreMeasuredAndVerified) {
  const Ended ended = Ferry({"perf", "loopback", "--op", "write,read", "--op", "send", "--size",
                             "1MiB,3001", "--iters", "5", "--rounds", "1", "--json"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const auto lines = ended.out_lines();
  ASSERT_EQ(lines.size(), 6U);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const json row = json::parse(lines[i], nullptr, false);
    ExpectWholeRow(row);
    EXPECT_EQ(row.value("op", ""), (std::array{"write", "read", "send"})[i / 2]);
    EXPECT_EQ(row.value("size", 0U), i % 2 == 0 ? 1U << 20 : 3001U);
    EXPECT_EQ(row.value("iterations", 0), 5);
    EXPECT_EQ(row.contains("half_rtt_us_p50"), i / 2 == 2);
    EXPECT_EQ(row.contains("floor_half_rtt_us_p50"), i / 2 == 2);
  }
}

TEST(Perf, ScatteredBlocksAreVerified) {
  const Ended ended =
      Ferry({"perf", "loopback", "--op", "write,read", "--size", "1000001", "--block-size", "4096",
             "--iters", "5", "--rounds", "1", "--depth", kDepth, "--json"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  ASSERT_EQ(ended.out_lines().size(), 2U);
  for (const std::string& line : ended.out_lines()) {
    const json row = json::parse(line, nullptr, false);
    ExpectWholeRow(row);
    EXPECT_EQ(row.value("block_size", 0), 4096);
  }
}

TEST(Perf, WorksOverIpv6AndByPolling) {
  if (!HasIpv6Loopback()) GTEST_SKIP() << "no ::1 here";
  const Ended ended =
      Ferry({"perf", "loopback", "--host", "::1", "--op", "send", "--size", "8", "--iters", "5",
             "--rounds", "1", "--lanes", "1", "--wait", "spin", "--json"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const json row = json::parse(ended.out, nullptr, false);
  ExpectWholeRow(row);
  EXPECT_EQ(row.value("lanes", 0), 1);
  EXPECT_EQ(row.value("wait", ""), "spin");
}

TEST(Perf, TheTableHasAColumnForEachFigure) {
  const Ended ended = Ferry({"perf", "loopback", "--size", "64KiB", "--iters", "5", "--rounds", "1",
                             "--no-floor", "--no-verify"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  ASSERT_EQ(ended.out_lines().size(), 3U);
  EXPECT_THAT(ended.out, HasSubstr("avg ms    p50 ms    p99 ms    GB/s   floor  share CPU s/GB"));
  EXPECT_THAT(ended.out_lines()[2], StartsWith("write  host   tcp          64 KiB        -"));
  EXPECT_EQ(ended.err, "");
}

TEST(Perf, ADeadlineThatPassesIsCode4) {
  const Ended ended = Ferry({"perf", "loopback", "--size", "256MiB", "--deadline", "1ms"});
  EXPECT_EQ(ended.exit_code, 4);
  EXPECT_THAT(ended.err, Sentence("ferry perf loopback", "256 MiB did not end within 1 ms"));
}

TEST(Perf, TheServerSurvivesAKilledClientAndServesTheNext) {
  Program server({"perf", "server", "--listen", "127.0.0.1", "--port", "0", "--json"});
  const std::string address = AddressOf(&server);
  Program client({"perf", "client", address, "--rounds", "1000", "--size", "16MiB"});
  EXPECT_THAT(client.ReadLine(), HasSubstr(address));  // it has begun
  client.Signal(SIGKILL);
  EXPECT_EQ(client.Finish().exit_code, -SIGKILL);
  const Ended next = Ferry(
      {"perf", "client", address, "--size", "64KiB", "--iters", "5", "--rounds", "1", "--json"});
  ASSERT_EQ(next.exit_code, 0) << next.err;
  ExpectWholeRow(json::parse(next.out, nullptr, false));
  server.Signal(SIGINT);
  EXPECT_EQ(server.Finish().exit_code, 0);
}

TEST(Perf, AClientWhoseServerDiesEndsWithCode3) {
  Program server({"perf", "server", "--listen", "127.0.0.1", "--port", "0", "--json"});
  const std::string address = AddressOf(&server);
  Program client({"perf", "client", address, "--rounds", "1000", "--no-floor"});
  EXPECT_THAT(client.ReadLine(), HasSubstr(address));
  server.Signal(SIGKILL);
  EXPECT_EQ(client.Finish().exit_code, 3);
}

TEST(Perf, CtrlCEndsBothSidesOfALoopback) {
  Program loopback({"perf", "loopback", "--rounds", "1000", "--deadline", "1000s"});
  EXPECT_THAT(loopback.ReadLine(), HasSubstr("127.0.0.1"));
  loopback.Signal(SIGINT);
  const Ended ended = loopback.Finish();
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.err, HasSubstr("interrupted"));
}

TEST(Perf, TheServerOfALoopbackDiesWithItsParent) {
  Program loopback({"perf", "loopback", "--rounds", "1000", "--deadline", "1000s"});
  EXPECT_THAT(loopback.ReadLine(), HasSubstr("127.0.0.1"));
  const std::string pid = std::to_string(loopback.pid());
  std::ifstream children("/proc/" + pid + "/task/" + pid + "/children");
  pid_t server = 0;
  if (!(children >> server)) GTEST_SKIP() << "this kernel does not list children";
  const UniqueFd gone = OpenProcess(server);
  ASSERT_TRUE(gone);
  loopback.Signal(SIGKILL);
  EXPECT_TRUE(WaitReadable(gone.get(), Deadline::After(kPatience)));
}

// ---- transfer -----------------------------------------------------------------------------------

TEST(Transfer, FilesOfAnySizeArriveIdentical) {
  const Folder here;
  const Folder there;
  Program server({"transfer", "server", "--dir", there.text(), "--listen", "127.0.0.1", "--port",
                  "0", "--json"});
  const std::string address = AddressOf(&server);
  for (const std::size_t size : {0U, 1U, 4097U, (3U << 20) + 1}) {
    const std::string name = "file-" + std::to_string(size);
    WriteFile(here / name, SomeBytes(size));
    const Ended client =
        Ferry({"transfer", "client", address, "--file", (here / name).string(), "--json"});
    ASSERT_EQ(client.exit_code, 0) << client.err;
    const json sent = json::parse(client.out, nullptr, false);
    EXPECT_EQ(sent.value("bytes", std::size_t{99}), size);
    EXPECT_EQ(sent.value("identical", false), true);
    const json received = json::parse(server.ReadLine(), nullptr, false);
    EXPECT_EQ(received.value("name", ""), name);
    EXPECT_EQ(received.value("sha256", "none"), sent.value("sha256", ""));
    EXPECT_TRUE(ReadFile(there / name) == SomeBytes(size)) << size;
  }
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Finish().exit_code, 0);
}

TEST(Transfer, AnExistingFileIsReplacedAndNothingElseIsLeft) {
  const Folder here;
  const Folder there;
  WriteFile(here / "model", "new");
  WriteFile(there / "model", "old and longer");
  Program server({"transfer", "server", "--dir", there.text(), "--listen", "127.0.0.1", "--port",
                  "0", "--once", "--json"});
  const Ended client =
      Ferry({"transfer", "client", AddressOf(&server), "--file", (here / "model").string()});
  ASSERT_EQ(client.exit_code, 0) << client.err;
  EXPECT_THAT(client.out, AllOf(HasSubstr("transport tcp"), HasSubstr("congestion control"),
                                HasSubstr("done: identical")));
  EXPECT_EQ(server.Finish().exit_code, 0);
  EXPECT_EQ(ReadFile(there / "model"), "new");
  EXPECT_EQ(std::distance(fs::directory_iterator(there.text()), {}), 1);
}

TEST(Transfer, AMessageArrivesPrintable) {
  Program server({"transfer", "server", "--listen", "127.0.0.1", "--port", "0", "--once"});
  const std::string listening = server.ReadLine();
  const std::string address = listening.substr(sizeof "listening on " - 1,
                                               listening.find(',') - sizeof "listening on " + 1);
  const Ended client = Ferry({"transfer", "client", address, "--message", "Grüße\x1b[2J"});
  EXPECT_EQ(client.exit_code, 0) << client.err;
  const Ended ended = server.Finish();
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("message: Grüße\\x1b[2J\n"));
}

TEST(Transfer, AServerThatCannotStoreTheFileSaysSo) {
  const Folder here;
  WriteFile(here / "file", "text");
  Program server({"transfer", "server", "--dir", (here / "missing").string(), "--listen",
                  "127.0.0.1", "--port", "0", "--once", "--json"});
  const Ended client = Ferry(
      {"transfer", "client", AddressOf(&server), "--file", (here / "file").string(), "--json"});
  EXPECT_NE(client.exit_code, 0);
  EXPECT_THAT(client.err, Sentence("ferry transfer client", "missing"));
  EXPECT_NE(server.Finish().exit_code, 0);
}

// ---- info ---------------------------------------------------------------------------------------

TEST(Info, JsonHasEverySettingWithItsSource) {
  const Ended ended =
      Ferry({"info", "--json", "--set", "window_bytes=32MiB"}, {"FERRY_LANES=3", "FERRY_LANE=3"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const json info = json::parse(ended.out, nullptr, false);
  for (const char* key : {"build", "machine", "kernel", "interfaces", "providers"}) {
    EXPECT_FALSE(info.value(key, json()).empty()) << key;
  }
  std::map<std::string, json> settings;
  for (const json& setting : info.value("settings", json::array())) {
    settings[setting.value("name", "")] = setting;
  }
  EXPECT_EQ(settings["lanes"].value("value", ""), "3");
  EXPECT_EQ(settings["lanes"].value("source", ""), "environment");
  EXPECT_EQ(settings["window_bytes"].value("source", ""), "--set");
  EXPECT_EQ(settings["slice_bytes"].value("source", ""), "default");
  EXPECT_EQ(settings["slice_bytes"].value("variable", ""), "FERRY_SLICE_BYTES");
  ASSERT_EQ(info.value("warnings", json()).size(), 1U);
  EXPECT_THAT(info["warnings"][0].get<std::string>(), HasSubstr("FERRY_LANE "));
}

TEST(Info, TextHasEverySection) {
  const Ended ended = Ferry({"info"});
  EXPECT_EQ(ended.exit_code, 0);
  for (const char* title :
       {"Build\n", "Machine\n", "Kernel\n", "Addresses\n", "Providers\n  tcp\n", "Settings\n"}) {
    EXPECT_THAT(ended.out, HasSubstr(title));
  }
}

}  // namespace
}  // namespace ferry
