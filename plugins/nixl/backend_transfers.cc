// Transfers and notifications of a back end.
#include <fmt/core.h>

#include <memory>
#include <thread>
#include <utility>

#include "plugins/nixl/backend.h"
#include "plugins/nixl/guard.h"
#include "plugins/nixl/log.h"

namespace ferry::nixl {
namespace {

// Until a transfer has measured the rate.
constexpr double kAssumedRate = 1e9;

struct TransferRequest final : abi::Request {
  explicit TransferRequest(std::shared_ptr<TransferJob> prepared) : job(std::move(prepared)) {}

  std::shared_ptr<TransferJob> job;  // shared with the thread that completes it
};

// Agents poll in a loop, which would keep a core from the threads that move the bytes: on two cores
// writes of 64 MiB were half as fast without this.
void LetOthersRun() noexcept { std::this_thread::yield(); }

// The agent only has pointers that Prepare() gave it.
TransferJob& JobOf(const abi::Request* request) {
  return *static_cast<const TransferRequest*>(request)->job;
}

}  // namespace

// NOLINTNEXTLINE(readability-function-size): NIXL declares the parameters
abi::Outcome Backend::Prepare(const abi::Direction& direction, const abi::MetaList& local,
                              const abi::MetaList& remote, const std::string& agent,
                              abi::Request*& request, const abi::Options* /*options*/) const {
  return Guarded("prepare a transfer", mark_, [&] {
    const auto peer = FindPeer(agent);
    if (!peer) return Fail("cannot prepare a transfer", peer.error());
    auto parts = PartsOf(direction, local, remote);
    if (!parts) return Fail("cannot prepare a transfer", parts.error());
    auto job =
        std::make_shared<TransferJob>(direction, *peer, *std::move(parts), &transfer_context_);
    if (const Status prepared = job->PrepareEarly(); !prepared) {
      return Fail("cannot prepare a transfer", prepared.error());
    }
    request = std::make_unique<TransferRequest>(std::move(job)).release();  // until Release()
    return abi::Outcome::kSuccess;
  });
}

// NOLINTNEXTLINE(readability-function-size): NIXL declares the parameters
abi::Outcome Backend::Post(const abi::Direction& /*direction*/, const abi::MetaList& /*local*/,
                           const abi::MetaList& /*remote*/, const std::string& /*agent*/,
                           abi::Request*& request, const abi::Options* options) const {
  return Guarded("post a transfer", mark_, [&] {
    if (request == nullptr) return abi::Outcome::kInvalidParam;
    std::optional<std::string> notification;
    if (options != nullptr && options->has_notification) {
      if (const Status fits = CheckNotificationLength(options->notification.size()); !fits) {
        return Fail("cannot post a transfer", fits.error());
      }
      notification = options->notification;
    }
    TransferJob& job = JobOf(request);
    const Status posted = job.Post(std::move(notification));
    // A small transfer may have ended; then the agent needs no further check.
    return posted ? job.Check() : OutcomeOf(posted.error().code());
  });
}

abi::Outcome Backend::Check(abi::Request* request) const {
  return Guarded("check a transfer", mark_, [&] {
    if (request == nullptr) return abi::Outcome::kInvalidParam;
    const abi::Outcome outcome = JobOf(request).Check();
    if (outcome == abi::Outcome::kInProgress) LetOthersRun();
    return outcome;
  });
}

abi::Outcome Backend::Release(abi::Request* request) const {
  if (mark_.forked()) return abi::Outcome::kSuccess;  // it is the parent's
  return Guarded("release a transfer", mark_, [&] {
    if (request == nullptr) return abi::Outcome::kSuccess;
    // The request stays the agent's until its memory is out of use; it then asks again.
    if (!JobOf(request).Release()) return abi::Outcome::kRepostActive;
    delete request;  // NOLINT(cppcoreguidelines-owning-memory): the agent gives it back
    return abi::Outcome::kSuccess;
  });
}

abi::Outcome Backend::TakeNotifications(abi::Notifications& out) {
  return Guarded("take notifications", mark_, [&] {
    inbox_->Take(&out);
    if (out.empty()) LetOthersRun();
    return abi::Outcome::kSuccess;
  });
}

abi::Outcome Backend::Notify(const std::string& agent, const std::string& message) const {
  return Guarded("send a notification", mark_, [&] {
    const auto peer = FindPeer(agent);
    if (!peer) return Fail("cannot send a notification", peer.error());
    if (const Status fits = CheckNotificationLength(message.size()); !fits) {
      return Fail("cannot send a notification", fits.error());
    }
    (*peer)->outbox()->Add(message, nullptr);
    const Status submitted = (*peer)->Submit((*peer)->outbox());
    if (submitted) return abi::Outcome::kSuccess;
    (*peer)->outbox()->Fail(submitted.error());
    return Fail("cannot send a notification", submitted.error());
  });
}

// NOLINTNEXTLINE(readability-function-size): NIXL declares the parameters
abi::Outcome Backend::EstimateCost(const abi::Direction& /*direction*/,
                                   const abi::MetaList& /*local*/, const abi::MetaList& /*remote*/,
                                   const std::string& /*agent*/, abi::Request* const& request,
                                   std::chrono::microseconds& duration,
                                   std::chrono::microseconds& margin, abi::CostMethod& method,
                                   const void* /*options*/) const {
  return Guarded("estimate the cost of a transfer", mark_, [&] {
    if (request == nullptr) return abi::Outcome::kInvalidParam;
    const TransferJob& job = JobOf(request);
    const double rate = job.peer().rate();
    const double seconds = static_cast<double>(job.bytes()) / (rate > 0 ? rate : kAssumedRate);
    duration = std::chrono::microseconds(1 + static_cast<std::int64_t>(seconds * 1e6));
    // A measured rate varies by about a quarter; an assumed one says nothing.
    margin = rate > 0 ? duration / 4 : duration;
    method = abi::CostMethod::kAnalytical;
    return abi::Outcome::kSuccess;
  });
}

}  // namespace ferry::nixl
