// Tests of address reuse on a simulated device.
#include "ferry/cuda/simulated/arena.h"

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

TEST(SimulatedArena, MoreThanItsAddressesIsUnavailable) {
  const auto arena = Make();
  for (const std::size_t bytes : {32 * kGiB, 32 * kGiB + 1, ~std::size_t{0}}) {
    const auto taken = arena->Take(bytes);
    ASSERT_FALSE(taken) << bytes;
    EXPECT_EQ(taken.error().code(), Code::kUnavailable);
  }
  EXPECT_TRUE(arena->Take(32 * kGiB - kSimulatedPage)) << "all of them, and the unused page";
  EXPECT_FALSE(arena->Take(1));
}

TEST(SimulatedArena, RunsThatDoNotMeetStayApart) {
  const auto arena = Make();
  std::size_t offsets[3];
  for (std::size_t& offset : offsets) offset = *arena->Take(10 * kGiB);
  arena->Give(offsets[0], 10 * kGiB);
  arena->Give(offsets[2], 10 * kGiB);
  EXPECT_FALSE(arena->Take(20 * kGiB));
  EXPECT_EQ(*arena->Take(10 * kGiB), offsets[0]);
  EXPECT_EQ(*arena->Take(10 * kGiB), offsets[2]);
}

TEST(SimulatedArena, EachHasItsOwnFile) {
  const auto first = Make();
  const auto second = Make();
  EXPECT_NE(first->inode(), second->inode());
  EXPECT_NE(first->fd(), second->fd());
}

TEST(TwiceMapped, BothAddressesAreTheSameBytes) {
  const auto arena = Make();
  const auto mapped = TwiceMapped::Map(arena->fd(), kSimulatedPage, 2 * kSimulatedPage);
  ASSERT_TRUE(mapped);
  EXPECT_EQ(mapped->bytes(), 2 * kSimulatedPage);
  EXPECT_NE(mapped->visible(), mapped->alias());
  mapped->alias()[5] = std::byte{9};
  EXPECT_EQ(*arena->alias(kSimulatedPage + 5), std::byte{9});
  EXPECT_FALSE(TwiceMapped::Map(arena->fd(), 1, kSimulatedPage)) << "not at a page";
  EXPECT_FALSE(TwiceMapped::Map(-1, 0, kSimulatedPage));
}

}  // namespace
}  // namespace ferry::cuda
