// Forward declaration of the JSON type.
#pragma once
#include <nlohmann/json_fwd.hpp>

namespace ferry::tools {

// Keeps the order in which fields were added. Use this header for declarations: the full json.h
// takes a second to compile.
using Json = nlohmann::ordered_json;

}  // namespace ferry::tools
