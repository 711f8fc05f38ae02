// Helpers that describe the buffers and the name of a kernel benchmark case.

#include "ferry/tools/bench/kernel_case.h"

#include <fmt/core.h>

#include <algorithm>

namespace ferry::tools {
namespace {

std::size_t AddKernelBuffer(KernelCase* one, KernelBuffer::Holds holds, kernels::DType dtype,
                            std::int64_t elements) {
  one->buffers.push_back({.holds = holds,
                          .dtype = dtype,
                          .bytes = static_cast<std::uint64_t>(elements * kernels::SizeOf(dtype)),
                          .table = {}});
  return one->buffers.size() - 1;
}

}  // namespace

kernels::Tensor KernelStream::RowsOf(kernels::Tensor tensor) const {
  const std::int64_t skipped = units.first * tensor.stride[0] * kernels::SizeOf(tensor.dtype);
  tensor.data = static_cast<std::byte*>(tensor.data) + skipped;
  tensor.shape[0] = units.count;
  return tensor;
}

std::size_t KernelCase::AddNumbers(kernels::DType of, std::int64_t elements) {
  return AddKernelBuffer(this, KernelBuffer::Holds::kNumbers, of, elements);
}

std::size_t KernelCase::AddLogits(std::int64_t elements) {
  return AddKernelBuffer(this, KernelBuffer::Holds::kLogits, kernels::DType::kBfloat16, elements);
}

std::size_t KernelCase::AddSharedNumbers(kernels::DType of, std::int64_t elements) {
  const std::size_t index = AddNumbers(of, elements);
  buffers[index].shared = true;
  return index;
}

std::size_t KernelCase::AddResults(kernels::DType of, std::int64_t elements) {
  return AddKernelBuffer(this, KernelBuffer::Holds::kResults, of, elements);
}

std::size_t KernelCase::AddScratch(std::int64_t bytes_of_it) {
  buffers.push_back({.holds = KernelBuffer::Holds::kScratch,
                     .bytes = static_cast<std::uint64_t>(bytes_of_it),
                     .shared = true,
                     .table = {}});
  return buffers.size() - 1;
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
