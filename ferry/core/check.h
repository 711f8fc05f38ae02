// FERRY_CHECK, the assertion for bugs in the library.
#pragma once
#include <sstream>
#include <string>

#include "ferry/core/result.h"

namespace ferry::internal {

[[noreturn]] void CheckFailed(const char* expression, const std::string& values, SourceLoc at);

template <class... Values>
std::string DescribeValues(const Values&... values) {
  std::ostringstream out;
  ((out << ' ' << values), ...);
  return out.str();
}

}  // namespace ferry::internal

// For bugs, not for errors: if the condition is false, prints the expression and the values after
// it, then aborts.
//
// FERRY_CHECK(used <= capacity, used, capacity);
#define FERRY_CHECK(condition, ...)                                                              \
  do {                                                                                           \
    if (!(condition)) [[unlikely]]                                                               \
      ::ferry::internal::CheckFailed(#condition, ::ferry::internal::DescribeValues(__VA_ARGS__), \
                                     ::ferry::SourceLoc::Current());                             \
  } while (0)
