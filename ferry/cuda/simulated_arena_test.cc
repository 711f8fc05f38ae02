// Tests of address reuse on a simulated device.
#include "ferry/cuda/simulated_arena.h"

#include <gtest/gtest.h>

#include "ferry/core/units.h"

namespace ferry::cuda {
namespace {

std::unique_ptr<SimulatedArena> Make() {
  auto arena = SimulatedArena::Create();
  EXPECT_TRUE(arena) << arena.error().ToString();
  return arena ? *std::move(arena) : nullptr;
}

TEST(SimulatedArena, NeighboursHaveAnUnusedPageBetweenThem) {
  const auto arena = Make();
  const auto first = arena->Take(1);
  const auto second = arena->Take(kSimulatedPage);
  const auto third = arena->Take(1);
  ASSERT_TRUE(first && second && third);
  EXPECT_EQ(*first % kSimulatedPage, 0u);
  EXPECT_EQ(*second - *first, 2 * kSimulatedPage);
  EXPECT_EQ(*third - *second, 2 * kSimulatedPage);
}

TEST(SimulatedArena, AddressesAreUsedAgainOnlyWhenNoFreshOnesAreLeft) {
  const auto arena = Make();
  const auto first = arena->Take(12 * kGiB);
  const auto second = arena->Take(12 * kGiB);
  ASSERT_TRUE(first && second);
  arena->Give(*first, 12 * kGiB);
  const auto third = arena->Take(4 * kGiB);
  ASSERT_TRUE(third);
  EXPECT_GT(*third, *second);
  const auto fourth = arena->Take(6 * kGiB);
  ASSERT_TRUE(fourth);
  EXPECT_EQ(*fourth, *first);
  const auto fifth = arena->Take(5 * kGiB);
  ASSERT_TRUE(fifth);
  EXPECT_LT(*fifth, *second);
  EXPECT_FALSE(arena->Take(12 * kGiB));
}

TEST(SimulatedArena, RunsOfAddressesThatMeetBecomeOne) {
  const auto arena = Make();
  std::size_t offsets[3];
  for (std::size_t& offset : offsets) offset = *arena->Take(10 * kGiB);
  for (const std::size_t i : {0u, 2u, 1u}) arena->Give(offsets[i], 10 * kGiB);
  const auto all = arena->Take(30 * kGiB);
  ASSERT_TRUE(all);
  EXPECT_EQ(*all, offsets[0]);
}

TEST(SimulatedArena, WhatIsGivenBackIsEmpty) {
  const auto arena = Make();
  const auto offset = arena->Take(kSimulatedPage);
  ASSERT_TRUE(offset);
  *arena->alias(*offset) = std::byte{7};
  arena->Give(*offset, kSimulatedPage);
  EXPECT_EQ(*arena->alias(*offset), std::byte{0});
}

}  // namespace
}  // namespace ferry::cuda
