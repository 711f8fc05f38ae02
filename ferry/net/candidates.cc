// Implements Candidates.
#include "ferry/net/candidates.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "ferry/core/check.h"
#include "ferry/core/random.h"

namespace ferry::net {
namespace {

constexpr milliseconds kFirstPause{10};
constexpr std::uint32_t kMaxDoublings = 6;

// An error that only the peer itself can cause says more than one that any program at a wrong
// address, or none, can.
int ClosenessOf(Code code) {
  switch (code) {
    case Code::kRefused:
    case Code::kUnsupported: return 4;
    case Code::kUnavailable: return 3;
    case Code::kCorrupt: return 2;
    case Code::kTimedOut: return 1;
    default: return 0;
  }
}

}  // namespace

Clock::duration Candidates::PauseAfter(std::uint32_t failures) {
  const std::uint32_t doublings = std::min(std::max(failures, 1U) - 1, kMaxDoublings);
  const microseconds longest = kFirstPause * (1U << doublings);
  const auto half = static_cast<std::uint64_t>(longest.count()) / 2;
  return microseconds(half + RandomU64() % half);
}

Candidates::Candidates(std::vector<Address> addresses, Deadline deadline, Time now,
                       milliseconds answer_time)
    : deadline_(deadline), answer_time_(answer_time), fresh_at_(now) {
  FERRY_CHECK(!addresses.empty());
  for (Address& address : addresses) all_.push_back({.address = std::move(address)});
  const auto rounds = static_cast<Clock::rep>((all_.size() + kMaxOpen - 1) / kMaxOpen);
  if (rounds > 1 && !deadline.never()) round_ = (deadline.when() - now) / rounds;
}

// ---- what to do ---------------------------------------------------------------------------------

bool Candidates::has_room() const {
  const auto open = std::count_if(all_.begin(), all_.end(), [](const Candidate& each) {
    return each.state == State::kDialing || each.state == State::kUp || each.state == State::kAsked;
  });
  return static_cast<std::size_t>(open) < kMaxOpen;
}

Candidates::Time Candidates::may_ask_at() const {
  Time at = Time::min();
  for (const Candidate& each : all_) {
    if (each.state == State::kAsked) at = std::max(at, each.asked_at + answer_time_);
  }
  return at;
}

// Fresh ones come first.
std::optional<std::size_t> Candidates::FindDue(Time now) const {
  if (!has_room()) return std::nullopt;
  std::optional<std::size_t> due;
  for (std::size_t i = 0; i < all_.size(); ++i) {
    if (all_[i].state == State::kFresh && fresh_at_ <= now) return i;
    if (all_[i].state == State::kPausing && all_[i].retry_at <= now && !due) due = i;
  }
  return due;
}

std::optional<Candidates::Step> Candidates::Next(Time now) {
  if (now >= deadline_.when()) return std::nullopt;
  if (may_ask_at() <= now) {
    for (std::size_t i = 0; i < all_.size(); ++i) {
      if (all_[i].state != State::kUp) continue;
      all_[i].state = State::kAsked;
      all_[i].asked_at = now;
      return Step{Act::kAsk, i, all_[i].deadline};
    }
  }
  const auto due = FindDue(now);
  if (!due) return std::nullopt;
  Candidate& candidate = all_[*due];
  if (candidate.state == State::kFresh) fresh_at_ = now + kStagger;
  candidate.state = State::kDialing;
  candidate.deadline =
      round_ > Clock::duration::zero() ? deadline_.Sooner(Deadline::At(now + round_)) : deadline_;
  return Step{Act::kDial, *due, candidate.deadline};
}

Candidates::Time Candidates::when() const {
  Time next = Time::max();
  const bool room = has_room();
  for (const Candidate& each : all_) {
    if (room && each.state == State::kFresh) next = std::min(next, fresh_at_);
    if (room && each.state == State::kPausing) next = std::min(next, each.retry_at);
    // Nobody else ends an attempt that was never asked.
    if (each.state == State::kUp) next = std::min({next, may_ask_at(), deadline_.when()});
  }
  return next;
}

// ---- what has happened --------------------------------------------------------------------------

void Candidates::OnUp(std::size_t index) { all_[index].state = State::kUp; }

void Candidates::OnAnswer(std::size_t index, Time now) { all_[index].asked_at = now; }

void Candidates::OnProven(std::size_t index) {
  for (std::size_t i = 0; i < all_.size(); ++i) {
    if (i != index && all_[i].state != State::kFailed) all_[i].state = State::kFresh;
  }
}

void Candidates::OnFailed(std::size_t index, const Error& error, Retry retry, Time now) {
  Candidate& candidate = all_[index];
  if (candidate.error) candidate.previous = candidate.error->message();
  candidate.error = error;
  ++candidate.failures;
  candidate.retry_at = now + PauseAfter(candidate.failures);
  const bool may_retry = retry == Retry::kLater && candidate.retry_at < deadline_.when();
  candidate.state = may_retry ? State::kPausing : State::kFailed;
  // Later failures of the same address tell nothing new about the others.
  if (candidate.failures == 1) fresh_at_ = now;
}

bool Candidates::IsOver(Time now) const {
  const bool late = now >= deadline_.when();
  return std::all_of(all_.begin(), all_.end(), [&](const Candidate& each) {
    const bool runs = each.state == State::kDialing || each.state == State::kAsked;
    return each.state == State::kFailed || (late && !runs);
  });
}

// ---- errors -------------------------------------------------------------------------------------

std::string Candidates::ReasonOf(const Candidate& candidate) const {
  const std::string name = candidate.address.ToString();
  if (!candidate.error) {
    return name + " was not reached before the deadline; allow more time (FERRY_CONNECT_TIMEOUT)";
  }
  std::string reason = candidate.error->message();
  if (reason.find(name) == std::string::npos) reason = fmt::format("{}: {}", name, reason);
  if (candidate.failures == 1) return reason;
  return fmt::format("{} (attempt {}; the previous one: {})", reason, candidate.failures,
                     candidate.previous);
}

Error Candidates::Failure() const {
  Code code = Code::kTimedOut;
  std::string reasons;
  int closest = -1;
  for (std::size_t i = 0; i < all_.size(); ++i) {
    const Candidate& each = all_[i];
    if (each.error && ClosenessOf(each.error->code()) > closest) {
      code = each.error->code();
      closest = ClosenessOf(code);
    }
    reasons += fmt::format("{}({}) {}", i == 0 ? "" : "; ", i + 1, ReasonOf(each));
  }
  if (all_.size() == 1) return Error(code, ReasonOf(all_.front()));
  return Error(code,
               fmt::format("none of the peer's {} addresses led to it: {}", all_.size(), reasons));
}

}  // namespace ferry::net
