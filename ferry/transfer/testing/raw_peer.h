#pragma once
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ferry/core/check.h"
#include "ferry/core/deadline.h"
#include "ferry/core/fd.h"
#include "ferry/core/random.h"
#include "ferry/transfer/wire.h"

// A peer made of plain system calls, which says what no lane of the engine would say, and stays
// silent when one would not. Every wait of it ends after 30 s; then, and whenever it hears what its
// caller did not ask for, it aborts.
namespace ferry::transfer {

template <class T>
std::vector<std::byte> Pod(const T& value) {
  std::vector<std::byte> bytes;
  wire::Append(&bytes, value);
  return bytes;
}
std::vector<std::byte> Joined(std::vector<std::byte> first, std::span<const std::byte> second);

struct RawFrame {
  wire::MessageHeader header;
  std::vector<std::byte> rest;  // of the metadata
  std::vector<std::byte> payload;

  template <class T>
  T Body() const {
    T body;
    wire::MetaReader reader(rest);
    FERRY_CHECK(reader.Read(&body), rest.size(), sizeof body);
    return body;
  }
  // What follows a body of type T.
  template <class T>
  std::string Text() const {
    T body;
    wire::MetaReader reader(rest);
    FERRY_CHECK(reader.Read(&body), rest.size(), sizeof body);
    return reader.Text();
  }
};

// What to say; the acknowledgement is the lane's last one unless given.
struct Saying {
  wire::Type type{};
  std::uint64_t operation = 0;
  std::vector<std::byte> body = {};
  std::vector<std::byte> payload = {};
  std::optional<std::uint32_t> ack = {};
};

class RawLane {
 public:
  // Connects to 127.0.0.1.
  explicit RawLane(std::uint16_t port);
  explicit RawLane(UniqueFd fd) : fd_(std::move(fd)) {}

  std::vector<std::byte> Encode(const Saying& saying) const;
  // False where the other side has closed.
  bool SendBytes(std::span<const std::byte> bytes);
  bool Say(const Saying& saying) { return SendBytes(Encode(saying)); }
  // Sends the same bytes again and again without reading, until the socket has taken no more for
  // `patience` or `most` bytes have gone out; returns how many have.
  std::uint64_t Flood(std::span<const std::byte> bytes, std::uint64_t most, int patience_ms);

  // The next frame that is no ping and no mere acknowledgement; nothing once the lane is closed.
  std::optional<RawFrame> Receive();
  // The same, but nothing where none is here now.
  std::optional<RawFrame> ReceiveReady();
  // That frame, which is of this type.
  RawFrame Expect(wire::Type type);
  // Until this many of our sequenced frames are acknowledged; other frames are kept for Receive().
  // False where the lane is closed before.
  bool WaitAcked(std::uint32_t frames);
  // Until the other side has closed; what it still says is dropped.
  void WaitClosed();
  // Whether the other side has closed within the time; what it still says is dropped.
  bool WaitClosedFor(milliseconds patience);
  // What it has said when it has answered a ping; nothing where it has closed.
  std::optional<std::vector<RawFrame>> UntilPong();
  // Whether it has neither closed nor said anything but acknowledgements by then.
  bool IsQuiet();

  // Acknowledges all sequenced frames received so far, and all later frames ride on it.
  bool AckAll();
  std::uint32_t sequenced() const noexcept { return sequenced_; }
  // Resets the connection if something is left to read.
  void Close() { fd_.reset(); }
  // The peer reads the end of the stream, whatever it still sends itself.
  void EndSending();

 private:
  std::optional<RawFrame> ReceiveAny();
  bool ReadExactly(std::span<std::byte> bytes);

  UniqueFd fd_;
  std::deque<RawFrame> kept_;
  std::uint32_t sequenced_ = 0;  // frames of theirs
  std::uint32_t told_ = 0;       // of those, acknowledged by us
  std::uint32_t acked_ = 0;      // frames of ours
};

// Has greeted an endpoint on this machine and holds the lanes that came of it.
class RawPeer {
 public:
  explicit RawPeer(std::uint16_t port, std::uint16_t lanes = 1,
                   std::uint64_t window_bytes = 64 * 1024);

  RawLane& lane(std::size_t index = 0) { return lanes_[index]; }
  const Uuid& id() const noexcept { return id_; }
  const wire::WelcomeBody& welcome() const noexcept { return welcome_; }

 private:
  Uuid id_ = Uuid::Random();
  wire::WelcomeBody welcome_;
  std::vector<RawLane> lanes_;
};

// Somebody who listens where an endpoint was expected.
class RawListener {
 public:
  RawListener();
  std::uint16_t port() const noexcept { return port_; }
  RawLane Accept();

 private:
  UniqueFd fd_;
  std::uint16_t port_ = 0;
};

wire::HelloBody Hello(const Uuid& id, std::uint16_t lanes, std::uint64_t window_bytes = 64 * 1024);

}  // namespace ferry::transfer
