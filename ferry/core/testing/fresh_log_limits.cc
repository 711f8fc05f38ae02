// Gives each test of a process the log limits of a new one. Otherwise the lines that earlier tests
// wrote within the same second suppress those of the test.
#include <gtest/gtest.h>

#include "ferry/core/log_limiter.h"
#include "ferry/core/stderr_line.h"

namespace ferry {
namespace {

class FreshLogLimits : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& /*info*/) override {
    internal::ResetLineLimit();
    PeerLogLimiter().Reset();
  }
};

// Every program that links these objects has it; gtest destroys the listener.
[[maybe_unused]] const bool kIsListening = [] {
  testing::UnitTest::GetInstance()->listeners().Append(new FreshLogLimits);
  return true;
}();

}  // namespace
}  // namespace ferry
