// Implements network namespaces and rate-limited links for tests.

#include "tests/links/network_pair.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sched.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <thread>

#include "ferry/core/deadline.h"
#include "ferry/core/fd.h"

namespace ferry::tests {
namespace {

struct Ended {
  int status = 0;
  std::string said;
};

struct PipeCloser {
  void operator()(std::FILE* pipe) const noexcept { (void)::pclose(pipe); }
};

Ended Run(const std::string& command) {
  std::unique_ptr<std::FILE, PipeCloser> pipe(::popen(("(" + command + ") 2>&1").c_str(), "r"));
  if (!pipe) return {-1, "popen failed"};
  Ended ended;
  std::array<char, 256> chunk;
  while (std::fgets(chunk.data(), chunk.size(), pipe.get()) != nullptr) ended.said += chunk.data();
  ended.status = ::pclose(pipe.release());
  return ended;
}

void Must(const std::string& command) {
  const Ended ended = Run(command);
  if (ended.status != 0) throw std::runtime_error(command + ": " + ended.said);
}

// The kernel reports a carrier up to a second after both ends of a veth pair are up.
void AwaitCarrier(const std::string& network, std::size_t link) {
  const Deadline deadline = Deadline::After(std::chrono::seconds(10));
  const std::string show = fmt::format("ip -n {} -o link show dev l{}", network, link);
  for (;;) {
    const Ended shown = Run(show);
    if (shown.said.find("state UP") != std::string::npos) return;
    if (deadline.expired()) throw std::runtime_error("no carrier: " + shown.said);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

std::string UniqueName(const char* side) {
  static int count = 0;
  return fmt::format("ferry-{}-{}-{}", ::getpid(), ++count, side);
}

}  // namespace

std::optional<std::string> NetworkPair::Missing() {
  if (::geteuid() != 0) return "network namespaces need root";
  const std::string name = UniqueName("probe");
  const Ended made = Run("ip netns add " + name);
  if (made.status != 0) return "no network namespaces here: " + made.said;
  const Ended limited = Run(fmt::format(
      "ip -n {0} link add name a type veth peer name b && tc -n {0} qdisc add dev a root "
      "tbf rate 1gbit burst 1mb latency 20ms && nft --version",
      name));
  (void)Run("ip netns del " + name);
  if (limited.status != 0) return "veth, tbf or nft is missing here: " + limited.said;
  return std::nullopt;
}

NetworkPair::NetworkPair(const PairOptions& options)
    : options_(options), near_(UniqueName("near")), far_(UniqueName("far")) {
  Must("ip netns add " + near_);
  Must("ip netns add " + far_);
  for (const std::string& network : {near_, far_}) Must("ip -n " + network + " link set lo up");
  for (std::size_t i = 0; i < options_.links.size(); ++i) {
    Must(fmt::format("ip -n {} link add name l{} mtu {} type veth peer name l{} mtu {} netns {}",
                     near_, i, options_.mtu, i, options_.mtu, far_));
    std::size_t side = 1;
    for (const std::string& network : {near_, far_}) {
      Must(fmt::format("ip -n {} addr add {} dev l{}", network,
                       AddressOf(i, side) + (options_.ipv6 ? "/64 nodad" : "/24"), i));
      // Else what comes over a link that the route does not use is dropped.
      if (options_.one_subnet && !options_.ipv6) {
        Must(
            fmt::format("ip netns exec {} sysctl -qw net.ipv4.conf.all.rp_filter=0 "
                        "net.ipv4.conf.l{}.rp_filter=0",
                        network, i));
      }
      Must(fmt::format("ip -n {} link set l{} up", network, i));
      Limit(network, i, options_.links[i].mbits, "add");
      ++side;
    }
  }
  for (std::size_t i = 0; i < options_.links.size(); ++i) {
    for (const std::string& network : {near_, far_}) AwaitCarrier(network, i);
  }
}

NetworkPair::~NetworkPair() {
  for (const std::string& network : {near_, far_}) (void)Run("ip netns del " + network);
}

std::string NetworkPair::AddressOf(std::size_t link, std::size_t side) const {
  const std::size_t subnet = options_.one_subnet ? 0 : link;
  const std::size_t host = side + (options_.one_subnet ? 10 * link : 0);
  return options_.ipv6 ? fmt::format("fd77:{}::{}", subnet, host)
                       : fmt::format("10.77.{}.{}", subnet, host);
}

std::uint64_t NetworkPair::SentBytes(const std::string& network, std::size_t link) const {
  const Ended read = Run(
      fmt::format("ip netns exec {} cat /sys/class/net/l{}/statistics/tx_bytes", network, link));
  if (read.status != 0) throw std::runtime_error("no counter: " + read.said);
  return std::stoull(read.said);
}

void NetworkPair::Limit(const std::string& network, std::size_t link, int mbits, const char* verb) {
  if (mbits == 0) return;
  Must(fmt::format("tc -n {} qdisc {} dev l{} root tbf rate {}mbit burst 1mb latency 20ms", network,
                   verb, link, mbits));
}

void NetworkPair::SetLink(std::size_t link, bool up) {
  Must(fmt::format("ip -n {} link set l{} {}", near_, link, up ? "up" : "down"));
  // Taking a link down takes its IPv6 addresses along.
  if (up && options_.ipv6) {
    Must(fmt::format("ip -n {} addr replace {}/64 dev l{} nodad", near_, AddressOf(link, 1), link));
  }
}

void NetworkPair::SetDialPorts(int first, int last) {
  Must(fmt::format("ip netns exec {} sysctl -w 'net.ipv4.ip_local_port_range={} {}'", near_, first,
                   last));
}

void NetworkPair::SetRate(std::size_t link, int mbits) {
  for (const std::string& network : {near_, far_}) Limit(network, link, mbits, "change");
}

void NetworkPair::SetBlackHole(std::size_t link, bool on) {
  const std::string nft = fmt::format("ip netns exec {} nft ", far_);
  if (!on) return Must(nft + fmt::format("delete table inet hole{}", link));
  Must(nft + fmt::format("add table inet hole{}", link));
  for (const char* hook : {"input", "output"}) {
    Must(nft + fmt::format("'add chain inet hole{0} {1} {{ type filter hook {1} priority 0; }}'",
                           link, hook));
    Must(nft + fmt::format("add rule inet hole{} {} {} l{} drop", link, hook,
                           std::string(hook) == "input" ? "iifname" : "oifname", link));
  }
}

// ---- one namespace ------------------------------------------------------------------------------

namespace {

// Kinds of interfaces without a peer; the first one that this machine's kernel supports is used.
constexpr std::array kIdleKinds{"dummy", "ifb"};

std::optional<std::string> FindIdleKind(const std::string& network) {
  for (const char* kind : kIdleKinds) {
    if (Run(fmt::format("ip -n {} link add held type {}", network, kind)).status == 0) return kind;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> OneNetwork::Missing() {
  if (::geteuid() != 0) return "network namespaces need root";
  const std::string name = UniqueName("probe");
  const Ended made = Run("ip netns add " + name);
  if (made.status != 0) return "no network namespaces here: " + made.said;
  const auto kind = FindIdleKind(name);
  (void)Run("ip netns del " + name);
  if (!kind) return "this kernel has neither dummy nor ifb interfaces";
  return std::nullopt;
}

OneNetwork::OneNetwork() : name_(UniqueName("one")) {
  Must("ip netns add " + name_);
  (void)FindIdleKind(name_);
  for (const std::string command :
       {"link set lo up", "link set held up", "addr add 10.77.0.1/32 dev held",
        "route add local 10.78.0.0/16 dev lo",
        "route replace local 10.77.0.1 dev lo table local src 10.78.200.1"}) {
    Must(fmt::format("ip -n {} {}", name_, command));
  }
}

OneNetwork::~OneNetwork() { (void)Run("ip netns del " + name_); }

void OneNetwork::AddInterfaces(int count) {
  const std::string link = Run(fmt::format("ip -n {} -d link show held", name_)).said;
  const char* const kind = link.find("dummy") != std::string::npos ? "dummy" : "ifb";
  std::string commands;
  for (int i = 0; i < count; ++i) {
    commands += fmt::format(
        "link add d{0} type {1}\naddr add 10.79.{2}.{3}/32 dev d{0}\nlink set d{0} up\n", i, kind,
        i / 250, i % 250 + 1);
  }
  Must(fmt::format("ip -n {} -batch - <<'END'\n{}END\n", name_, commands));
}

void EnterNetwork(const std::string& network) {
  if (network.empty()) return;
  const std::string path = "/run/netns/" + network;
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd || ::setns(fd.get(), CLONE_NEWNET) != 0) {
    throw std::runtime_error(ErrnoError("entering " + path, errno).message());
  }
}

}  // namespace ferry::tests
