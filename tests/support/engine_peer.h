// A peer process with its own endpoint, controlled by the test.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ferry/core/config.h"
#include "ferry/transfer/endpoint.h"
#include "tests/support/guarded_memory.h"
#include "tests/support/peer_process.h"

namespace ferry::tests {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// Settings of both sides: timeouts that are seconds by default are tenths of a second. They are
// longer with a sanitizer, where a process on a busy machine may be silent for long without being
// frozen.
inline constexpr milliseconds kPeerTimeout{kSanitized ? 3000 : 1000};
inline constexpr milliseconds kHeartbeat{200};
inline constexpr milliseconds kDrainGrace{kSanitized ? 2000 : 500};
// Added to deadlines of waits that are not judged: the delay that a busy machine may cause.
inline constexpr milliseconds kSlack{kSanitized ? 5000 : 2000};

// Whether tests judge rates, and judge times without allowance for other load on the machine. Set
// by FERRY_TEST_RATES=1 (bench/reliability); never with a sanitizer, which is too slow.
bool RatesAreJudged();

// "name=value", as Config::Set takes them.
using Settings = std::vector<std::string>;
Settings FastSettings(const Settings& more = {});
// The same for transfers that are to be cut in the middle: 64 MiB take half a second or more, so
// that a busy machine does not let them end first.
Settings PacedSettings(const Settings& more = {});
// A "port_range" of ports that are not given to dials, for a peer that is to come back at its port.
std::string LastingPorts();
Config ConfigOf(const Settings& settings);

// The time from now on.
class Stopwatch {
 public:
  milliseconds elapsed() const {
    return std::chrono::duration_cast<milliseconds>(Clock::now() - start_);
  }

 private:
  Clock::time_point start_ = Clock::now();
};
// The allowance added to a time bound on a machine that ran threads up to `late` late. If
// RatesAreJudged(), 100 ms; otherwise 250 ms (1500 ms with a sanitizer) plus ten times `late`, of
// which at most kSlack counts: a machine that stood still for long does not excuse everything.
milliseconds SlackFor(milliseconds late);
// Expects `took` to be within `bound`, and prints both. SlackFor() what the machine has been
// measured to be late since the test began is added (tests/links/load_meter.h).
void ExpectWithin(milliseconds took, milliseconds bound, std::string_view what);

// Seeds of the initial contents of either side's memory.
inline constexpr std::uint64_t kSourceSeed = 1;
inline constexpr std::uint64_t kDestinationSeed = 2;
inline constexpr std::uint64_t kPeerInSeed = 3;
inline constexpr std::uint64_t kPeerOutSeed = 4;
inline constexpr std::uint64_t kLaterSeed = 11;

// Registered memory with guards.
struct PatternRegion {
  PatternRegion(transfer::Endpoint& endpoint, GuardedMemory content,
                transfer::Rights rights = transfer::Rights::kReadWrite);
  // With the pattern of `seed`.
  PatternRegion(transfer::Endpoint& endpoint, std::size_t bytes, std::uint64_t seed,
                transfer::Rights rights = transfer::Rights::kReadWrite);

  std::span<std::byte> bytes() const noexcept { return memory.bytes(); }
  std::uint32_t Digest() const;

  GuardedMemory memory;
  transfer::Region region;
};

// The parent's handle of a peer in the role "engine". Each method sends one command of
// engine_role.cc, blocks for its answer, and throws if it fails.
class EnginePeer {
 public:
  explicit EnginePeer(const Settings& settings = FastSettings());
  // In a network namespace.
  EnginePeer(const std::string& network, const Settings& settings);

  PeerProcess& process() noexcept { return *process_; }
  const transfer::EndpointAddress& address() const noexcept { return address_; }
  std::string host_and_port() const;

  // Makes the peer accept the next connection, or makes it connect to `endpoint`, which accepts
  // here.
  void Accept();
  // Makes the peer accept and keep every connection from now on; and the number of them.
  void AcceptAll();
  int Accepted();
  transfer::Connection AcceptedBy(transfer::Endpoint& endpoint);
  // A region named `name` there; returns its key.
  std::vector<std::byte> Region(const std::string& name, std::uint64_t bytes, std::uint64_t seed,
                                const std::string& rights = "read,write");
  // The same, of GuardedMemory::Repeated with windows, zeroed.
  std::vector<std::byte> RepeatedRegion(const std::string& name, std::uint64_t bytes);
  void Deregister(const std::string& name);
  void Fill(const std::string& name, std::uint64_t seed);
  void AwaitChange(const std::string& name, std::uint64_t word, std::uint64_t seed);
  std::uint32_t Digest(const std::string& name);
  // Throws if a guard is damaged, too.
  Census TakeCensus(const std::string& name, std::uint64_t before, std::uint64_t after);
  // Posts the transfer of the whole region `local` to or from the region of `key`.
  void PostWrite(const std::string& local, const transfer::Region& remote);
  void PostRead(const std::string& local, const transfer::Region& remote);
  // "ok" or "<CodeName> <message>" of the oldest post.
  std::string Outcome();
  // The notification, or "<CodeName> <message>" of the error.
  std::string TakeNotification(milliseconds wait);
  std::uint64_t Refusals();
  // Drops the handles of all connections.
  void Leave() { Ask("leave"); }
  struct MemoryUse {
    std::uint64_t held = 0;      // bytes held for peers, as counted by the endpoint
    std::uint64_t resident = 0;  // of the process, without what is free
    std::uint64_t connections = 0;
  };
  MemoryUse Memory();
  // Makes the peer connect to "host:port".
  void ConnectTo(const std::string& where);
  // Selects the connection, by number, that later commands use. The first is 0.
  void Use(int connection);
  // The interface of each lane.
  std::vector<std::string> Interfaces();
  // Writes the region `local` to that of `key`, or reads it from there, again and again, until
  // StopPump(), which returns the outcome; and the bytes that have been moved so far.
  void Pump(const std::string& local, const std::vector<std::byte>& key, bool reads = false);
  std::uint64_t Pumped();
  std::string StopPump();
  // Makes the peer call _exit() without closing anything. Returns when the process has gone.
  void Vanish();
  // An orderly end, and its exit status.
  int Quit();

  std::string Ask(const std::string& command);
  // Says a command whose answer is collected later, by Answer().
  void Say(const std::string& command) { process_->Command(command); }
  std::string Answer() { return process_->Answer(); }

 private:
  std::unique_ptr<PeerProcess> process_;
  transfer::EndpointAddress address_;
};

// An endpoint here that is connected to a peer there.
struct LinkedPeer {
  explicit LinkedPeer(const Settings& settings = FastSettings());

  EnginePeer peer;
  transfer::Endpoint endpoint;
  transfer::Connection connection;
};

// The role; in the child.
int RunEnginePeer(LinePipe& parent);

}  // namespace ferry::tests
