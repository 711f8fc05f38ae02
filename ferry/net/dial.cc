// Implements Dial.
#include "ferry/net/dial.h"

#include <utility>

namespace ferry::net {

Dial::Dial(Provider* provider, const Config* config, EventLoop* loop, Candidates candidates, Up up,
           Over over)
    : provider_(provider),
      config_(config),
      loop_(loop),
      candidates_(std::move(candidates)),
      up_(std::move(up)),
      over_(std::move(over)),
      attempts_(candidates_.size()) {}

Dial::~Dial() {
  if (timer_ != 0) loop_->CancelTimerOnLoop(timer_);
  for (std::size_t i = 0; i < attempts_.size(); ++i) End(i);
}

// A provider that cannot cancel a connect reports it later, with a number that is out of date.
void Dial::End(std::size_t index) {
  Attempt& attempt = attempts_[index];
  ++attempt.number;
  attempt.lane.reset();
  loop_->CancelTimerOnLoop(std::exchange(attempt.connect, 0));
}

void Dial::Connect(const Candidates::Step& step) {
  const std::uint32_t number = ++attempts_[step.index].number;
  const EventLoop::TimerId connect = provider_->Connect(
      candidates_.address(step.index), *config_, loop_, step.deadline,
      [weak = weak_from_this(), index = step.index, number](Result<std::unique_ptr<Lane>> lane) {
        if (const auto self = weak.lock()) self->OnConnected(index, number, std::move(lane));
      });
  attempts_[step.index].connect = connect;
}

void Dial::OnConnected(std::size_t index, std::uint32_t number,
                       Result<std::unique_ptr<Lane>> lane) {
  if (attempts_[index].number != number) return;
  if (!lane) {
    const bool may_pass = lane.error().code() == Code::kUnavailable;
    return Fail(index, lane.error(),
                may_pass ? Candidates::Retry::kLater : Candidates::Retry::kNever);
  }
  attempts_[index].lane = *std::move(lane);
  candidates_.OnUp(index);
  Advance();
}

void Dial::NoteAnswer(std::size_t index) { candidates_.OnAnswer(index, Clock::now()); }

void Dial::Fail(std::size_t index, const Error& error, Candidates::Retry retry) {
  End(index);
  chosen_ = false;
  candidates_.OnFailed(index, error, retry, Clock::now());
  Advance();
}

void Dial::Choose(std::size_t index) {
  chosen_ = true;
  candidates_.OnProven(index);
  for (std::size_t i = 0; i < attempts_.size(); ++i) {
    if (i != index) End(i);
  }
  SetTimer();
}

void Dial::Advance() {
  // Connects and `up` may fail at once; the loop below sees that.
  if (chosen_ || over_called_ || std::exchange(advancing_, true)) return;
  const auto self = shared_from_this();  // with whoever called, in case that a callback drops this
  while (const auto step = candidates_.Next(Clock::now())) {
    if (step->act == Candidates::Act::kDial) {
      Connect(*step);
    } else {
      up_(step->index, std::move(attempts_[step->index].lane), step->deadline);
    }
  }
  advancing_ = false;
  SetTimer();
  if (!candidates_.IsOver(Clock::now())) return;
  over_called_ = true;
  over_(candidates_.Failure());
}

void Dial::SetTimer() {
  if (timer_ != 0) loop_->CancelTimerOnLoop(std::exchange(timer_, 0));
  const auto when = candidates_.when();
  if (chosen_ || when == Clock::time_point::max()) return;
  timer_ = loop_->AddTimerOnLoop(when, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    self->timer_ = 0;
    self->Advance();
  });
}

}  // namespace ferry::net
