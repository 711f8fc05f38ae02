// Fixture for tests that must pass with zero-copy sends and with copies.
#pragma once
#include <gtest/gtest.h>

#include <string>

#include "tests/support/engine_peer.h"

namespace ferry::tests {

// Base of tests that must pass both with zero-copy sends and with copies. Instantiate with
// ZeroCopyModes() and ZeroCopyName.
class ZeroCopyTest : public testing::TestWithParam<std::string> {
 protected:
  Settings FastZeroCopySettings(Settings more = {}) const {
    more.push_back("zero_copy_send=" + GetParam());
    return PacedSettings(more);
  }
};

// Runs `attempt` until it returns that it interrupted a transfer in the middle. A busy machine may
// let a transfer end before the test acts, so some attempts come too late.
template <typename Attempt>
void UntilInTheMiddle(Attempt attempt) {
  constexpr int kAttempts = 10;
  for (int i = 0; i < kAttempts; ++i) {
    if (attempt() || testing::Test::HasFailure()) return;
  }
  FAIL() << "the transfer was over in each of " << kAttempts << " attempts before it could be cut";
}

inline auto ZeroCopyModes() { return testing::Values("off", "on"); }
inline std::string ZeroCopyName(const testing::TestParamInfo<std::string>& mode) {
  return "zero_copy_" + mode.param;
}

}  // namespace ferry::tests
