// The commit that a program was built from.
#pragma once
#include <string_view>

namespace ferry {

// The source revision of a program. Regenerated with each build, in an object of its own (the
// target ferry_build_commit), so that a new commit compiles one small file and relinks its users.
struct BuildCommit {
  std::string_view commit;  // empty when built outside of a git checkout
  // Whether the checkout had no changes outside docs/, README.md and bench/results/.
  bool clean = false;
};
BuildCommit BuiltFrom();

}  // namespace ferry
