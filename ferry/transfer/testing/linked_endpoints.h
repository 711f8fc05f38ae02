// Two connected endpoints, guarded memory and checks of outcomes for tests.
#pragma once
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ferry/core/check.h"
#include "ferry/core/testing/random_bytes.h"
#include "ferry/transfer/endpoint.h"

namespace ferry::transfer {

// A deadline far enough away that a working engine always meets it.
Deadline Soon();
// The present: a wait with it only checks whether something has already happened.
Deadline Now();

// The mask of a receive that takes exactly one tag.
inline constexpr std::uint64_t kWholeTag = ~std::uint64_t{0};

// Address of a listener on this machine.
std::string HostAndPort(std::uint16_t port);

// Endpoints on 127.0.0.1 that admit peers which prove nothing, as scripted ones (raw_peer.h) and
// those behind a proxy (net/testing/fault_proxy.h) do, with slices of 4 KiB and windows of 64 KiB,
// so that every transfer has many slices in several windows. Timeouts for silent peers are long
// enough for a debugger.
Config SmallSlices(int lanes = 2, int workers = 2);

// Returns the value; aborts with the error if there is none.
template <class T>
T Must(Result<T> result) {
  FERRY_CHECK(result.has_value(), result.has_value() ? "" : result.error().ToString());
  return *std::move(result);
}

// One side of a connection. reset() either member to test how the other side reacts.
struct Side {
  std::optional<Endpoint> endpoint;
  std::optional<Connection> connection;
};

// Two endpoints of this process, connected over TCP. `near` dialed, `far` accepted.
struct Link {
  Side near;
  Side far;
};
Link MakeLink(const Config& near, const Config& far);
Link MakeLink(const Config& both = SmallSlices());

// Memory between two guard areas, filled with bytes that depend on `seed`.
class GuardedMemory {
 public:
  explicit GuardedMemory(std::size_t bytes, unsigned seed = 1);

  std::span<std::byte> span() noexcept {
    return std::span(bytes_).subspan(kGuardBytes, bytes_.size() - 2 * kGuardBytes);
  }
  std::vector<std::byte> Copy() { return {span().begin(), span().end()}; }
  void Fill(std::byte value) { std::fill(span().begin(), span().end(), value); }
  bool GuardsIntact() const;

 private:
  static constexpr std::size_t kGuardBytes = 4096;
  std::vector<std::byte> bytes_;
};

std::vector<std::byte> BytesOf(std::string_view text);
std::string TextOf(std::span<const std::byte> bytes);

// Wait for the end of an operation and compare its outcome; the failure text holds the outcome.
::testing::AssertionResult EndsOk(Operation operation);
::testing::AssertionResult EndsOk(const Result<Operation>& operation);
::testing::AssertionResult EndsWith(Code code, Operation operation);
::testing::AssertionResult EndsWith(Code code, const Result<Operation>& operation);
// The error message; "" for success. For checks of the text after EndsWith().
std::string EndMessage(Operation operation);

// Whether the connection still works: sends empty, small and large messages (the latter over all
// lanes) in both directions. Frames that either side sent before it on the first lane have been
// processed then.
::testing::AssertionResult Works(Link* link);
::testing::AssertionResult Works(const Connection& near, const Connection& far);

}  // namespace ferry::transfer
