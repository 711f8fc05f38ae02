// Lists the environment variables of UCCL's TCPX library.

#include "tools/support/uccl_variables.h"

#include <fmt/core.h>

#include <cstdlib>
#include <string>

#include "ferry/tcpx/uccl_variables.h"
#include "tools/support/json.h"
#include "tools/support/report.h"

namespace ferry::tools {

Json UcclVariables() {
  Json all = Json::array();
  for (const tcpx::UcclVariable& one : tcpx::UcclVariables()) {
    const char* const value = std::getenv(one.name);
    all.push_back(Json{{"name", one.name},
                       {"value", value == nullptr ? Json(nullptr) : Json(value)},
                       {"as", one.as}});
  }
  return all;
}

void PrintUcclVariables(const Json& variables) {
  for (const Json& one : variables) {
    const std::string value = one["value"].is_null() ? "-" : one["value"].get<std::string>();
    PrintLine(fmt::format("  {:<25} {:<10} {}", one["name"].get<std::string>(), Printable(value),
                          one["as"].get<std::string>()));
  }
}

}  // namespace ferry::tools
