// Takes notifications from the connections of peers.
#include "bindings/nixl/inbox.h"

#include <fmt/core.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "bindings/nixl/epoll.h"
#include "bindings/nixl/log.h"
#include "ferry/core/thread.h"

namespace ferry::nixl {
namespace {

constexpr std::uint64_t kAccept = 1;
constexpr auto kMaxSilence = std::chrono::seconds(5);
// The limit of notifications that nobody takes. Beyond it the senders wait.
constexpr std::uint64_t kMaxArrivedBytes = 256 << 20;
// Messages of one sender of which pieces are missing.
constexpr std::size_t kMaxJoining = 4096;

Deadline Now() { return Deadline::After(Clock::duration::zero()); }

// Takes the same time wherever they differ.
bool SameSecret(const Uuid& a, const Uuid& b) noexcept {
  std::byte differ{};
  for (std::size_t i = 0; i < a.bytes.size(); ++i) differ |= a.bytes[i] ^ b.bytes[i];
  return differ == std::byte{};
}

}  // namespace

Result<std::unique_ptr<Inbox>> Inbox::Create(transfer::Endpoint* endpoint, Tasks* tasks,
                                             const Uuid& secret) {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) {
    return Error(Code::kUnavailable,
                 fmt::format("no descriptor for the thread that takes notifications: {}; raise the "
                             "limit of open files",
                             std::strerror(errno)));
  }
  FERRY_TRY_ASSIGN(UniqueFd wake, MakeEventFd());
  std::unique_ptr<Inbox> inbox(
      new Inbox(endpoint, tasks, secret, std::move(epoll), std::move(wake)));
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
  room_.notify_all();
  SignalEventFd(wake_.get());
  if (thread_.joinable()) thread_.join();
}

void Inbox::Take(abi::Notifications* out) {
  abi::Notifications taken;
  {
    const std::lock_guard lock(mutex_);
    taken.swap(arrived_);
    arrived_bytes_ = 0;
  }
  if (taken.empty()) return;
  room_.notify_all();
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
      if (id == kAccept) AcceptAll();
      if (id > kAccept) Drain(id);
    }
    silent = CloseSilent();
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
  }
}

void Inbox::AcceptAll() {
  while (true) {
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
      Log(LogLevel::kError,
          fmt::format("a peer's connection was refused: {}", added.error().ToString()));
      CloseInBackground(*std::move(accepted));
      continue;
    }
    senders_.emplace(next_++, Sender{.connection = *std::move(accepted),
                                     .readiness = *std::move(readiness),
                                     .agent = {},
                                     .joining = {}});
  }
}

void Inbox::Drain(std::uint64_t id) {
  const auto found = senders_.find(id);
  if (found == senders_.end()) return;
  Next next = Next::kGoOn;
  while (next == Next::kGoOn) next = TakeOne(&found->second);
  if (next == Next::kForget) senders_.erase(found);
}

Inbox::Next Inbox::TakeOne(Sender* sender) {
  const auto frame = sender->connection.TakeNotification(Now());
  if (!frame) {
    return frame.error().code() == Code::kTimedOut ? Next::kEmpty : Next::kForget;
  }
  const Status taken = OnFrame(sender, *frame);
  if (taken) return Next::kGoOn;
  Log(LogLevel::kError,
      fmt::format("the connection of {} was closed: {}",
                  sender->agent ? fmt::format("agent '{}'", *sender->agent)
                                : sender->connection.Info().peer,
                  taken.error().message()),
      taken.error().where());
  CloseInBackground(sender->connection);
  return Next::kForget;
}

Status Inbox::OnFrame(Sender* sender, const std::vector<std::byte>& frame) {
  if (!sender->agent) {
    FERRY_TRY_ASSIGN(Hello hello, ParseHello(frame));
    // The secret is in this agent's metadata, so it proves that the sender has loaded that.
    if (!SameSecret(hello.secret, secret_)) {
      return Error(Code::kRefused,
                   "it does not have this agent's metadata; only agents that have loaded it may "
                   "connect");
    }
    sender->agent = std::move(hello.agent);
    Log(LogLevel::kDebug, fmt::format("agent '{}' has connected", *sender->agent));
    return Ok();
  }
  FERRY_TRY_ASSIGN(const Piece piece, ParsePiece(frame));
  FERRY_TRY_ASSIGN(std::optional<std::string> message, Join(sender, piece));
  if (message) Deliver(*sender->agent, *std::move(message));
  return Ok();
}

Result<std::optional<std::string>> Inbox::Join(Sender* sender, const Piece& piece) {
  const PieceHeader& header = piece.header;
  if (piece.bytes.size() == header.total) return std::optional<std::string>(piece.bytes);
  // Limits come first: a peer decides about these numbers, and nothing is kept for it before.
  // Pieces may come in any order, because refused ones are posted again.
  if (header.total > kMaxMessageBytes ||
      (sender->joining.size() >= kMaxJoining && !sender->joining.contains(header.message))) {
    return Error(Code::kCorrupt,
                 fmt::format("a notification of {} bytes, or too many that are not complete; at "
                             "most {} bytes and {} notifications are accepted",
                             header.total, kMaxMessageBytes, kMaxJoining));
  }
  Joining& joining = sender->joining[header.message];
  const bool is_new = joining.pieces.emplace(header.offset, piece.bytes).second;
  if (joining.total == 0) joining.total = header.total;
  if (!is_new || joining.total != header.total) {
    return Error(Code::kCorrupt, "the pieces of a notification contradict each other");
  }
  joining.received += piece.bytes.size();
  if (joining.received < joining.total) return std::optional<std::string>();
  std::string whole;
  whole.reserve(joining.total);
  for (const auto& [offset, bytes] : joining.pieces) {
    if (offset != whole.size()) {
      return Error(Code::kCorrupt, "the pieces of a notification overlap");
    }
    whole += bytes;
  }
  sender->joining.erase(header.message);
  return std::optional<std::string>(std::move(whole));
}

void Inbox::Deliver(const std::string& agent, std::string message) {
  std::unique_lock lock(mutex_);
  // Blocks the thread, so notifications stay in the connections' queues, and senders are refused
  // with kUnavailable once these are full. Take() and the destructor wake it.
  room_.wait(lock, [this] { return stopping_ || arrived_bytes_ < kMaxArrivedBytes; });
  arrived_bytes_ += message.size() + agent.size() + sizeof(abi::Notifications::value_type);
  arrived_.emplace_back(agent, std::move(message));
}

bool Inbox::CloseSilent() {
  // Ends the epoll timeout, too: without a silent connection the thread sleeps until something
  // comes.
  bool any = false;
  for (auto sender = senders_.begin(); sender != senders_.end();) {
    const bool silent = !sender->second.agent;
    if (!silent || Clock::now() - sender->second.since < kMaxSilence) {
      any = any || silent;
      ++sender;
      continue;
    }
    // Nobody looked while Deliver() blocked.
    const Next next = TakeOne(&sender->second);
    if (next == Next::kGoOn) continue;
    if (next == Next::kEmpty) {
      Log(LogLevel::kWarning,
          fmt::format(
              "the connection of {} was closed: it did not say which agent it is within {} s",
              sender->second.connection.Info().peer, kMaxSilence.count()));
      CloseInBackground(sender->second.connection);
    }
    sender = senders_.erase(sender);
  }
  return any;
}

void Inbox::CloseInBackground(transfer::Connection connection) {
  tasks_->Run([connection]() mutable { connection.Close(); }, true);
}

}  // namespace ferry::nixl
