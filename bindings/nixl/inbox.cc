// Takes notifications from the connections of peers.
#include "bindings/nixl/inbox.h"

#include <fmt/core.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "bindings/nixl/epoll.h"
#include "bindings/nixl/identity.h"
#include "bindings/nixl/log.h"
#include "ferry/core/thread.h"

namespace ferry::nixl {
namespace {

constexpr std::uint64_t kAccept = 1;
constexpr auto kMaxSilence = std::chrono::seconds(5);
// The limit of notifications that nobody takes, which senders share.
constexpr std::uint64_t kMaxArrivedBytes = 256 << 20;
// Pieces of one sender, or connections, before others have their turn.
constexpr int kMaxPerTurn = 64;
// Between two looks at names that are claimed.
constexpr auto kBetweenChecks = milliseconds(100);

Deadline Now() { return Deadline::After(Clock::duration::zero()); }

}  // namespace

Result<std::unique_ptr<Inbox>> Inbox::Create(transfer::Endpoint* endpoint, Tasks* tasks,
                                             std::string agent, Clock::duration max_hold_up) {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) {
    return Error(Code::kUnavailable,
                 fmt::format("no descriptor for the thread that takes notifications: {}; raise the "
                             "limit of open files",
                             std::strerror(errno)));
  }
  FERRY_TRY_ASSIGN(UniqueFd wake, MakeEventFd());
  std::unique_ptr<Inbox> inbox(
      new Inbox(endpoint, tasks, std::move(agent), max_hold_up, std::move(epoll), std::move(wake)));
  FERRY_TRY(inbox->Start());
  return inbox;
}

Status Inbox::Start() {
  FERRY_TRY_ASSIGN(to_accept_, endpoint_->AcceptReadiness());
  FERRY_TRY_ASSIGN(const int fd, to_accept_->fd());
  FERRY_TRY(AddToEpoll(epoll_.get(), wake_.get(), kWake, EPOLLIN));
  FERRY_TRY(AddToEpoll(epoll_.get(), fd, kAccept, EPOLLIN));
  FERRY_TRY_ASSIGN(thread_, StartThread("the receiver of notifications", [this] { Run(); }));
  return Ok();
}

Inbox::~Inbox() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  SignalEventFd(wake_.get());
  if (thread_.joinable()) thread_.join();
}

void Inbox::Take(abi::Notifications* out) {
  abi::Notifications taken;
  {
    const std::lock_guard lock(mutex_);
    taken.swap(arrived_);
    if (!taken.empty()) ++takes_;
    if (std::exchange(room_wanted_, false)) SignalEventFd(wake_.get());
  }
  if (taken.empty()) return;
  if (out->empty()) {
    out->swap(taken);
  } else {
    std::move(taken.begin(), taken.end(), std::back_inserter(*out));
  }
}

void Inbox::Run() {
  std::array<epoll_event, 64> events{};
  bool silent = false;
  while (true) {
    const int count = epoll_wait(epoll_.get(), events.data(), events.size(), silent ? 1000 : -1);
    for (std::size_t i = 0; static_cast<int>(i) < count; ++i) {  // -1 where a signal came
      const std::uint64_t id = events[i].data.u64;
      if (id == kWake) {
        DrainEventFd(wake_.get());
        ResumePaused();
      }
      if (id == kAccept) AcceptAll();
      if (id > kAccept) Drain(id);
    }
    CheckNames();
    silent = CloseSilent();
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
  }
}

void Inbox::AcceptAll() {
  for (int left = kMaxPerTurn; left > 0; --left) {
    auto accepted = endpoint_->Accept(Now());
    if (!accepted) {
      // The endpoint is closing: its descriptor stays readable.
      if (accepted.error().code() == Code::kCancelled) {
        if (const auto fd = to_accept_->fd()) {
          (void)epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, *fd, nullptr);
        }
      }
      return;
    }
    auto readiness = accepted->NotificationReadiness();
    Status added = readiness ? Ok() : Status(readiness.error());
    if (added) {
      const auto fd = readiness->fd();
      added = fd ? AddToEpoll(epoll_.get(), *fd, next_, EPOLLIN) : Status(fd.error());
    }
    if (!added) {
      const std::string peer = accepted->Info().peer;
      LogPeer(LogLevel::kError, peer,
              fmt::format("the connection of {} was refused: {}", peer, added.error().ToString()));
      CloseInBackground(*std::move(accepted));
      continue;
    }
    senders_.emplace(next_++, Sender{.connection = *std::move(accepted),
                                     .readiness = *std::move(readiness),
                                     .agent = {},
                                     .key = {},
                                     .claim = {},
                                     .joiner = {}});
  }
}

void Inbox::Drain(std::uint64_t id) {
  const auto found = senders_.find(id);
  if (found == senders_.end() || found->second.claim) return;
  Next next = Next::kGoOn;
  for (int left = kMaxPerTurn; next == Next::kGoOn && left > 0; --left) {
    if (!HasRoom(id, &found->second)) {
      paused_.push_back(id);
      return Watch(id, 0);
    }
    next = TakeOne(id, &found->second);
  }
  if (next == Next::kForget) Forget(found);
}

bool Inbox::HasRoom(std::uint64_t id, Sender* sender) {
  // Connections that have not said hello take no share.
  const auto agents = std::count_if(senders_.begin(), senders_.end(), [](const auto& entry) {
    return entry.second.agent.has_value();
  });
  const std::uint64_t share =
      kMaxArrivedBytes / static_cast<std::uint64_t>(std::max<std::ptrdiff_t>(agents, 1));
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(sender->takes, takes_) != takes_) sender->arrived = 0;
    if (sender->arrived + sender->joiner.size() < share) return true;
    if (sender->arrived != 0) {
      room_wanted_ = true;
      return false;
    }
  }
  if (!largest_) largest_ = id;
  if (*largest_ != id && !largest_wanted_) largest_wanted_ = Clock::now();
  return *largest_ == id;
}

void Inbox::Watch(std::uint64_t id, std::uint32_t events) {
  const auto found = senders_.find(id);
  if (found == senders_.end()) return;
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  if (const auto fd = found->second.readiness->fd()) {
    (void)epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, *fd, &event);
  }
}

void Inbox::ResumePaused() {
  for (const std::uint64_t id : std::exchange(paused_, {})) Watch(id, EPOLLIN);
}

Inbox::Senders::iterator Inbox::Forget(Senders::iterator sender) {
  ReleaseLargest(sender->first);
  return senders_.erase(sender);
}

void Inbox::ReleaseLargest(std::uint64_t id) {
  if (largest_ != id) return;
  largest_.reset();
  if (std::exchange(largest_wanted_, std::nullopt)) ResumePaused();
}

Inbox::Next Inbox::TakeOne(std::uint64_t id, Sender* sender) {
  Status taken = Ok();
  try {
    const auto frame = sender->connection.TakeNotification(Now());
    if (!frame) {
      return frame.error().code() == Code::kTimedOut ? Next::kEmpty : Next::kForget;
    }
    taken = OnFrame(id, sender, *frame);
  } catch (const std::bad_alloc&) {
    sender->joiner = Joiner();  // so that there is memory to go on
    taken = Error(Code::kUnavailable, "there is no memory for its notification");
  }
  if (taken && !sender->claim) return Next::kGoOn;
  if (taken) {
    Watch(id, 0);
    return Next::kWait;
  }
  Close(*sender, taken.error());
  return Next::kForget;
}

void Inbox::Close(const Sender& sender, const Error& reason) {
  const std::string peer = sender.connection.Info().peer;
  std::string text =
      fmt::format("the connection of {} was closed: {}",
                  sender.agent ? fmt::format("agent '{}'", *sender.agent) : peer, reason.message());
  if (reason.code() == Code::kRefused) {
    text += fmt::format("; {} were closed for their names so far",
                        refused_.fetch_add(1, std::memory_order_relaxed) + 1);
  }
  LogPeer(LogLevel::kError, peer, text, reason.where());
  CloseInBackground(sender.connection);
}

// ---- names --------------------------------------------------------------------------------------

void Inbox::BindName(const std::string& agent, const PublicKey& key) {
  const std::lock_guard lock(mutex_);
  names_[agent] = key;
  names_changed_ = true;
  SignalEventFd(wake_.get());
}

void Inbox::UnbindName(const std::string& agent) {
  const std::lock_guard lock(mutex_);
  names_.erase(agent);
  names_changed_ = true;
  SignalEventFd(wake_.get());
}

bool Inbox::IsBoundToOther(const std::string& agent, const PublicKey& key) {
  const std::lock_guard lock(mutex_);
  const auto bound = names_.find(agent);
  return bound != names_.end() && bound->second != key;
}

Status Inbox::CheckName(const Hello& claim) {
  if (IsBoundToOther(claim.agent, claim.key)) {
    return Error(Code::kRefused,
                 fmt::format("it is not the agent '{}' whose metadata is loaded here; if that was "
                             "restarted, load its new metadata, or remove the old",
                             claim.agent));
  }
  const bool is_taken = std::any_of(senders_.begin(), senders_.end(), [&](const auto& entry) {
    const Sender& other = entry.second;
    return other.agent == claim.agent && other.key != claim.key && !other.connection.lost();
  });
  if (!is_taken) return Ok();
  return Error(Code::kRefused,
               fmt::format("another agent with the name '{}' is connected; give each its own name",
                           claim.agent));
}

void Inbox::TakeName(Sender* sender) {
  if (!CheckName(*sender->claim)) return;
  sender->key = sender->claim->key;
  sender->agent = std::move(sender->claim->agent);
  sender->claim.reset();
  Log(LogLevel::kDebug, fmt::format("agent '{}' has connected", *sender->agent));
}

void Inbox::CheckNames() {
  const auto now = Clock::now();
  {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(names_changed_, false) && now < next_check_) return;
  }
  next_check_ = now + kBetweenChecks;
  for (auto entry = senders_.begin(); entry != senders_.end();) {
    const Sender& sender = entry->second;
    if (!sender.agent || !IsBoundToOther(*sender.agent, sender.key)) {
      ++entry;
      continue;
    }
    Close(sender, Error(Code::kRefused, "other metadata of the agent with its name was loaded"));
    entry = Forget(entry);
  }
  for (auto& [id, sender] : senders_) {
    if (!sender.claim) continue;
    TakeName(&sender);
    if (sender.agent) Watch(id, EPOLLIN);
  }
}

// ---- frames -------------------------------------------------------------------------------------

Status Inbox::OnHello(Sender* sender, const std::vector<std::byte>& frame) {
  FERRY_TRY_ASSIGN(Hello hello, ParseHello(frame));
  if (!IsSigned(hello, agent_, sender->connection.session())) {
    return Error(Code::kRefused,
                 fmt::format("it did not prove that it is agent '{}'", hello.agent));
  }
  sender->claim = std::move(hello);
  TakeName(sender);
  return Ok();
}

Status Inbox::OnFrame(std::uint64_t id, Sender* sender, const std::vector<std::byte>& frame) {
  if (!sender->agent) return OnHello(sender, frame);
  FERRY_TRY_ASSIGN(const Piece piece, ParsePiece(frame));
  const PieceHeader& header = piece.header;
  // One before it was refused, because our queue was full: both come again.
  if (!sender->joiner.IsNext(header)) return Ok();
  FERRY_TRY_ASSIGN(std::optional<std::string> message, sender->joiner.Add(piece));
  sender->since = Clock::now();
  if (message) {
    Deliver(sender, *std::move(message));
    ReleaseLargest(id);
  }
  if (header.asks != 0) (void)sender->connection.Send(AnswerTag(header.sequence), {});
  return Ok();
}

void Inbox::Deliver(Sender* sender, std::string message) {
  const std::lock_guard lock(mutex_);
  if (std::exchange(sender->takes, takes_) != takes_) sender->arrived = 0;
  sender->arrived +=
      message.size() + sender->agent->size() + sizeof(abi::Notifications::value_type);
  arrived_.emplace_back(*sender->agent, std::move(message));
}

bool Inbox::CloseSilent() {
  // Ends the epoll timeout, too: without a silent connection the thread sleeps until something
  // comes.
  bool any = false;
  for (auto sender = senders_.begin(); sender != senders_.end();) {
    const bool holds_up = largest_wanted_ && largest_ == sender->first;
    if (sender->second.agent && !holds_up) {
      ++sender;
    } else if (CloseIfLate(sender->first, &sender->second, holds_up)) {
      sender = Forget(sender);
    } else {
      any = true;
      ++sender;
    }
  }
  return any;
}

bool Inbox::CloseIfLate(std::uint64_t id, Sender* sender, bool holds_up) {
  const auto now = Clock::now();
  if (holds_up && now - *largest_wanted_ >= max_hold_up_) {
    CloseLate(*sender, "end a long notification, for which others wait,", max_hold_up_);
    return true;
  }
  if (now - sender->since < kMaxSilence) return false;
  if (sender->claim) {
    const Status named = CheckName(*sender->claim);
    if (named) return false;  // CheckNames() lets it go on
    Close(*sender, named.error());
    return true;
  }
  const Next next = TakeOne(id, sender);  // this thread may have been late
  if (next == Next::kEmpty) {
    CloseLate(*sender,
              holds_up ? "send more of a long notification, for which others wait,"
                       : "prove which agent it is",
              kMaxSilence);
  }
  return next == Next::kEmpty || next == Next::kForget;
}

void Inbox::CloseLate(const Sender& sender, const char* omission, Clock::duration limit) {
  const std::string peer = sender.connection.Info().peer;
  LogPeer(LogLevel::kWarning, peer,
          fmt::format("the connection of {} was closed: it did not {} within {} s", peer, omission,
                      std::chrono::ceil<std::chrono::seconds>(limit).count()));
  CloseInBackground(sender.connection);
}

void Inbox::CloseInBackground(transfer::Connection connection) {
  tasks_->Run([connection]() mutable { connection.Close(); }, true);
}

}  // namespace ferry::nixl
