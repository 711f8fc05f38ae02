#include <fmt/core.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <sstream>
#include <utility>

#include "ferry/core/crc32c.h"
#include "tests/engine_peer.h"

// What a peer process does in the role "engine": one command a line, one answer a line, "ok" and a
// result or "error" and a reason.
namespace ferry::tests {
namespace {

using Words = std::istringstream;

template <class T>
T Next(Words& words) {
  T value{};
  words >> value;
  return value;
}

class EngineRole {
 public:
  // One command's answer without the "ok".
  Result<std::string> Do(const std::string& line);

 private:
  using Command = Result<std::string> (EngineRole::*)(Words&);
  static const std::map<std::string, Command, std::less<>>& Commands();

  Result<std::string> Endpoint(Words& words);
  Result<std::string> Accept(Words& words);
  Result<std::string> Connect(Words& words);
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
  Result<std::string> Outcome(Words& words);
  Result<std::string> Notification(Words& words);
  Result<std::string> Refusals(Words& words);
  Result<std::string> Vanish(Words& words);

  Result<PatternRegion*> Find(Words& words);
  Result<std::string> Keep(Result<transfer::Operation> operation);

  std::optional<transfer::Endpoint> endpoint_;
  std::map<std::string, PatternRegion> regions_;
  std::optional<transfer::Connection> connection_;
  std::deque<transfer::Operation> posted_;
};

const std::map<std::string, EngineRole::Command, std::less<>>& EngineRole::Commands() {
  static const std::map<std::string, Command, std::less<>> commands = {
      {"endpoint", &EngineRole::Endpoint},
      {"accept", &EngineRole::Accept},
      {"connect", &EngineRole::Connect},
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
      {"outcome", &EngineRole::Outcome},
      {"notification", &EngineRole::Notification},
      {"refusals", &EngineRole::Refusals},
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

Result<std::string> EngineRole::Accept(Words& /*words*/) {
  FERRY_TRY_ASSIGN(connection_, endpoint_->Accept(Patience()));
  return std::string();
}

Result<std::string> EngineRole::Connect(Words& words) {
  FERRY_TRY_ASSIGN(const auto address,
                   transfer::EndpointAddress::Parse(FromHex(Next<std::string>(words))));
  FERRY_TRY_ASSIGN(connection_, endpoint_->Connect(address, Patience()));
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
  FERRY_TRY(found->region.Deregister(Patience()));
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
  if (WaitForChange(found->bytes(), word, seed, Patience())) return std::string();
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

Result<std::string> EngineRole::Write(Words& words) {
  FERRY_TRY_ASSIGN(PatternRegion * found, Find(words));
  FERRY_TRY_ASSIGN(const auto remote, connection_->Import(FromHex(Next<std::string>(words))));
  return Keep(connection_->Write(found->region, 0, remote, 0, found->bytes().size()));
}

Result<std::string> EngineRole::Read(Words& words) {
  FERRY_TRY_ASSIGN(PatternRegion * found, Find(words));
  FERRY_TRY_ASSIGN(const auto remote, connection_->Import(FromHex(Next<std::string>(words))));
  return Keep(connection_->Read(found->region, 0, remote, 0, found->bytes().size()));
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
    FERRY_TRY(Keep(connection_->Send(tag, found->bytes().first(bytes))));
  }
  return std::string();
}

Result<std::string> EngineRole::Outcome(Words& /*words*/) {
  if (posted_.empty()) return Error(Code::kInvalidArgument, "nothing was posted");
  transfer::Operation operation = std::move(posted_.front());
  posted_.pop_front();
  const Status status = operation.Wait(Patience());
  return status ? std::string("done") : Described(status.error());
}

Result<std::string> EngineRole::Notification(Words& words) {
  const auto taken =
      connection_->TakeNotification(Deadline::After(milliseconds(Next<std::int64_t>(words))));
  if (!taken) return Described(taken.error());
  std::string text(taken->size(), '\0');
  std::memcpy(text.data(), taken->data(), taken->size());
  return text;
}

Result<std::string> EngineRole::Refusals(Words& /*words*/) {
  return fmt::format("{}", connection_->Info().refused_accesses);
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
