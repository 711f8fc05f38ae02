// Dials a peer's addresses side by side until one of them proves to be the peer.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "ferry/core/config.h"
#include "ferry/core/loop/event_loop.h"
#include "ferry/core/unique_function.h"
#include "ferry/net/candidates.h"
#include "ferry/net/provider.h"

namespace ferry::net {

// Carries out what Candidates decides: connects, and passes on each lane that is up, over which the
// owner asks whether it leads to the peer. The owner reports every answer and failure, and calls
// Choose() for the first address that proves to be the peer, which cancels the other connects; it
// closes the lanes that it was given itself. Lives on one loop; shared by its owner and the calls
// in progress, so that a callback may drop it.
class Dial : public std::enable_shared_from_this<Dial> {
 public:
  // Ask over `lane` until `deadline`. `index`: of the address.
  using Up = UniqueFunction<void(std::size_t index, std::unique_ptr<Lane> lane, Deadline deadline)>;
  // No address has led to the peer. The last callback.
  using Over = UniqueFunction<void(const Error& error)>;

  // `provider` and `config` must outlive this object.
  Dial(Provider* provider, const Config* config, EventLoop* loop, Candidates candidates, Up up,
       Over over);
  // OnLoop, or after the loop has stopped.
  ~Dial();
  Dial(const Dial&) = delete;
  Dial& operator=(const Dial&) = delete;

  // OnLoop, as all that follow.
  void Start() { Advance(); }
  void NoteAnswer(std::size_t index);
  void Fail(std::size_t index, const Error& error, Candidates::Retry retry);
  // The address is the peer. If it fails later, Fail() makes the dial go on.
  void Choose(std::size_t index);

 private:
  // The latest attempt at an address.
  struct Attempt {
    std::uint32_t number = 0;
    EventLoop::TimerId connect = 0;
    std::unique_ptr<Lane> lane;  // up, and not passed on yet
  };

  void Connect(const Candidates::Step& step);
  void OnConnected(std::size_t index, std::uint32_t number, Result<std::unique_ptr<Lane>> lane);
  void End(std::size_t index);
  void Advance();
  void SetTimer();

  Provider* const provider_;
  const Config* const config_;
  EventLoop* const loop_;
  Candidates candidates_;
  Up up_;
  Over over_;
  std::vector<Attempt> attempts_;  // by address
  EventLoop::TimerId timer_ = 0;
  bool advancing_ = false;
  bool chosen_ = false;
  bool over_called_ = false;
};

}  // namespace ferry::net
