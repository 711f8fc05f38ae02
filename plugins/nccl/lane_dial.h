// Finds the address of a listening rank over which a lane of a comm reaches it.
#pragma once
#include <cstddef>
#include <memory>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/loop/event_loop.h"
#include "ferry/core/unique_function.h"
#include "ferry/net/dial.h"
#include "ferry/net/provider.h"
#include "ferry/session/handshake.h"
#include "plugins/nccl/wire.h"

namespace ferry::nccl_net {

class Engine;

// Dials one lane at several addresses side by side (net::Dial), and runs the handshake over each
// that is up; the first address that proves the key and accepts is the listening rank's, and the
// other lanes are closed. Lives on the lane's loop; shared by the comm and tasks in flight.
class LaneDial final : public std::enable_shared_from_this<LaneDial>,
                       private session::HandshakeUser {
 public:
  struct Request {
    Engine* engine = nullptr;
    EventLoop* loop = nullptr;
    std::vector<net::Address> addresses;  // at least one
    Deadline deadline = Deadline::Never();
    HelloWire hello;
    Key key{};
    // An address that closes the lane is dialed again after a pause.
    bool may_retry = true;
  };
  // Outside the lane's callbacks. The lane may have more frames to read.
  using Found = UniqueFunction<void(std::unique_ptr<net::Lane> lane, const net::Address& address)>;
  using Failed = UniqueFunction<void(const Error& error)>;

  LaneDial(Request request, Found found, Failed failed);
  // OnLoop, outside the lanes' callbacks.
  ~LaneDial() override;
  LaneDial(const LaneDial&) = delete;
  LaneDial& operator=(const LaneDial&) = delete;

  // OnLoop. Calls one of the two callbacks once, by the deadline.
  void Start();

 private:
  void OnUp(std::size_t index, std::unique_ptr<net::Lane> lane, Deadline deadline);
  Status OnReceived(session::Handshake* /*handshake*/, session::wire::Type /*type*/,
                    session::wire::MetaReader* /*body*/) override {
    return Ok();
  }
  void OnComplete(session::Handshake* handshake) override;
  void OnGone(session::Handshake* handshake, const Error& error) override;
  void Take(std::size_t index);

  const Request request_;
  Found found_;
  Failed failed_;
  std::shared_ptr<net::Dial> dial_;                              // with its own callbacks
  std::vector<std::unique_ptr<session::Handshake>> handshakes_;  // by address
};

}  // namespace ferry::nccl_net
