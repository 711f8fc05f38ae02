// The role of the other agent in tests with two processes.
#include "plugins/nixl/tests/nixl_peer.h"

#include <fmt/core.h>

#include <filesystem>
#include <optional>
#include <sstream>
#include <system_error>
#include <thread>
#include <vector>

#include "ferry/core/crc32c.h"
#include "plugins/nixl/tests/testing/standin_agent.h"

namespace ferry::nixl::testing {
namespace {

// Without lists of sockets, one of the test's and one of the plugin's, which stay open from the
// first lane on.
std::size_t EntriesOf(const char* folder) {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::error_code is_no_link;
    const auto target = std::filesystem::read_symlink(entry.path(), is_no_link);
    if (target != "/memfd:ferry-sockets (deleted)") ++count;
  }
  return count;
}

class Role {
 public:
  Result<std::string> Do(const std::string& line) {
    std::istringstream in(line);
    std::string verb;
    in >> verb;
    if (verb == "create") return Create(in);
    if (verb == "memory") return Memory(in);
    if (verb == "metadata") return agent_->Metadata();
    if (verb == "load") return Load(in);
    if (verb == "digest") return std::to_string(DigestOf(memory_));
    if (verb == "register") return Register(in);
    if (verb == "deregister") return Deregister(in);
    if (verb == "notify") return Notify(in);
    if (verb == "await") return Await(in);
    if (verb == "destroy") {
      agent_.reset();
      const std::string difference = at_start_.Difference();
      return difference.empty() ? "ok" : difference;
    }
    return Error(Code::kInvalidArgument, "unknown command " + line);
  }

 private:
  Result<std::string> Create(std::istringstream& in) {
    abi::Params params;
    std::string setting;
    while (in >> setting) {
      const std::size_t equals = setting.find('=');
      params[setting.substr(0, equals)] = setting.substr(equals + 1);
    }
    agent_.emplace(kPeerName, params);
    return std::string("ok");
  }

  Result<std::string> Memory(std::istringstream& in) {
    std::size_t bytes = 0;
    std::uint64_t seed = 0;
    in >> bytes >> seed;
    memory_ = Pattern(seed, bytes);
    if (agent_->Register(memory_) != abi::Outcome::kSuccess) {
      return Error(Code::kInternal, "not registered");
    }
    return std::to_string(reinterpret_cast<std::uintptr_t>(memory_.data()));
  }

  Result<std::string> Load(std::istringstream& in) {
    std::string metadata;
    std::getline(in, metadata);
    return std::to_string(static_cast<int>(agent_->Load(metadata)));
  }

  std::span<std::byte> PartOf(std::istringstream& in) {
    std::size_t offset = 0;
    std::size_t bytes = 0;
    in >> offset >> bytes;
    return std::span(memory_).subspan(offset, bytes);
  }

  Result<std::string> Register(std::istringstream& in) {
    return std::to_string(static_cast<int>(agent_->Register(PartOf(in))));
  }

  Result<std::string> Deregister(std::istringstream& in) {
    const auto part = PartOf(in);
    int times = 1;
    in >> times;
    agent_->Deregister(part, in ? times : 1);
    return std::string("ok");
  }

  Result<std::string> Notify(std::istringstream& in) {
    std::string to;
    std::size_t bytes = 0;
    std::uint64_t count = 0;
    in >> to >> bytes >> count;
    for (std::uint64_t i = 0; i < count; ++i) {
      if (agent_->engine().Notify(to, Text(i, bytes)) != abi::Outcome::kSuccess) {
        return Error(Code::kInternal, "not sent");
      }
    }
    return std::string("ok");
  }

  Result<std::string> Await(std::istringstream& in) {
    std::size_t count = 0;
    in >> count;
    std::string out;
    for (const auto& [sender, text] : agent_->Await(count, tests::TestDeadline())) {
      out += fmt::format("{}:{}:{} ", sender, text.size(), DigestOf(text));
    }
    return out;
  }

  const Holdings at_start_ = Holdings::AtStart();
  std::vector<std::byte> memory_;
  std::optional<StandInAgent> agent_;  // after its memory
};

}  // namespace

std::vector<std::byte> Pattern(std::uint64_t seed, std::size_t bytes) {
  std::vector<std::byte> out(bytes);
  for (std::size_t i = 0; i < bytes; ++i) out[i] = PatternAt(seed, i);
  return out;
}

std::uint32_t DigestOf(std::span<const std::byte> bytes) { return Crc32c(bytes, 0); }

std::uint32_t DigestOf(std::string_view text) {
  return DigestOf(std::as_bytes(std::span(text.data(), text.size())));
}

std::string Text(std::uint64_t seed, std::size_t bytes) {
  std::string out(bytes, '\0');
  for (std::size_t i = 0; i < bytes; ++i) out[i] = static_cast<char>(PatternAt(seed, i));
  return out;
}

Holdings Holdings::AtStart() {
  std::thread([] {}).join();
  return {.threads = EntriesOf("/proc/self/task"), .descriptors = EntriesOf("/proc/self/fd")};
}

std::string Holdings::Difference() const {
  const auto deadline = tests::TestDeadline();
  for (;;) {
    const std::size_t threads_now = EntriesOf("/proc/self/task");
    const std::size_t descriptors_now = EntriesOf("/proc/self/fd");
    if (threads_now == threads && descriptors_now == descriptors) return {};
    if (deadline.expired()) {
      return fmt::format("{} threads and {} descriptors, where there were {} and {} at the start",
                         threads_now, descriptors_now, threads, descriptors);
    }
    std::this_thread::yield();
  }
}

int RunAgentPeer(tests::LinePipe& parent) {
  Role role;
  return tests::Obey(parent, [&](const std::string& line) { return role.Do(line); });
}

}  // namespace ferry::nixl::testing
