// Tests of the intrusive list.
#include "ferry/core/loop/owner_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <vector>

namespace ferry {
namespace {

using testing::ElementsAre;

struct Listed {
  explicit Listed(int i) : id(i) {}
  int id;
  OwnerList<Listed>::Node node{this};
};

std::vector<int> IdsOf(const OwnerList<Listed>& list) {
  std::vector<int> ids;
  list.ForEach([&](const Listed* one) { ids.push_back(one->id); });
  return ids;
}

TEST(OwnerList, KeepsTheOrderInWhichNodesCameWhicheverLeaves) {
  OwnerList<Listed> list;
  Listed a(1), b(2), c(3);
  for (Listed* one : {&a, &b, &c}) list.PushBack(&one->node);
  EXPECT_EQ(list.front(), &a);
  b.node.Unlink();
  b.node.Unlink();
  EXPECT_THAT(IdsOf(list), ElementsAre(1, 3));
  list.PushBack(&b.node);
  EXPECT_EQ(list.PopFront(), &a);
  EXPECT_FALSE(a.node.linked());
  EXPECT_THAT(IdsOf(list), ElementsAre(3, 2));
}

TEST(OwnerList, GivesAllItHasToAnother) {
  OwnerList<Listed> from;
  OwnerList<Listed> to;
  to.TakeAll(&from);
  EXPECT_TRUE(to.empty());
  Listed a(1), b(2), c(3);
  from.PushBack(&a.node);
  from.PushBack(&b.node);
  to.TakeAll(&from);
  EXPECT_TRUE(from.empty());
  from.PushBack(&c.node);
  EXPECT_THAT(IdsOf(to), ElementsAre(1, 2));
  EXPECT_THAT(IdsOf(from), ElementsAre(3));
}

TEST(OwnerList, OutlivesItsNodesAndTheyOutliveIt) {
  std::optional<OwnerList<Listed>> list(std::in_place);
  Listed stays(1);
  {
    Listed goes(2);
    list->PushBack(&goes.node);
    list->PushBack(&stays.node);
  }
  EXPECT_EQ(list->front(), &stays);
  list.reset();
  EXPECT_FALSE(stays.node.linked());
}

}  // namespace
}  // namespace ferry
