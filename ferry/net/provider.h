// The interface between the library and a transport: providers, lanes and frames.
#pragma once
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ferry/core/config.h"
#include "ferry/core/deadline.h"
#include "ferry/core/loop/event_loop.h"
#include "ferry/core/result.h"
#include "ferry/net/address.h"
#include "ferry/net/lane_info.h"

// The transport interface. A provider creates lanes; a lane is an ordered, reliable, two-way
// channel of frames. A frame is a little metadata (`meta`), which the receiver reads first, and a
// payload, for which the receiver then names the destination: bytes go straight from scattered user
// memory into scattered user memory.
//
// Every lane belongs to one EventLoop at a time; all its methods and callbacks run there.
namespace ferry::net {

struct ProcessHint;  // ferry/net/machine/socket_owner.h

inline constexpr std::size_t kMaxMetaBytes = 64 * 1024;
inline constexpr std::uint64_t kMaxPayloadBytes = std::uint64_t{1} << 32;
// Limits of a lane whose peer is still pending.
inline constexpr std::size_t kMaxPendingPeerMeta = 1024;
inline constexpr std::size_t kPendingPeerLaneBytes = 4 * 1024;

// Optional features of a provider. Tests and the engine query these instead of trying and failing.
struct Capabilities {
  bool spliced_pages = false;      // OutFrame::may_splice is honoured: zero-copy sends
  bool ipv6 = false;               // Address may be IPv6
  bool other_process = false;      // connects to other processes
  bool tls = false;                // Config::tls is honoured
  bool registered_memory = false;  // Provider::Register() works, and frames may name its result
  // The GPU whose memory payloads may be: Placement::gpu is honoured, and Register() may accept the
  // GPU's memory, from which frames are then sent.
  std::optional<int> gpu = std::nullopt;
  // Payloads of fewer bytes leave a lane idle, because it has one of them on its way at a time. 0:
  // any size will do.
  std::uint64_t busy_payload_bytes = 0;
};

// Memory that a provider has registered with its network (Provider::Register()), which then needs
// no address of it. Any thread. Destroying it ends the registration: not while a queued frame or an
// unfinished placement of any lane names it.
class RegisteredMemory {
 public:
  virtual ~RegisteredMemory() = default;
};

// A part of registered memory: `bytes` from `offset` on, within what was registered. Names nothing
// without `memory`.
struct RegisteredRange {
  const RegisteredMemory* memory = nullptr;  // of the lane's provider
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

// How a provider without Capabilities::registered_memory refuses it: Register() returns this, and a
// lane ends with it (LaneLoss::kBroken) for a frame or a placement that names registered memory.
inline Error RegisteredMemoryUnsupported(std::string_view provider) {
  return Error(Code::kUnsupported, "the provider " + std::string(provider) +
                                       " does not register memory; name payloads by their address");
}
// How a lane ends (LaneLoss::kBroken) for a placement in GPU memory without Capabilities::gpu.
inline Error GpuMemoryUnsupported(std::string_view provider) {
  return Error(Code::kUnsupported,
               "the provider " + std::string(provider) +
                   " does not receive into GPU memory; receive into host memory");
}

// A frame to send. The sender owns it and keeps it and all memory that it refers to unchanged from
// Send() until OnSent() or OnClosed(). If the lane has spliced its pages, the payload memory stays
// unchanged until the peer has acknowledged it and Lane::HasDelivered(spliced_to).
struct OutFrame {
  std::vector<std::byte> meta;  // 1..kMaxMetaBytes
  std::vector<iovec> payload;   // at most kMaxPayloadBytes in all; no empty elements
  // The payload instead of `payload`, which is empty then.
  RegisteredRange registered{};
  std::uint64_t payload_bytes = 0;
  bool may_splice = false;  // zero-copy send allowed: pages may be spliced instead of copied
  // The payload goes over the provider's own network whatever its size. Other small ones may take a
  // shorter way, such as the connection that carries the metadata.
  bool over_network = false;
  // Set by the lane when it has spliced pages: the end of the frame in what the lane has sent.
  std::uint64_t spliced_to = 0;
  // Set by a lane that can name the payload in errors: its number for Lane::NameOfSent(), from 1.
  std::uint64_t payload_number = 0;
};

// The receiver's decision about the payload of an arriving frame.
struct Placement {
  enum class Action { kPlace, kDiscard, kPause };
  Action action = Action::kPlace;
  // For kPlace: exactly the payload's bytes; the array and the memory stay valid until OnPayload,
  // OnClosed or DiscardRest.
  std::span<const iovec> memory;
  // The sender may withdraw the payload by resetting the connection: after a reset the lane places
  // no more of it.
  bool revocable = false;
  // For kPlace, instead of `memory`, which is empty then.
  RegisteredRange registered{};
  // `memory` is memory of the GPU Capabilities::gpu. At OnPayload the bytes are visible to work
  // that the GPU is given from then on.
  bool gpu = false;
};

class Lane;

// Why a lane ended. kPeerClosed and kReset may be the peer's decision or its end; after a network
// failure the peer may still be alive and reachable over another network path.
enum class LaneLoss : std::uint8_t {
  kPeerClosed,   // orderly close
  kReset,        // reset by the peer's kernel or by a middlebox
  kUnreachable,  // sent data was no longer acknowledged
  kBroken,       // local failure: protocol violation, or memory that is not mapped
};

// The user of a lane. All callbacks run on the lane's loop and must not block.
class LaneHandler {
 public:
  // A frame's metadata has arrived; `meta` is valid during the call. kPause leaves the frame unread
  // and suspends reading until Resume(), which delivers the same frame again. An Error ends the
  // lane with that error.
  virtual Result<Placement> OnFrame(std::span<const std::byte> meta,
                                    std::uint64_t payload_bytes) = 0;
  // The payload of the last frame is in its destination or, if it was discarded, has been read and
  // dropped: the peer's memory is no longer needed for it. Not called for empty payloads. For
  // payloads of 8 MiB or more, called in a later turn of the loop than OnFrame(): a task that
  // OnFrame() posts to the loop runs in between, and may call DiscardRest() or Close().
  virtual Status OnPayload() = 0;
  // Ownership of `frame` returns to the sender (see OutFrame::may_splice for the payload). In the
  // order of Send().
  virtual void OnSent(OutFrame* frame) = 0;
  // The last callback: the peer closed, the network failed, or a callback returned an Error. Frames
  // not reported by OnSent, and the memory of an unfinished placement, belong to the handler again.
  virtual void OnClosed(LaneLoss loss, const Error& error) = 0;

 protected:
  ~LaneHandler() = default;
};

// What happens to the bytes that Send() has accepted when this side closes a lane.
enum class Closing : std::uint8_t {
  kOrderly,  // the peer still receives what the kernel has accepted; the rest of the queue is
             // dropped
  kAbort,    // also drops what is in flight in both kernels, where the transport can
};

class Lane {
 public:
  // Destroy on the lane's loop outside its callbacks, or after the loop has stopped. Closes without
  // calling the handler.
  virtual ~Lane() = default;
  // Any thread for the first call, which must precede all other methods: binds the lane to `loop`
  // and `handler`, which gets callbacks until OnClosed. A later call moves the lane, with its
  // queued frames, and ends a pause. It is allowed on the current loop only, outside the lane's
  // callbacks, and between frames or while paused; afterwards this thread must not touch the lane.
  // Never calls back from inside: a lane that cannot use the loop ends in a task or turn of it.
  virtual void Attach(EventLoop* loop, LaneHandler* handler) = 0;
  // Queues the frame; never blocks and never calls back from inside. The frame leaves at the end of
  // the loop's turn, or at once when much is queued.
  virtual void Send(OutFrame* frame) = 0;
  // Ends a kPause; OnFrame() is called again for the same frame.
  virtual void Resume() = 0;
  // Reads and drops the rest of the payload that is being received. When this returns, the lane no
  // longer touches the payload's placement. No effect between payloads.
  virtual void DiscardRest() = 0;
  // Passes as much of the queue to the kernel as it accepts now, without waiting. OnSent() follows
  // as usual.
  virtual void Flush() {}
  // Closes now and drops the queue; no callback follows. With kOrderly no zero-copy send may be in
  // flight, because the peer still receives it.
  virtual void Close(Closing how) = 0;
  // Before Attach(), or on the lane's loop outside its callbacks or in OnFrame(). A frame that
  // announces more than `bytes` of metadata (at most kMaxPendingPeerMeta, or else kMaxMetaBytes)
  // ends the lane with kCorrupt before memory is allocated for it. While the limit is below
  // kMaxMetaBytes, the initial value, the lane buffers at most kPendingPeerLaneBytes from its peer.
  virtual void SetMaxMeta(std::size_t bytes) = 0;
  virtual LaneInfo Info() const = 0;
  // Between the handshake and Attach(), or on the lane's loop: whether the peer is this process of
  // our user on this machine, as it says itself. Only such a peer is admitted without a secret. And
  // only then are pages spliced to a peer on a path that may stay in this machine, because there
  // the peer's kernel takes the pages themselves. Where the process has no descriptor left to ask
  // the kernel with, errno is EMFILE or ENFILE.
  virtual bool ProvePeer(const ProcessHint& /*process*/) { return false; }
  // As ProvePeer(), but asks only when a payload is sent that pages could be spliced for.
  virtual void ProvePeerLater(const ProcessHint& /*process*/) {}
  // Whether what was sent up to this position (OutFrame::spliced_to) has left the kernel: the
  // peer's TCP has acknowledged it, or the lane is closed. An acknowledgement of the peer that
  // comes before is a lie.
  virtual bool HasDelivered(std::uint64_t /*position*/) const { return true; }
  // Current values, without waiting. Not after the lane has ended.
  virtual PathStats Path() const { return {}; }
  // On the lane's loop, for the error of an operation that is late: the part of a payload that the
  // lane has been waiting for, and for how long. Empty where it waits for none, or does not know.
  virtual std::string Waits() const { return {}; }
  // On the lane's loop, for the same errors: the parts of a payload of `bytes` that has left
  // (OutFrame::payload_number), as the peer's log names them.
  virtual std::string NameOfSent(std::uint64_t /*number*/, std::uint64_t /*bytes*/) const {
    return {};
  }
  // Checks for bytes that the lane may have left in the kernel to save wake-ups.
  virtual void Poke() {}
  // Size of the buffer into which the peer's bytes are read. On the lane's loop.
  virtual std::size_t BufferBytes() const { return 0; }
  // Any thread. All bytes received so far; tells a slow peer from a silent one.
  virtual std::uint64_t BytesReceived() const = 0;
};

// An interface that went up or down: by its administrator, by losing its carrier, or because it was
// removed.
struct LinkChange {
  std::string interface;
  bool up = false;
};

// Reports link changes until it is destroyed. Destroy on its loop, or after the loop has stopped.
class LinkWatch {
 public:
  virtual ~LinkWatch() = default;
};

// A listening port. Destroy on the listener's loop or after it has stopped.
class Listener {
 public:
  virtual ~Listener() = default;
  // The listening address, with the port that was bound; that of addresses() which comes first.
  virtual const Address& address() const = 0;
  // All listening addresses, which have one port: more than one for a host name that has several.
  virtual std::vector<Address> addresses() const { return {address()}; }
  // Call before the loop runs, or on it. For a machine with several interfaces in one subnet: from
  // now on, answers to a peer leave by the interface that has the address which the peer has
  // dialed, as far as its packets arrive there. A lane is lost if the network later delivers them
  // to another interface, so that only users that replace lost lanes call this.
  virtual void AnswerByInterfaceOnLoop() {}
  // OnLoop. While paused nothing is accepted, and new connections wait in the kernel's queue; a
  // lane whose TLS handshake is in flight is still delivered. A provider without such a queue goes
  // on accepting.
  virtual void PauseOnLoop(bool /*paused*/) {}
  // OnLoop. An authenticated peer at `host` is about to open `lanes` further lanes: until `until`
  // they are not evicted in favour of other pending peers.
  virtual void ExpectOnLoop(const std::string& /*host*/, std::size_t /*lanes*/,
                            Clock::time_point /*until*/) {}
};

// Creates lanes and listeners. Errors of Listen() and Connect() name the address, or the range of
// ports in which none was free.
class Provider {
 public:
  using Accepted = UniqueFunction<void(std::unique_ptr<Lane>)>;
  using Connected = UniqueFunction<void(Result<std::unique_ptr<Lane>>)>;
  using LinkChanged = UniqueFunction<void(const LinkChange&)>;

  virtual ~Provider() = default;
  virtual const char* name() const = 0;
  virtual Capabilities capabilities() const = 0;
  // Call before the loop runs, or on it. Binds a free port of config.port_range if address.port is
  // 0. `accepted` runs on `loop` with lanes whose TLS handshake, if any, is complete; earlier
  // failures are logged. A host name stands for all its addresses. It is resolved first, which
  // blocks for at most config.connect_timeout: do not call this on a loop then. Errors:
  // kUnavailable (ports in use), kInvalidArgument (address, TLS files, or config.interfaces selects
  // nothing), kTimedOut (host name).
  virtual Result<std::unique_ptr<Listener>> Listen(const Address& address, const Config& config,
                                                   EventLoop* loop, Accepted accepted) = 0;
  // OnLoop; does not block. `connected` runs on `loop` exactly once, by the deadline, with an
  // unattached lane or an error: kPeerLost (refused, unreachable), kTimedOut, kRefused (TLS),
  // kCorrupt (the peer does not speak TLS), or kUnavailable: the connection was reset before the
  // lane was up, for example by a listener that is full; try again. With certificates a peer may
  // reject this side's certificate only after `connected`: the lane then ends with kRefused.
  // Returns a timer of `loop`: cancelling it ends the connect, and `connected` is destroyed without
  // a call. Where that has no effect (0, or a timer that has run), `connected` still runs.
  virtual EventLoop::TimerId Connect(const Address& address, const Config& config, EventLoop* loop,
                                     Deadline deadline, Connected connected) = 0;

  // Any thread. Registers memory, of any kind that the network can reach, for OutFrame::registered
  // and Placement::registered of this provider's lanes. It must stay allocated until the result is
  // destroyed, which must precede the provider. May block. Errors: kUnsupported without
  // Capabilities::registered_memory; kInvalidArgument and kUnavailable by the network.
  virtual Result<std::unique_ptr<RegisteredMemory>> Register(std::span<std::byte> /*memory*/) {
    return RegisteredMemoryUnsupported(name());
  }
  // Any thread. The addresses that config.interfaces allows peers to be told, the best first
  // (ChooseAddresses()). Empty where the provider has no such notion.
  virtual std::vector<LocalAddress> Addresses(const Config& /*config*/) const { return {}; }
  // Any thread. The interfaces by which lanes to a numeric address may leave: that of the route,
  // which Connect() uses, precedes others. Only those that config.interfaces allows, but for "lo"
  // and addresses of this machine. To use another one than the first, give Connect() a config that
  // allows only that. Empty where there is none, or where it is unknown.
  virtual std::vector<std::string> InterfacesTo(const Address& /*to*/,
                                                const Config& /*config*/) const {
    return {};
  }
  // Call before the loop runs, or on it; `changed` runs on the loop. Null where links are not
  // watched.
  virtual std::unique_ptr<LinkWatch> WatchLinks(EventLoop* /*loop*/, LinkChanged /*changed*/) {
    return nullptr;
  }
};

}  // namespace ferry::net
