// Implements the peer role "echo".

#include "tests/support/echo_role.h"

#include <dirent.h>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <fstream>
#include <list>
#include <memory>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include "tests/load/placed_memory.h"
#include "tests/support/engine_peer.h"

namespace ferry::tests {
namespace {

using transfer::Connection;

constexpr std::uint64_t kAnyTag = 0;  // as a mask

struct DirCloser {
  void operator()(DIR* dir) const noexcept { (void)::closedir(dir); }
};

class EchoRole {
 public:
  ~EchoRole() {
    endpoint_.reset();  // ends every wait
    acceptor_ = {};
    servers_.clear();
  }

  Result<std::string> Do(const std::string& line) {
    std::istringstream words(line);
    std::string command;
    words >> command;
    if (command == "endpoint") return Begin(words);
    if (command == "region") return Register(words);
    if (command == "renew") return Renew(words);
    if (command == "descriptors") return fmt::format("{}", OpenDescriptors());
    if (command == "resident") return fmt::format("{}", ResidentBytes());
    if (command == "connections") return fmt::format("{}", serving_.load());
    if (command == "slots") return fmt::format("{}", SlotsInUse(endpoint_->Counters()));
    if (command == "available") return fmt::format("{}", fmt::join(AvailableMemory(devices_), " "));
    return Error(Code::kInvalidArgument, "unknown command: " + line);
  }

 private:
  Result<std::string> Begin(std::istringstream& words) {
    Settings settings;
    for (std::string setting; words >> setting;) {
      settings.push_back(setting);
      if (setting.starts_with("devices="))
        devices_ = DevicesOf(setting.substr(setting.find('=') + 1));
    }
    FERRY_TRY_ASSIGN(endpoint_, transfer::Endpoint::Create(ConfigOf(settings)));
    acceptor_ = std::jthread([this] { AcceptAll(); });
    return ToHex(endpoint_->address().Serialize());
  }

  Result<std::string> Register(std::istringstream& words) {
    std::uint64_t bytes = 0;
    int place = kOnHost;
    words >> bytes >> place;
    PlacedMemory& memory = memories_.emplace_back(devices_, place, bytes);
    FERRY_TRY_ASSIGN(auto region, endpoint_->Register(memory.span(), transfer::Rights::kReadWrite));
    regions_.push_back(std::move(region));
    return ToHex(regions_.back().key());
  }

  // Registers the memory of the region with this number anew, once nobody can write to it by its
  // former key.
  Result<std::string> Renew(std::istringstream& words) {
    std::ptrdiff_t number = 0;
    words >> number;
    transfer::Region& region = *std::next(regions_.begin(), number);
    FERRY_TRY(region.Deregister(TestDeadline()));
    FERRY_TRY_ASSIGN(region, endpoint_->Register(std::next(memories_.begin(), number)->span(),
                                                 transfer::Rights::kReadWrite));
    return ToHex(region.key());
  }

  // The memory place of the next peer's messages.
  int NextPlace() {
    const int visitor = visitors_++;
    if (devices_ == nullptr || visitor % 2 == 0) return kOnHost;
    return visitor / 2 % devices_->count();
  }

  void AcceptAll() {
    for (;;) {
      auto connection = endpoint_->Accept(Deadline::After(std::chrono::hours(1)));
      if (!connection) return;
      std::erase_if(servers_, [](const Server& server) { return server.over->load(); });
      auto over = std::make_shared<std::atomic<bool>>(false);  // with the thread
      ++serving_;
      auto serve = [this, over, place = NextPlace(),
                    connection = *std::move(connection)]() mutable {
        Serve(std::move(connection), PlacedMemory(devices_, place, kEchoMax));
        --serving_;
        over->store(true);
      };
      servers_.push_back({over, std::jthread(std::move(serve))});
    }
  }

  static void Serve(Connection connection, PlacedMemory memory) {
    const auto message = memory.span();
    for (;;) {
      auto receive = connection.Recv(0, kAnyTag, message);
      if (!receive || (!receive->Wait() && connection.lost())) return;
      while (connection.TakeNotification(Deadline::At(Clock::now()))) {
      }
      if (!receive->Wait()) continue;  // given up by its sender
      auto send = connection.Send(receive->tag(), message.first(receive->bytes()));
      if (!send || (!send->Wait() && connection.lost())) return;
    }
  }

  struct Server {
    std::shared_ptr<std::atomic<bool>> over;  // with the thread
    std::jthread thread;
  };

  cuda::DeviceApi* devices_ = nullptr;
  std::list<PlacedMemory> memories_;
  std::optional<transfer::Endpoint> endpoint_;
  std::list<transfer::Region> regions_;
  std::atomic<int> serving_{0};
  int visitors_ = 0;           // the acceptor's
  std::list<Server> servers_;  // the acceptor's, until it is joined
  std::jthread acceptor_;
};

}  // namespace

std::size_t OpenDescriptors() {
  const std::unique_ptr<DIR, DirCloser> dir(::opendir("/proc/self/fd"));
  std::size_t count = 0;
  while (const dirent* const entry = dir ? ::readdir(dir.get()) : nullptr) {
    std::array<char, 64> target{};
    (void)::readlinkat(::dirfd(dir.get()), entry->d_name, target.data(), target.size() - 1);
    if (!std::string_view(target.data()).starts_with("/dev/nvidia")) ++count;
  }
  return count;
}

std::uint64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  std::uint64_t total = 0;
  std::uint64_t resident = 0;
  statm >> total >> resident;
  return resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

int RunEchoPeer(LinePipe& parent) {
  EchoRole role;
  return Obey(parent, [&](const std::string& line) { return role.Do(line); });
}

}  // namespace ferry::tests
