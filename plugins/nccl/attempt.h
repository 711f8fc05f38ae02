// One connect() of NCCL's, with its retries.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "ferry/core/deadline.h"
#include "ferry/core/loop/event_loop.h"
#include "ferry/core/result.h"
#include "plugins/nccl/wire.h"

namespace ferry::nccl_net {

class Engine;
class SendComm;

// Connects to a listening rank; lives while NCCL polls one connect(). A rank that closes a lane
// after its hello frame and before all lanes are up is dialed again, as another comm, after a pause
// that doubles each time, until FERRY_CONNECT_TIMEOUT has passed since the first dial; the timeout
// also bounds the last dial. Lanes that are closed before are dialed again by the comm (LaneDial).
// A port without a listener and a closed listen comm are final for their address. One thread at a
// time.
class Attempt {
 public:
  // Errors: kInvalidArgument for bytes that are not a handle; those of SendComm::Dial. A rank with
  // different settings is told so, and Poll() returns the error.
  static Result<std::unique_ptr<Attempt>> Begin(Engine* engine, EventLoop* swift,
                                                const void* handle);
  ~Attempt();
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;

  // The comm once it is connected; null until then. Errors: the comm's; the attempt has ended.
  // Never blocks.
  Result<std::shared_ptr<SendComm>> Poll();

 private:
  Attempt(Engine* engine, EventLoop* swift, ListenAddress address);
  Status Dial();
  Error Told(const Error& error) const;

  Engine* const engine_;
  EventLoop* const swift_;
  const ListenAddress address_;
  const Deadline deadline_;
  std::optional<Error> refusal_;
  std::shared_ptr<SendComm> comm_;  // shared with the provider's callbacks; null between two dials
  std::uint32_t retries_ = 0;
  Clock::time_point again_;  // time of the next dial
  std::string last_;         // how the previous dial ended
};

}  // namespace ferry::nccl_net
