// Stands for the ops in packages that are built without the kernels (FERRY_KERNELS=OFF).
#ifdef FERRY_WITHOUT_KERNELS

#include <string>

#include "python/module/errors.h"
#include "python/module/kernels.h"

namespace nb = nanobind;

namespace ferry::python {

// Enough for tensorferry.kernels to define its torch operators by torch's formulas.
void BindKernels(nb::module_& module) {
  nb::module_ kernels = module.def_submodule("kernels");
  kernels.attr("is_built") = false;
  kernels.attr("has_device_code") = false;
  kernels.def("says_no_code", [](const std::string&) { return false; });
  kernels.def("refusal_in", [](const std::string&) { return nb::object(nb::none()); });
  kernels.def("register_torch_op", [](nb::args) { return false; });
  for (const char* const name :
       {"fused_add_gelu", "element_wise_mul_add", "gated_mul", "rms_norm", "add_rms_norm"}) {
    kernels.def(name, [name](nb::args) {
      throw Raised(Error(Code::kUnsupported,
                         std::string(name) +
                             ": this package has no kernels, which NumPy arrays need; pass torch "
                             "tensors, or build the package with FERRY_KERNELS=ON"));
    });
  }
}

}  // namespace ferry::python

#endif  // FERRY_WITHOUT_KERNELS
