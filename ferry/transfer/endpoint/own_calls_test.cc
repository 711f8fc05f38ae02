// Tests of the record of dials in progress.
#include "ferry/transfer/endpoint/own_calls.h"

#include <gtest/gtest.h>

namespace ferry::transfer {
namespace {

TEST(OwnCalls, ContainsADialUntilItsEnd) {
  OwnCalls calls;
  EXPECT_FALSE(calls.Contains("127.0.0.1:1"));
  calls.Begin("127.0.0.1:1");
  EXPECT_TRUE(calls.Contains("127.0.0.1:1"));
  EXPECT_FALSE(calls.Contains("127.0.0.1:2"));
  calls.End("127.0.0.1:1");
  EXPECT_FALSE(calls.Contains("127.0.0.1:1"));
}

// Interfaces of two networks may have the same address.
TEST(OwnCalls, EndsOneOfTwoDialsFromTheSameAddress) {
  OwnCalls calls;
  calls.Begin("10.0.0.1:1");
  calls.Begin("10.0.0.1:1");
  calls.End("10.0.0.1:1");
  EXPECT_TRUE(calls.Contains("10.0.0.1:1"));
  calls.End("10.0.0.1:1");
  EXPECT_FALSE(calls.Contains("10.0.0.1:1"));
}

TEST(OwnCalls, IgnoresTheEndOfADialThatItDoesNotKnow) {
  OwnCalls calls;
  calls.End("127.0.0.1:1");
  EXPECT_FALSE(calls.Contains("127.0.0.1:1"));
}

}  // namespace
}  // namespace ferry::transfer
