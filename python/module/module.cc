// Entry point of the native module tensorferry._core.

#include "ferry/core/version.h"
#include "python/module/errors.h"
#include "python/module/kernels.h"
#include "python/module/staging.h"
#include "python/module/transfer.h"

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
