// Binds the inference ops of ferry/kernels to Python, on torch tensors and CPU arrays.

#include "bindings/python/kernels.h"

#include <fmt/core.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <utility>
#include <vector>

#include "bindings/python/errors.h"
#include "bindings/python/torch_ops.h"
#include "bindings/python/waiting.h"
#include "ferry/cuda/address.h"
#include "ferry/cuda/device_code.h"
#include "ferry/kernels/attention_decode/attention_decode.h"
#include "ferry/kernels/attention_merge/attention_merge.h"
#include "ferry/kernels/attention_prefill/attention_prefill.h"
#include "ferry/kernels/elementwise/elementwise.h"
#include "ferry/kernels/gated/gated.h"
#include "ferry/kernels/gated/gated_quant.h"
#include "ferry/kernels/qk_norm_rope_store/qk_norm_rope_store.h"
#include "ferry/kernels/rms_norm/rms_norm.h"
#include "ferry/kernels/rms_norm/rms_norm_quant.h"
#include "ferry/kernels/rope/rope.h"
#include "ferry/kernels/sampler/sampler.h"
#include "ferry/kernels/store_kvcache/store_kvcache.h"

namespace ferry::python {
namespace {

namespace nb = nanobind;
using kernels::DType;
using kernels::Tensor;

[[noreturn]] void RefuseTensor(const std::string& name, const std::string& why) {
  throw Raised(Error(Code::kInvalidArgument, fmt::format("{}: {}", name, why)));
}

// By the end of its name: "torch.bfloat16", or NumPy's "float32".
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

// Types are objects that live as long as their library, so each is looked up once.
DType DTypeOf(nb::handle dtype, const char* argument) {
  static std::vector<std::pair<PyObject*, DType>> seen;  // under the interpreter's lock
  for (const auto& [object, known] : seen) {
    if (object == dtype.ptr()) return known;
  }
  const DType found = DTypeNamed(nb::cast<std::string>(nb::str(dtype)), argument);
  // With a reference for good, so that the address cannot become another type's. The limit is for
  // types that a program makes as it runs.
  if (seen.size() < 64) seen.emplace_back(nb::object(nb::borrow(dtype)).release().ptr(), found);
  return found;
}

Tensor Shaped(void* data, DType dtype, std::size_t rank, const char* argument) {
  if (rank > static_cast<std::size_t>(kernels::kMaxRank)) {
    RefuseTensor(argument, fmt::format("has {} sizes; it can have {}", rank, kernels::kMaxRank));
  }
  Tensor tensor;
  tensor.data = data;
  tensor.dtype = dtype;
  tensor.rank = static_cast<int>(rank);
  return tensor;
}

Tensor TorchTensor(nb::handle object, const char* argument, int ordinal) {
  const auto index = nb::cast<int>(object.attr("get_device")());  // -1: the CPU
  if (index != ordinal) {
    const auto where = [](int device) {
      return device < 0 ? std::string("the CPU") : fmt::format("GPU {}", device);
    };
    RefuseTensor(argument, fmt::format("is on {}, and others are on {}; all must be on one device",
                                       where(index), where(ordinal)));
  }
  const auto shape = nb::cast<nb::tuple>(object.attr("shape"));
  const auto stride = nb::cast<nb::tuple>(object.attr("stride")());
  Tensor tensor = Shaped(cuda::PointerTo(nb::cast<std::uint64_t>(object.attr("data_ptr")())),
                         DTypeOf(object.attr("dtype"), argument), shape.size(), argument);
  for (std::size_t i = 0; i < shape.size(); ++i) {
    tensor.shape.at(i) = nb::cast<std::int64_t>(shape[i]);
    tensor.stride.at(i) = nb::cast<std::int64_t>(stride[i]);
  }
  return tensor;
}

Tensor ArrayTensor(nb::handle object, const char* argument) {
  nb::ndarray<nb::ro> array;
  if (!nb::try_cast<nb::ndarray<nb::ro>>(object, array)) {
    RefuseTensor(argument, "is neither a torch tensor nor an array");
  }
  if (array.device_type() != nb::device::cpu::value) {
    RefuseTensor(argument, "is an array that is not on the CPU; use a torch tensor");
  }
  Tensor tensor = Shaped(const_cast<void*>(array.data()), DTypeOf(object.attr("dtype"), argument),
                         array.ndim(), argument);
  for (std::size_t i = 0; i < array.ndim(); ++i) {
    tensor.shape.at(i) = static_cast<std::int64_t>(array.shape(i));
    tensor.stride.at(i) = array.stride(i);
  }
  return tensor;
}

// A tensor that may be left out: None.
using Maybe = std::optional<nb::object>;

// A view of a tensor on the CPU, or on GPU `ordinal` if that is not negative.
Tensor TensorOf(nb::handle object, const char* argument, int ordinal) {
  return nb::hasattr(object, "data_ptr") ? TorchTensor(object, argument, ordinal)
                                         : ArrayTensor(object, argument);
}

// Where an op runs: device -1 is the CPU; a stream is a cudaStream_t, whose device is current.
struct Place {
  Place(int device, std::uint64_t on) : ordinal(device), stream(on) {}
  int ordinal;
  std::uint64_t stream;

  Tensor operator()(nb::handle object, const char* argument) const {
    return TensorOf(object, argument, ordinal);
  }
  // A tensor without sizes has one here, since without it would count as left out: the op's check
  // takes or refuses it.
  Tensor operator()(const Maybe& object, const char* argument) const {
    if (!object) return {};
    const Tensor tensor = TensorOf(*object, argument, ordinal);
    return tensor.rank > 0 ? tensor : Tensor::Contiguous(tensor.data, tensor.dtype, {1});
  }
  template <class Args>
  void Run(const Args& args, Status (*on_gpu)(const Args&, cuda::StreamRef),
           Status (*on_cpu)(const Args&)) const {
    const Status ended = [&] {
      if (ordinal >= 0) {
        return on_gpu(args, cuda::StreamRef::Foreign(ordinal, cuda::PointerTo(stream)));
      }
      const OthersGoOn others_go_on;
      return on_cpu(args);
    }();
    Check(ended);
  }
};

void BindRows(nb::module_& module) {
  module.def("fused_add_gelu", [](Place at, nb::handle x, nb::handle bias, nb::handle out) {
    at.Run<kernels::AddGeluArgs>({at(x, "x"), at(bias, "bias"), at(out, "out")},
                                 kernels::FusedAddGelu, kernels::FusedAddGeluCpu);
  });
  module.def("element_wise_mul_add", [](Place at, nb::handle a, nb::handle b, nb::handle c,
                                        nb::handle out) {
    at.Run<kernels::MulAddArgs>({at(a, "a"), at(b, "b"), at(c, "c"), at(out, "out")},
                                kernels::ElementWiseMulAdd, kernels::ElementWiseMulAddCpu);
  });
  module.def("gated_mul", [](Place at, nb::handle x, nb::handle out, const std::string& op) {
    at.Run<kernels::GatedArgs>({at(x, "x"), at(out, "out"), Take(kernels::GateNamed(op))},
                               kernels::GatedMul, kernels::GatedMulCpu);
  });
  module.def("rms_norm", [](Place at, nb::handle x, nb::handle weight, nb::handle out, float eps) {
    at.Run<kernels::RmsNormArgs>({at(x, "x"), at(weight, "weight"), at(out, "out"), eps},
                                 kernels::RmsNorm, kernels::RmsNormCpu);
  });
  module.def("add_rms_norm", [](Place at, nb::handle x, nb::handle residual, nb::handle weight,
                                nb::handle residual_out, nb::handle out, float eps) {
    at.Run<kernels::AddRmsNormArgs>({at(x, "x"), at(residual, "residual"), at(weight, "weight"),
                                     at(residual_out, "residual_out"), at(out, "out"), eps},
                                    kernels::AddRmsNorm, kernels::AddRmsNormCpu);
  });
}

kernels::QuantMode QuantModeOf(bool per_token) {
  return per_token ? kernels::QuantMode::kPerToken : kernels::QuantMode::kStatic;
}

void BindQuantised(nb::module_& module) {
  module.def("rms_norm_quant", [](Place at, nb::handle result, nb::handle input,
                                  const Maybe& residual, nb::handle weight, nb::handle scale,
                                  const Maybe& scale_ub, float eps, bool per_token) {
    at.Run<kernels::RmsNormQuantArgs>(
        {at(input, "input"), at(residual, "residual"), at(weight, "weight"), at(result, "result"),
         at(scale, "scale"), at(scale_ub, "scale_ub"), eps, QuantModeOf(per_token)},
        kernels::RmsNormQuant, kernels::RmsNormQuantCpu);
  });
  module.def("silu_and_mul_quant", [](Place at, nb::handle result, nb::handle input,
                                      nb::handle scale, const Maybe& scale_ub, bool per_token) {
    at.Run<kernels::SiluAndMulQuantArgs>(
        {at(input, "input"), at(result, "result"), at(scale, "scale"), at(scale_ub, "scale_ub"),
         QuantModeOf(per_token)},
        kernels::SiluAndMulQuant, kernels::SiluAndMulQuantCpu);
  });
}

void BindTokens(nb::module_& module) {
  module.def("rope", [](Place at, nb::handle q, nb::handle k, nb::handle q_out, nb::handle k_out,
                        nb::handle positions, nb::handle cos_sin_cache, bool is_neox) {
    at.Run<kernels::RopeArgs>(
        {at(q, "q"), at(k, "k"), at(q_out, "q_out"), at(k_out, "k_out"), at(positions, "positions"),
         at(cos_sin_cache, "cos_sin_cache"), is_neox},
        kernels::Rope, kernels::RopeCpu);
  });
  module.def("store_kvcache",
             [](Place at, nb::handle k, nb::handle v, nb::handle k_cache, nb::handle v_cache,
                nb::handle slots, float k_scale, float v_scale) {
               at.Run<kernels::StoreKvCacheArgs>(
                   {at(k, "k"), at(v, "v"), at(k_cache, "k_cache"), at(v_cache, "v_cache"),
                    at(slots, "slot_mapping"), k_scale, v_scale},
                   kernels::StoreKvCache, kernels::StoreKvCacheCpu);
             });
  module.def(
      "qk_norm_rope_store",
      [](Place at, nb::handle qkv, std::int64_t q_heads, std::int64_t kv_heads, nb::handle q_weight,
         nb::handle k_weight, float eps, nb::handle positions, nb::handle cos_sin_cache,
         nb::handle q_out, nb::handle k_out, const Maybe& k_cache, const Maybe& v_cache,
         const Maybe& slots, float k_scale, float v_scale, bool is_neox) {
        at.Run<kernels::QkNormRopeStoreArgs>(
            {at(qkv, "qkv"), q_heads, kv_heads, at(q_weight, "q_weight"), at(k_weight, "k_weight"),
             eps, at(positions, "positions"), at(cos_sin_cache, "cos_sin_cache"),
             at(q_out, "q_out"), at(k_out, "k_out"), at(k_cache, "k_cache"), at(v_cache, "v_cache"),
             at(slots, "slot_mapping"), k_scale, v_scale, is_neox},
            kernels::QkNormRopeStore, kernels::QkNormRopeStoreCpu);
      });
  module.def("sample", [](Place at, nb::handle logits, nb::handle out, const Maybe& temperatures,
                          const Maybe& top_k, const Maybe& top_p, const Maybe& seeds,
                          const Maybe& steps, std::uint64_t seed, std::uint64_t step) {
    at.Run<kernels::SampleArgs>(
        {at(logits, "logits"), at(out, "out"), at(temperatures, "temperatures"), at(top_k, "top_k"),
         at(top_p, "top_p"), at(seeds, "seeds"), at(steps, "steps"), seed, step},
        kernels::Sample, kernels::SampleCpu);
  });
}

void BindAttention(nb::module_& module) {
  module.def("plan_decode", [](std::int64_t batch, std::int64_t heads, std::int64_t kv_heads,
                               std::int64_t head_size, std::int64_t most_tokens,
                               int multiprocessors, int compute_major) {
    const kernels::DecodeShape shape{batch, heads, kv_heads, head_size, most_tokens};
    cuda::DeviceFacts facts;
    facts.multiprocessors = multiprocessors;
    facts.compute_major = compute_major;
    const kernels::DecodePlan plan = kernels::PlanDecode(shape, facts);
    return nb::make_tuple(plan.splits, plan.stages, plan.early,
                          kernels::DecodeWorkspace(shape, plan.splits));
  });
  module.def(
      "attention_decode",
      [](Place at, nb::handle q, nb::handle k_cache, nb::handle v_cache, nb::handle block_tables,
         nb::handle context_lens, nb::handle out, const Maybe& workspace, float scale, int splits,
         int stages, bool early, float k_scale, float v_scale, std::int64_t window, float softcap,
         const Maybe& sinks, const Maybe& lse) {
        at.Run<kernels::AttentionDecodeArgs>(
            {at(q, "q"), at(k_cache, "k_cache"), at(v_cache, "v_cache"),
             at(block_tables, "block_tables"), at(context_lens, "context_lens"), at(out, "out"),
             at(workspace, "workspace"), scale, kernels::DecodePlan{splits, stages, early}, k_scale,
             v_scale, at(lse, "lse"), at(sinks, "sinks"), window, softcap},
            kernels::AttentionDecode, kernels::AttentionDecodeCpu);
      });
  module.def("attention_prefill",
             [](Place at, nb::handle q, nb::handle k, nb::handle v, nb::handle cu_seqlens_q,
                nb::handle cu_seqlens_k, const Maybe& block_tables, nb::handle out,
                std::int64_t max_seqlen_q, float scale, bool causal, float k_scale, float v_scale,
                std::int64_t window, float softcap, const Maybe& sinks, const Maybe& lse) {
               kernels::AttentionPrefillArgs args;
               args.q = at(q, "q");
               args.k = at(k, "k");
               args.v = at(v, "v");
               args.cu_seqlens_q = at(cu_seqlens_q, "cu_seqlens_q");
               args.cu_seqlens_k = at(cu_seqlens_k, "cu_seqlens_k");
               args.block_tables = at(block_tables, "block_tables");
               args.out = at(out, "out");
               args.max_seqlen_q = max_seqlen_q;
               args.scale = scale;
               args.causal = causal;
               args.k_scale = k_scale;
               args.v_scale = v_scale;
               args.window = window;
               args.softcap = softcap;
               args.sinks = at(sinks, "sinks");
               args.lse = at(lse, "lse");
               at.Run(args, kernels::AttentionPrefill, kernels::AttentionPrefillCpu);
             });
  module.def("merge_attention_states", [](Place at, nb::handle out_a, nb::handle lse_a,
                                          nb::handle out_b, nb::handle lse_b, nb::handle out,
                                          nb::handle lse) {
    at.Run<kernels::AttentionMergeArgs>({at(out_a, "out_a"), at(lse_a, "lse_a"), at(out_b, "out_b"),
                                         at(lse_b, "lse_b"), at(out, "out"), at(lse, "lse")},
                                        kernels::AttentionMerge, kernels::AttentionMergeCpu);
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
  nb::class_<Place>(kernels, "Place")
      .def(nb::init<int, std::uint64_t>(), nb::arg("device"), nb::arg("stream"));
  BindRows(kernels);
  BindQuantised(kernels);
  BindTokens(kernels);
  BindAttention(kernels);
  BindTorchOps(kernels);
}

}  // namespace ferry::python
