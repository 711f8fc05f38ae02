// The interface between the library and a transport: providers, lanes and frames.
#pragma once
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ferry/core/config.h"
#include "ferry/core/deadline.h"
#include "ferry/core/event_loop.h"
#include "ferry/core/result.h"
#include "ferry/net/address.h"

// How bytes get to another process. A provider makes lanes; a lane is an ordered, reliable,
// two-way channel of frames. A frame is a little metadata (`meta`), which the receiver reads
// first, and a payload, for which the receiver then names the place in memory: bytes go straight
// from scattered user memory into scattered user memory.
//
// Every lane belongs to one EventLoop at a time; all its methods and callbacks run there.
namespace ferry::net {

inline constexpr std::size_t kMaxMetaBytes = 64 * 1024;
inline constexpr std::uint64_t kMaxPayloadBytes = std::uint64_t{1} << 32;
// Of a lane whose peer is not known yet.
inline constexpr std::size_t kMaxStrangerMeta = 1024;
inline constexpr std::size_t kStrangerLaneBytes = 4 * 1024;

// What not every provider can do. Tests and the engine ask; nothing is found out by failing.
struct Capabilities {
  bool gifted_pages = false;   // OutFrame::gift is honoured
  bool ipv6 = false;           // Address may be IPv6
  bool other_process = false;  // connects to other processes
  bool tls = false;            // Config::tls is honoured
};

// A frame to send. The sender owns it and everything it points at, unchanged, from Send() until
// OnSent() or OnClosed(); with `gift`, the payload memory until the peer has acknowledged it.
struct OutFrame {
  std::vector<std::byte> meta;  // 1..kMaxMetaBytes
  std::vector<iovec> payload;   // at most kMaxPayloadBytes in all; no empty elements
  std::uint64_t payload_bytes = 0;
  bool gift = false;   // the lane may hand the memory's pages to the kernel in place of a copy
  bool given = false;  // set by the lane: it has
};

// Where the payload of an arriving frame goes.
struct Placement {
  enum class Action { kPlace, kDiscard, kPause };
  Action action = Action::kPlace;
  // For kPlace: exactly the payload's bytes; the array and the memory stay valid until OnPayload,
  // OnClosed or DiscardRest.
  std::span<const iovec> memory;
  // The sender may take the payload back by resetting the connection: a lane that finds it reset
  // places no more of it.
  bool revocable = false;
};

class Lane;

// Why a lane ended. What the peer's process did is its wish or its end; what the network did may
// leave the peer alive, and reachable another way.
enum class LaneLoss : std::uint8_t {
  kPeerClosed,   // in good order
  kReset,        // by the peer's kernel, or by something on the way
  kUnreachable,  // nothing that was sent got an answer any more
  kBroken,       // this side could not go on: bytes against the rules, memory that is not there
};

// The user of a lane. All calls come from the lane's loop.
class LaneHandler {
 public:
  // A frame's metadata is here (`meta` is valid during the call). kPause leaves the frame unread
  // and the lane silent until Resume(), which offers it again. An Error ends the lane with it.
  virtual Result<Placement> OnFrame(std::span<const std::byte> meta,
                                    std::uint64_t payload_bytes) = 0;
  // The payload of the last frame is in its place or, if it was discarded, has been read into
  // nowhere: the peer's memory is not needed for it any more. Not called for empty payloads.
  virtual Status OnPayload() = 0;
  // `frame` is the sender's again (but see OutFrame::gift). In the order of Send().
  virtual void OnSent(OutFrame* frame) = 0;
  // The last call: the peer closed, the network failed, or an Error was returned above. Frames not
  // reported by OnSent, and the memory of an unfinished placement, are the handler's again.
  virtual void OnClosed(const Error& error) = 0;

 protected:
  ~LaneHandler() = default;
};

// Identifies one TLS connection: both of its ends compute the same bytes, and nobody can make those
// of two connections equal (RFC 9266, tls-exporter). All zeros without TLS. Not a secret.
using ChannelBinding = std::array<std::byte, 32>;

// What a lane knows of itself, for logs and reports.
struct LaneInfo {
  std::string local;               // "127.0.0.1:5000"
  std::string remote;              // likewise
  std::string interface;           // that the route to the peer uses: "lo", "eth0"
  std::string congestion_control;  // in force, with the reason: "reno (bbr replaced: ...)"
  bool same_machine = false;       // the peer's address is a loopback address, or this side's own
  std::uint64_t send_buffer_bytes = 0;
  std::uint64_t recv_buffer_bytes = 0;
  bool authenticated = false;     // the provider knows by cryptography that it is a peer
  std::string security = "none";  // "TLSv1.3 TLS_AES_256_GCM_SHA384, certificate CN=node7"
  ChannelBinding channel_binding{};
};

// What a lane's transport has found out about the way to the peer; for TCP from TCP_INFO (tcp(7)).
struct PathStats {
  bool known = false;  // the rest is 0 otherwise
  microseconds round_trip{0};
  microseconds round_trip_variation{0};
  std::uint64_t congestion_window_bytes = 0;
  std::uint64_t delivery_rate = 0;           // bytes per second, as last measured
  std::uint64_t retransmitted_segments = 0;  // since the lane began
  std::uint64_t acknowledged_bytes = 0;      // the same, by the peer's kernel
};

class Lane {
 public:
  // Destroy on the lane's loop outside its callbacks, or after the loop has stopped. Closes
  // without calling the handler.
  virtual ~Lane() = default;
  // Any thread, but before it no other method: gives the lane to `loop` and `handler`, which gets
  // callbacks until OnClosed. Again only from the current loop, outside the lane's callbacks and
  // between frames or paused: that moves it, with what it has queued, ends a pause, and on this
  // thread nothing of the lane may be touched afterwards.
  virtual void Attach(EventLoop* loop, LaneHandler* handler) = 0;
  // Queues; never blocks. The frame leaves at the end of the loop's turn, or at once when much is
  // queued. Never calls back from inside.
  virtual void Send(OutFrame* frame) = 0;
  // Ends a kPause.
  virtual void Resume() = 0;
  // Reads the rest of the payload being received into nowhere: when this returns its placement is
  // no longer touched. No effect between payloads.
  virtual void DiscardRest() = 0;
  // Hands as much as it can of what is queued to the kernel now, without waiting. Callbacks follow
  // as ever.
  virtual void Flush() {}
  // Closes now, dropping what is queued; no callback follows. What the kernel has taken the peer
  // still gets, and so nothing of a gift may be under way.
  virtual void Close() = 0;
  // As Close(), but drops what is under way in the kernels of both sides, too, where it can.
  virtual void Abort() { Close(); }
  // Before Attach(), or on the lane's loop outside its callbacks or in OnFrame(): a frame that
  // announces more metadata than `bytes`, at most kMaxStrangerMeta or else kMaxMetaBytes, ends the
  // lane with kCorrupt before it is held. Until it is kMaxMetaBytes, which a lane begins with, the
  // lane holds at most kStrangerLaneBytes of what its peer says.
  virtual void SetMaxMeta(std::size_t bytes) = 0;
  virtual LaneInfo Info() const = 0;
  // As it is now, without waiting; not after the lane has ended.
  virtual PathStats Path() const { return {}; }
  // From OnClosed() on: how it ended.
  virtual LaneLoss loss() const = 0;
  // Looks for bytes that the lane may have left in the kernel, to save wake-ups.
  virtual void Poke() {}
  // Any thread: all bytes that have arrived so far, for telling a slow peer from a silent one.
  virtual std::uint64_t BytesReceived() const = 0;
};

// An interface that went up, or down: by its administrator, by losing its carrier, or for good.
struct LinkChange {
  std::string interface;
  bool up = false;
};

// Reports changes of links until it is destroyed, which is done on its loop or after that stopped.
class LinkWatch {
 public:
  virtual ~LinkWatch() = default;
};

// A listening port. Destroy on the listener's loop or after it has stopped.
class Listener {
 public:
  virtual ~Listener() = default;
  // With the port that was really taken.
  virtual const Address& address() const = 0;
  // OnLoop. While paused nothing is accepted, and those who connect wait in the system's queue; a
  // lane whose TLS handshake is in flight is still handed over. A provider without such a queue
  // goes on accepting.
  virtual void PauseOnLoop(bool /*paused*/) {}
  // OnLoop. A peer at `host` has proved itself and is about to open so many further lanes: until
  // then they are not turned away because of others.
  virtual void ExpectOnLoop(const std::string& /*host*/, std::size_t /*lanes*/,
                            Clock::time_point /*until*/) {}
};

class Provider {
 public:
  using Accepted = UniqueFunction<void(std::unique_ptr<Lane>)>;
  using Connected = UniqueFunction<void(Result<std::unique_ptr<Lane>>)>;
  using LinkChanged = UniqueFunction<void(const LinkChange&)>;

  virtual ~Provider() = default;
  virtual const char* name() const = 0;
  virtual Capabilities capabilities() const = 0;
  // Call before the loop runs or on it. Takes a free port of config.port_range if address.port is
  // 0. `accepted` runs on `loop`, with lanes whose TLS handshake, if any, is over; what fails
  // before is logged. A host name is looked up first, for at most config.connect_timeout: not on a
  // loop. Errors: kUnavailable (ports taken), kInvalidArgument (address, or files for TLS),
  // kTimedOut (host name).
  virtual Result<std::unique_ptr<Listener>> Listen(const Address& address, const Config& config,
                                                   EventLoop* loop, Accepted accepted) = 0;
  // OnLoop; does not block. `connected` runs on `loop`, once, by the deadline: with an unattached
  // lane, or kPeerLost (refused, unreachable), kTimedOut, kRefused (TLS), kCorrupt (no TLS), or
  // kUnavailable: the connection was made and then reset before the lane was up, as by a listener
  // that has no room for it now; try again. With certificates a peer may refuse this side's only
  // after that: then the lane ends with kRefused.
  virtual void Connect(const Address& address, const Config& config, EventLoop* loop,
                       Deadline deadline, Connected connected) = 0;

  // Any thread. Where peers on other machines may reach this one, one entry for each interface that
  // config.interfaces allows and family; none where a provider has no such notion.
  virtual std::vector<LocalAddress> Addresses(const Config& /*config*/) const { return {}; }
  // Any thread. The interface by which lanes to a numeric address leave; "" if none is known.
  virtual std::string InterfaceTo(const Address& /*to*/) const { return {}; }
  // Call before the loop runs or on it; `changed` runs on it. Null where links are not watched.
  virtual std::unique_ptr<LinkWatch> WatchLinks(EventLoop* /*loop*/, LinkChanged /*changed*/) {
    return nullptr;
  }
};

}  // namespace ferry::net
