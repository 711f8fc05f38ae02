// Entry point of the tests of the program, and of the child processes that they start.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tools/testing/command_line.h"

int main(int argc, char** argv) {
  if (argc > 1 && *argv[1] != '-') return ferry::tools::RunRole({argv + 1, argv + argc});
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
