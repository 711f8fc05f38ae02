// Tests the slice ledger over all orders of calls, and with threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "ferry/transfer/lane/operation_state.h"

namespace ferry::transfer {
namespace {

enum class Step : char { kPull = 'p', kResolve = 'r', kStop = 's' };

// A simple model of the ledger.
struct Model {
  std::uint64_t total = 0;
  std::uint64_t pulled = 0;
  std::uint64_t resolved = 0;
  bool stopped = false;
  bool over = false;

  bool MayPull() const { return pulled < total && !stopped; }
  // Whether this step ends the round.
  bool Ends() {
    if (over || resolved != pulled || (pulled != total && !stopped)) return false;
    over = true;
    return true;
  }
};

Error TestError(const char* text) { return Error(Code::kCancelled, text); }

// Applies one step to both and compares the results.
void Take(Step step, Model* model, SliceLedger* ledger) {
  switch (step) {
    case Step::kPull: {
      const auto slice = ledger->Pull();
      ASSERT_EQ(slice.has_value(), model->MayPull());
      if (slice) {
        EXPECT_EQ(*slice, model->pulled++);
      }
      break;
    }
    case Step::kResolve:
      ++model->resolved;
      EXPECT_EQ(ledger->Resolve(), model->Ends());
      break;
    case Step::kStop:
      if (!model->over) model->stopped = true;
      EXPECT_EQ(ledger->Stop(TestError("stopped")), model->Ends());
      break;
  }
  EXPECT_EQ(ledger->active(), !model->over);
  EXPECT_EQ(ledger->left(), model->stopped ? 0 : model->total - model->pulled);
  EXPECT_EQ(ledger->error().has_value(), model->stopped);
}

void Replay(std::uint64_t slices, const std::string& steps, int* overs) {
  SCOPED_TRACE(std::to_string(slices) + " slices, steps " + steps);
  SliceLedger ledger;
  ledger.Begin(slices);
  Model model{.total = slices};
  for (const char step : steps) {
    const bool before = model.over;
    Take(static_cast<Step>(step), &model, &ledger);
    if (!before && model.over) ++*overs;
  }
}

// Visits every order of pulls, resolves and stops in which each slice is resolved after its pull,
// including stops and pulls that should have no effect.
void ForEachOrder(std::uint64_t slices, const std::string& prefix, Model model,
                  const std::function<void(const std::string&)>& fn) {
  const auto count = [&](Step step) {
    return std::count(prefix.begin(), prefix.end(), static_cast<char>(step));
  };
  bool leaf = true;
  const auto descend = [&](Step step, const Model& after) {
    leaf = false;
    ForEachOrder(slices, prefix + static_cast<char>(step), after, fn);
  };
  if (count(Step::kPull) <= static_cast<std::ptrdiff_t>(slices)) {
    Model after = model;
    if (after.MayPull()) ++after.pulled;
    descend(Step::kPull, after);
  }
  if (model.resolved < model.pulled) {
    Model after = model;
    ++after.resolved;
    (void)after.Ends();
    descend(Step::kResolve, after);
  }
  if (count(Step::kStop) < 2) {
    Model after = model;
    after.stopped = after.stopped || !after.over;
    (void)after.Ends();
    descend(Step::kStop, after);
  }
  if (leaf) fn(prefix);
}

TEST(SliceLedger, EveryOrderOfPullsResolvesAndStopsEndsTheRoundExactlyOnce) {
  std::size_t orders = 0;
  for (std::uint64_t slices = 1; slices <= 4; ++slices) {
    ForEachOrder(slices, "", Model{.total = slices}, [&](const std::string& steps) {
      int overs = 0;
      Replay(slices, steps, &overs);
      EXPECT_EQ(overs, 1) << slices << " slices, steps " << steps;
      ++orders;
    });
    if (HasFailure()) return;
  }
  EXPECT_GT(orders, 1000u);
}

TEST(SliceLedger, WithoutARoundNothingIsPulledAndAStopHasNoEffect) {
  SliceLedger ledger;
  EXPECT_FALSE(ledger.active());
  EXPECT_FALSE(ledger.Pull().has_value());
  EXPECT_FALSE(ledger.Stop(TestError("too early")));
  EXPECT_FALSE(ledger.error().has_value());
  ledger.Begin(1);
  EXPECT_TRUE(ledger.Pull().has_value());
}

TEST(SliceLedger, KeepsTheFirstError) {
  SliceLedger ledger;
  ledger.Begin(2);
  ASSERT_TRUE(ledger.Pull());
  EXPECT_FALSE(ledger.Stop(TestError("first")));
  EXPECT_FALSE(ledger.Stop(TestError("second")));
  EXPECT_TRUE(ledger.Resolve());
  ASSERT_TRUE(ledger.error());
  EXPECT_EQ(ledger.error()->message(), "first");
}

TEST(SliceLedger, CanBeginAnotherRoundWhenTheOneBeforeIsOver) {
  SliceLedger ledger;
  for (std::uint64_t slices : {3U, 1U, 2U}) {
    ledger.Begin(slices);
    for (std::uint64_t i = 0; i < slices; ++i) EXPECT_EQ(ledger.Pull(), i);
    for (std::uint64_t i = 0; i < slices; ++i) EXPECT_EQ(ledger.Resolve(), i + 1 == slices);
  }
}

TEST(SliceLedgerDeathTest, AbortsOnARoundOfNothingOrAResolveWithoutAPull) {
  SliceLedger ledger;
  EXPECT_DEATH(ledger.Begin(0), "");
  ledger.Begin(1);
  EXPECT_DEATH((void)ledger.Resolve(), "");
  ASSERT_TRUE(ledger.Pull());
  EXPECT_DEATH(ledger.Begin(1), "");
}

// Counts of threads that pull and resolve until nothing is left.
struct Tally {
  std::vector<std::atomic<int>> pulls;
  std::atomic<int> overs{0};
  explicit Tally(std::size_t slices) : pulls(slices) {}
};

void PullAll(SliceLedger* ledger, Tally* tally) {
  while (const auto slice = ledger->Pull()) {
    tally->pulls[*slice].fetch_add(1);
    if (ledger->Resolve()) tally->overs.fetch_add(1);
  }
}

TEST(SliceLedger, ThreadsThatPullTogetherTakeEachSliceOnceAndOneOfThemIsTheLast) {
  constexpr std::size_t kSlices = 20000;
  SliceLedger ledger;
  ledger.Begin(kSlices);
  Tally tally(kSlices);
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) threads.emplace_back([&] { PullAll(&ledger, &tally); });
  }
  EXPECT_EQ(tally.overs.load(), 1);
  for (const auto& pulls : tally.pulls) ASSERT_EQ(pulls.load(), 1);
}

TEST(SliceLedger, ARoundThatBeginsPulledIsNotPulledByThreadsThatCameForTheOneBefore) {
  SliceLedger ledger;
  std::atomic<bool> done{false};
  std::atomic<int> taken{0};
  std::jthread late([&] {
    while (!done.load()) taken.fetch_add(ledger.Pull().has_value() ? 1 : 0);
  });
  for (int round = 0; round < 200'000; ++round) {
    ledger.BeginPulled();
    EXPECT_EQ(ledger.left(), 0u);
    EXPECT_TRUE(ledger.Resolve());
  }
  done.store(true);
  late.join();
  EXPECT_EQ(taken.load(), 0);
}

TEST(SliceLedger, AStopAmongThreadsThatPullEndsTheRoundOnceAndNoSliceIsPulledAfterIt) {
  constexpr std::size_t kSlices = 2000;
  for (int round = 0; round < 50; ++round) {
    SliceLedger ledger;
    ledger.Begin(kSlices);
    Tally tally(kSlices);
    {
      std::vector<std::jthread> threads;
      for (int i = 0; i < 3; ++i) threads.emplace_back([&] { PullAll(&ledger, &tally); });
      threads.emplace_back([&] {
        if (ledger.Stop(TestError("enough"))) tally.overs.fetch_add(1);
        EXPECT_FALSE(ledger.Pull().has_value() && ledger.error().has_value());
      });
    }
    ASSERT_EQ(tally.overs.load(), 1);
    ASSERT_FALSE(ledger.active());
  }
}

}  // namespace
}  // namespace ferry::transfer
