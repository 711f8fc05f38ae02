// Which peers an endpoint trusts, over which lanes, and the record of those that it refuses.
#pragma once
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "ferry/core/config.h"
#include "ferry/core/log_limiter.h"
#include "ferry/core/result.h"
#include "ferry/core/secret.h"
#include "ferry/net/provider.h"
#include "ferry/session/trust.h"

namespace ferry::transfer {

// What an endpoint's settings say about peers. Load() first; afterwards any thread.
class PeerPolicy {
 public:
  // `config` must outlive this object.
  explicit PeerPolicy(const Config& config) : config_(config) {}

  // `secret`: proved in the place of the config's; empty: reads that. Errors: those of
  // Secret::FromConfig().
  Status Load(const SecretText& secret = {});
  const std::optional<Secret>& secret() const noexcept { return secret_; }
  // Whether a lane dialed to `peer_name` may be used: checks whether the peer can be authenticated,
  // and which interface the lane leaves by. `has_secret`: the peer will have to prove one. Errors:
  // kRefused, kInvalidArgument.
  Status CheckLane(const net::LaneInfo& lane, const std::string& peer_name, bool has_secret) const;
  session::Trust TrustIn(bool has_secret) const noexcept {
    return {.has_secret = has_secret, .is_insecure = config_.insecure == OnOff::kOn};
  }

  // Counts and logs a refused handshake. `sentence`: the reason.
  void OnRefused(const std::string& peer_name, const std::string& sentence);
  std::uint64_t refused() const noexcept { return refused_.load(std::memory_order_relaxed); }
  // For refusals of other kinds, limited together with those of handshakes.
  LogLimiter& log() noexcept { return log_; }

 private:
  const Config& config_;
  std::optional<Secret> secret_;
  LogLimiter log_;  // by host
  std::atomic<std::uint64_t> refused_{0};
};

}  // namespace ferry::transfer
