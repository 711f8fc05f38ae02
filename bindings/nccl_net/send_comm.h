// The sending end of a comm.
#pragma once
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "bindings/nccl_net/comm.h"
#include "ferry/core/deadline.h"

namespace ferry::nccl_net {

// What isend() is given.
struct Outgoing {
  std::span<const std::byte> data;
  int tag = 0;
};

// The sending end. A message leaves when the receiver has posted a receive for it, so lanes never
// wait for a receiver with bytes in them: small ones on lane 0, others in pieces on those bulk
// lanes that have least to do. A few small ones do not wait (kMostEarly). A message is done when
// the kernel has all of it: the receiver keeps what it has yet to ask for, also when this end has
// closed, which it does when small messages have come: a credit that meets a closed socket would
// take back what is on its way.
class SendComm final : public Comm, public std::enable_shared_from_this<SendComm> {
 public:
  // Begins to connect to one of the addresses; `deadline` is for all of them together. With a
  // `refusal`, why this rank and that one cannot work together, it only tells the other side by a
  // hello, and fails with it. Errors: kPeerLost where there is no route to any. Shared with the
  // provider's callbacks.
  static Result<std::shared_ptr<SendComm>> Dial(Engine* engine, EventLoop* swift,
                                                const ListenAddress& address,
                                                std::optional<Error> refusal, Deadline deadline);
  // Whether the receiver has said that all lanes are there.
  bool connected() const noexcept { return complete() && welcomed_.load(); }
  // Once failed(): whether the receiver closed a lane while it was pending, as one does that has no
  // room for more, so that another attempt may come through.
  bool turned_away() const noexcept { return turned_away_.load() && !refused_.load(); }

  // Null: there are too many requests already. Errors: the comm's.
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
    Clock::time_point ask_at;            // the caller's; max(): not, or it has been asked for
    std::atomic<std::uint32_t> left{0};  // pieces that are not sent
    std::vector<std::unique_ptr<Frame>> frames;
  };
  struct Tag {
    int tag = 0;
    std::uint64_t next = 0;     // sequence number
    std::uint64_t granted = 0;  // of these the receiver waits for
    std::uint64_t wanted = 0;   // so many should be
    std::uint64_t asked = 0;    // so many the receiver was asked for
  };

  // A message that did not wait, and has yet to be asked for.
  struct Early {
    int tag = 0;
    std::uint64_t sequence = 0;
    std::uint64_t bytes = 0;
  };

  Deadline DialDeadline(std::size_t attempt) const;
  void DialOnLoop(std::size_t lane, std::size_t attempt);
  void OnDialledOnLoop(std::size_t lane, std::size_t attempt,
                       Result<std::unique_ptr<net::Lane>> dialled);
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

  Result<net::Placement> OnFrameOnLoop(std::size_t lane, std::span<const std::byte> meta,
                                       std::uint64_t payload_bytes) override;
  Status OnPayloadOnLoop(std::size_t /*lane*/) override { return Ok(); }
  void OnLaneLostOnLoop(std::size_t lane, const Error& error, bool last) override;
  bool Uses(std::span<const std::byte> memory) const override;
  void OnByeOnLoop() override;
  void AwaitArrival() override;
  const char* kind() const noexcept override { return "isend"; }

  const ListenAddress address_;
  const std::optional<Error> refusal_;
  const Deadline deadline_;
  std::vector<net::Address> ways_;
  const Uuid id_;
  std::vector<std::unique_ptr<Frame>> hellos_;  // of the lanes' loops
  std::atomic<bool> arrived_{false};            // the receiver has answered bye
  std::atomic<bool> welcomed_{false};
  std::atomic<bool> turned_away_{false};
  std::atomic<bool> refused_{false};  // for good

  // Under mutex_.
  std::vector<Tag> tags_;
  std::vector<std::unique_ptr<SendRequest>> requests_;
  std::vector<SendRequest*> free_;
  std::size_t next_lane_ = 0;
  std::deque<SendRequest*> waiting_;  // for the receiver
  std::vector<Early> early_;
  std::uint64_t early_total_ = 0;  // bytes of these
  bool asking_ = false;            // AskOnLoop() is to come
  bool small_sent_ = false;
};

}  // namespace ferry::nccl_net
