// Tests of address parsing and of interface lists.
#include "ferry/net/address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <utility>

namespace ferry::net {
namespace {

using ::testing::HasSubstr;

RawAddress MustBeRaw(const Address& address) {
  auto raw = ToRaw(address);
  EXPECT_TRUE(raw) << address.ToString();
  return raw ? *raw : RawAddress{};
}

TEST(ParseAddress, AcceptsEveryUsualForm) {
  const std::pair<const char*, Address> kCases[] = {
      {"127.0.0.1", {"127.0.0.1", 7}},
      {"127.0.0.1:80", {"127.0.0.1", 80}},
      {"node7", {"node7", 7}},
      {"node7.rack:65535", {"node7.rack", 65535}},
      {"[::1]:80", {"::1", 80}},
      {"[::1]", {"::1", 7}},
      {"::1", {"::1", 7}},
      {"fe80::1%eth0", {"fe80::1%eth0", 7}},
      {"[fe80::1%eth0]:0", {"fe80::1%eth0", 0}},
      {"", {"", 7}},
      {":80", {"", 80}},
  };
  for (const auto& [text, expected] : kCases) {
    const auto parsed = ParseAddress(text, 7);
    ASSERT_TRUE(parsed) << text << ": " << parsed.error().ToString();
    EXPECT_EQ(*parsed, expected) << text;
  }
}

TEST(ParseAddress, RefusesOthersNamingTheText) {
  for (const char* text : {"host:", "host:port", "host:65536", "host:-1", "host:+1", "host: 1",
                           "host:1x", "[::1", "[::1]80", "[::1]:", "[::1]:x"}) {
    const auto parsed = ParseAddress(text, 7);
    ASSERT_FALSE(parsed) << text;
    EXPECT_EQ(parsed.error().code(), Code::kInvalidArgument) << text;
    EXPECT_THAT(parsed.error().message(), HasSubstr(text));
  }
}

TEST(Address, IsWrittenAsItIsParsed) {
  for (const char* text : {"127.0.0.1:80", "[::1]:80", "node7:1", "[fe80::1%lo]:0"}) {
    const auto parsed = ParseAddress(text, 0);
    ASSERT_TRUE(parsed) << text;
    EXPECT_EQ(parsed->ToString(), text);
  }
  EXPECT_EQ((Address{"", 80}).ToString(), "*:80");
}

TEST(RawAddress, KeepsNumericAddresses) {
  for (const Address& address :
       {Address{"127.0.0.1", 80}, Address{"255.255.255.255", 65535}, Address{"::1", 1},
        Address{"2001:db8::17", 4010}, Address{"fe80::1%lo", 9}, Address{"0.0.0.0", 0}}) {
    EXPECT_EQ(FromRaw(MustBeRaw(address)), address);
  }
}

TEST(RawAddress, OfNoHostIsAnyAddressOfBothFamilies) {
  const RawAddress raw = MustBeRaw({"", 80});
  EXPECT_EQ(raw.family(), AF_INET6);
  EXPECT_EQ(FromRaw(raw), (Address{"::", 80}));
}

TEST(RawAddress, OfAMappedIpv4AddressIsThatAddress) {
  EXPECT_EQ(FromRaw(MustBeRaw({"::ffff:10.1.2.3", 80})), (Address{"10.1.2.3", 80}));
}

TEST(RawAddress, RefusesWhatIsNotNumeric) {
  for (const char* host : {"localhost", "1.2.3", "1.2.3.4.5", "::1::2", "%lo", "1.2.3.4%lo", " "}) {
    const auto raw = ToRaw({host, 80});
    ASSERT_FALSE(raw) << host;
    EXPECT_EQ(raw.error().code(), Code::kInvalidArgument);
    EXPECT_THAT(raw.error().message(), HasSubstr(host));
  }
}

// Regression: an unknown interface was ignored, and connect failed with a bare EINVAL.
TEST(RawAddress, RefusesAnInterfaceThatDoesNotExist) {
  const auto raw = ToRaw({"fe80::1%nosuch0", 80});
  ASSERT_FALSE(raw);
  EXPECT_EQ(raw.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(raw.error().message(), HasSubstr("nosuch0"));
}

TEST(RawAddress, KnowsLoopback) {
  for (const char* host : {"127.0.0.1", "127.255.0.9", "::1", "::ffff:127.0.0.2"}) {
    EXPECT_TRUE(IsLoopback(MustBeRaw({host, 0}))) << host;
  }
  for (const char* host : {"128.0.0.1", "126.255.255.255", "::", "::2", "::ffff:10.0.0.1"}) {
    EXPECT_FALSE(IsLoopback(MustBeRaw({host, 0}))) << host;
  }
}

TEST(InterfaceOf, NamesTheLoopbackInterfaceForAllItsAddresses) {
  EXPECT_EQ(InterfaceOf({"127.0.0.1", 80}), "lo");
  EXPECT_EQ(InterfaceOf({"127.1.2.3", 80}), "lo");
}

TEST(InterfaceOf, IsEmptyForAnAddressOfAnotherMachine) {
  EXPECT_EQ(InterfaceOf({"203.0.113.77", 80}), "");
  EXPECT_EQ(InterfaceOf({"not numeric", 80}), "");
}

}  // namespace
}  // namespace ferry::net
