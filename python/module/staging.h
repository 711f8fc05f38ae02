// Registers the submodule with the staging ring.
#pragma once
#include <nanobind/nanobind.h>

namespace ferry::python {

// tensorferry._core.staging: a decode step's inputs from Python's lists to a device by one call.
void BindStaging(nanobind::module_& module);

}  // namespace ferry::python
