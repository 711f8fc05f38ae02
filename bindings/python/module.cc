// Entry point of the native module tensorferry._core.

#include "bindings/python/errors.h"
#include "bindings/python/kernels.h"
#include "bindings/python/staging.h"
#include "bindings/python/transfer.h"
#include "ferry/core/version.h"

NB_MODULE(_core, module) {
  // Objects that torch keeps until exit are not leaks.
  nanobind::set_leak_warnings(false);
  module.attr("__version__") = FERRY_VERSION;
  ferry::python::BindErrors(module);
  ferry::python::BindRegion(module);
  ferry::python::BindOperation(module);
  ferry::python::BindConnection(module);
  ferry::python::BindEndpoint(module);
  ferry::python::BindKernels(module);
  ferry::python::BindStaging(module);
}
