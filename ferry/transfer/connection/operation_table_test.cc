// Tests the operation table and its deadlines against a simple model.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "ferry/transfer/connection/operation_runner.h"
#include "ferry/transfer/testing/cost.h"

namespace ferry::transfer {
namespace {

Clock::time_point At(int when) { return Clock::time_point{} + milliseconds(when); }

OperationTable::Op Numbered(std::uint64_t id) {
  auto operation = std::make_shared<OperationState>();
  operation->id = id;
  return operation;
}

std::vector<std::uint64_t> NumbersOf(const std::vector<OperationTable::Op>& operations) {
  std::vector<std::uint64_t> ids;
  for (const auto& operation : operations) ids.push_back(operation->id);
  return ids;
}

TEST(OperationTable, FindsWhatWasInsertedUntilItIsErased) {
  OperationTable table;
  const auto operation = Numbered(7);
  EXPECT_EQ(table.Find(7), nullptr);
  table.Insert(operation, Deadline::Never());
  EXPECT_TRUE(table.Contains(7));
  EXPECT_EQ(table.Find(7), operation);
  EXPECT_EQ(table.All(), std::vector{operation});
  EXPECT_EQ(table.size(), 1u);
  EXPECT_TRUE(table.Take(7));
  EXPECT_FALSE(table.Take(7));
  EXPECT_FALSE(table.Contains(7));
  EXPECT_EQ(table.size(), 0u);
}

TEST(OperationTable, GivesThoseThatAreDueOnceAndInOrder) {
  OperationTable table;
  EXPECT_TRUE(table.NextDue().never());
  table.Insert(Numbered(1), Deadline::At(At(30)));
  table.Insert(Numbered(2), Deadline::At(At(10)));
  table.Insert(Numbered(3), Deadline::Never());
  table.Insert(Numbered(4), Deadline::At(At(20)));
  EXPECT_EQ(table.NextDue().when(), At(10));
  EXPECT_TRUE(table.TakeDue(At(9)).empty());
  EXPECT_EQ(NumbersOf(table.TakeDue(At(20))), (std::vector<std::uint64_t>{2, 4}));
  EXPECT_EQ(table.NextDue().when(), At(30));
  EXPECT_TRUE(table.TakeDue(At(20)).empty());
  EXPECT_EQ(table.size(), 4u);
  table.SetDue(2, Deadline::At(At(25)));
  table.SetDue(1, Deadline::Never());
  EXPECT_EQ(table.NextDue().when(), At(25));
  EXPECT_TRUE(table.Take(2));
  EXPECT_TRUE(table.NextDue().never());
  table.SetDue(2, Deadline::At(At(1)));
  EXPECT_TRUE(table.NextDue().never());
}

TEST(OperationTable, GivesAnOperationOnceThatIsDueAgainWhenItWasBefore) {
  OperationTable table;
  table.Insert(Numbered(1), Deadline::At(At(10)));
  for (int i = 0; i < 1000; ++i) {
    table.SetDue(1, Deadline::At(At(20)));
    table.SetDue(1, Deadline::At(At(10)));
  }
  EXPECT_EQ(NumbersOf(table.TakeDue(At(30))), std::vector<std::uint64_t>{1});
  EXPECT_TRUE(table.NextDue().never());
}

TEST(OperationTable, FreesTheDueTimesOfManyOperationsAfterThem) {
  static constexpr std::uint64_t kMany = 60'000;
  constexpr std::size_t kFewDueTimes = 4096;
  const auto fill = [](OperationTable* table) {
    for (std::uint64_t id = 1; id <= kMany; ++id) {
      table->Insert(Numbered(id), Deadline::At(At(static_cast<int>(id))));
    }
    EXPECT_GE(table->schedule_capacity(), kMany);
  };
  OperationTable taken;
  fill(&taken);
  EXPECT_EQ(taken.TakeDue(At(static_cast<int>(kMany))).size(), kMany);
  EXPECT_LE(taken.schedule_capacity(), kFewDueTimes);

  OperationTable ended;
  fill(&ended);
  for (std::uint64_t id = 1; id <= kMany; ++id) EXPECT_TRUE(ended.Take(id));
  EXPECT_TRUE(ended.NextDue().never());
  EXPECT_LE(ended.schedule_capacity(), kFewDueTimes);
}

// Applies the same random steps to a table and a plain list.
class OperationTableModelTest : public ::testing::Test {
 protected:
  int Any(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }
  int AnyDue() { return Any(8) == 0 ? kNever : Any(1'000'000); }
  std::uint64_t AnyId() { return 1 + random_() % (last_ + 1); }
  static Deadline DeadlineOf(int due) {
    return due == kNever ? Deadline::Never() : Deadline::At(At(due));
  }

  void InsertOne() {
    const int due = AnyDue();
    table_.Insert(Numbered(++last_), DeadlineOf(due));
    plain_[last_] = due;
  }
  void EraseOne() {
    const std::uint64_t id = AnyId();
    ASSERT_EQ(table_.Take(id) != nullptr, plain_.erase(id) != 0);
  }
  void MoveOne() {
    const std::uint64_t id = AnyId();
    const int due = AnyDue();
    table_.SetDue(id, DeadlineOf(due));
    if (plain_.count(id) != 0) plain_[id] = due;
  }
  void TakeThoseDue() {
    const int now = Any(20'000);
    std::vector<std::uint64_t> expected;
    for (auto& [id, when] : plain_) {
      if (when > now) continue;
      expected.push_back(id);
      when = kNever;
    }
    auto taken = NumbersOf(table_.TakeDue(At(now)));
    std::sort(taken.begin(), taken.end());
    ASSERT_EQ(taken, expected);
  }

  static constexpr int kNever = std::numeric_limits<int>::max();

  std::mt19937 random_{1};
  OperationTable table_;
  std::map<std::uint64_t, int> plain_;  // by id
  std::uint64_t last_ = 0;
};

TEST_F(OperationTableModelTest, KnowsWhatIsDueForTensOfThousandsOfRandomSteps) {
  for (int step = 0; step < 30'000; ++step) {
    switch (Any(5)) {
      case 0:
      case 1: InsertOne(); break;
      case 2: EraseOne(); break;
      case 3: MoveOne(); break;
      default: TakeThoseDue();
    }
    ASSERT_EQ(table_.size(), plain_.size());
    if (HasFatalFailure()) FAIL() << "step " << step;
  }
}

TEST(OperationTable, FindsThoseThatAreDueWithoutASearchThroughAll) {
  const auto growth = CostGrowth([](std::size_t count) {
    auto table = std::make_shared<OperationTable>();
    for (std::size_t id = 1; id <= count; ++id) {
      table->Insert(Numbered(id), Deadline::At(At(1'000 + static_cast<int>(id))));
    }
    return [table, id = count]() mutable {
      table->Insert(Numbered(++id), Deadline::At(At(1)));
      EXPECT_EQ(table->TakeDue(At(2)).size(), 1u);
      table->SetDue(id, Deadline::At(At(5'000)));
      EXPECT_EQ(table->NextDue().when(), At(1'001));
      EXPECT_TRUE(table->Take(id));
    };
  });
  EXPECT_LT(growth, kMaxGrowth);
}

}  // namespace
}  // namespace ferry::transfer
