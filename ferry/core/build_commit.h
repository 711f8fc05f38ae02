// The commit that a program was built from.
#pragma once
#include <string_view>

namespace ferry {

// What a program was built from. Made anew with each build, in an object of its own (the target
// ferry_build_commit), so that a new commit compiles one small file and links what has it.
struct BuildCommit {
  std::string_view commit;  // empty when built outside of a git checkout
  // Whether the checkout had no changes but in docs/, README.md and bench/results/.
  bool clean = false;
};
BuildCommit BuiltFrom();

}  // namespace ferry
