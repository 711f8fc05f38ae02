// Warnings about FERRY_* variables that no setting has.
#pragma once
#include <string>

// Misspelt variables, which UnknownVariables() (ferry/core/config.h) finds, told to people.
namespace ferry {

// "FERRY_LANE is not a setting; did you mean FERRY_LANES?"
std::string DescribeUnknown(const std::string& variable);
// Logs a warning for each of UnknownVariables(), the first time that it is called in a process:
// when the library starts. Any thread.
void WarnOfUnknownVariables();

}  // namespace ferry
