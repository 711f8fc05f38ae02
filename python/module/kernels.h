// Registers the submodule with the inference ops.
#pragma once
#include <nanobind/nanobind.h>

namespace ferry::python {

// tensorferry._core.kernels: the ops of ferry/kernels on tensors and arrays that are there already,
// each with the place where it runs before the op's own arguments.
void BindKernels(nanobind::module_& module);

}  // namespace ferry::python
