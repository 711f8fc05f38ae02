// Benchmark cases of the ops on rows. Each tensor with as many rows as x counts once in the bytes;
// weights and biases, which all rows share, do not count.

#include "ferry/core/units.h"
#include "ferry/kernels/elementwise/elementwise.h"
#include "ferry/kernels/gated/gated.h"
#include "ferry/kernels/gated/gated_quant.h"
#include "ferry/kernels/rms_norm/rms_norm.h"
#include "ferry/kernels/rms_norm/rms_norm_quant.h"
#include "tools/bench/kernels/kernel_case.h"

namespace ferry::tools {
namespace {

using kernels::DType;
using kernels::Tensor;

struct RowsOfCase {
  std::int64_t rows;
  std::int64_t cols;
  DType dtype;
};

KernelCase NewRowCase(const char* op, const RowsOfCase& of) {
  KernelCase one;
  one.op = op;
  one.dtype = of.dtype;
  one.sizes = {{"rows", of.rows}, {"cols", of.cols}};
  one.units = of.rows;
  // x + bias, a * b + c, x * gate: of numbers in [-1, 1).
  one.terms = [](std::int64_t) { return 2.0; };
  return one;
}

std::uint64_t BytesOf(const RowsOfCase& of) {
  return static_cast<std::uint64_t>(of.rows * of.cols * kernels::SizeOf(of.dtype));
}

// 2 x: x is read, out is written.
template <kernels::GeluForm kForm>
KernelCase AddGeluCase(const RowsOfCase& of) {
  KernelCase one = NewRowCase("fused_add_gelu", of);
  one.variant = kForm == kernels::GeluForm::kExact ? "exact" : "tanh";
  const auto x = one.AddNumbers(of.dtype, {of.rows, of.cols});
  const auto bias = one.AddNumbers(of.dtype, {of.cols});
  const auto out = one.AddResults(of.dtype, {of.rows, of.cols});
  one.bytes = 2 * BytesOf(of);
  one.launch = [=](const KernelStream& to, KernelAddresses at) {
    return to.Put(kernels::kFusedAddGeluKernel,
                  kernels::AddGeluArgs{to.Of(x, at), bias.At(at), to.Of(out, at), kForm});
  };
  return one;
}

// 4 x: a, b and c are read, out is written.
KernelCase MulAddCase(const RowsOfCase& of) {
  KernelCase one = NewRowCase("element_wise_mul_add", of);
  const auto a = one.AddNumbers(of.dtype, {of.rows, of.cols});
  const auto b = one.AddNumbers(of.dtype, {of.rows, of.cols});
  const auto c = one.AddNumbers(of.dtype, {of.rows, of.cols});
  const auto out = one.AddResults(of.dtype, {of.rows, of.cols});
  one.bytes = 4 * BytesOf(of);
  one.launch = [=](const KernelStream& to, KernelAddresses at) {
    return to.Put(kernels::kElementWiseMulAddKernel,
                  kernels::MulAddArgs{to.Of(a, at), to.Of(b, at), to.Of(c, at), to.Of(out, at)});
  };
  return one;
}

// 1.5 x: of x, both halves of each row are read, out has half as much. `cols` is that of out.
KernelCase SiluAndMulCase(const RowsOfCase& of) {
  KernelCase one = NewRowCase("silu_and_mul", of);
  const auto x = one.AddNumbers(of.dtype, {of.rows, 2 * of.cols});
  const auto out = one.AddResults(of.dtype, {of.rows, of.cols});
  one.bytes = 3 * BytesOf(of);
  one.launch = [=](const KernelStream& to, KernelAddresses at) {
    return to.Put(kernels::kGatedMulKernel,
                  kernels::GatedArgs{to.Of(x, at), to.Of(out, at), kernels::Gate::kSilu});
  };
  return one;
}

// 2 x.
KernelCase RmsNormCase(const RowsOfCase& of) {
  KernelCase one = NewRowCase("rms_norm", of);
  one.roundings.of_results = 2;
  const auto x = one.AddNumbers(of.dtype, {of.rows, of.cols});
  const auto weight = one.AddNumbers(of.dtype, {of.cols});
  const auto out = one.AddResults(of.dtype, {of.rows, of.cols});
  one.bytes = 2 * BytesOf(of);
  one.launch = [=](const KernelStream& to, KernelAddresses at) {
    kernels::RmsNormArgs args;
    args.x = to.Of(x, at);
    args.weight = weight.At(at);
    args.out = to.Of(out, at);
    return to.Put(kernels::kRmsNormKernel, args);
  };
  return one;
}

// 4 x: x and the residual are read, their sum and out are written. Not in place, or the sums would
// grow from launch to launch.
KernelCase AddRmsNormCase(const RowsOfCase& of) {
  KernelCase one = NewRowCase("add_rms_norm", of);
  one.roundings.of_results = 2;
  const auto x = one.AddNumbers(of.dtype, {of.rows, of.cols});
  const auto residual = one.AddNumbers(of.dtype, {of.rows, of.cols});
  const auto weight = one.AddNumbers(of.dtype, {of.cols});
  const auto sum = one.AddResults(of.dtype, {of.rows, of.cols});
  const auto out = one.AddResults(of.dtype, {of.rows, of.cols});
  one.bytes = 4 * BytesOf(of);
  one.launch = [=](const KernelStream& to, KernelAddresses at) {
    kernels::AddRmsNormArgs args;
    args.x = to.Of(x, at);
    args.residual = to.Of(residual, at);
    args.weight = weight.At(at);
    args.residual_out = to.Of(sum, at);
    args.out = to.Of(out, at);
    return to.Put(kernels::kAddRmsNormKernel, args);
  };
  return one;
}

// The scale tensor of a quantised op: a table of one number, or scratch, since a scale that is made
// may differ by a rounding of the largest element, which the check of fp32 results does not allow.
CaseTensor AddScale(KernelCase* one, const RowsOfCase& of, kernels::QuantMode mode) {
  const bool per_token = mode == kernels::QuantMode::kPerToken;
  one->variant = per_token ? "per token" : "static";
  return per_token ? one->AddScratch(DType::kFloat32, {of.rows})
                   : one->AddTable(DType::kFloat32, {1}, std::vector<float>{0.01F});
}
Tensor ScaleAt(const KernelStream& to, const CaseTensor& scale, KernelAddresses at,
               kernels::QuantMode mode) {
  return mode == kernels::QuantMode::kStatic ? scale.At(at) : to.Of(scale, at);
}

// 1.5 x: x is read, out is written as e4m3. Without a residual, which is updated in place, so that
// each launch would read another one than the check.
template <kernels::QuantMode kMode>
KernelCase RmsNormQuantCase(const RowsOfCase& of) {
  KernelCase one = NewRowCase("rms_norm_quant", of);
  const auto x = one.AddNumbers(of.dtype, {of.rows, of.cols});
  const auto weight = one.AddNumbers(of.dtype, {of.cols});
  const auto out = one.AddResults(DType::kFloat8E4m3, {of.rows, of.cols});
  const auto scale = AddScale(&one, of, kMode);
  one.bytes = BytesOf(of) * 3 / 2;
  one.launch = [=](const KernelStream& to, KernelAddresses at) {
    kernels::RmsNormQuantArgs args;
    args.input = to.Of(x, at);
    args.weight = weight.At(at);
    args.result = to.Of(out, at);
    args.scale = ScaleAt(to, scale, at, kMode);
    args.mode = kMode;
    return to.Put(kernels::kRmsNormQuantKernel, args);
  };
  return one;
}

// 2.5 times out in the format of x: both halves are read, out is written as e4m3.
template <kernels::QuantMode kMode>
KernelCase SiluAndMulQuantCase(const RowsOfCase& of) {
  KernelCase one = NewRowCase("silu_and_mul_quant", of);
  const auto x = one.AddNumbers(of.dtype, {of.rows, 2 * of.cols});
  const auto out = one.AddResults(DType::kFloat8E4m3, {of.rows, of.cols});
  const auto scale = AddScale(&one, of, kMode);
  one.bytes = BytesOf(of) * 5 / 2;
  one.launch = [=](const KernelStream& to, KernelAddresses at) {
    kernels::SiluAndMulQuantArgs args;
    args.input = to.Of(x, at);
    args.result = to.Of(out, at);
    args.scale = ScaleAt(to, scale, at, kMode);
    args.mode = kMode;
    return to.Put(kernels::kSiluAndMulQuantKernel, args);
  };
  return one;
}

}  // namespace

void AddRowCases(const KernelCaseOptions& options, std::vector<KernelCase>* cases) {
  // Sizes of Qwen3-8B.
  const std::int64_t hidden = options.tiny ? 64 : 4096;
  const std::int64_t intermediate = options.tiny ? 96 : 12288;
  const std::vector<std::uint64_t> sizes =
      options.tiny ? std::vector{kKiB, 4 * kKiB}
                   : std::vector{64 * kKiB, kMiB, 16 * kMiB, 128 * kMiB, 512 * kMiB};  // of x
  constexpr std::uint64_t kElement = 2;
  const auto rows_of = [&](std::uint64_t bytes, std::int64_t cols) {
    return RowsOfCase{static_cast<std::int64_t>(bytes / kElement) / cols, cols, DType::kBfloat16};
  };
  using Make = KernelCase (*)(const RowsOfCase&);
  constexpr auto kStatic = kernels::QuantMode::kStatic;
  constexpr auto kPerToken = kernels::QuantMode::kPerToken;
  struct Made {
    Make make;
    bool gated;
  };
  constexpr auto kExact = kernels::GeluForm::kExact;
  constexpr auto kTanh = kernels::GeluForm::kTanh;
  for (const auto& [make, gated] :
       {Made{&AddGeluCase<kExact>, false}, Made{&AddGeluCase<kTanh>, false},
        Made{&MulAddCase, false}, Made{&SiluAndMulCase, true},
        Made{&SiluAndMulQuantCase<kStatic>, true}, Made{&SiluAndMulQuantCase<kPerToken>, true},
        Made{&RmsNormCase, false}, Made{&RmsNormQuantCase<kStatic>, false},
        Made{&RmsNormQuantCase<kPerToken>, false}, Made{&AddRmsNormCase, false}}) {
    for (const std::uint64_t bytes : sizes) {
      RowsOfCase of = rows_of(bytes, gated ? 2 * intermediate : hidden);
      if (gated) of.cols = intermediate;
      cases->push_back(make(of));
    }
  }
  if (options.tiny) return;
  // In fp32, [32, 256, 4096]: where others publish numbers of these two.
  const RowsOfCase published{32 * 256, 4096, DType::kFloat32};
  cases->push_back(AddGeluCase<kExact>(published));
  cases->push_back(AddGeluCase<kTanh>(published));
  cases->push_back(MulAddCase(published));
}

}  // namespace ferry::tools
