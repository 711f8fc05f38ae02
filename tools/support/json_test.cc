// Tests of JSON from other processes: each malformed field is an error, and none is an exception.

#include "tools/support/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ferry::tools {
namespace {

using ::testing::HasSubstr;

Json Parsed(const char* text) { return Json::parse(text, nullptr, false); }

TEST(JsonText, OnlyObjectsAreMessages) {
  const auto object = ParseJson(R"({"b": 1, "a": 2})");
  ASSERT_TRUE(object);
  EXPECT_EQ(DumpJson(*object), R"({"b":1,"a":2})") << "fields keep their order";
  for (const char* wrong : {"", "null", "[]", "7", "\"text\"", "{", R"({"a": })", "{}{}", "\xff",
                            R"({"a": 1} trailing)"}) {
    const auto parsed = ParseJson(wrong);
    ASSERT_FALSE(parsed) << wrong;
    EXPECT_EQ(parsed.error().code(), Code::kCorrupt) << wrong;
    EXPECT_THAT(parsed.error().message(), HasSubstr("same version of ferry on both sides"));
  }
  EXPECT_THAT(ParseJson("1234567").error().message(), HasSubstr("sent 7 bytes"));
}

TEST(JsonText, BytesThatAreNotUtf8AreReplaced) {
  EXPECT_EQ(DumpJson(Json{{"name", "Gr\xc3\xbc\xc3\x9f"}}), "{\"name\":\"Gr\xc3\xbc\xc3\x9f\"}");
  const std::string replaced = DumpJson(Json{{"name",
                                              "a\xff"
                                              "b"}});
  EXPECT_EQ(replaced,
            "{\"name\":\"a\xef\xbf\xbd"
            "b\"}");
  EXPECT_TRUE(ParseJson(replaced));
}

TEST(JsonText, IsOneLine) {
  const std::string text = DumpJson(Json{{"message", "two\nlines\x01"}, {"list", {1, 2}}});
  EXPECT_EQ(text.find('\n'), std::string::npos);
  EXPECT_EQ(text, R"({"message":"two\nlines\u0001","list":[1,2]})");
}

// ---- numbers ------------------------------------------------------------------------------------

TEST(JsonNumber, IsWholeAndNotNegative) {
  EXPECT_EQ(*NumberField(Parsed(R"({"n": 0})"), "n"), 0U);
  EXPECT_EQ(*NumberField(Parsed(R"({"n": 18446744073709551615})"), "n"), ~std::uint64_t{0});
  for (const char* wrong :
       {"{}", R"({"m": 1})", R"({"n": -1})", R"({"n": 1.0})", R"({"n": "1"})", R"({"n": null})",
        R"({"n": true})", R"({"n": [1]})", R"({"n": 18446744073709551616})"}) {
    const auto number = NumberField(Parsed(wrong), "n");
    ASSERT_FALSE(number) << wrong;
    EXPECT_EQ(number.error().code(), Code::kCorrupt);
    EXPECT_THAT(number.error().message(), HasSubstr("no \"n\" that is a whole number"));
  }
}

TEST(JsonNumber, BothBoundsAreAllowedAndNothingBeyond) {
  const auto bounded = [](std::uint64_t value) {
    return BoundedField(Json{{"depth", value}}, "depth", 2, 9);
  };
  EXPECT_EQ(*bounded(2), 2U);
  EXPECT_EQ(*bounded(9), 9U);
  for (const std::uint64_t value :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{10}, ~std::uint64_t{0}}) {
    const auto outside = bounded(value);
    ASSERT_FALSE(outside) << value;
    EXPECT_EQ(outside.error().code(), Code::kInvalidArgument);
    EXPECT_THAT(outside.error().message(), HasSubstr("out of range; allowed is 2..9"));
  }
  EXPECT_EQ(BoundedField(Json::object(), "depth", 2, 9).error().code(), Code::kCorrupt);
}

TEST(JsonNumber, RealOnesMayBeWhole) {
  EXPECT_EQ(*RealField(Parsed(R"({"s": 0.25})"), "s"), 0.25);
  EXPECT_EQ(*RealField(Parsed(R"({"s": 3})"), "s"), 3);
  EXPECT_EQ(*RealField(Parsed(R"({"s": -3})"), "s"), -3);
  for (const char* wrong : {"{}", R"({"s": "0.25"})", R"({"s": null})", R"({"s": {}})"}) {
    EXPECT_EQ(RealField(Parsed(wrong), "s").error().code(), Code::kCorrupt) << wrong;
  }
}

// ---- texts, bytes and flags ---------------------------------------------------------------------

TEST(JsonField, TextsAreStrings) {
  EXPECT_EQ(*TextField(Parsed(R"({"t": ""})"), "t"), "");
  EXPECT_EQ(*TextField(Parsed(R"({"t": "a b"})"), "t"), "a b");
  for (const char* wrong : {"{}", R"({"t": 1})", R"({"t": null})", R"({"t": ["a"]})"}) {
    EXPECT_EQ(TextField(Parsed(wrong), "t").error().code(), Code::kCorrupt) << wrong;
  }
}

TEST(JsonField, BytesCrossAsHexadecimal) {
  const std::vector<std::byte> bytes{std::byte{0}, std::byte{0x0f}, std::byte{0xa0},
                                     std::byte{0xff}};
  const std::string hex = ToHex(bytes);
  EXPECT_EQ(hex, "000fa0ff");
  EXPECT_EQ(*BytesField(Json{{"key", hex}}, "key"), bytes);
  EXPECT_EQ(*BytesField(Json{{"key", "000FA0FF"}}, "key"), bytes);
  EXPECT_TRUE(BytesField(Json{{"key", ""}}, "key")->empty());
}

TEST(JsonField, BytesThatAreNotHexadecimalAreCorrupt) {
  for (const char* wrong : {"0", "000", "0g", "g0", "-1", "+1", " 1", "0x", "1 ", "00 0"}) {
    const auto bytes = BytesField(Json{{"key", wrong}}, "key");
    ASSERT_FALSE(bytes) << wrong;
    EXPECT_EQ(bytes.error().code(), Code::kCorrupt);
    EXPECT_THAT(bytes.error().message(), HasSubstr("hexadecimal")) << wrong;
  }
  EXPECT_EQ(BytesField(Json{{"key", 12}}, "key").error().code(), Code::kCorrupt);
}

TEST(JsonField, AFlagIsSetByTrueOnly) {
  EXPECT_TRUE(FlagField(Parsed(R"({"ready": true})"), "ready"));
  for (const char* unset : {"{}", R"({"ready": false})", R"({"ready": 1})", R"({"ready": "true"})",
                            R"({"ready": null})", R"({"ready": [true]})"}) {
    EXPECT_FALSE(FlagField(Parsed(unset), "ready")) << unset;
  }
}

// ---- errors -------------------------------------------------------------------------------------

TEST(JsonError, KeepsItsCodeAndSaysWhoSaidIt) {
  for (const Code code :
       {Code::kInvalidArgument, Code::kUnsupported, Code::kUnavailable, Code::kRefused,
        Code::kTimedOut, Code::kPeerLost, Code::kDeviceLost, Code::kCorrupt, Code::kInternal}) {
    const Status heard = ErrorFromJson(ErrorToJson(Error(code, "no room")));
    ASSERT_FALSE(heard) << CodeName(code);
    EXPECT_EQ(heard.error().code(), code);
    EXPECT_EQ(heard.error().message(), "the server says: no room");
  }
}

TEST(JsonError, APeerThatWasInterruptedIsLostToThisSide) {
  EXPECT_EQ(ErrorFromJson(ErrorToJson(Error(Code::kCancelled, "by Ctrl-C"))).error().code(),
            Code::kPeerLost);
}

TEST(JsonError, ACodeOfANewerPeerIsInternal) {
  const Json message = Parsed(R"({"error": {"code": "Tired", "message": "later"}})");
  EXPECT_EQ(ErrorFromJson(message).error().code(), Code::kInternal);
}

TEST(JsonError, NoneIsNoErrorAndAMalformedOneIsCorrupt) {
  EXPECT_TRUE(ErrorFromJson(Json::object()));
  EXPECT_TRUE(ErrorFromJson(Parsed(R"({"ready": true})")));
  for (const char* wrong :
       {R"({"error": null})", R"({"error": "no room"})", R"({"error": []})", R"({"error": {}})",
        R"({"error": {"code": "Internal"}})", R"({"error": {"message": "no room"}})",
        R"({"error": {"code": 10, "message": "no room"}})"}) {
    const Status heard = ErrorFromJson(Parsed(wrong));
    ASSERT_FALSE(heard) << wrong;
    EXPECT_EQ(heard.error().code(), Code::kCorrupt) << wrong;
  }
}

}  // namespace
}  // namespace ferry::tools
