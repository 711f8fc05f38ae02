// Gives each test of a process the log limits of a new one. What an earlier test logged within the same
// second would otherwise decide which of a test's own lines are written.
#include <gtest/gtest.h>

#include "ferry/core/log.h"
#include "ferry/core/log_limiter.h"

namespace ferry {
namespace {

class FreshLogLimits : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& /*info*/) override {
    internal::ResetLineLimit();
    PeerLogLimiter().Reset();
  }
};

// Every program that links these objects has it; gtest destroys the listener.
[[maybe_unused]] const bool is_listening = [] {
  testing::UnitTest::GetInstance()->listeners().Append(new FreshLogLimits);
  return true;
}();

}  // namespace
}  // namespace ferry
