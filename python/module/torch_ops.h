// Registers the ops' kernels with torch in C++, by torch's stable C ABI.
#pragma once
#include <nanobind/nanobind.h>

namespace ferry::python {

// Adds register_torch_op() and refusal_in() to `module`, which is tensorferry._core.kernels.
void BindTorchOps(nanobind::module_& module);

}  // namespace ferry::python
