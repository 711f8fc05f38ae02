// Helpers that describe the buffers and the name of a kernel benchmark case.

#include "tools/bench/kernels/kernel_case.h"

#include <fmt/core.h>

#include <algorithm>

namespace ferry::tools {
kernels::Tensor KernelStream::RowsOf(kernels::Tensor tensor) const {
  const std::int64_t skipped = units.first * tensor.stride[0] * kernels::SizeOf(tensor.dtype);
  tensor.data = static_cast<std::byte*>(tensor.data) + skipped;
  tensor.shape[0] = units.count;
  return tensor;
}

CaseTensor KernelCase::Add(KernelBuffer::Holds holds, kernels::DType of, Shape shape) {
  const kernels::Tensor view = kernels::Tensor::Contiguous(nullptr, of, shape);
  buffers.push_back({.holds = holds,
                     .dtype = of,
                     .bytes = static_cast<std::uint64_t>(view.Numel() * kernels::SizeOf(of)),
                     .table = {}});
  return {buffers.size() - 1, view};
}

CaseTensor KernelCase::AddSharedNumbers(kernels::DType of, Shape shape) {
  const CaseTensor added = AddNumbers(of, shape);
  buffers.back().shared = true;
  return added;
}

CaseTensor KernelCase::AddScratch(kernels::DType of, Shape shape) {
  const CaseTensor added = Add(KernelBuffer::Holds::kScratch, of, shape);
  buffers.back().shared = true;
  return added;
}

std::string ShapeOf(const KernelCase& one) {
  std::string shape;
  for (const KernelSize& size : one.sizes) {
    shape += fmt::format("{}{}={}", shape.empty() ? "" : " ", size.name, size.value);
  }
  return shape;
}

std::string NameOf(const KernelCase& one) {
  return fmt::format("{} {} {}{}{}", one.op, kernels::NameOf(one.dtype), ShapeOf(one),
                     one.variant.empty() ? "" : ", ", one.variant);
}

std::vector<KernelCase> KernelCases(const KernelCaseOptions& options) {
  std::vector<KernelCase> cases;
  AddRowCases(options, &cases);
  AddTokenCases(options, &cases);
  AddAttentionCases(options, &cases);
  AddSamplerCases(options, &cases);
  std::stable_partition(cases.begin(), cases.end(),
                        [](const KernelCase& one) { return !one.comes_last; });
  return cases;
}

}  // namespace ferry::tools
