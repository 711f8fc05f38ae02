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

// Of a connection, seen from the side that listens.
enum class FakeDirection { kToListener, kToConnector };

// What goes wrong on one connection. Offsets count the bytes of one direction from the connection's
// start, where a frame is kFakePrefixBytes, its metadata and its payload.
struct FakeFaults {
  std::uint64_t seed = 1;            // of the random sizes and delays
  std::size_t pipe_bytes = 1 << 20;  // on their way at once, each direction; then senders wait
  std::size_t piece_bytes = 0;       // a turn receives 1..piece_bytes; 0: all there is
  microseconds delay{0};             // what is written arrives 0..delay later, in order
  bool another_machine = false;      // its lanes say that the peer is not on this machine
  bool authenticated = false;        // its lanes say that they know the peer by TLS
  const char* interface = nullptr;   // its lanes say that they leave by this one, not their host's
  bool black_hole = false;           // what is written while this is set is lost, untold
  // After so many bytes the connection ends: the receiver gets these bytes and then its end, in the
  // middle of a frame or not; the sender is told at once.
  std::optional<std::uint64_t> cut_to_listener = std::nullopt;
  std::optional<std::uint64_t> cut_to_connector = std::nullopt;
};
inline constexpr std::uint64_t kFakePrefixBytes = 16;

enum class FakeAnswer { kAccept, kRefuse, kSilence };

// A network in memory, for endpoints of one process: host "fake", ports of this object's own. Its
// lanes honour the contract of provider.h strictly, check that their users do, and break as a test
// asks. Any thread; what a test sets applies to bytes written from then on.
class FakeNetwork {
 public:
  static constexpr const char* kHost = "fake";

  FakeNetwork();
  ~FakeNetwork();  // its providers and lanes may live on
  FakeNetwork(const FakeNetwork&) = delete;
  FakeNetwork& operator=(const FakeNetwork&) = delete;

  // All providers of a network reach each other.
  std::unique_ptr<Provider> CreateProvider();

  // From now on there are as many interfaces to reach listeners by: the host "fake", then "fake1",
  // "fake2" and so on. Providers advertise them.
  void SetInterfaces(std::size_t count);
  // While a host's link is down, what goes over it is lost and connects to it are not answered.
  // With `announce` the providers' watches are told of the change.
  void SetLink(std::string_view host, bool up, bool announce);

  // How connects are answered from now on; kAccept at first.
  void SetAnswer(FakeAnswer answer);
  // Of every connection, present and future, in place of what was set before.
  void SetFaults(const FakeFaults& faults);
  // Of one connection, perhaps a future one. Connections are numbered from 0 in the order of the
  // Connect() calls that were accepted.
  void SetFaults(std::size_t connection, const FakeFaults& faults);
  std::size_t connections() const;

  // The connection ends once what is on its way has arrived, as when one process ends.
  void Cut(std::size_t connection);
  // The connection fails now, and what is on its way is lost.
  void Reset(std::size_t connection);
  // The network gives the connection up now.
  void Unreach(std::size_t connection);
  // Written so far, lost bytes too.
  std::uint64_t BytesSent(std::size_t connection, FakeDirection direction) const;

  class State;

 private:
  std::shared_ptr<State> state_;  // with the providers
};

}  // namespace ferry::net
