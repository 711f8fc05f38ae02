// Implements the peer role that works under tight resource limits.

#include "tests/limits/limits_role.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "tests/support/engine_peer.h"

namespace ferry::tests {
namespace {

constexpr uid_t kFirstUser = 50'000;  // with so many after it, who run nothing else
constexpr pid_t kUsers = 10'000;

class LimitedRole {
 public:
  Result<std::string> Do(const std::string& line) {
    std::istringstream words(line);
    std::string command;
    words >> command;
    if (command == "few_threads") return FewThreads(words);
    if (command == "create") return Create(words);
    if (command == "threads") return fmt::format("{}", CountEntries("/proc/self/task"));
    if (command == "descriptors") return fmt::format("{}", CountEntries("/proc/self/fd"));
    if (command == "hanging_names") return HangNames();
    if (command == "connect") return Connect(words, /*close_meanwhile=*/false);
    if (command == "close_while_connecting") return Connect(words, /*close_meanwhile=*/true);
    return Error(Code::kInvalidArgument, "unknown command: " + line);
  }

 private:
  static std::ptrdiff_t CountEntries(const char* folder) {
    const std::filesystem::directory_iterator entries(folder);
    return std::distance(begin(entries), end(entries));
  }

  static Result<std::string> FewThreads(std::istringstream& words) {
    std::thread([] {
    }).join();  // with the first, ThreadSanitizer begins one of its own, which stays
    rlimit limit{};
    words >> limit.rlim_cur;
    const auto user = kFirstUser + static_cast<uid_t>(::getpid() % kUsers);
    if (::getuid() == 0 && ::setresuid(user, user, user) != 0) {
      return ErrnoError("becoming another user", errno);
    }
    (void)::prctl(PR_SET_DUMPABLE, 1);  // so that it may look at itself
    limit.rlim_max = std::max(limit.rlim_cur, CurrentMaximum());
    if (::setrlimit(RLIMIT_NPROC, &limit) != 0) return ErrnoError("setrlimit", errno);
    return std::string();
  }
  static rlim_t CurrentMaximum() {
    rlimit limit{};
    (void)::getrlimit(RLIMIT_NPROC, &limit);
    return limit.rlim_max;
  }

  static Result<std::string> Create(std::istringstream& words) {
    Settings settings;
    for (std::string setting; words >> setting;) settings.push_back(setting);
    const auto endpoint = transfer::Endpoint::Create(ConfigOf(settings));
    if (!endpoint) return Described(endpoint.error());
    return std::string("made");
  }

  // A network and files of its own, in which a socket takes the questions.
  Result<std::string> HangNames() {
    if (::unshare(CLONE_NEWNET | CLONE_NEWNS) != 0) return ErrnoError("unshare", errno);
    if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
      return ErrnoError("mount", errno);
    }
    std::string file = "/tmp/ferry_resolv_XXXXXX";
    const UniqueFd made(::mkstemp(file.data()));
    std::ofstream(file) << "nameserver 127.0.0.1\n";
    const int bound = ::mount(file.c_str(), "/etc/resolv.conf", nullptr, MS_BIND, nullptr);
    const int error_number = errno;
    (void)::unlink(file.c_str());
    if (bound != 0) return ErrnoError("mount of resolv.conf", error_number);
    server_ = UniqueFd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ifreq loopback{};
    std::strncpy(loopback.ifr_name, "lo", sizeof loopback.ifr_name - 1);
    loopback.ifr_flags = IFF_UP | IFF_RUNNING;
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_port = htons(53);
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (!server_ || ::ioctl(server_.get(), SIOCSIFFLAGS, &loopback) != 0 ||
        ::bind(server_.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0) {
      return ErrnoError("a name server", errno);
    }
    return std::string();
  }

  Result<std::string> Connect(std::istringstream& words, bool close_meanwhile) {
    std::string where;
    std::int64_t wait = 0;
    words >> where >> wait;
    auto endpoint = Must(transfer::Endpoint::Create(ConfigOf(FastSettings())));
    std::jthread closer;
    const Stopwatch watch;
    if (close_meanwhile) {
      closer = std::jthread([this, &endpoint] {
        AwaitQuestion();
        endpoint.Close();
      });
    }
    const auto connected = endpoint.Connect(where, Deadline::After(milliseconds(wait)));
    if (connected) return Error(Code::kInternal, "it has connected");
    return fmt::format("{} {}", watch.elapsed().count(), Described(connected.error()));
  }
  // The resolver has begun to wait.
  void AwaitQuestion() const {
    std::array<char, 512> question{};
    (void)::recv(server_.get(), question.data(), question.size(), 0);
  }

  UniqueFd server_;  // of names
};

}  // namespace

int RunLimitedPeer(LinePipe& parent) {
  LimitedRole role;
  return Obey(parent, [&role](const std::string& line) { return role.Do(line); });
}

}  // namespace ferry::tests
