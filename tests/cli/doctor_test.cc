// `ferry doctor` as its users see it: on this machine, and in networks that have something wrong.
#include <arpa/inet.h>
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "ferry/core/fd.h"
#include "tests/cli/ferry_program.h"
#include "tests/support/peer_process.h"

namespace ferry::tests {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

// Settings from the test's own environment must not be visible.
Arguments FerryWith(const Arguments& variables, const Arguments& arguments) {
  Arguments command{"/usr/bin/env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"};
  command.insert(command.end(), variables.begin(), variables.end());
  command.emplace_back(FERRY_BINARY);
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

// The end of a program whose output is of no interest.
int ExitOf(Arguments command) {
  return Must(Must(PeerProcess::StartProgram(std::move(command)))->WaitExit(TestDeadline()));
}

struct Context {
  int exit_code = -1;
  json report;

  json check(const std::string& id) const {
    for (const json& one : report.value("checks", json::array())) {
      if (one.value("id", "") == id) return one;
    }
    return json::object();
  }
  std::string verdict(const std::string& id) const { return check(id).value("verdict", "none"); }
  std::string evidence(const std::string& id) const { return check(id).value("evidence", ""); }
  std::string fix(const std::string& id) const { return check(id).value("fix", ""); }
};

Context RunBy(Arguments command) {
  const auto doctor = Must(PeerProcess::StartProgram(std::move(command)));
  Context context;
  context.report = json::parse(Must(doctor->Hear(TestDeadline())), nullptr, false);
  context.exit_code = Must(doctor->WaitExit(TestDeadline()));
  return context;
}

int ExitCodeFor(const std::string& worst) {
  if (worst == "warning") return 5;
  return worst == "problem" ? 6 : 0;
}

// Takes connections and never says a word.
class SilentListener {
 public:
  SilentListener() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* const raw = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(fd_.get(), raw, length), 0);
    EXPECT_EQ(::listen(fd_.get(), 8), 0);
    EXPECT_EQ(::getsockname(fd_.get(), raw, &length), 0);
    port_ = ntohs(address.sin_port);
  }
  std::uint16_t port() const { return port_; }

 private:
  UniqueFd fd_;
  std::uint16_t port_ = 0;
};

std::string AddressOf(PeerProcess* server) {
  const json announcement = json::parse(Must(server->Hear(TestDeadline())), nullptr, false);
  return announcement.value("listening", "");
}

// ---- this machine -------------------------------------------------------------------------------

TEST(Doctor, ALiveServerIsMetOnEveryLane) {
  const auto server = Must(PeerProcess::StartProgram(FerryWith(
      {}, {"perf", "server", "--listen", "127.0.0.1", "--port", "0", "--lanes", "3", "--json"})));
  const Context context = RunBy(
      FerryWith({}, {"doctor", "--peer", AddressOf(server.get()), "--json", "--set", "lanes=3"}));
  EXPECT_EQ(context.verdict("reach"), "ok") << context.report;
  EXPECT_THAT(context.evidence("route_ipv4"), AllOf(HasSubstr("lo "), HasSubstr("this machine")));
  EXPECT_EQ(context.verdict("peer"), "ok");
  EXPECT_THAT(context.evidence("peer"), AllOf(HasSubstr("3 lanes"), HasSubstr("lo ")));
  EXPECT_EQ(context.exit_code, ExitCodeFor(context.report.value("worst", "")));
  for (const char* id : {"settings", "secret", "congestion_control", "socket_buffers", "cores",
                         "memory", "clock", "open_files", "vmsplice"}) {
    EXPECT_NE(context.verdict(id), "none") << id;
  }
}

TEST(Doctor, AClosedPortIsRefusedAndEndsWithCode6) {
  const ClosedPort closed;
  const std::string& address = closed.address();
  const Context context = RunBy(FerryWith({}, {"doctor", "--peer", address, "--json"}));
  EXPECT_EQ(context.exit_code, 6);
  EXPECT_EQ(context.report.value("worst", ""), "problem");
  EXPECT_EQ(context.verdict("reach"), "problem");
  EXPECT_THAT(context.evidence("reach"), HasSubstr(address + " refused"));
  EXPECT_EQ(context.verdict("peer"), "skipped");
}

TEST(Doctor, SomethingElseThatListensIsNoPeer) {
  const SilentListener listener;
  const std::string address = fmt::format("127.0.0.1:{}", listener.port());
  const Context context =
      RunBy(FerryWith({"FERRY_CONNECT_TIMEOUT=1s"}, {"doctor", "--peer", address, "--json"}));
  EXPECT_EQ(context.exit_code, 6);
  EXPECT_EQ(context.verdict("reach"), "ok");
  EXPECT_EQ(context.verdict("peer"), "problem");
  EXPECT_THAT(context.evidence("peer"), HasSubstr(address));
}

TEST(Doctor, AnUnknownHostIsAProblem) {
  const Context context =
      RunBy(FerryWith({}, {"doctor", "--peer", "no-such-host.invalid", "--json"}));
  EXPECT_EQ(context.exit_code, 6);
  EXPECT_THAT(context.evidence("name"), HasSubstr("no-such-host.invalid"));
}

TEST(Doctor, WrongVariablesAreForItToTellAndWrongOptionsAreUsage) {
  const Context context =
      RunBy(FerryWith({"FERRY_LANES=many", "FERRY_LANE=2"}, {"doctor", "--json"}));
  EXPECT_EQ(context.exit_code, 6);
  EXPECT_THAT(context.evidence("settings"),
              AllOf(HasSubstr("FERRY_LANES"),
                    HasSubstr("FERRY_LANE is not a setting; did you mean FERRY_LANES?")));
  EXPECT_EQ(context.fix("settings"), "unset FERRY_LANES FERRY_LANE");
  EXPECT_EQ(ExitOf(FerryWith({}, {"doctor", "--set", "lanes=many"})), 2);
  EXPECT_EQ(ExitOf(FerryWith({}, {"doctor", "--peer", "127.0.0.1:0"})), 2);
  EXPECT_EQ(ExitOf(FerryWith({}, {"doctor", "--peer", "127.0.0.1:port"})), 2);
}

#ifdef FERRY_WITHOUT_TCPX
TEST(Doctor, AProblemWhereGpuDirectTcpxIsAskedForAndNotBuilt) {
  EXPECT_EQ(RunBy(FerryWith({}, {"doctor", "--json"})).verdict("tcpx"), "skipped");
  const Context asked = RunBy(FerryWith({}, {"doctor", "--tcpx", "--json"}));
  EXPECT_EQ(asked.verdict("tcpx"), "problem") << asked.report;
  EXPECT_THAT(asked.evidence("tcpx"), HasSubstr("FERRY_TCPX=OFF"));
}
#else
TEST(Doctor, GpuDirectTcpxIsOneLineUnlessAskedFor) {
  const Context context = RunBy(FerryWith({}, {"doctor", "--json"}));
  EXPECT_EQ(context.verdict("tcpx"), "skipped") << context.report;
  EXPECT_EQ(context.verdict("tcpx_plugin"), "none");
  EXPECT_EQ(context.exit_code, ExitCodeFor(context.report.value("worst", "")));
  const Context asked = RunBy(FerryWith({}, {"doctor", "--tcpx", "--json"}));
  EXPECT_EQ(asked.verdict("tcpx"), "none");
  EXPECT_EQ(asked.verdict("tcpx_plugin"), "problem") << asked.report;
  EXPECT_EQ(asked.verdict("tcpx_chunk_size"), "problem");
  EXPECT_EQ(asked.verdict("tcpx_daemon"), "problem");
  EXPECT_EQ(asked.exit_code, 6);
}

TEST(Doctor, APluginThatIsNamedIsLookedFor) {
  const Context context =
      RunBy(FerryWith({"FERRY_NET_PLUGIN=/nowhere/p.so"}, {"doctor", "--json"}));
  EXPECT_EQ(context.verdict("settings"), "ok") << context.report;
  EXPECT_EQ(context.verdict("tcpx_plugin"), "problem");
  EXPECT_THAT(context.evidence("tcpx_plugin"), HasSubstr("/nowhere/p.so"));
}
#endif

TEST(Doctor, NixlIsOneLineUnlessAskedFor) {
  EXPECT_EQ(RunBy(FerryWith({}, {"doctor", "--json"})).verdict("nixl"), "skipped");
  const Context asked =
      RunBy(FerryWith({"NIXL_PLUGIN_DIR=/nowhere"}, {"doctor", "--nixl", "--json"}));
  EXPECT_EQ(asked.verdict("nixl"), "none");
  EXPECT_EQ(asked.verdict("nixl_plugin"), "problem") << asked.report;
  EXPECT_THAT(asked.evidence("nixl_plugin_dir"), HasSubstr("NIXL_PLUGIN_DIR: /nowhere"));
  EXPECT_EQ(asked.exit_code, 6);
}

// ---- networks of our own ------------------------------------------------------------------------

// Two machines, "a" at 10.99.0.1 and "b" at 10.99.0.2, as network namespaces with a cable.
class DoctorNetwork : public testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root makes network namespaces";
    for (const char* program : {"/usr/sbin/ip", "/usr/sbin/nft"}) {
      if (::access(program, X_OK) != 0) GTEST_SKIP() << program << " is not installed";
    }
    made_ = Ip({"netns", "add", Name("a")}) == 0;
    if (!made_) GTEST_SKIP() << "network namespaces cannot be made here";
    ASSERT_EQ(Ip({"netns", "add", Name("b")}), 0);
    ASSERT_EQ(Ip({"link", "add", "wire0", "netns", Name("a"), "type", "veth", "peer", "name",
                  "wire0", "netns", Name("b")}),
              0);
    for (const auto& [which, address] :
         {std::pair{"a", "10.99.0.1/24"}, std::pair{"b", "10.99.0.2/24"}}) {
      ASSERT_EQ(Ip({"-n", Name(which), "address", "add", address, "dev", "wire0"}), 0);
      ASSERT_EQ(Ip({"-n", Name(which), "link", "set", "lo", "up"}), 0);
      ASSERT_EQ(Ip({"-n", Name(which), "link", "set", "wire0", "up"}), 0);
    }
  }
  void TearDown() override {
    server_.reset();
    if (!made_) return;
    (void)Ip({"netns", "delete", Name("a")});
    (void)Ip({"netns", "delete", Name("b")});
  }

  static std::string Name(const std::string& which) {
    return fmt::format("ferry-doctor-{}-{}", ::getpid(), which);
  }
  static int Ip(Arguments arguments) {
    arguments.insert(arguments.begin(), "/usr/sbin/ip");
    return ExitOf(std::move(arguments));
  }
  static Arguments In(const std::string& which, const Arguments& command) {
    Arguments inside{"/usr/sbin/ip", "netns", "exec", Name(which)};
    inside.insert(inside.end(), command.begin(), command.end());
    return inside;
  }
  static int Shell(const std::string& which, const std::string& command) {
    return ExitOf(In(which, {"/bin/sh", "-c", command}));
  }
  static void Nft(const std::string& which, const std::string& rules) {
    ASSERT_EQ(Shell(which, "echo '" + rules + "' | nft -f -"), 0) << rules;
  }

  void StartServer() {
    server_ = Must(PeerProcess::StartProgram(
        In("b", FerryWith({}, {"perf", "server", "--listen", "10.99.0.2", "--port", "7471",
                               "--insecure", "--json"}))));
    ASSERT_EQ(AddressOf(server_.get()), "10.99.0.2:7471");
  }
  static Context FromA(const Arguments& variables = {}) {
    return RunBy(
        In("a", FerryWith(variables, {"doctor", "--peer", "10.99.0.2", "--insecure", "--json"})));
  }

 private:
  bool made_ = false;
  std::unique_ptr<PeerProcess> server_;
};

TEST_F(DoctorNetwork, AnOpenWayToThePeerIsFine) {
  StartServer();
  const Context context = FromA();
  EXPECT_EQ(context.evidence("route_ipv4"), "wire0 from 10.99.0.1, directly, MTU 1500");
  EXPECT_EQ(context.verdict("reach"), "ok") << context.report;
  EXPECT_THAT(context.evidence("mtu"), HasSubstr("wire0 1500, path 1500, segments of 1448"));
  EXPECT_EQ(context.verdict("peer"), "ok");
  EXPECT_THAT(context.evidence("peer"), HasSubstr("wire0"));
}

TEST_F(DoctorNetwork, AFilterAtThePeerShowsAsSilence) {
  StartServer();
  Nft("b",
      "table inet filter { chain input { type filter hook input priority 0; policy accept; "
      "tcp dport 7000-8000 drop; }; }");
  const Context blocked = FromA();
  EXPECT_EQ(blocked.exit_code, 6);
  EXPECT_THAT(blocked.evidence("reach"), HasSubstr("10.99.0.2:7471 timed out"));
  EXPECT_EQ(blocked.fix("reach"),
            "nft list ruleset  # as root on 10.99.0.2: which rule drops TCP port 7471");
  EXPECT_EQ(blocked.verdict("peer"), "skipped");
}

TEST_F(DoctorNetwork, PortsThatAFilterClosesAreFoundByDialing) {
  StartServer();
  Nft("b",
      "table inet filter { chain input { type filter hook input priority 0; policy accept; "
      "tcp dport 7472 reject with tcp reset; tcp dport 7473-7474 drop; }; }");
  const Context context = FromA({"FERRY_PORT_RANGE=7471-7474"});
  EXPECT_EQ(context.evidence("port_range"), "7471 answered") << context.report;
  EXPECT_THAT(context.evidence("port_range_refused"), HasSubstr("7472 refused"));
  EXPECT_EQ(context.verdict("port_range_timed_out"), "warning");
  EXPECT_THAT(context.evidence("port_range_timed_out"), HasSubstr("7473-7474 timed out"));
}

TEST_F(DoctorNetwork, PacketsThatOnlyOneSideTakesAreTold) {
  StartServer();
  ASSERT_EQ(Ip({"-n", Name("a"), "link", "set", "dev", "wire0", "mtu", "9000"}), 0);
  const Context context = FromA();
  EXPECT_EQ(context.verdict("mtu"), "warning");
  EXPECT_THAT(context.evidence("mtu"), HasSubstr("the peer takes packets of about 1500 only"));
}

TEST_F(DoctorNetwork, WithoutARouteThePeerIsUnreachable) {
  ASSERT_EQ(Ip({"-n", Name("a"), "link", "set", "dev", "wire0", "down"}), 0);
  const Context context = FromA();
  EXPECT_EQ(context.exit_code, 6);
  EXPECT_EQ(context.verdict("route_ipv4"), "problem");
  EXPECT_EQ(context.fix("route_ipv4"), "ip route get 10.99.0.2");
  EXPECT_THAT(context.evidence("reach"), HasSubstr("unreachable"));
}

TEST_F(DoctorNetwork, NameServersThatDoNotAnswerAreToldInTime) {
  Nft("b",
      "table ip filter { chain input { type filter hook input priority 0; policy accept; "
      "udp dport 53 drop; }; }");
  const std::string servers = "nameserver 10.99.0.2";
  const std::string doctor = fmt::format(
      "mount -t tmpfs none /mnt && echo {} > /mnt/resolv.conf && mount --bind /mnt/resolv.conf "
      "/etc/resolv.conf && exec {} doctor --peer node7.example --json",
      servers, FERRY_BINARY);
  const Context context = RunBy(In("a", {"/usr/bin/unshare", "--mount", "/bin/sh", "-c", doctor}));
  EXPECT_EQ(context.exit_code, 6);
  EXPECT_EQ(context.verdict("name"), "problem");
  EXPECT_THAT(context.evidence("name"),
              HasSubstr("did not answer for host \"node7.example\" within 3000 ms"));
}

// TCP's settings are each namespace's own.
TEST_F(DoctorNetwork, TheCommandsOfSettingsFixThem) {
  ASSERT_EQ(Shell("a",
                  "sysctl -qw net.ipv4.tcp_sack=0 net.ipv4.tcp_slow_start_after_idle=1 "
                  "net.ipv4.tcp_rmem='4096 87380 262144'"),
            0);
  const Context before = RunBy(In("a", FerryWith({}, {"doctor", "--json"})));
  EXPECT_EQ(before.exit_code, 5) << before.report;
  EXPECT_EQ(before.verdict("tcp_options"), "warning");
  EXPECT_EQ(before.verdict("socket_buffers"), "warning");
  EXPECT_EQ(before.verdict("slow_start_after_idle"), "note");
  for (const char* id : {"tcp_options", "socket_buffers", "slow_start_after_idle"}) {
    ASSERT_EQ(Shell("a", before.fix(id) + " > /dev/null"), 0) << before.fix(id);
  }
  const Context after = RunBy(In("a", FerryWith({}, {"doctor", "--json"})));
  for (const char* id : {"tcp_options", "socket_buffers", "slow_start_after_idle"}) {
    EXPECT_EQ(after.verdict(id), "ok") << after.evidence(id);
  }
}

}  // namespace
}  // namespace ferry::tests
