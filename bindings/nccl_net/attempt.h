// One connect() of NCCL's, with its retries.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "bindings/nccl_net/wire.h"
#include "ferry/core/deadline.h"
#include "ferry/core/event_loop.h"
#include "ferry/core/result.h"

namespace ferry::nccl_net {

class Engine;
class SendComm;

// One connect() of NCCL's, for as long as it is polled. A listening rank that closes the lanes
// before all of them are there, as one does whose table of pending peers is full, is dialled again
// after a pause that doubles, until FERRY_CONNECT_TIMEOUT has passed since the first time, which
// also bounds the last dial; a port where nobody listens is final, and so is a listen comm that was
// closed. One thread at a time.
class Attempt {
 public:
  // Errors: kInvalidArgument for a handle that is none; those of SendComm::Dial. A rank with other
  // settings is told, and refused by Poll().
  static Result<std::unique_ptr<Attempt>> Begin(Engine* engine, EventLoop* swift,
                                                const void* handle);
  ~Attempt();
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;

  // The comm when it is connected; null until then. Errors: the comm's; the attempt has ended.
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
  std::shared_ptr<SendComm> comm_;  // with callbacks of the provider's; null between two dials
  std::uint32_t retries_ = 0;
  Clock::time_point again_;  // the next dial
  std::string last_;         // how the dial before this one ended
};

}  // namespace ferry::nccl_net
