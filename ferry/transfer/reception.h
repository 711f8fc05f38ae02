#pragma once
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "ferry/core/event_loop.h"
#include "ferry/core/random.h"
#include "ferry/net/provider.h"
#include "ferry/transfer/greeting.h"
#include "ferry/transfer/secret.h"

namespace ferry::transfer {

class EndpointCore;
class ConnectionCore;

// The listening side of the greeting: strangers' lanes come in, whole connections go out. Belongs
// to the listener's loop.
class Reception {
 public:
  explicit Reception(EndpointCore* endpoint);
  ~Reception();

  void OnAcceptedOnLoop(std::unique_ptr<net::Lane> lane);
  // Drops everybody.
  void ClearOnLoop();

 private:
  struct Stranger {
    std::unique_ptr<Greeting> greeting;
    std::optional<Exchange> exchange;  // once it was challenged
  };
  // A connection whose lanes are not all there yet.
  struct Arrival {
    wire::WelcomeBody welcome;
    Uuid peer;
    std::uint64_t window_bytes = 0;
    std::vector<Greeting*> lanes;
    std::size_t joined = 0;
  };

  Status OnHeard(Greeting* greeting, const wire::MessageHeader& header, wire::MetaReader* reader);
  Status Answer(Greeting* greeting, wire::Type type, wire::MetaReader* reader);
  Status Challenge(Stranger* stranger, wire::Type type, wire::MetaReader* reader);
  Status CheckProof(Stranger* stranger, wire::MetaReader* reader);
  Status Admit(Greeting* greeting, wire::Type type, wire::MetaReader* reader);
  // With a proof that we know the secret, where there is one.
  void SayProven(Greeting* greeting, wire::Type type, std::span<const std::byte> body);
  Status OnHello(Greeting* greeting, wire::MetaReader* reader);
  Status OnJoin(Greeting* greeting, wire::MetaReader* reader);
  void Refuse(Greeting* greeting, const Error& error);
  void OnGone(Greeting* greeting, const Error& error);
  void CompleteIfReady(std::uint32_t id);
  void Complete(std::uint32_t id);
  void Drop(Greeting* greeting);

  EndpointCore* const endpoint_;
  EventLoop* const loop_;
  std::unordered_map<Greeting*, Stranger> greetings_;
  std::unordered_map<std::uint32_t, Arrival> arrivals_;
  std::uint32_t next_id_ = 1;
};

}  // namespace ferry::transfer
