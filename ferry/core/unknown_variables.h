// Warnings about FERRY_* variables that no setting has.
#pragma once
#include <string>

// Reports misspelt variables, which UnknownVariables() (ferry/core/config.h) finds.
namespace ferry {

// "FERRY_LANE is not a setting; did you mean FERRY_LANES?"
std::string DescribeUnknown(const std::string& variable);
// Logs a warning for each of UnknownVariables(), once per process: when the library starts. Any
// thread.
void WarnOfUnknownVariables();

}  // namespace ferry
