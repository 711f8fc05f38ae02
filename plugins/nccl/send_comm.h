// The sending end of a comm.
#pragma once
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "ferry/core/deadline.h"
#include "plugins/nccl/comm.h"

namespace ferry::nccl_net {

class LaneDial;

// The message of one isend().
struct Outgoing {
  std::span<const std::byte> data;
  int tag = 0;
};

// The sending end. A message leaves when the receiver has posted a receive for it, so a lane never
// blocks on a receiver that is not ready: small messages use lane 0, others are cut into pieces for
// the bulk lanes with the fewest queued bytes. A few small messages leave without a credit
// (kMaxEarly). A message is done when the kernel has accepted all of it; the receiver keeps
// messages without a receive, even after this end has closed. This end closes once its small
// messages have arrived: a credit that reaches a closed socket causes a reset, which would discard
// data in flight.
class SendComm final : public Comm, public std::enable_shared_from_this<SendComm> {
 public:
  // Starts to connect. The first lane is dialed at all addresses, and the others follow when it has
  // found the listening rank; `deadline` covers all of that. With a `refusal` (why the two ranks
  // are incompatible) it only tells the other side by a hello frame, and fails with it. Errors:
  // kPeerLost where no address is reachable. The result is shared with the tasks that dial.
  static Result<std::shared_ptr<SendComm>> Dial(Engine* engine, EventLoop* swift,
                                                const ListenAddress& address,
                                                std::optional<Error> refusal, Deadline deadline);
  // Whether the receiver has confirmed that all lanes are up.
  bool connected() const noexcept { return complete() && welcomed_.load(); }
  // Once failed(): whether the receiver closed a lane while it was pending, as a receiver with a
  // full table does, so that another attempt may succeed.
  bool turned_away() const noexcept { return turned_away_.load(); }

  // Returns null if there are too many requests already. Errors: the comm's. Never blocks.
  Result<Request*> Send(const Outgoing& message);
  Result<Tested> Test(Request* request) override;

  SendComm(Engine* engine, EventLoop* swift, const ListenAddress& address,
           std::optional<Error> refusal, Deadline deadline);

 private:
  struct SendRequest : Request {
    using Request::Request;
    std::span<const std::byte> data;
    int tag = 0;
    std::uint64_t sequence = 0;
    bool in_use = false;                 // under mutex_
    Clock::time_point ask_at;            // used by the caller; max(): never, or asked already
    std::atomic<std::uint32_t> left{0};  // pieces that are not sent yet
    std::vector<std::unique_ptr<Frame>> frames;
  };
  struct Tag {
    int tag = 0;
    std::uint64_t next = 0;     // sequence number
    std::uint64_t granted = 0;  // receives that the receiver has posted
    std::uint64_t wanted = 0;   // receives that are needed
    std::uint64_t asked = 0;    // receives that the receiver was asked for
  };

  // A message that left without a credit and has not been matched by one.
  struct Early {
    int tag = 0;
    std::uint64_t sequence = 0;
    std::uint64_t bytes = 0;
  };

  HelloWire HelloOf(std::size_t lane) const;
  void DialOnLoop(std::size_t lane, std::vector<net::Address> addresses);
  void OnFound(std::size_t lane, std::unique_ptr<net::Lane> found, const net::Address& address);
  void DialOthers(const net::Address& peer);
  Tag& TagOf(int tag);
  SendRequest* FreeRequest();
  bool IsSmall(const SendRequest& request) const noexcept;
  bool MayLeaveLocked(const SendRequest& request);
  void ForgetGrantedLocked();
  void CutLocked(SendRequest* request, std::size_t pieces);
  void BeginLocked(SendRequest* request);
  bool MayStarveLocked(const SendRequest& request) const;
  bool WantLocked(const SendRequest& request);
  void AskInTime(SendRequest* request);
  void AskOnLoop();

  Result<net::Placement> HandleFrame(std::size_t lane, std::span<const std::byte> meta,
                                     std::uint64_t payload_bytes) override;
  Status HandlePayload(std::size_t /*lane*/) override { return Ok(); }
  void OnLaneLost(const LostLane& lane, const Error& error) override;
  void OnLaneClosing(std::size_t lane) override;
  bool Uses(std::span<const std::byte> memory) const override;
  void OnBye() override;
  void AwaitArrival() override;
  const char* kind() const noexcept override { return "isend"; }

  const ListenAddress address_;
  const std::optional<Error> refusal_;
  const Deadline deadline_;
  std::vector<net::Address> paths_;  // one address for each local interface
  const Uuid id_;
  // By lane, each on the lane's loop; shared with their tasks in flight.
  std::vector<std::shared_ptr<LaneDial>> dials_;
  std::atomic<bool> arrived_{false};  // the receiver has answered bye
  std::atomic<bool> welcomed_{false};
  std::atomic<bool> turned_away_{false};

  // Under mutex_.
  std::vector<Tag> tags_;
  std::vector<std::unique_ptr<SendRequest>> requests_;
  std::vector<SendRequest*> free_;
  std::size_t next_lane_ = 0;
  std::deque<SendRequest*> waiting_;  // requests without a credit
  std::vector<Early> early_;
  std::uint64_t early_total_ = 0;  // bytes in early_
  bool asking_ = false;            // AskOnLoop() is scheduled
  bool small_sent_ = false;
};

}  // namespace ferry::nccl_net
