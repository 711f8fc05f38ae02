// Test of the tanh of soft caps, with the errors that a GPU's instructions may have.

#include "ferry/kernels/soft_cap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace ferry::kernels {
namespace {

// The largest relative error of SoftCapTanh(x), where 2^x and 1 / x are off by as much as
// ex2.approx and rcp.approx may be (cuda/prim/float_math.cuh).
double WorstErrorAt(float x) {
  double worst = 0;
  for (const float of_power : {-0x1p-22F, 0.0F, 0x1p-22F}) {
    for (const float of_reciprocal : {-0x1p-23F, 0.0F, 0x1p-23F}) {
      const float power = std::exp2(x * kTwiceLog2E) * (1 + of_power);
      const float part = 1 / (1 + power) * (1 + of_reciprocal);
      const double right = std::tanh(double{x});
      worst = std::max(worst, std::fabs(double{SoftCapTanh(x, part)} - right) / std::fabs(right));
    }
  }
  return worst;
}

TEST(SoftCap, TheRelativeErrorIsSmallForAllNumbers) {
  constexpr double kStep = 1.001;
  for (double x = 1e-37; x < 100; x *= kStep) {
    for (const double sign : {-1.0, 1.0}) {
      ASSERT_LT(WorstErrorAt(static_cast<float>(sign * x)), x < 0.07 ? 0x1p-23 : 2.5e-6)
          << sign * x;
    }
  }
}

TEST(SoftCap, InfinitiesAndNanAreThemselves) {
  EXPECT_EQ(SoftCapTanh(0, 0.5F), 0);
  EXPECT_EQ(SoftCapTanh(HUGE_VALF, 0), 1);
  EXPECT_EQ(SoftCapTanh(-HUGE_VALF, 1), -1);
  EXPECT_TRUE(std::isnan(SoftCapTanh(NAN, NAN)));
}

// As attention has it: softcap * tanh(score / softcap), which is the score for large softcaps.
TEST(SoftCap, ScoresOfLargeSoftCapsStayApart) {
  for (const float softcap : {1e3F, 1e6F, 1e8F, 1e30F}) {
    for (const float score : {0.01F, 1.0F, 1.01F, 20.0F}) {
      const float x = score * (1 / softcap);
      const float part = 1 / (1 + std::exp2(x * kTwiceLog2E));
      const double right = double{softcap} * std::tanh(double{score} / double{softcap});
      EXPECT_NEAR(double{softcap * SoftCapTanh(x, part)}, right, 1e-6 * right) << softcap;
    }
  }
}

}  // namespace
}  // namespace ferry::kernels
