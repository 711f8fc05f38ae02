// A network in memory that fails on demand.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "ferry/core/deadline.h"
#include "ferry/net/provider.h"

namespace ferry::net {

// A direction of a connection, named from the listening side.
enum class FakeDirection { kToListener, kToConnector };

// The faults of one connection. Offsets count the bytes of one direction from the start of the
// connection; a frame is kFakePrefixBytes, its metadata and its payload.
struct FakeFaults {
  std::uint64_t seed = 1;            // for the random sizes and delays
  std::size_t pipe_bytes = 1 << 20;  // in flight at most, each direction; then senders wait
  std::size_t piece_bytes = 0;       // a turn receives 1..piece_bytes; 0: all there is
  microseconds delay{0};             // what is written arrives 0..delay later, in order
  bool another_machine = false;      // its lanes report a peer on another machine
  bool forwarded = false;            // a proxy of this machine is between its lanes
  bool authenticated = false;        // its lanes report a peer authenticated by TLS
  const char* interface = nullptr;   // its lanes report this interface instead of their host's
  bool black_hole = false;           // written bytes are lost silently while this is set
  // After this many bytes the connection ends: the receiver gets these bytes and then the end of
  // the stream, possibly inside a frame; the sender is notified at once.
  std::optional<std::uint64_t> cut_to_listener = std::nullopt;
  std::optional<std::uint64_t> cut_to_connector = std::nullopt;
};
inline constexpr std::uint64_t kFakePrefixBytes = 16;

enum class FakeAnswer { kAccept, kRefuse, kSilence };

// A network in memory, for the endpoints of one process: host "fake" and ports of its own. Its
// lanes honour the contract of provider.h strictly, check that their users do, and fail as a test
// requests. Any thread; a setting applies to bytes written after it.
class FakeNetwork {
 public:
  static constexpr const char* kHost = "fake";

  FakeNetwork();
  ~FakeNetwork();  // its providers and lanes may live on
  FakeNetwork(const FakeNetwork&) = delete;
  FakeNetwork& operator=(const FakeNetwork&) = delete;

  // All providers of one network can reach each other.
  std::unique_ptr<Provider> CreateProvider();

  // Sets the number of interfaces that listeners can be reached by: host "fake", then "fake1",
  // "fake2" and so on. Providers advertise them.
  void SetInterfaces(std::size_t count);
  // While a host's link is down, bytes sent over it are lost and connects to it get no answer. With
  // `announce`, the providers' link watches report the change.
  void SetLink(std::string_view host, bool up, bool announce);

  // How later connects are answered; kAccept initially.
  void SetAnswer(FakeAnswer answer);
  // Replaces the faults of all connections, present and future.
  void SetFaults(const FakeFaults& faults);
  // Sets the faults of one connection, which may not exist yet. Connections are numbered from 0 in
  // the order of the Connect() calls that were accepted.
  void SetFaults(std::size_t connection, const FakeFaults& faults);
  std::size_t connections() const;

  // Ends the connection after the bytes in flight have arrived, as when a process ends.
  void Cut(std::size_t connection);
  // Fails the connection now; bytes in flight are lost.
  void Reset(std::size_t connection);
  // The network gives up the connection now.
  void Unreach(std::size_t connection);
  // Bytes written so far, including lost ones.
  std::uint64_t BytesSent(std::size_t connection, FakeDirection direction) const;

  class State;

 private:
  std::shared_ptr<State> state_;  // with the providers
};

}  // namespace ferry::net
