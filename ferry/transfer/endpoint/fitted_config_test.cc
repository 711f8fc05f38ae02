// Tests which settings follow the provider.
#include "ferry/transfer/endpoint/fitted_config.h"

#include <gtest/gtest.h>

#include "ferry/core/units.h"

namespace ferry::transfer {
namespace {

constexpr net::Capabilities kLargePayloads{.busy_payload_bytes = 4 * kMiB};

TEST(FittedConfig, SlicesAreAsLargeAsTheProviderNeedsThem) {
  const Config fitted = FittedTo(kLargePayloads, Config());
  EXPECT_EQ(fitted.slice_bytes, 4 * kMiB);
  EXPECT_EQ(fitted.stage_slice_bytes, 4 * kMiB);
  EXPECT_GE(fitted.window_bytes, 16 * kMiB);
  EXPECT_TRUE(fitted.Validate());
}

TEST(FittedConfig, IsTheUsualOneWhereTheProviderNeedsNothing) {
  const Config fitted = FittedTo({}, Config());
  EXPECT_EQ(fitted.slice_bytes, Config().slice_bytes);
  EXPECT_EQ(fitted.stage_slice_bytes, Config().stage_slice_bytes);
  EXPECT_EQ(fitted.window_bytes, Config().window_bytes);
}

TEST(FittedConfig, WhatTheUserHasSetStays) {
  Config by_name;
  ASSERT_TRUE(by_name.Set("slice_bytes", "1MiB"));
  EXPECT_EQ(FittedTo(kLargePayloads, by_name).slice_bytes, kMiB);
  EXPECT_EQ(FittedTo(kLargePayloads, by_name).stage_slice_bytes, kMiB);
  Config by_field;
  by_field.slice_bytes = 64 * kKiB;
  by_field.window_bytes = 128 * kKiB;
  by_field.stage_slice_bytes = 16 * kKiB;
  EXPECT_EQ(FittedTo(kLargePayloads, by_field).slice_bytes, 64 * kKiB);
  EXPECT_EQ(FittedTo(kLargePayloads, by_field).window_bytes, 128 * kKiB);
  EXPECT_EQ(FittedTo(kLargePayloads, by_field).stage_slice_bytes, 16 * kKiB);
}

TEST(FittedConfig, AWindowThatTheUserHasSetBoundsTheSlices) {
  Config config;
  ASSERT_TRUE(config.Set("window_bytes", "2MiB"));
  const Config fitted = FittedTo(kLargePayloads, config);
  EXPECT_EQ(fitted.window_bytes, 2 * kMiB);
  EXPECT_EQ(fitted.slice_bytes, 2 * kMiB);
  EXPECT_TRUE(fitted.Validate());
}

// Regression: they stayed as small as for TCP, which made large chunks twelve times slower.
TEST(FittedConfig, PinnedMemoryHoldsEightSlices) {
  Config config;
  config.stage_bytes = 9 * kMiB;
  EXPECT_EQ(FittedTo(kLargePayloads, config).stage_slice_bytes, kMiB);
  EXPECT_TRUE(FittedTo(kLargePayloads, config).Validate());
  config.stage_bytes = kMiB;
  EXPECT_EQ(FittedTo(kLargePayloads, config).stage_slice_bytes, Config().stage_slice_bytes);
}

}  // namespace
}  // namespace ferry::transfer
