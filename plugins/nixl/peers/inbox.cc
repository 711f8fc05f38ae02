// Takes notifications from the connections of peers.
#include "plugins/nixl/peers/inbox.h"

#include <fmt/core.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <new>
#include <thread>
#include <utility>

#include "ferry/core/loop/thread.h"
#include "plugins/nixl/epoll.h"
#include "plugins/nixl/log.h"
#include "plugins/nixl/peers/identity.h"

namespace ferry::nixl {
namespace {

constexpr std::uint64_t kAccept = 1;
// Pieces of one sender, or connections, before others have their turn.
constexpr int kMaxPerTurn = 64;
// Bytes per notification beyond its own: its entry in the list, which may double while it is
// copied.
constexpr std::uint64_t kEntryCost = 4 * sizeof(abi::Notifications::value_type);
// The parts of InboxLimits::total_bytes: shares, whole long notifications, and unfinished ones.
constexpr std::uint64_t kParts = 3;
// No long notification is closed for others sooner, and how often those look.
constexpr auto kMinStay = milliseconds(200);
constexpr int kCrowdedMillis = 50;
constexpr int kSilentMillis = 1000;
constexpr auto kPauseWithoutMemory = milliseconds(10);
// Between two looks at names that are claimed.
constexpr auto kBetweenChecks = milliseconds(100);

Deadline Now() { return Deadline::After(Clock::duration::zero()); }

}  // namespace

Result<std::unique_ptr<Inbox>> Inbox::Create(transfer::Endpoint* endpoint, Tasks* tasks,
                                             const InboxLimits& limits) {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) {
    return Error(Code::kUnavailable,
                 fmt::format("no descriptor for the thread that takes notifications: {}; raise the "
                             "limit of open files",
                             std::strerror(errno)));
  }
  FERRY_TRY_ASSIGN(UniqueFd wake, MakeEventFd());
  std::unique_ptr<Inbox> inbox(
      new Inbox(endpoint, tasks, limits, std::move(epoll), std::move(wake)));
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
    arrived_bytes_ = 0;
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
  while (true) {
    try {
      if (!Turn()) return;
    } catch (const std::exception& error) {
      Log(LogLevel::kError, "the thread that takes notifications goes on after an exception");
      Log(LogLevel::kError, error.what());
      silent_ = true;  // what was to be done is looked for soon
      std::this_thread::sleep_for(kPauseWithoutMemory);
    }
  }
}

bool Inbox::Turn() {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return false;
  }
  std::array<epoll_event, 64> events{};
  const int timeout = crowded_ ? kCrowdedMillis : silent_ ? kSilentMillis : -1;
  const int count = epoll_wait(epoll_.get(), events.data(), events.size(), timeout);
  if (std::exchange(crowded_, false)) ResumePaused();
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
  silent_ = CloseSilent();
  return true;
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
    try {
      Admit(*accepted);
    } catch (...) {
      accepted->Close();  // nobody else knows it
      throw;
    }
  }
}

void Inbox::Admit(const transfer::Connection& connection) {
  const Status added = TryAdmit(connection);
  if (added) return;
  const std::string peer = connection.Info().peer;
  LogPeer(LogLevel::kError, peer,
          fmt::format("the connection of {} was refused: {}", peer, added.error().ToString()));
  CloseInBackground(connection);
}

Status Inbox::TryAdmit(const transfer::Connection& connection) {
  FERRY_TRY_ASSIGN(Identity identity, Identity::Parse(connection.identity()));
  FERRY_TRY_ASSIGN(transfer::Readiness readiness, connection.NotificationReadiness());
  FERRY_TRY_ASSIGN(const int fd, readiness.fd());
  // Before epoll knows it, which tells of it again and again until somebody looks.
  const auto entry = senders_.emplace(next_++, Sender{.connection = connection,
                                                      .readiness = std::move(readiness),
                                                      .agent = std::move(identity.agent),
                                                      .key = identity.key,
                                                      .joiner = {}});
  TakeName(&entry.first->second);
  const std::uint32_t events = entry.first->second.named ? std::uint32_t{EPOLLIN} : 0;
  Status added = AddToEpoll(epoll_.get(), fd, entry.first->first, events);
  if (!added) senders_.erase(entry.first);
  return added;
}

void Inbox::Drain(std::uint64_t id) {
  const auto found = senders_.find(id);
  if (found == senders_.end()) return;
  Sender& sender = found->second;
  Next next = Next::kGoOn;
  for (int left = kMaxPerTurn; next == Next::kGoOn && left > 0; --left) {
    next = RoomFor(&sender);
    sender.paused = next == Next::kWait;
    if (next == Next::kGoOn) next = TakeOne(&sender);
  }
  if (next == Next::kWait) Watch(id, 0);
  if (next == Next::kForget) senders_.erase(found);
}

Inbox::Next Inbox::RoomFor(Sender* sender) {
  std::uint64_t agents = 0;
  std::uint64_t unfinished = 0;
  for (const auto& [id, other] : senders_) {
    if (other.named) ++agents;
    unfinished += other.joiner.size();
  }
  const std::uint64_t part = limits_.total_bytes / kParts;
  const std::uint64_t share = std::min(limits_.sender_bytes, part / agents);
  bool is_full = false;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(sender->takes, takes_) != takes_) sender->arrived = 0;
    // By senders that have gone, or that came when shares were larger.
    is_full = arrived_bytes_ + unfinished >= limits_.total_bytes;
    if (!is_full && sender->arrived + sender->joiner.size() < share) return Next::kGoOn;
    // The program has to take first what is there.
    if (sender->arrived != 0 || arrived_bytes_ >= part) {
      room_wanted_ = true;
      return Next::kWait;
    }
  }
  return MakeRoom(sender, is_full ? 1 : share);
}

Inbox::Next Inbox::MakeRoom(Sender* sender, std::uint64_t share) {
  std::uint64_t unfinished = 0;  // beyond shares
  auto first = senders_.end();
  for (auto entry = senders_.begin(); entry != senders_.end(); ++entry) {
    const Sender& other = entry->second;
    if (other.joiner.size() < share) continue;
    unfinished += other.joiner.size();
    if (first == senders_.end() || other.begun < first->second.begun) first = entry;
  }
  const bool is_alone = unfinished == sender->joiner.size();
  if (is_alone || unfinished < limits_.total_bytes / kParts) return Next::kGoOn;
  if (Clock::now() - first->second.begun < kMinStay) {
    crowded_ = true;
    return Next::kWait;
  }
  Close(first->second,
        Error(Code::kUnavailable,
              "its long notification takes longer than others that need the memory"));
  if (&first->second == sender) return Next::kForget;
  senders_.erase(first);
  return Next::kGoOn;
}

void Inbox::Watch(std::uint64_t id, std::uint32_t events) {
  const auto found = senders_.find(id);
  if (found == senders_.end()) return;
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  if (const auto fd = found->second.readiness.fd()) {
    (void)epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, *fd, &event);
  }
}

void Inbox::ResumePaused() {
  for (auto& [id, sender] : senders_) {
    if (!std::exchange(sender.paused, false)) continue;
    sender.since = Clock::now();
    Watch(id, EPOLLIN);
  }
}

Inbox::Next Inbox::TakeOne(Sender* sender) {
  Status taken = Ok();
  try {
    const auto frame = sender->connection.TakeNotification(Now());
    if (!frame) {
      return frame.error().code() == Code::kTimedOut ? Next::kEmpty : Next::kForget;
    }
    taken = OnFrame(sender, *frame);
  } catch (const std::bad_alloc&) {
    sender->joiner = Joiner();  // so that there is memory to go on
    taken = Error(Code::kUnavailable, "there is no memory for its notification");
  }
  if (taken) return Next::kGoOn;
  Close(*sender, taken.error());
  return Next::kForget;
}

void Inbox::Close(const Sender& sender, const Error& reason) {
  const std::string peer = sender.connection.Info().peer;
  std::string text = fmt::format("the connection of agent '{}' at {} was closed: {}", sender.agent,
                                 peer, reason.message());
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

Status Inbox::CheckName(const Sender& sender) {
  if (IsBoundToOther(sender.agent, sender.key)) {
    return Error(Code::kRefused,
                 fmt::format("it is not the agent '{}' whose metadata is loaded here; if that was "
                             "restarted, load its new metadata, or remove the old",
                             sender.agent));
  }
  const bool is_taken = std::any_of(senders_.begin(), senders_.end(), [&](const auto& entry) {
    const Sender& other = entry.second;
    return other.named && other.agent == sender.agent && other.key != sender.key &&
           !other.connection.lost();
  });
  if (!is_taken) return Ok();
  return Error(Code::kRefused,
               fmt::format("another agent with the name '{}' is connected; give each its own name",
                           sender.agent));
}

void Inbox::TakeName(Sender* sender) {
  sender->named = CheckName(*sender).has_value();
  if (sender->named) Log(LogLevel::kDebug, fmt::format("agent '{}' has connected", sender->agent));
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
    if (!sender.named || !IsBoundToOther(sender.agent, sender.key)) {
      ++entry;
      continue;
    }
    Close(sender, Error(Code::kRefused, "other metadata of the agent with its name was loaded"));
    entry = senders_.erase(entry);
  }
  for (auto& [id, sender] : senders_) {
    if (sender.named) continue;
    TakeName(&sender);
    if (sender.named) Watch(id, EPOLLIN);
  }
}

// ---- frames -------------------------------------------------------------------------------------

Status Inbox::OnFrame(Sender* sender, const std::vector<std::byte>& frame) {
  FERRY_TRY_ASSIGN(const Piece piece, ParsePiece(frame));
  const PieceHeader& header = piece.header;
  // One before it was refused, because our queue was full: both come again.
  if (!sender->joiner.IsNext(header)) return Ok();
  if (header.total > limits_.sender_bytes) {
    return Error(Code::kUnavailable,
                 fmt::format("a notification of it has {} bytes, this agent takes {}; raise "
                             "FERRY_PEER_MEMORY here",
                             header.total, limits_.sender_bytes));
  }
  sender->since = Clock::now();
  if (sender->joiner.size() == 0) sender->begun = sender->since;
  FERRY_TRY_ASSIGN(std::optional<std::string> message, sender->joiner.Add(piece));
  if (message) Deliver(sender, *std::move(message));
  if (header.asks != 0) (void)sender->connection.Send(header.sequence, {});
  return Ok();
}

void Inbox::Deliver(Sender* sender, std::string message) {
  const std::lock_guard lock(mutex_);
  if (std::exchange(sender->takes, takes_) != takes_) sender->arrived = 0;
  const std::uint64_t bytes = message.size() + sender->agent.size() + kEntryCost;
  sender->arrived += bytes;
  arrived_bytes_ += bytes;
  arrived_.emplace_back(sender->agent, std::move(message));
}

bool Inbox::CloseSilent() {
  // Ends the epoll timeout, too: without a silent connection the thread sleeps until something
  // comes.
  bool any = false;
  for (auto entry = senders_.begin(); entry != senders_.end();) {
    const Sender& sender = entry->second;
    const bool is_awaited = !sender.named || (sender.joiner.size() != 0 && !sender.paused);
    if (is_awaited && CloseIfLate(&entry->second)) {
      entry = senders_.erase(entry);
    } else {
      any = any || is_awaited;
      ++entry;
    }
  }
  return any;
}

bool Inbox::CloseIfLate(Sender* sender) {
  const Clock::duration limit = sender->named ? limits_.silence : limits_.claim;
  if (Clock::now() - sender->since < limit) return false;
  if (!sender->named) {
    const Status named = CheckName(*sender);
    if (!named) Close(*sender, named.error());
    return !named;  // CheckNames() lets others go on
  }
  const Next next = TakeOne(sender);  // this thread may have been late
  if (next == Next::kEmpty) {
    const std::string peer = sender->connection.Info().peer;
    LogPeer(LogLevel::kWarning, peer,
            fmt::format("the connection of {} was closed: it did not go on with a notification "
                        "within {:.1f} s",
                        peer, Seconds(limit)));
    CloseInBackground(sender->connection);
  }
  return next == Next::kEmpty || next == Next::kForget;
}

void Inbox::CloseInBackground(transfer::Connection connection) {
  tasks_->Run([connection]() mutable { connection.Close(); }, true);
}

}  // namespace ferry::nixl
