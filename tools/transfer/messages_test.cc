// Tests of the checks of messages between the two sides of `ferry transfer`.

#include "tools/transfer/messages.h"

#include <gtest/gtest.h>

#include "tools/support/json.h"

namespace ferry::tools {
namespace {

TEST(BaseName, IsTheLastPartOfAPath) {
  for (const char* path : {"x.bin", "/etc/x.bin", "../../x.bin", "C:\\dir\\x.bin"}) {
    const auto name = BaseNameOf(path);
    ASSERT_TRUE(name) << path;
    EXPECT_EQ(*name, "x.bin");
  }
}

TEST(BaseName, IsRefusedWhereThereIsNone) {
  for (const std::string& path :
       {std::string(), std::string("/"), std::string("a/"), std::string("."), std::string(".."),
        std::string("a/.."), std::string("a\0b", 3)}) {
    EXPECT_FALSE(BaseNameOf(path)) << path;
  }
}

TEST(TransferRequests, TakeNamesThatBeginWithADotOnlyWhereTheyMay) {
  for (const char* name : {".bashrc", "/home/user/.ssh", "..."}) {
    const Json request{{"kind", "file"}, {"name", name}, {"size", 1U}};
    const auto refused = ParseRequest(request, /*dot_files=*/false);
    ASSERT_FALSE(refused) << name;
    EXPECT_EQ(refused.error().code(), Code::kRefused);
    EXPECT_TRUE(ParseRequest(request, /*dot_files=*/true)) << name;
  }
  EXPECT_TRUE(ParseRequest({{"kind", "file"}, {"name", ".config/x"}, {"size", 1U}}, false));
}

TEST(TransferSteps, StayWithinTheFileAndTheWindow) {
  const auto step = [](const Json& said) { return ParseStep(said, 10, 100, 20); };
  EXPECT_EQ(step({{"written", 11U}})->bytes, 11U);
  EXPECT_EQ(step({{"written", 30U}})->bytes, 30U);
  EXPECT_FALSE(step({{"written", 10U}})) << "no progress";
  EXPECT_FALSE(step({{"written", 9U}}));
  EXPECT_FALSE(step({{"written", 31U}}));
  EXPECT_FALSE(step({{"landed", true}})) << "more than the window is missing";
  EXPECT_TRUE(ParseStep({{"landed", true}}, 80, 100, 20)->landed);
}

TEST(TransferAnswers, HaveAWindowOfOneToAllBytes) {
  const auto window = [](const Json& bytes) {
    return ParseAnswer({{"key", "00ff"}, {"window", bytes}}, 100);
  };
  EXPECT_EQ(window(1U)->window, 1U);
  EXPECT_EQ(window(100U)->window, 100U);
  EXPECT_FALSE(window(0U));
  EXPECT_FALSE(window(101U));
  EXPECT_FALSE(window("all"));
  EXPECT_EQ(ParseAnswer({{"key", "00ff"}}, 100)->window, 100U);
}

}  // namespace
}  // namespace ferry::tools
