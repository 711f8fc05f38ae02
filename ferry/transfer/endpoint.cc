// Implements Endpoint.
#include "ferry/transfer/endpoint.h"

#include <fmt/core.h>

#include <utility>
#include <vector>

#include "ferry/core/unknown_variables.h"
#include "ferry/net/choose_provider.h"
#include "ferry/net/provider.h"
#include "ferry/transfer/endpoint/dialer.h"
#include "ferry/transfer/endpoint/endpoint_core.h"
#include "ferry/transfer/endpoint/fitted_config.h"

namespace ferry::transfer {

Result<Endpoint> Endpoint::Create(const Config& config, const SecretText& secret,
                                  CheckIdentity check) {
  return Create(config, std::unique_ptr<net::Provider>(), secret, std::move(check));
}

Result<Endpoint> Endpoint::Create(const Config& config, std::unique_ptr<net::Provider> provider,
                                  const SecretText& secret, CheckIdentity check) {
  WarnOfUnknownVariables();
  FERRY_TRY(config.Validate());
  if (!provider) {
    FERRY_TRY_ASSIGN(provider, net::ChooseProvider(config));
  }
  const Config fitted = FittedTo(provider->capabilities(), config);
  auto core = std::make_shared<EndpointCore>(fitted, std::move(provider), std::move(check));
  FERRY_TRY(core->Start(secret));
  return Endpoint(std::move(core));
}

Endpoint& Endpoint::operator=(Endpoint&& other) noexcept {
  Close();
  core_ = std::move(other.core_);
  return *this;
}

Endpoint::~Endpoint() { Close(); }

void Endpoint::Close() {
  if (core_ && !core_.forked()) core_->Shutdown();
}

const Uuid& Endpoint::id() const noexcept { return core_->id(); }
std::uint16_t Endpoint::port() const noexcept { return core_->port(); }
std::uint16_t Endpoint::metrics_port() const noexcept { return core_->metrics_port(); }
EndpointCounters Endpoint::Counters() const {
  return core_.forked() ? EndpointCounters() : core_->Counters();
}

EndpointAddress Endpoint::address() const { return core_->Told(); }

Result<Region> Endpoint::Register(std::span<std::byte> memory, Rights rights,
                                  std::optional<std::uint64_t> token) {
  if (core_.forked()) return MadeBeforeFork("endpoint");
  FERRY_TRY_ASSIGN(Stager* const stager, core_->device_memory().StagerOf(memory));
  FERRY_TRY_ASSIGN(auto state, core_->regions().Add(memory, rights, nullptr, stager, token));
  return Region(std::move(state), core_.get());
}

Result<Connection> Endpoint::Connect(const EndpointAddress& address, Deadline deadline,
                                     const SecretText& secret, MakeIdentity identify) {
  if (core_.forked()) return MadeBeforeFork("endpoint");
  if (address.at.empty()) {
    return Error(Code::kInvalidArgument,
                 "the endpoint address names no host; use one made on the machine to reach");
  }
  if (identify && secret.empty() && !core_->policy().secret()) {
    return Error(Code::kInvalidArgument,
                 "an identity is told with the proof of a secret; pass one");
  }
  const Deadline limit = deadline.Sooner(Deadline::After(core_->config().connect_timeout));
  // Shared with its tasks.
  auto dialer = std::make_shared<Dialer>(
      core_.get(), address.at, address.endpoint, limit,
      secret.empty() ? std::nullopt : std::optional<Secret>(std::in_place, secret),
      std::move(identify));
  core_->Follow(dialer);
  EventLoop* const home = dialer->home();
  home->PostOrRun([dialer] { dialer->StartOnLoop(); });
  // The dialer enforces the deadline itself, and its error tells at which step it failed.
  home->DriveUntil([&] { return dialer->done(); }, Deadline::Never(), core_->config().spin);
  if (dialer->done()) {
    core_->Forget(dialer);
    auto connected = dialer->result();
    if (connected) return Connection(*std::move(connected), core_.get());
    if (!core_->closing()) return connected.error();
  }
  return Error(Code::kCancelled, "this endpoint was closed");
}

Result<Connection> Endpoint::Connect(std::string_view host_and_port, Deadline deadline) {
  if (core_.forked()) return MadeBeforeFork("endpoint");
  FERRY_TRY_ASSIGN(const net::Address address, net::ParseAddress(host_and_port, 0));
  if (address.host.empty() || address.port == 0) {
    return Error(
        Code::kInvalidArgument,
        fmt::format("\"{}\" should name a host and a port, like node7:7471", host_and_port));
  }
  const Deadline limit = deadline.Sooner(Deadline::After(core_->config().connect_timeout));
  EndpointAddress resolved;
  FERRY_TRY_ASSIGN(resolved.at, core_->names().Resolve(address, limit));
  return Connect(resolved, limit);
}

Result<Connection> Endpoint::Accept(Deadline deadline) {
  if (core_.forked()) return MadeBeforeFork("endpoint");
  std::shared_ptr<ConnectionCore> accepted;  // moves into the handle
  const auto ready = [&] {
    if (!accepted) accepted = core_->connections().TakeAccepted();
    return accepted != nullptr || core_->closing();
  };
  (void)core_->loops().front()->DriveUntil(ready, deadline, core_->config().spin);
  if (accepted) return Connection(std::move(accepted), core_.get());
  if (core_->closing()) return Error(Code::kCancelled, "this endpoint was closed");
  return Error(Code::kTimedOut, fmt::format("no peer connected to port {} before the deadline; "
                                            "check the address that the peer uses, or wait longer",
                                            port()));
}

Result<Readiness> Endpoint::AcceptReadiness() const {
  if (core_.forked()) return MadeBeforeFork("endpoint");
  FERRY_TRY_ASSIGN(UniqueFd fd, core_->connections().AcceptDescriptor());
  return MakeReadiness(std::move(fd), core_->loops().front()->BeginPassiveWait());
}

}  // namespace ferry::transfer
