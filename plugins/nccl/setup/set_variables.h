// Environment variables that this plugin sets.
#pragma once
#include <string>
#include <utility>
#include <vector>

namespace ferry::nccl_net {

// Sets variables of this process; getenv(3) of another thread finds them all or none. Before glibc
// 2.41, setenv(3) frees the array that such a thread may be reading. No other thread may set
// variables meanwhile (docs/gotchas.md).
void SetVariables(const std::vector<std::pair<std::string, std::string>>& variables);

}  // namespace ferry::nccl_net
