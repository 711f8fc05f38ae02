// Decides when to dial which of a peer's addresses.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/result.h"
#include "ferry/net/address.h"

namespace ferry::net {

// The addresses at which a peer may be reached, and the state of the attempt at each. A state
// machine without sockets or a clock: the caller reports events and carries out Next(). As in RFC
// 8305, attempts begin kStagger apart, or as soon as another one has failed, and continue side by
// side. A failure that may pass is retried after a pause that doubles each time. Not thread-safe.
class Candidates {
 public:
  using Time = Clock::time_point;

  static constexpr milliseconds kStagger{150};
  // Attempts that are open at once. With more addresses, the time is divided among as many rounds
  // as that takes; otherwise each attempt has the whole time.
  static constexpr std::size_t kMaxOpen = 8;

  enum class Retry : std::uint8_t { kNever, kLater };
  enum class Act : std::uint8_t {
    kDial,  // begin to connect
    kAsk,   // the lane is up: ask whether it leads to the peer
  };
  struct Step {
    Act act = Act::kDial;
    std::size_t index = 0;  // of the address
    Deadline deadline = Deadline::Never();
  };

  // `addresses`: at least one, in the order of preference. `deadline`: of all attempts together.
  // `answer_time`: while an address was asked less than this ago, no other is asked; 0: each is
  // asked as soon as its lane is up.
  Candidates(std::vector<Address> addresses, Deadline deadline, Time now, milliseconds answer_time);

  // The pause before the retry that follows this many failures; half of it is random, so that
  // peers that were refused together do not return together.
  static Clock::duration PauseAfter(std::uint32_t failures);

  // The next step to carry out now; call until there is none.
  std::optional<Step> Next(Time now);
  // When to call Next() again if nothing happens until then; max(): never.
  Time when() const;

  // The lane to the address is up.
  void OnUp(std::size_t index);
  // The address has answered, but not proved yet that it is the peer.
  void OnAnswer(std::size_t index, Time now);
  // The address is the peer; the caller has ended all other attempts. OnFailed() may still follow,
  // and the others then begin anew.
  void OnProven(std::size_t index);
  void OnFailed(std::size_t index, const Error& error, Retry retry, Time now);

  // Whether no attempt is open and none will begin.
  bool IsOver(Time now) const;
  const Address& address(std::size_t index) const { return all_[index].address; }
  std::size_t size() const noexcept { return all_.size(); }
  // Names each address with the reason; the code is that of the address that came closest.
  Error Failure() const;

 private:
  enum class State : std::uint8_t {
    kFresh,    // not dialed yet
    kPausing,  // failed, and is retried at `retry_at`
    kDialing,
    kUp,     // waits until it may be asked
    kAsked,  // at `asked_at`
    kFailed,
  };
  struct Candidate {
    Address address;
    State state = State::kFresh;
    Time retry_at{};
    Time asked_at{};
    Deadline deadline = Deadline::Never();  // of the attempt
    std::uint32_t failures = 0;
    std::optional<Error> error = std::nullopt;  // of the latest attempt
    std::string previous = {};                  // the error of the attempt before
  };

  bool has_room() const;
  Time may_ask_at() const;
  std::optional<std::size_t> FindDue(Time now) const;
  std::string ReasonOf(const Candidate& candidate) const;

  std::vector<Candidate> all_;
  const Deadline deadline_;
  const Clock::duration answer_time_;
  Clock::duration round_{};  // the time of an attempt; 0: the whole time
  Time fresh_at_;            // when the next fresh one may begin
};

}  // namespace ferry::net
