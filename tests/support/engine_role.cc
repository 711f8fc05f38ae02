// The peer role "engine": reads one command per line and answers with one line, "ok" and a result
// or "error" and a reason.

#include <fcntl.h>
#include <fmt/core.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include "ferry/core/crc32c.h"
#include "tests/support/engine_peer.h"

namespace ferry::tests {
namespace {

using Words = std::istringstream;

template <class T>
T Next(Words& words) {
  T value{};
  words >> value;
  return value;
}

// Writes, or reads, a region again and again on a thread of its own, eight posts at a time.
class Pump {
 public:
  Pump(transfer::Connection connection, transfer::PreparedTransfer transfer, bool reads)
      : reads_(reads),
        thread_([this, connection = std::move(connection),
                 transfer = std::move(transfer)]() mutable { Run(&connection, transfer); }) {}

  std::uint64_t bytes() const { return bytes_.load(); }
  // How the last of them ended.
  Status Stop() {
    stop_.store(true);
    thread_.join();
    return status_;
  }

 private:
  void Run(transfer::Connection* connection, const transfer::PreparedTransfer& transfer) {
    std::deque<transfer::Operation> in_flight;
    while (status_ && (!stop_.load() || !in_flight.empty())) {
      while (!stop_.load() && in_flight.size() < 8) {
        auto posted = reads_ ? connection->Read(transfer) : connection->Write(transfer);
        if (!posted) {
          status_ = posted.error();
          return;
        }
        in_flight.push_back(*std::move(posted));
      }
      status_ = in_flight.front().Wait(TestDeadline());
      if (status_) bytes_.fetch_add(in_flight.front().bytes());
      in_flight.pop_front();
    }
  }

  const bool reads_;
  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> bytes_{0};
  Status status_ = Ok();  // the thread's, until it is joined
  std::jthread thread_;
};

class EngineRole {
 public:
  ~EngineRole() {
    if (acceptor_.joinable()) endpoint_->Close();  // ends its wait
  }

  // One command's answer without the "ok".
  Result<std::string> Do(const std::string& line);

 private:
  using Command = Result<std::string> (EngineRole::*)(Words&);
  static const std::map<std::string, Command, std::less<>>& Commands();

  Result<std::string> Endpoint(Words& words);
  Result<std::string> Accept(Words& words);
  Result<std::string> AcceptAll(Words& words);
  Result<std::string> Accepted(Words& words);
  Result<std::string> Connect(Words& words);
  Result<std::string> Use(Words& words);
  Result<std::string> Leave(Words& words);
  Result<std::string> Region(Words& words);
  Result<std::string> RepeatedRegion(Words& words);
  Result<std::string> Deregister(Words& words);
  Result<std::string> FillRegion(Words& words);
  Result<std::string> AwaitChange(Words& words);
  Result<std::string> Digest(Words& words);
  Result<std::string> CountRegion(Words& words);
  Result<std::string> Write(Words& words);
  Result<std::string> Read(Words& words);
  Result<std::string> Send(Words& words);
  Result<std::string> Notify(Words& words);
  Result<std::string> Cancel(Words& words);
  Result<std::string> NotifyTimes(Words& words);
  Result<std::string> TakeTimes(Words& words);
  Result<std::string> Outcome(Words& words);
  Result<std::string> Notification(Words& words);
  Result<std::string> Refusals(Words& words);
  Result<std::string> Memory(Words& words);
  Result<std::string> EnterNamespace(Words& words);
  Result<std::string> Interfaces(Words& words);
  Result<std::string> Pump(Words& words);
  Result<std::string> Pumped(Words& words);
  Result<std::string> StopPump(Words& words);
  Result<std::string> Vanish(Words& words);

  Result<PatternRegion*> Find(Words& words);
  Result<std::string> Keep(Result<transfer::Operation> operation);

  std::optional<transfer::Endpoint> endpoint_;
  std::deque<transfer::Connection> visitors_;  // the acceptor's, until it is joined
  std::atomic<int> accepted_{0};
  std::jthread acceptor_;
  std::map<std::string, PatternRegion> regions_;
  // One connection and its objects.
  struct Link {
    std::optional<transfer::Connection> connection;
    std::optional<class Pump> pump;
  };
  Link& link() { return links_[used_]; }
  std::optional<transfer::Connection>& connection() { return link().connection; }

  std::map<int, Link> links_;
  int used_ = 0;
  std::deque<transfer::Operation> posted_;
};

const std::map<std::string, EngineRole::Command, std::less<>>& EngineRole::Commands() {
  static const std::map<std::string, Command, std::less<>> commands = {
      {"endpoint", &EngineRole::Endpoint},
      {"accept", &EngineRole::Accept},
      {"accept_all", &EngineRole::AcceptAll},
      {"accepted", &EngineRole::Accepted},
      {"connect", &EngineRole::Connect},
      {"use", &EngineRole::Use},
      {"leave", &EngineRole::Leave},
      {"region", &EngineRole::Region},
      {"repeated_region", &EngineRole::RepeatedRegion},
      {"deregister", &EngineRole::Deregister},
      {"fill", &EngineRole::FillRegion},
      {"await_change", &EngineRole::AwaitChange},
      {"digest", &EngineRole::Digest},
      {"census", &EngineRole::CountRegion},
      {"write", &EngineRole::Write},
      {"read", &EngineRole::Read},
      {"send", &EngineRole::Send},
      {"notify", &EngineRole::Notify},
      {"cancel", &EngineRole::Cancel},
      {"notify_times", &EngineRole::NotifyTimes},
      {"take_times", &EngineRole::TakeTimes},
      {"outcome", &EngineRole::Outcome},
      {"notification", &EngineRole::Notification},
      {"refusals", &EngineRole::Refusals},
      {"memory", &EngineRole::Memory},
      {"namespace", &EngineRole::EnterNamespace},
      {"interfaces", &EngineRole::Interfaces},
      {"pump", &EngineRole::Pump},
      {"pumped", &EngineRole::Pumped},
      {"stop_pump", &EngineRole::StopPump},
      {"vanish", &EngineRole::Vanish},
  };
  return commands;
}

Result<std::string> EngineRole::Do(const std::string& line) {
  Words words(line);
  const auto it = Commands().find(Next<std::string>(words));
  if (it == Commands().end()) return Error(Code::kInvalidArgument, "unknown command: " + line);
  return (this->*it->second)(words);
}

Result<PatternRegion*> EngineRole::Find(Words& words) {
  const auto name = Next<std::string>(words);
  const auto it = regions_.find(name);
  if (it == regions_.end()) return Error(Code::kInvalidArgument, "no region named " + name);
  return &it->second;
}

Result<std::string> EngineRole::Keep(Result<transfer::Operation> operation) {
  if (!operation) return operation.error();
  posted_.push_back(*std::move(operation));
  return std::string();
}

// ---- setting up ---------------------------------------------------------------------------------

Result<std::string> EngineRole::Endpoint(Words& words) {
  Settings settings;
  for (std::string setting; words >> setting;) settings.push_back(setting);
  FERRY_TRY_ASSIGN(endpoint_, transfer::Endpoint::Create(ConfigOf(settings)));
  return ToHex(endpoint_->address().Serialize());
}

// Threads begun from now on, and their sockets, are in it.
Result<std::string> EngineRole::EnterNamespace(Words& words) {
  const std::string path = "/run/netns/" + Next<std::string>(words);
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd || ::setns(fd.get(), CLONE_NEWNET) != 0) return ErrnoError("entering " + path, errno);
  return std::string();
}

Result<std::string> EngineRole::Accept(Words& /*words*/) {
  FERRY_TRY_ASSIGN(connection(), endpoint_->Accept(TestDeadline()));
  return std::string();
}

Result<std::string> EngineRole::AcceptAll(Words& /*words*/) {
  acceptor_ = std::jthread([this] {
    while (auto visitor = endpoint_->Accept(Deadline::After(std::chrono::hours(1)))) {
      visitors_.push_back(*std::move(visitor));
      accepted_.fetch_add(1);
    }
  });
  return std::string();
}

Result<std::string> EngineRole::Accepted(Words& /*words*/) {
  return fmt::format("{}", accepted_.load());
}

Result<std::string> EngineRole::Connect(Words& words) {
  const auto where = Next<std::string>(words);
  if (where.find(':') != std::string::npos) {
    FERRY_TRY_ASSIGN(connection(), endpoint_->Connect(where, TestDeadline()));
    return std::string();
  }
  FERRY_TRY_ASSIGN(const auto address, transfer::EndpointAddress::Parse(FromHex(where)));
  FERRY_TRY_ASSIGN(connection(), endpoint_->Connect(address, TestDeadline()));
  return std::string();
}

Result<std::string> EngineRole::Use(Words& words) {
  used_ = Next<int>(words);
  return std::string();
}

Result<std::string> EngineRole::Region(Words& words) {
  const auto name = Next<std::string>(words);
  const auto bytes = Next<std::uint64_t>(words);
  const auto seed = Next<std::uint64_t>(words);
  const auto rights = Next<std::string>(words);
  const auto [it, added] = regions_.try_emplace(
      name, *endpoint_, bytes, seed,
      rights == "read" ? transfer::Rights::kRead : transfer::Rights::kReadWrite);
  if (!added) return Error(Code::kInvalidArgument, "a second region named " + name);
  return ToHex(it->second.region.key());
}

Result<std::string> EngineRole::RepeatedRegion(Words& words) {
  const auto name = Next<std::string>(words);
  const auto [it, added] = regions_.try_emplace(
      name, *endpoint_, GuardedMemory::Repeated(Next<std::uint64_t>(words), /*windows=*/true));
  if (!added) return Error(Code::kInvalidArgument, "a second region named " + name);
  return ToHex(it->second.region.key());
}

// ---- memory -------------------------------------------------------------------------------------

Result<std::string> EngineRole::Deregister(Words& words) {
  FERRY_TRY_ASSIGN(PatternRegion * found, Find(words));
  FERRY_TRY(found->region.Deregister(TestDeadline()));
  return std::string();
}

Result<std::string> EngineRole::FillRegion(Words& words) {
  FERRY_TRY_ASSIGN(PatternRegion * found, Find(words));
  Fill(found->bytes(), Next<std::uint64_t>(words));
  return std::string();
}

Result<std::string> EngineRole::AwaitChange(Words& words) {
  FERRY_TRY_ASSIGN(PatternRegion * found, Find(words));
  const auto word = Next<std::uint64_t>(words);
  const auto seed = Next<std::uint64_t>(words);
  if (WaitForChange(found->bytes(), word, seed, TestDeadline())) return std::string();
  return Error(Code::kTimedOut, "the memory did not change");
}

Result<std::string> EngineRole::Digest(Words& words) {
  FERRY_TRY_ASSIGN(PatternRegion * found, Find(words));
  if (!found->memory.GuardsIntact()) return Error(Code::kCorrupt, "a guard was overwritten");
  return fmt::format("{}", found->Digest());
}

Result<std::string> EngineRole::CountRegion(Words& words) {
  FERRY_TRY_ASSIGN(PatternRegion * found, Find(words));
  const auto before = Next<std::uint64_t>(words);
  const auto after = Next<std::uint64_t>(words);
  if (!found->memory.GuardsIntact()) return Error(Code::kCorrupt, "a guard was overwritten");
  const Census census = TakeCensus(found->bytes(), before, after);
  return fmt::format("{} {} {}", census.before, census.after, census.foreign);
}

// ---- operations ---------------------------------------------------------------------------------

// With a deadline in so many milliseconds, if one is named.
Result<std::string> EngineRole::Write(Words& words) {
  FERRY_TRY_ASSIGN(PatternRegion * found, Find(words));
  FERRY_TRY_ASSIGN(const auto remote, connection()->Import(FromHex(Next<std::string>(words))));
  std::int64_t deadline = 0;
  if (!(words >> deadline)) {
    return Keep(connection()->Write(found->region, 0, remote, 0, found->bytes().size()));
  }
  std::vector<transfer::TransferPart> parts(1);
  parts[0].local = &found->region;
  parts[0].remote = &remote;
  parts[0].blocks.Add({.dst = 0, .src = 0, .len = found->bytes().size()});
  FERRY_TRY_ASSIGN(auto prepared, connection()->PrepareWrite(std::move(parts)));
  return Keep(connection()->Write(prepared, {.deadline = Deadline::After(milliseconds(deadline))}));
}

Result<std::string> EngineRole::Read(Words& words) {
  FERRY_TRY_ASSIGN(PatternRegion * found, Find(words));
  FERRY_TRY_ASSIGN(const auto remote, connection()->Import(FromHex(Next<std::string>(words))));
  return Keep(connection()->Read(found->region, 0, remote, 0, found->bytes().size()));
}

// One message of the whole region, or `count` of its first `bytes`.
Result<std::string> EngineRole::Send(Words& words) {
  FERRY_TRY_ASSIGN(PatternRegion * found, Find(words));
  const auto tag = Next<std::uint64_t>(words);
  std::uint64_t count = 1;
  std::uint64_t bytes = found->bytes().size();
  if (!(words >> count >> bytes)) {
    count = 1;
    bytes = found->bytes().size();
  }
  for (std::uint64_t i = 0; i < count; ++i) {
    FERRY_TRY(Keep(connection()->Send(tag, found->bytes().first(bytes))));
  }
  return std::string();
}

Result<std::string> EngineRole::Notify(Words& words) {
  const auto text = Next<std::string>(words);
  return Keep(connection()->Notify(std::as_bytes(std::span(text))));
}

// The latest post.
Result<std::string> EngineRole::Cancel(Words& /*words*/) {
  if (posted_.empty()) return Error(Code::kInvalidArgument, "nothing was posted");
  posted_.back().Cancel();
  return std::string();
}

// Notifications that say when they were posted, so many and so many microseconds apart. Processes
// of one machine have one steady clock.
Result<std::string> EngineRole::NotifyTimes(Words& words) {
  const auto count = Next<std::uint64_t>(words);
  const auto apart = microseconds(Next<std::int64_t>(words));
  std::deque<transfer::Operation> all;
  for (std::uint64_t i = 0; i < count; ++i) {
    const Clock::rep now = Clock::now().time_since_epoch().count();
    FERRY_TRY_ASSIGN(auto posted, connection()->Notify(std::as_bytes(std::span(&now, 1))));
    all.push_back(std::move(posted));
    // The load that is measured; nothing is waited for.
    std::this_thread::sleep_for(apart);
  }
  for (transfer::Operation& each : all) FERRY_TRY(each.Wait(TestDeadline()));
  return std::string();
}

// How long ago they were posted when they were taken, in microseconds.
Result<std::string> EngineRole::TakeTimes(Words& words) {
  std::string all;
  for (auto left = Next<std::uint64_t>(words); left > 0; --left) {
    FERRY_TRY_ASSIGN(const auto taken, connection()->TakeNotification(TestDeadline()));
    Clock::rep then = 0;
    if (taken.size() != sizeof then) return Error(Code::kCorrupt, "not a time");
    std::memcpy(&then, taken.data(), sizeof then);
    const Clock::duration ago(Clock::now().time_since_epoch().count() - then);
    all += fmt::format("{} ", std::chrono::duration_cast<microseconds>(ago).count());
  }
  return all;
}

Result<std::string> EngineRole::Outcome(Words& /*words*/) {
  if (posted_.empty()) return Error(Code::kInvalidArgument, "nothing was posted");
  transfer::Operation operation = std::move(posted_.front());
  posted_.pop_front();
  const Status status = operation.Wait(TestDeadline());
  return status ? std::string("done") : Described(status.error());
}

Result<std::string> EngineRole::Notification(Words& words) {
  const auto taken =
      connection()->TakeNotification(Deadline::After(milliseconds(Next<std::int64_t>(words))));
  if (!taken) return Described(taken.error());
  std::string text(taken->size(), '\0');
  std::memcpy(text.data(), taken->data(), taken->size());
  return text;
}

Result<std::string> EngineRole::Refusals(Words& /*words*/) {
  return fmt::format("{}", connection()->Info().refused_accesses);
}

// Lets go of all connections.
Result<std::string> EngineRole::Leave(Words& /*words*/) {
  links_.clear();
  return std::string();
}

// The bytes that the endpoint counts as held for its peers, the resident bytes of the process, and
// how many connections are open.
Result<std::string> EngineRole::Memory(Words& /*words*/) {
  std::ifstream file("/proc/self/statm");
  std::uint64_t pages = 0;
  file >> pages >> pages;
  const auto counters = endpoint_->Counters();
  return fmt::format("{} {} {}", counters.held_bytes,
                     pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)),
                     counters.connections_open);
}

// One word for each lane, in the order of lanes.
Result<std::string> EngineRole::Interfaces(Words& /*words*/) {
  std::string all;
  for (const net::LaneInfo& lane : connection()->Info().lanes) all += lane.interface + " ";
  return all;
}

Result<std::string> EngineRole::Pump(Words& words) {
  FERRY_TRY_ASSIGN(PatternRegion * found, Find(words));
  FERRY_TRY_ASSIGN(const auto remote, connection()->Import(FromHex(Next<std::string>(words))));
  std::vector<transfer::TransferPart> parts(1);
  parts[0].local = &found->region;
  parts[0].remote = &remote;
  parts[0].blocks.Add({.dst = 0, .src = 0, .len = found->bytes().size()});
  const bool reads = Next<std::string>(words) == "reads";
  FERRY_TRY_ASSIGN(auto prepared, reads ? connection()->PrepareRead(std::move(parts))
                                        : connection()->PrepareWrite(std::move(parts)));
  link().pump.emplace(*connection(), std::move(prepared), reads);
  return std::string();
}

Result<std::string> EngineRole::Pumped(Words& /*words*/) {
  return fmt::format("{}", link().pump->bytes());
}

Result<std::string> EngineRole::StopPump(Words& /*words*/) {
  const Status ended = link().pump->Stop();
  link().pump.reset();
  return ended ? std::string("done") : Described(ended.error());
}

// Not _exit(): ThreadSanitizer's version of it sleeps for a second.
Result<std::string> EngineRole::Vanish(Words& /*words*/) {
  ::syscall(SYS_exit_group, 0);
  std::abort();
}

}  // namespace

int RunEnginePeer(LinePipe& parent) {
  EngineRole role;
  return Obey(parent, [&](const std::string& line) { return role.Do(line); });
}

}  // namespace ferry::tests
