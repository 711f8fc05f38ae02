// A scripted peer made of plain system calls, for protocol tests.
#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ferry/core/check.h"
#include "ferry/core/deadline.h"
#include "ferry/core/fd.h"
#include "ferry/core/random.h"
#include "ferry/net/machine/socket_owner.h"
#include "ferry/transfer/handshake/wire.h"

// A scripted peer made of plain system calls. It sends frames that no lane of the engine would
// send, and stays silent where a lane would answer. Every wait ends after 30 s; on that timeout,
// and on any unexpected frame, it aborts.
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
  std::vector<std::byte> rest;  // rest of the metadata
  std::vector<std::byte> payload;

  template <class T>
  T Body() const {
    T body;
    wire::MetaReader reader(rest);
    FERRY_CHECK(reader.Read(&body), rest.size(), sizeof body);
    return body;
  }
  // The text after a body of type T.
  template <class T>
  std::string Text() const {
    T body;
    wire::MetaReader reader(rest);
    FERRY_CHECK(reader.Read(&body), rest.size(), sizeof body);
    return reader.Text();
  }
};

// A frame to send. `ack` defaults to the lane's latest acknowledgement.
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
  // Returns false if the other side has closed.
  bool SendBytes(std::span<const std::byte> bytes);
  bool Say(const Saying& saying) { return SendBytes(Encode(saying)); }
  // Sends the same bytes repeatedly without reading, until the socket accepts no more for
  // `timeout_ms` or `most` bytes were sent. Returns the number of bytes sent.
  std::uint64_t Flood(std::span<const std::byte> bytes, std::uint64_t most, int timeout_ms);

  // The next frame that is neither a ping nor a mere acknowledgement; nullopt once the lane is
  // closed.
  std::optional<RawFrame> Receive();
  // Like Receive(), but returns nullopt if no frame is here now.
  std::optional<RawFrame> ReceiveReady();
  // The next frame, which must be of this type.
  RawFrame Expect(wire::Type type);
  // Blocks until this many of our sequenced frames are acknowledged; other frames are kept for
  // Receive(). Returns false if the lane is closed before.
  bool WaitAcked(std::uint32_t frames);
  // Blocks until the other side has closed; frames that still arrive are dropped.
  void WaitClosed();
  // Whether the other side closes within the timeout; frames that still arrive are dropped.
  bool WaitClosedFor(milliseconds timeout);
  // Sends a ping and returns the frames that arrive before the pong; nullopt if the lane was
  // closed.
  std::optional<std::vector<RawFrame>> UntilPong();
  // Sends a ping; returns whether the lane stays open and only acknowledgements arrive before the
  // pong.
  bool IsQuiet();

  // Acknowledges all sequenced frames received so far, in this and every later frame.
  bool AckAll();
  std::uint32_t sequenced() const noexcept { return sequenced_; }
  // From now on this process says that the socket is its own (net/machine/socket_owner.h).
  void List() { listed_ = std::make_unique<net::ListedSocket>(fd_.get()); }
  // Blocks until this many bytes are here to be read, and leaves them.
  void AwaitInput(int bytes);
  int fd() const noexcept { return fd_.get(); }
  // Resets the connection if something is left to read.
  void Close() {
    listed_.reset();
    fd_.reset();
  }
  // The peer reads the end of the stream, whatever it still sends itself.
  void EndSending();

 private:
  std::optional<RawFrame> ReceiveAny();
  bool ReadExactly(std::span<std::byte> bytes);

  UniqueFd fd_;
  std::unique_ptr<net::ListedSocket> listed_;  // before the socket is closed
  std::deque<RawFrame> kept_;
  std::uint32_t sequenced_ = 0;   // frames received
  std::uint32_t last_acked_ = 0;  // received frames that we have acknowledged
  std::uint32_t acked_ = 0;       // frames of ours that are acknowledged
};

// A peer that has run the handshake with an endpoint on this machine, with its lanes.
class RawPeer {
 public:
  // `proved`: the endpoint finds that this process has the sockets, as if they were lanes.
  explicit RawPeer(std::uint16_t port, std::uint16_t lanes = 1,
                   std::uint64_t window_bytes = 64 * 1024, bool proved = false);

  RawLane& lane(std::size_t index = 0) { return lanes_[index]; }
  const Uuid& id() const noexcept { return id_; }
  const wire::WelcomeBody& welcome() const noexcept { return welcome_; }

 private:
  Uuid id_ = Uuid::Random();
  wire::WelcomeBody welcome_;
  std::vector<RawLane> lanes_;
};

// A listener in the place of an endpoint.
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
