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

// For waits whose end a working engine always reaches.
Deadline Soon();
// The present. A wait with it asks whether something has happened already.
Deadline Now();

// The mask of a receive that takes one tag only.
inline constexpr std::uint64_t kWholeTag = ~std::uint64_t{0};

// Of a listener on this machine.
std::string HostAndPort(std::uint16_t port);

// Endpoints on 127.0.0.1 with slices of 4 KiB and windows of 64 KiB, so that everything is many
// slices in several windows; and so patient with silent peers that a debugger does not lose them.
Config SmallSlices(int lanes = 2, int workers = 2);

// The value; aborts with the error where there is none.
template <class T>
T Must(Result<T> result) {
  FERRY_CHECK(result.has_value(), result.has_value() ? "" : result.error().ToString());
  return *std::move(result);
}

// One side of a connection. Both can be reset() to see what the other side makes of it.
struct Side {
  std::optional<Endpoint> endpoint;
  std::optional<Connection> connection;
};

// Two endpoints of this process, connected over TCP. `near` has called, `far` has accepted.
struct Link {
  Side near;
  Side far;
};
Link MakeLink(const Config& near, const Config& far);
Link MakeLink(const Config& both = SmallSlices());

// Memory between two guard areas, filled with bytes that follow from `seed`.
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

// How an operation ends, as a sentence if it is not as it should be.
::testing::AssertionResult EndsOk(Operation operation);
::testing::AssertionResult EndsOk(const Result<Operation>& operation);
::testing::AssertionResult EndsWith(Code code, Operation operation);
::testing::AssertionResult EndsWith(Code code, const Result<Operation>& operation);
// Its error's message; "" for success. For looking at the words after EndsWith().
std::string EndMessage(Operation operation);

// Whether the connection still moves things: messages of no bytes, few and many (which all lanes
// share) in both directions. What either side said before it on the first lane has been heard then.
::testing::AssertionResult Works(Link* link);
::testing::AssertionResult Works(const Connection& near, const Connection& far);

}  // namespace ferry::transfer
