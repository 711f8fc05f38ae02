#include "ferry/transfer/operation_table.h"

#include <gtest/gtest.h>

#include <climits>
#include <map>
#include <random>
#include <vector>

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
  EXPECT_TRUE(table.Erase(7));
  EXPECT_FALSE(table.Erase(7));
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
  EXPECT_TRUE(table.Erase(2));
  EXPECT_TRUE(table.NextDue().never());
  table.SetDue(2, Deadline::At(At(1)));
  EXPECT_TRUE(table.NextDue().never());
}

TEST(OperationTable, KnowsWhatIsDueAsAPlainListDoesForTensOfThousandsOfRandomSteps) {
  std::mt19937 random(1);
  OperationTable table;
  std::map<std::uint64_t, int> plain;  // by number; INT_MAX: never
  const auto any = [&](int below) {
    return static_cast<int>(random() % static_cast<unsigned>(below));
  };
  const auto any_due = [&] { return any(8) == 0 ? INT_MAX : any(1'000'000); };
  const auto deadline = [](int due) {
    return due == INT_MAX ? Deadline::Never() : Deadline::At(At(due));
  };
  std::uint64_t last = 0;
  for (int step = 0; step < 30'000; ++step) {
    const int due = any_due();
    const std::uint64_t some = last == 0 ? 1 : 1 + random() % last;
    switch (any(5)) {
      case 0:
      case 1:
        table.Insert(Numbered(++last), deadline(due));
        plain[last] = due;
        break;
      case 2: ASSERT_EQ(table.Erase(some), plain.erase(some) != 0); break;
      case 3:
        table.SetDue(some, deadline(due));
        if (plain.count(some) != 0) plain[some] = due;
        break;
      default: {
        const int now = any(20'000);
        std::multimap<int, std::uint64_t> expected;
        for (auto& [id, when] : plain) {
          if (when > now) continue;
          expected.emplace(when, id);
          when = INT_MAX;
        }
        const auto taken = table.TakeDue(At(now));
        ASSERT_EQ(taken.size(), expected.size());
        for (const auto& operation : taken)
          ASSERT_TRUE(std::erase_if(
              expected, [&](const auto& each) { return each.second == operation->id; }));
      }
    }
    ASSERT_EQ(table.size(), plain.size());
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
      EXPECT_TRUE(table->Erase(id));
    };
  });
  EXPECT_LT(growth, kMostGrowth);
}

}  // namespace
}  // namespace ferry::transfer
