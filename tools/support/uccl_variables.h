// Lists the environment variables of UCCL's TCPX library for `ferry info`.
#pragma once
#include "tools/support/json_fwd.h"

namespace ferry::tools {

// The "name", "value" (null if unset) and equivalent "as" of each variable.
Json UcclVariables();
void PrintUcclVariables(const Json& variables);

}  // namespace ferry::tools
