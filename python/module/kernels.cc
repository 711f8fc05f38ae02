// Binds the row ops of ferry/kernels to Python for arrays of the CPU, and the torch ops.

#include "python/module/kernels.h"

#include <fmt/core.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <utility>

#include "ferry/cuda/device_code.h"
#include "ferry/kernels/elementwise/elementwise.h"
#include "ferry/kernels/gated/gated.h"
#include "ferry/kernels/rms_norm/rms_norm.h"
#include "python/module/errors.h"
#include "python/module/torch_ops.h"
#include "python/module/waiting.h"

namespace ferry::python {
namespace {

namespace nb = nanobind;
using kernels::DType;
using kernels::Tensor;

[[noreturn]] void RefuseTensor(const std::string& name, const std::string& why) {
  throw Raised(Error(Code::kInvalidArgument, fmt::format("{}: {}", name, why)));
}

// By the end of its name: "ml_dtypes.bfloat16", or NumPy's "float32".
DType DTypeNamed(const std::string& text, const char* argument) {
  constexpr std::pair<const char*, DType> kNames[] = {
      {"bfloat16", DType::kBfloat16}, {"float16", DType::kFloat16},
      {"float32", DType::kFloat32},   {"float8_e4m3fn", DType::kFloat8E4m3},
      {"int32", DType::kInt32},       {"int64", DType::kInt64},
      {"uint8", DType::kFloat8E4m3},  // engines keep e4m3 numbers in tensors of bytes
  };
  const std::string name = text.substr(text.rfind('.') + 1);
  for (const auto& [known, dtype] : kNames) {
    if (name == known) return dtype;
  }
  RefuseTensor(argument, fmt::format("is of {}; it can be of bfloat16, float16, float32, "
                                     "float8_e4m3fn, uint8 (as e4m3), int32 or int64",
                                     name));
}

Tensor ArrayTensor(nb::handle object, const char* argument) {
  nb::ndarray<nb::ro> array;
  if (!nb::try_cast<nb::ndarray<nb::ro>>(object, array)) {
    RefuseTensor(argument, "is neither a torch tensor nor an array");
  }
  if (array.device_type() != nb::device::cpu::value) {
    RefuseTensor(argument, "is an array that is not on the CPU; use a torch tensor");
  }
  if (array.ndim() > static_cast<std::size_t>(kernels::kMaxRank)) {
    RefuseTensor(argument,
                 fmt::format("has {} sizes; it can have {}", array.ndim(), kernels::kMaxRank));
  }
  const nb::object dtype = object.attr("dtype");
  Tensor tensor;
  tensor.data = const_cast<void*>(array.data());
  tensor.dtype = DTypeNamed(nb::cast<std::string>(nb::str(nb::handle(dtype))), argument);
  tensor.rank = static_cast<int>(array.ndim());
  for (std::size_t i = 0; i < array.ndim(); ++i) {
    tensor.shape.at(i) = static_cast<std::int64_t>(array.shape(i));
    tensor.stride.at(i) = array.stride(i);
  }
  return tensor;
}

template <class Args>
void Run(const Args& args, Status (*op)(const Args&)) {
  const Status ended = [&] {
    const OthersGoOn others_go_on;
    return op(args);
  }();
  Check(ended);
}

void BindRows(nb::module_& module) {
  module.def("fused_add_gelu", [](nb::handle x, nb::handle bias, nb::handle out, bool by_tanh) {
    Run<kernels::AddGeluArgs>(
        {ArrayTensor(x, "x"), ArrayTensor(bias, "bias"), ArrayTensor(out, "out"),
         by_tanh ? kernels::GeluForm::kTanh : kernels::GeluForm::kExact},
        kernels::FusedAddGeluCpu);
  });
  module.def("element_wise_mul_add", [](nb::handle a, nb::handle b, nb::handle c, nb::handle out) {
    Run<kernels::MulAddArgs>(
        {ArrayTensor(a, "a"), ArrayTensor(b, "b"), ArrayTensor(c, "c"), ArrayTensor(out, "out")},
        kernels::ElementWiseMulAddCpu);
  });
  module.def("gated_mul", [](nb::handle x, nb::handle out, const std::string& op) {
    Run<kernels::GatedArgs>(
        {ArrayTensor(x, "x"), ArrayTensor(out, "out"), Take(kernels::GateNamed(op))},
        kernels::GatedMulCpu);
  });
  module.def("rms_norm", [](nb::handle x, nb::handle weight, nb::handle out, float eps) {
    Run<kernels::RmsNormArgs>(
        {ArrayTensor(x, "x"), ArrayTensor(weight, "weight"), ArrayTensor(out, "out"), eps},
        kernels::RmsNormCpu);
  });
  module.def("add_rms_norm", [](nb::handle x, nb::handle residual, nb::handle weight,
                                nb::handle residual_out, nb::handle out, float eps) {
    Run<kernels::AddRmsNormArgs>(
        {ArrayTensor(x, "x"), ArrayTensor(residual, "residual"), ArrayTensor(weight, "weight"),
         ArrayTensor(residual_out, "residual_out"), ArrayTensor(out, "out"), eps},
        kernels::AddRmsNormCpu);
  });
}

}  // namespace

void BindKernels(nb::module_& module) {
  nb::module_ kernels = module.def_submodule("kernels");
  kernels.attr("is_built") = true;
#ifdef FERRY_HAVE_CUDA
  kernels.attr("has_device_code") = true;
#else
  kernels.attr("has_device_code") = false;
#endif
  kernels.def("says_no_code", [](const std::string& text) { return cuda::SaysNoCode(text); });
  BindRows(kernels);
  BindTorchOps(kernels);
}

}  // namespace ferry::python
