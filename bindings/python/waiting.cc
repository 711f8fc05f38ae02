#include "bindings/python/waiting.h"

#include <fmt/core.h>

#include <cmath>

namespace ferry::python {

Deadline DeadlineOf(std::optional<double> seconds, Deadline otherwise) {
  if (!seconds) return otherwise;
  if (std::isnan(*seconds) || *seconds < 0) {
    throw Raised(Error(Code::kInvalidArgument,
                       fmt::format("timeout is {}; give seconds, 0 or more, or None", *seconds)));
  }
  return Deadline::After(std::chrono::duration<double>(*seconds));
}

}  // namespace ferry::python
