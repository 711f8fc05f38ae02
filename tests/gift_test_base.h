#pragma once
#include <gtest/gtest.h>

#include <string>

#include "tests/engine_peer.h"

namespace ferry::tests {

// Tests that hold whether pages of the source are lent to the kernel or copied. To be instantiated
// with GiftModes() and GiftName.
class GiftTest : public testing::TestWithParam<std::string> {
 protected:
  Settings FastGiftSettings(Settings more = {}) const {
    more.push_back("gift=" + GetParam());
    return FastSettings(more);
  }
};

inline auto GiftModes() { return testing::Values("off", "on"); }
inline std::string GiftName(const testing::TestParamInfo<std::string>& mode) {
  return "gift_" + mode.param;
}

}  // namespace ferry::tests
