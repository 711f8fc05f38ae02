// Builds connected endpoints and checks outcomes of operations.
#include "ferry/transfer/testing/linked_endpoints.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

namespace ferry::transfer {
namespace {

constexpr std::byte kGuard{0xA5};

}  // namespace

Deadline Soon() { return Deadline::After(std::chrono::seconds(30)); }
Deadline Now() { return Deadline::At(Clock::time_point{}); }

std::string HostAndPort(std::uint16_t port) { return "127.0.0.1:" + std::to_string(port); }

Config SmallSlices(int lanes, int workers) {
  Config config;
  config.listen_host = "127.0.0.1";
  config.insecure = OnOff::kOn;
  config.lanes = lanes;
  config.workers = workers;
  config.slice_bytes = 4096;
  config.window_bytes = 64 * 1024;
  config.peer_timeout = std::chrono::minutes(5);
  config.heartbeat_interval = std::chrono::minutes(1);
  return config;
}

Link MakeLink(const Config& near, const Config& far) {
  Link link;
  link.near.endpoint = Must(Endpoint::Create(near));
  link.far.endpoint = Must(Endpoint::Create(far));
  link.near.connection = Must(link.near.endpoint->Connect(link.far.endpoint->address(), Soon()));
  link.far.connection = Must(link.far.endpoint->Accept(Soon()));
  return link;
}

Link MakeLink(const Config& both) { return MakeLink(both, both); }

// ---- memory -------------------------------------------------------------------------------------

GuardedMemory::GuardedMemory(std::size_t bytes, unsigned seed)
    : bytes_(bytes + 2 * kGuardBytes, kGuard) {
  const auto pattern = RandomBytes(bytes, seed);
  std::copy(pattern.begin(), pattern.end(), span().begin());
}

bool GuardedMemory::GuardsIntact() const {
  const auto is_guard = [](std::byte b) { return b == kGuard; };
  return std::all_of(bytes_.begin(), bytes_.begin() + kGuardBytes, is_guard) &&
         std::all_of(bytes_.end() - kGuardBytes, bytes_.end(), is_guard);
}

std::vector<std::byte> BytesOf(std::string_view text) {
  std::vector<std::byte> bytes(text.size());
  std::transform(text.begin(), text.end(), bytes.begin(),
                 [](char c) { return static_cast<std::byte>(c); });
  return bytes;
}

std::string TextOf(std::span<const std::byte> bytes) {
  std::string text(bytes.size(), '\0');
  std::transform(bytes.begin(), bytes.end(), text.begin(),
                 [](std::byte b) { return static_cast<char>(b); });
  return text;
}

// ---- operations ---------------------------------------------------------------------------------

::testing::AssertionResult EndsOk(Operation operation) {
  const Status status = operation.Wait(Soon());
  if (status) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << status.error().ToString();
}

::testing::AssertionResult EndsOk(const Result<Operation>& operation) {
  if (operation) return EndsOk(*operation);
  return ::testing::AssertionFailure() << "not begun: " << operation.error().ToString();
}

::testing::AssertionResult EndsWith(Code code, Operation operation) {
  const Status status = operation.Wait(Soon());
  if (!operation.Poll()) return ::testing::AssertionFailure() << "has not ended in time";
  if (status) return ::testing::AssertionFailure() << "ended well";
  if (status.error().code() == code) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << status.error().ToString();
}

::testing::AssertionResult EndsWith(Code code, const Result<Operation>& operation) {
  if (operation) return EndsWith(code, *operation);
  return ::testing::AssertionFailure() << "not begun: " << operation.error().ToString();
}

std::string EndMessage(Operation operation) {
  const Status status = operation.Wait(Soon());
  return status ? "" : status.error().message();
}

// ---- whether a connection works -----------------------------------------------------------------

namespace {

// Used by no test.
constexpr std::uint64_t kProbeTag = 0xF0F0F0F0F0F0F0F0;
constexpr std::uint64_t kWholeTag = ~std::uint64_t{0};

::testing::AssertionResult Delivers(Connection from, Connection to, std::size_t bytes) {
  const auto sent = RandomBytes(bytes, static_cast<unsigned>(bytes));
  std::vector<std::byte> received(bytes);
  const auto receive = to.Recv(kProbeTag, kWholeTag, received);
  const auto send = from.Send(kProbeTag, sent);
  if (auto ended = EndsOk(send); !ended) return ended << " (sending " << bytes << " bytes)";
  if (auto ended = EndsOk(receive); !ended) return ended << " (receiving " << bytes << " bytes)";
  if (sent == received) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << bytes << " bytes did not arrive as they were sent";
}

}  // namespace

::testing::AssertionResult Works(const Connection& near, const Connection& far) {
  for (const std::size_t bytes : {0UL, 100UL, 400UL * 1024}) {
    if (auto there = Delivers(near, far, bytes); !there) return there;
    if (auto back = Delivers(far, near, bytes); !back) return back;
  }
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult Works(Link* link) {
  return Works(*link->near.connection, *link->far.connection);
}

}  // namespace ferry::transfer
