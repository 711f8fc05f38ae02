// Tests of the move-only function's storage and lifetime.
#include "ferry/core/unique_function.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <utility>

namespace ferry {
namespace {

// Counts the live copies of itself, so that a test sees a leak or a double destruction.
template <std::size_t kBytes>
struct Counted {
  explicit Counted(int* live_count) : live(live_count) { ++*live; }
  Counted(Counted&& other) noexcept : live(other.live) { ++*live; }
  Counted(const Counted&) = delete;
  ~Counted() { --*live; }
  int operator()(int x) { return x + 1; }

  int* live;
  std::array<std::byte, kBytes - sizeof(int*)> padding{};
};
using Small = Counted<UniqueFunction<int(int)>::kInlineBytes>;
using Large = Counted<UniqueFunction<int(int)>::kInlineBytes + 1>;
static_assert(UniqueFunction<int(int)>::FitsInline<Small>());
static_assert(!UniqueFunction<int(int)>::FitsInline<Large>());
static_assert(!std::is_copy_constructible_v<UniqueFunction<void()>>);
static_assert(std::is_nothrow_move_constructible_v<UniqueFunction<void()>>);
static_assert(!std::is_constructible_v<UniqueFunction<void(int)>, void (*)(std::string)>);

template <class T>
class UniqueFunctionOf : public testing::Test {};
using Sizes = testing::Types<Small, Large>;
TYPED_TEST_SUITE(UniqueFunctionOf, Sizes);

TYPED_TEST(UniqueFunctionOf, DestroysItsCallableOnce) {
  int live = 0;
  {
    UniqueFunction<int(int)> f = TypeParam(&live);
    EXPECT_EQ(f(1), 2);
    EXPECT_EQ(live, 1);
  }
  EXPECT_EQ(live, 0);
}

TYPED_TEST(UniqueFunctionOf, MovesLeaveTheSourceEmpty) {
  int live = 0;
  UniqueFunction<int(int)> a = TypeParam(&live);
  UniqueFunction<int(int)> b = std::move(a);
  EXPECT_FALSE(a);  // NOLINT: the moved-from state is what is tested
  EXPECT_EQ(b(4), 5);
  UniqueFunction<int(int)> c = TypeParam(&live);
  c = std::move(b);
  EXPECT_FALSE(b);  // NOLINT: as above
  EXPECT_EQ(c(4), 5);
  EXPECT_EQ(live, 1);
  c = nullptr;
  EXPECT_FALSE(c);
  EXPECT_EQ(live, 0);
}

TYPED_TEST(UniqueFunctionOf, SurvivesAssignmentToItself) {
  int live = 0;
  UniqueFunction<int(int)> f = TypeParam(&live);
  UniqueFunction<int(int)>& same = f;
  f = std::move(same);
  EXPECT_EQ(f(1), 2);
  EXPECT_EQ(live, 1);
}

TEST(UniqueFunction, IsEmptyByDefaultAndFromNullptr) {
  EXPECT_FALSE(UniqueFunction<void()>());
  EXPECT_FALSE(UniqueFunction<void()>(nullptr));
}

TEST(UniqueFunction, CarriesMoveOnlyStateArgumentsAndResults) {
  UniqueFunction<std::unique_ptr<int>(std::unique_ptr<int>)> f =
      [held = std::make_unique<int>(40)](std::unique_ptr<int> given) {
        *given += *held;
        return given;
      };
  EXPECT_EQ(*f(std::make_unique<int>(2)), 42);
}

TEST(UniqueFunction, PassesReferencesThrough) {
  UniqueFunction<int&(int&)> f = [](int& x) -> int& { return x; };
  int x = 1;
  f(x) = 7;
  EXPECT_EQ(x, 7);
}

TEST(UniqueFunction, DropsTheResultWhenTheSignatureReturnsVoid) {
  int calls = 0;
  UniqueFunction<void()> f = [&] { return ++calls; };
  f();
  EXPECT_EQ(calls, 1);
}

TEST(UniqueFunction, KeepsStateBetweenCalls) {
  UniqueFunction<int()> f = [n = 0]() mutable { return ++n; };
  f();
  EXPECT_EQ(f(), 2);
}

TEST(UniqueFunction, PutsOveralignedAndThrowingMovesOnTheHeap) {
  struct alignas(64) Overaligned {
    int operator()() const { return 1; }
  };
  struct ThrowingMove {
    ThrowingMove() = default;
    ThrowingMove(ThrowingMove&&) noexcept(false) {}  // NOLINT: what is tested
    int operator()() const { return 2; }
  };
  static_assert(!UniqueFunction<int()>::FitsInline<Overaligned>());
  static_assert(!UniqueFunction<int()>::FitsInline<ThrowingMove>());
  UniqueFunction<int()> a = Overaligned();
  UniqueFunction<int()> b = ThrowingMove();
  UniqueFunction<int()> moved = std::move(a);
  EXPECT_EQ(moved() + b(), 3);
}

TEST(UniqueFunctionDeathTest, CallingAnEmptyFunctionAborts) {
  UniqueFunction<void()> f;
  EXPECT_DEATH(f(), "check failed: ops_ != nullptr");
}

}  // namespace
}  // namespace ferry
