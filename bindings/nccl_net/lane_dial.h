// Finds the address of a listening rank over which a lane of a comm reaches it.
#pragma once
#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "bindings/nccl_net/frame.h"
#include "bindings/nccl_net/wire.h"
#include "ferry/core/deadline.h"
#include "ferry/core/event_loop.h"
#include "ferry/core/unique_function.h"
#include "ferry/net/dial.h"
#include "ferry/net/provider.h"

namespace ferry::nccl_net {

class Engine;

// Dials one lane at several addresses side by side (net::Dial). Over each lane that is up it sends
// a first frame; the first address that proves the key in a kHere frame is the listening rank's,
// and the other lanes are closed. Lives on the lane's loop; shared by the comm and tasks in flight.
class LaneDial final : public std::enable_shared_from_this<LaneDial> {
 public:
  struct Request {
    Engine* engine = nullptr;
    EventLoop* loop = nullptr;
    std::vector<net::Address> addresses;  // at least one
    Deadline deadline = Deadline::Never();
    std::vector<std::byte> first;  // metadata of the first frame
    std::optional<Proof> proof;    // that a kHere frame must have; nothing: none is expected
    // An address that closes the lane is dialed again after a pause.
    bool may_retry = true;
  };
  // Outside the lane's callbacks. The lane may have more frames to read.
  using Found = UniqueFunction<void(std::unique_ptr<net::Lane> lane, const net::Address& address)>;
  using Failed = UniqueFunction<void(const Error& error)>;

  LaneDial(Request request, Found found, Failed failed);
  // OnLoop, outside the lanes' callbacks.
  ~LaneDial();
  LaneDial(const LaneDial&) = delete;
  LaneDial& operator=(const LaneDial&) = delete;

  // OnLoop. Calls one of the two callbacks once, by the deadline.
  void Start();

 private:
  class Probe;

  void OnUp(std::size_t index, std::unique_ptr<net::Lane> lane, Deadline deadline);
  void OnGone(std::size_t index, const Error& error);
  void Take(std::size_t index, const Probe* probe);

  const Request request_;
  Found found_;
  Failed failed_;
  std::shared_ptr<net::Dial> dial_;             // with its own callbacks
  std::vector<std::unique_ptr<Probe>> probes_;  // by address
};

}  // namespace ferry::nccl_net
