// Kernels of torch.ops.tensorferry in C++: a call runs no Python.

#include "python/module/torch_ops.h"

#include <fmt/core.h>
#include <nanobind/stl/string.h>

#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>

#include "ferry/cuda/address.h"
#include "ferry/cuda/open_devices.h"
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
#include "python/module/errors.h"
#include "python/module/torch_abi.h"

namespace ferry::python {
namespace {

namespace nb = nanobind;
using kernels::DType;
using kernels::Extents;
using kernels::Tensor;

const TorchAbi* torch_abi = nullptr;  // set before a kernel is registered

// Throws what torch says of an error of its own, such as of no memory, behind `what`.
void CheckTorch(TorchError ended, const char* what) {
  if (ended == 0) return;
  const char* const why = torch_abi->why != nullptr ? torch_abi->why() : nullptr;
  throw std::runtime_error(fmt::format(
      "{}: {}", what, why != nullptr ? why : "torch refused it, and standard error says why"));
}

// The last error that a kernel threw on this thread. Torch raises every C++ exception as
// RuntimeError, and this tells which exception of ours it was.
thread_local std::optional<Error> last_refusal;

DType TypeOf(std::int32_t code, const char* argument) {
  // Engines keep e4m3 numbers in tensors of bytes.
  if (code == torch_abi->types[TorchAbi::kUint8]) return DType::kFloat8E4m3;
  for (std::size_t i = 0; i < TorchAbi::kTypes; ++i) {
    if (torch_abi->types[i] != code) continue;
    if (i <= static_cast<std::size_t>(DType::kInt64)) return static_cast<DType>(i);
    throw Raised(Error(Code::kInvalidArgument,
                       fmt::format("{}: is of {}; it can be of bfloat16, float16, float32, "
                                   "float8_e4m3fn, uint8 (as e4m3), int32 or int64",
                                   argument, kTorchTypeNames[i])));
  }
  throw Raised(Error(Code::kInvalidArgument,
                     fmt::format("{}: is of another type; it can be of bfloat16, float16, float32, "
                                 "float8_e4m3fn, uint8 (as e4m3), int32 or int64",
                                 argument)));
}

// Facts of a GPU, asked once; of -1, the CPU, and where CUDA does not answer, there are none.
const cuda::DeviceFacts& FactsOf(int ordinal) {
  static std::mutex mutex;
  static std::map<int, cuda::DeviceFacts> known;
  const std::lock_guard lock(mutex);
  const auto [found, is_new] = known.try_emplace(ordinal);
  if (!is_new || ordinal < 0) return found->second;
  if (const Result<cuda::DeviceApi*> api = cuda::RealDevices()) {
    if (Result<cuda::DeviceFacts> facts = (*api)->Describe(ordinal)) found->second = *facts;
  }
  return found->second;
}

// The arguments and results of one call. It owns the tensors among them, as torch's boxed calls
// ask.
class TorchCall {
 public:
  static constexpr std::size_t kMaxInputs = 14;

  // `kinds` has a letter for each argument: T tensor, M tensor or None, n a number. The op runs
  // where the tensor argument `place` is.
  TorchCall(TorchValue* stack, const char* kinds, std::size_t place)
      : TorchCall(stack) {  // so that the destructor runs if this throws
    for (std::size_t i = 0; kinds[i] != '\0'; ++i) {
      values_[i] = stack[i];
      if (kinds[i] == 'T') tensors_[i] = HandleIn(stack[i]);
      if (kinds[i] == 'M') tensors_[i] = TakeOptional(stack[i]);
    }
    ordinal_ = OrdinalOf(tensors_[place], "an argument");
  }
  TorchCall(const TorchCall&) = delete;
  TorchCall& operator=(const TorchCall&) = delete;
  ~TorchCall() {
    for (TorchHandle tensor : tensors_) {
      if (tensor != nullptr) torch_abi->delete_tensor(tensor);
    }
    for (TorchHandle result : results_) {
      if (result != nullptr) torch_abi->delete_tensor(result);
    }
    // Torch gives the memory to later work of this stream only, which the kernel precedes.
    if (workspace_ != nullptr) torch_abi->delete_tensor(workspace_);
  }

  // The tensor argument `index`. Throws where it is on another device.
  Tensor At(std::size_t index, const char* argument) const {
    return View(tensors_[index], argument);
  }
  // The same for an argument that ops let be left out, or that is one number; none for None. A
  // tensor without sizes has one here, since without it would count as left out: the op's check
  // takes or refuses it.
  Tensor Maybe(std::size_t index, const char* argument) const {
    if (tensors_[index] == nullptr) return {};
    const Tensor tensor = View(tensors_[index], argument);
    return tensor.rank > 0 ? tensor : Tensor::Contiguous(tensor.data, tensor.dtype, {1});
  }
  double Real(std::size_t index) const {
    double value = 0;
    std::memcpy(&value, &values_[index], sizeof value);
    return value;
  }
  float Single(std::size_t index) const { return static_cast<float>(Real(index)); }
  std::int64_t Integer(std::size_t index) const {
    return static_cast<std::int64_t>(values_[index]);
  }
  bool Truth(std::size_t index) const { return (values_[index] & 0xff) != 0; }

  // The next result: contiguous, uninitialised.
  Tensor Result(DType dtype, const Extents& shape, int rank) {
    Tensor made;
    made.dtype = dtype;
    made.rank = rank;
    made.shape = shape;
    std::int64_t stride = 1;
    for (auto d = static_cast<std::size_t>(rank); d-- > 0;) {
      made.stride[d] = stride;
      if (shape[d] > 0) stride *= shape[d];
    }
    Allocate(&made, &results_[result_count_++]);
    return made;
  }
  // Memory for the call alone: one tensor at most.
  Tensor Workspace(std::int64_t floats) {
    Tensor made = Tensor::Contiguous(nullptr, DType::kFloat32, {floats});
    Allocate(&made, &workspace_);
    return made;
  }
  // The GPU that the op runs on; nothing is known of the CPU.
  const cuda::DeviceFacts& Facts() const { return FactsOf(ordinal_); }
  Tensor Like(const Tensor& x) { return Result(x.dtype, x.shape, x.rank); }

  // Runs the op, and gives torch the results.
  template <class Args>
  void Run(const Args& args, Status (*on_gpu)(const Args&, cuda::StreamRef),
           Status (*on_cpu)(const Args&)) {
    Check(ordinal_ < 0 ? on_cpu(args) : RunOnGpu(args, on_gpu));
    for (std::size_t i = 0; i < result_count_; ++i) {
      stack_[i] = cuda::AddressOf(results_[i]);
      results_[i] = nullptr;
    }
  }

 private:
  explicit TorchCall(TorchValue* stack) : stack_(stack) {}

  static TorchHandle HandleIn(TorchValue value) {
    return static_cast<TorchHandle>(cuda::PointerTo(value));
  }
  // An optional is null, or a value that torch has allocated for the callee.
  static TorchHandle TakeOptional(TorchValue value) {
    if (value == 0) return nullptr;
    auto* const inner = static_cast<TorchValue*>(cuda::PointerTo(value));
    const TorchHandle tensor = HandleIn(*inner);
    delete inner;
    return tensor;
  }
  void Allocate(Tensor* made, TorchHandle* handle) {
    CheckTorch(torch_abi->empty_strided(made->rank, made->shape.data(), made->stride.data(),
                                        torch_abi->types[static_cast<std::size_t>(made->dtype)],
                                        ordinal_ < 0 ? torch_abi->cpu : torch_abi->cuda,
                                        ordinal_ < 0 ? 0 : ordinal_, handle),
               "a result");
    CheckTorch(torch_abi->get_data_ptr(*handle, &made->data), "a result");
  }
  static int OrdinalOf(TorchHandle tensor, const char* argument) {
    std::int32_t type = 0;
    std::int32_t index = 0;
    CheckTorch(torch_abi->get_device_type(tensor, &type), argument);
    if (type == torch_abi->cpu) return -1;
    CheckTorch(torch_abi->get_device_index(tensor, &index), argument);
    return index;
  }
  Tensor View(TorchHandle from, const char* argument) const {
    if (const int index = OrdinalOf(from, argument); index != ordinal_)
      ThrowElsewhere(argument, index);
    std::int64_t rank = 0;
    std::int32_t dtype = 0;
    std::int64_t* sizes = nullptr;
    std::int64_t* strides = nullptr;
    CheckTorch(torch_abi->get_dim(from, &rank), argument);
    CheckTorch(torch_abi->get_dtype(from, &dtype), argument);
    CheckTorch(torch_abi->get_sizes(from, &sizes), argument);
    CheckTorch(torch_abi->get_strides(from, &strides), argument);
    Tensor view;
    view.dtype = TypeOf(dtype, argument);
    if (rank > kernels::kMaxRank) {
      throw Raised(Error(Code::kInvalidArgument, fmt::format("{}: has {} sizes; it can have {}",
                                                             argument, rank, kernels::kMaxRank)));
    }
    CheckTorch(torch_abi->get_data_ptr(from, &view.data), argument);
    view.rank = static_cast<int>(rank);
    for (std::size_t d = 0; d < static_cast<std::size_t>(rank); ++d) {
      view.shape[d] = sizes[d];
      view.stride[d] = strides[d];
    }
    return view;
  }
  [[noreturn]] void ThrowElsewhere(const char* argument, int index) const {
    const auto where = [](int device) {
      return device < 0 ? std::string("the CPU") : fmt::format("GPU {}", device);
    };
    throw Raised(Error(Code::kInvalidArgument,
                       fmt::format("{}: is on {}, and others are on {}; all must be on one device",
                                   argument, where(index), where(ordinal_))));
  }
  template <class Args>
  Status RunOnGpu(const Args& args, Status (*on_gpu)(const Args&, cuda::StreamRef)) const {
    void* stream = nullptr;
    void* guard = nullptr;
    CheckTorch(torch_abi->current_cuda_stream(ordinal_, &stream), "the current stream");
    CheckTorch(torch_abi->create_cuda_guard(ordinal_, &guard), "the device");
    Status ended = on_gpu(args, cuda::StreamRef::Foreign(ordinal_, stream));
    torch_abi->delete_cuda_guard(guard);
    return ended;
  }

  TorchValue* stack_;
  std::array<TorchValue, kMaxInputs> values_{};
  std::array<TorchHandle, kMaxInputs> tensors_{};
  std::array<TorchHandle, 2> results_{};
  TorchHandle workspace_ = nullptr;
  std::size_t result_count_ = 0;
  int ordinal_ = -1;
};

template <kernels::GeluForm kForm>
void FusedAddGelu(TorchValue* stack) {
  TorchCall call(stack, "TT", 0);
  const Tensor x = call.At(0, "x");
  call.Run<kernels::AddGeluArgs>({x, call.At(1, "bias"), call.Like(x), kForm},
                                 kernels::FusedAddGelu, kernels::FusedAddGeluCpu);
}

void MulAdd(TorchValue* stack) {
  TorchCall call(stack, "TTT", 0);
  const Tensor a = call.At(0, "a");
  call.Run<kernels::MulAddArgs>({a, call.At(1, "b"), call.At(2, "c"), call.Like(a)},
                                kernels::ElementWiseMulAdd, kernels::ElementWiseMulAddCpu);
}

template <kernels::Gate kGate>
void Gated(TorchValue* stack) {
  TorchCall call(stack, "T", 0);
  const Tensor x = call.At(0, "x");
  Extents shape = x.shape;
  if (!x.none()) shape[static_cast<std::size_t>(x.rank) - 1] /= 2;
  call.Run<kernels::GatedArgs>({x, call.Result(x.dtype, shape, x.rank), kGate}, kernels::GatedMul,
                               kernels::GatedMulCpu);
}

void RmsNorm(TorchValue* stack) {
  TorchCall call(stack, "TTn", 0);
  const Tensor x = call.At(0, "x");
  call.Run<kernels::RmsNormArgs>({x, call.At(1, "weight"), call.Like(x), call.Single(2)},
                                 kernels::RmsNorm, kernels::RmsNormCpu);
}

void AddRmsNorm(TorchValue* stack) {
  TorchCall call(stack, "TTTn", 0);
  const Tensor x = call.At(0, "x");
  const Tensor out = call.Like(x);
  const Tensor total = call.Like(x);
  call.Run<kernels::AddRmsNormArgs>(
      {x, call.At(1, "residual"), call.At(2, "weight"), total, out, call.Single(3)},
      kernels::AddRmsNorm, kernels::AddRmsNormCpu);
}

void AddRmsNormInPlace(TorchValue* stack) {
  TorchCall call(stack, "TTTn", 0);
  const Tensor x = call.At(0, "x");
  const Tensor residual = call.At(1, "residual");
  call.Run<kernels::AddRmsNormArgs>(
      {x, residual, call.At(2, "weight"), residual, x, call.Single(3)}, kernels::AddRmsNorm,
      kernels::AddRmsNormCpu);
}

template <bool kResidual>
void RmsNormStaticQuant(TorchValue* stack) {
  TorchCall call(stack, kResidual ? "TTTTTn" : "TTTTn", 1);
  std::size_t next = 2;
  kernels::RmsNormQuantArgs args;
  args.result = call.At(0, "result");
  args.input = call.At(1, "input");
  if (kResidual) args.residual = call.Maybe(next++, "residual");
  args.weight = call.At(next++, "weight");
  args.scale = call.Maybe(next++, "scale");
  args.eps = call.Single(next);
  call.Run(args, kernels::RmsNormQuant, kernels::RmsNormQuantCpu);
}

void RmsNormPerTokenQuant(TorchValue* stack) {
  TorchCall call(stack, "TTTTnMM", 1);
  kernels::RmsNormQuantArgs args;
  args.result = call.At(0, "result");
  args.input = call.At(1, "input");
  args.weight = call.At(2, "weight");
  args.scale = call.Maybe(3, "scale");
  args.eps = call.Single(4);
  args.scale_ub = call.Maybe(5, "scale_ub");
  args.residual = call.Maybe(6, "residual");
  args.mode = kernels::QuantMode::kPerToken;
  call.Run(args, kernels::RmsNormQuant, kernels::RmsNormQuantCpu);
}

void SiluAndMulStaticQuant(TorchValue* stack) {
  TorchCall call(stack, "TTT", 1);
  call.Run<kernels::SiluAndMulQuantArgs>(
      {call.At(1, "input"), call.At(0, "result"), call.Maybe(2, "scale"), Tensor{},
       kernels::QuantMode::kStatic},
      kernels::SiluAndMulQuant, kernels::SiluAndMulQuantCpu);
}

void SiluAndMulPerTokenQuant(TorchValue* stack) {
  TorchCall call(stack, "TTTM", 1);
  call.Run<kernels::SiluAndMulQuantArgs>(
      {call.At(1, "input"), call.At(0, "result"), call.Maybe(2, "scale"), call.Maybe(3, "scale_ub"),
       kernels::QuantMode::kPerToken},
      kernels::SiluAndMulQuant, kernels::SiluAndMulQuantCpu);
}

// As rows of cosines and sines; nano-vllm's has a size of one between.
Tensor Table(Tensor cos_sin) {
  if (cos_sin.rank == 3 && cos_sin.shape[1] == 1) {
    cos_sin.rank = 2;
    cos_sin.shape[1] = cos_sin.shape[2];
    cos_sin.stride[1] = cos_sin.stride[2];
  }
  return cos_sin;
}

template <bool kInPlace>
void Rope(TorchValue* stack) {
  TorchCall call(stack, "TTTTn", 1);
  const Tensor q = call.At(1, "q");
  const Tensor k = call.At(2, "k");
  const Tensor q_out = kInPlace ? q : call.Like(q);
  const Tensor k_out = kInPlace ? k : call.Like(k);
  call.Run<kernels::RopeArgs>({q, k, q_out, k_out, call.At(0, "positions"),
                               Table(call.At(3, "cos_sin_cache")), call.Truth(4)},
                              kernels::Rope, kernels::RopeCpu);
}

void StoreKvCache(TorchValue* stack) {
  TorchCall call(stack, "TTTTTnn", 0);
  call.Run<kernels::StoreKvCacheArgs>(
      {call.At(0, "k"), call.At(1, "v"), call.At(2, "k_cache"), call.At(3, "v_cache"),
       call.At(4, "slot_mapping"), call.Single(5), call.Single(6)},
      kernels::StoreKvCache, kernels::StoreKvCacheCpu);
}

void QkNormRopeStore(TorchValue* stack) {
  TorchCall call(stack, "TnnTTTTMMMnnnn", 0);
  const Tensor qkv = call.At(0, "qkv");
  const std::int64_t q_heads = call.Integer(1);
  const std::int64_t kv_heads = call.Integer(2);
  const bool sound = !qkv.none() && q_heads >= 0 && kv_heads >= 0 && q_heads + 2 * kv_heads > 0;
  const std::int64_t size = sound ? qkv.last() / (q_heads + 2 * kv_heads) : 0;
  const auto out = [&](std::int64_t heads) {
    return call.Result(qkv.dtype, {qkv.shape[0], sound ? heads : 0, size}, 3);
  };
  const Tensor q_out = out(q_heads);
  const Tensor k_out = out(kv_heads);
  call.Run<kernels::QkNormRopeStoreArgs>(
      {qkv, q_heads, kv_heads, call.At(3, "q_weight"), call.At(4, "k_weight"), call.Single(10),
       call.At(5, "positions"), Table(call.At(6, "cos_sin_cache")), q_out, k_out,
       call.Maybe(7, "k_cache"), call.Maybe(8, "v_cache"), call.Maybe(9, "slot_mapping"),
       call.Single(11), call.Single(12), call.Truth(13)},
      kernels::QkNormRopeStore, kernels::QkNormRopeStoreCpu);
}

void Sample(TorchValue* stack) {
  TorchCall call(stack, "TMMMnnMM", 0);
  const Tensor logits = call.At(0, "logits");
  const Tensor out = call.Result(DType::kInt64, {logits.shape[0]}, 1);
  call.Run<kernels::SampleArgs>(
      {logits, out, call.Maybe(1, "temperatures"), call.Maybe(2, "top_k"), call.Maybe(3, "top_p"),
       call.Maybe(6, "seeds"), call.Maybe(7, "steps"), static_cast<std::uint64_t>(call.Integer(4)),
       static_cast<std::uint64_t>(call.Integer(5))},
      kernels::Sample, kernels::SampleCpu);
}

// An lse is the second result.
Tensor LseResult(TorchCall* call, const Tensor& q) {
  return call->Result(DType::kFloat32, {q.shape[0], q.shape[1]}, 2);
}

// Divides the work among a GPU's multiprocessors. On the CPU, Facts() has none, and nothing is
// done.
void DivideDecode(TorchCall* call, kernels::AttentionDecodeArgs* args) {
  if (call->Facts().multiprocessors == 0) return;
  const kernels::DecodeShape shape = ShapeOf(*args);
  args->plan = kernels::PlanDecode(shape, call->Facts());
  const std::int64_t floats = kernels::DecodeWorkspace(shape, args->plan.splits);
  if (floats > 0) args->workspace = call->Workspace(floats);
}

template <bool kLse>
void AttentionDecode(TorchValue* stack) {
  TorchCall call(stack, "TTTTTnnnnnM", 0);
  kernels::AttentionDecodeArgs args;
  args.q = call.At(0, "q");
  args.k_cache = call.At(1, "k_cache");
  args.v_cache = call.At(2, "v_cache");
  args.block_tables = call.At(3, "block_tables");
  args.context_lens = call.At(4, "context_lens");
  args.out = call.Like(args.q);
  args.scale = call.Single(5);
  args.k_scale = call.Single(6);
  args.v_scale = call.Single(7);
  args.window = call.Integer(8);
  args.softcap = call.Single(9);
  args.sinks = call.Maybe(10, "sinks");
  if (kLse) args.lse = LseResult(&call, args.q);
  DivideDecode(&call, &args);
  call.Run(args, kernels::AttentionDecode, kernels::AttentionDecodeCpu);
}

template <bool kLse>
void AttentionPrefill(TorchValue* stack) {
  TorchCall call(stack, "TTTTTnnnMnnnnM", 0);
  kernels::AttentionPrefillArgs args;
  args.q = call.At(0, "q");
  args.k = call.At(1, "k");
  args.v = call.At(2, "v");
  args.cu_seqlens_q = call.At(3, "cu_seqlens_q");
  args.cu_seqlens_k = call.At(4, "cu_seqlens_k");
  args.block_tables = call.Maybe(8, "block_tables");
  args.out = call.Like(args.q);
  args.max_seqlen_q = call.Integer(5);
  args.scale = call.Single(6);
  args.causal = call.Truth(7);
  args.k_scale = call.Single(9);
  args.v_scale = call.Single(10);
  args.window = call.Integer(11);
  args.softcap = call.Single(12);
  args.sinks = call.Maybe(13, "sinks");
  if (kLse) args.lse = LseResult(&call, args.q);
  const kernels::PrefillWork work = WorkOf(args);
  args.splits = kernels::PlanPrefill(work, call.Facts());
  if (args.splits > 1) args.workspace = call.Workspace(PrefillWorkspace(work, args.splits));
  call.Run(args, kernels::AttentionPrefill, kernels::AttentionPrefillCpu);
}

void MergeAttentionStates(TorchValue* stack) {
  TorchCall call(stack, "TTTT", 0);
  const Tensor out_a = call.At(0, "out_a");
  const Tensor lse_a = call.At(1, "lse_a");
  const Tensor out = call.Like(out_a);
  call.Run<kernels::AttentionMergeArgs>(
      {out_a, lse_a, call.At(2, "out_b"), call.At(3, "lse_b"), out, call.Like(lse_a)},
      kernels::AttentionMerge, kernels::AttentionMergeCpu);
}

// Called by torch without the interpreter's lock. Exceptions pass through torch, which raises them
// as RuntimeError.
template <void (*kOp)(TorchValue*)>
void Boxed(TorchValue* stack, std::uint64_t /*inputs*/, std::uint64_t /*outputs*/) {
  try {
    kOp(stack);
  } catch (const Raised& raised) {
    last_refusal = raised.error();
    throw;
  }
}

struct TorchOp {
  const char* name;
  TorchKernel kernel;
};
constexpr TorchOp kTorchOps[] = {
    {"fused_add_gelu", Boxed<FusedAddGelu<kernels::GeluForm::kExact>>},
    {"fused_add_gelu_tanh", Boxed<FusedAddGelu<kernels::GeluForm::kTanh>>},
    {"element_wise_mul_add", Boxed<MulAdd>},
    {"silu_and_mul", Boxed<Gated<kernels::Gate::kSilu>>},
    {"gelu_and_mul", Boxed<Gated<kernels::Gate::kGelu>>},
    {"gelu_tanh_and_mul", Boxed<Gated<kernels::Gate::kGeluTanh>>},
    {"rms_norm", Boxed<RmsNorm>},
    {"add_rms_norm", Boxed<AddRmsNorm>},
    {"add_rms_norm_", Boxed<AddRmsNormInPlace>},
    {"rms_norm_static_fp8_quant", Boxed<RmsNormStaticQuant<false>>},
    {"fused_add_rms_norm_static_fp8_quant", Boxed<RmsNormStaticQuant<true>>},
    {"rms_norm_dynamic_per_token_quant", Boxed<RmsNormPerTokenQuant>},
    {"silu_and_mul_quant", Boxed<SiluAndMulStaticQuant>},
    {"silu_and_mul_dynamic_per_token_quant", Boxed<SiluAndMulPerTokenQuant>},
    {"rope", Boxed<Rope<false>>},
    {"rope_", Boxed<Rope<true>>},
    {"store_kvcache", Boxed<StoreKvCache>},
    {"qk_norm_rope_store", Boxed<QkNormRopeStore>},
    {"sample", Boxed<Sample>},
    {"attention_decode", Boxed<AttentionDecode<false>>},
    {"attention_decode_lse", Boxed<AttentionDecode<true>>},
    {"attention_prefill", Boxed<AttentionPrefill<false>>},
    {"attention_prefill_lse", Boxed<AttentionPrefill<true>>},
    {"merge_attention_states", Boxed<MergeAttentionStates>},
};

// Registers the kernel of op `name` for "CPU" or "CUDA", under the name `defined`. False where
// torch has no stable ABI for it; the caller then registers the op's formula.
bool RegisterTorchOp(const std::string& name, const std::string& key, const std::string& defined) {
  static void* libraries[2] = {};  // for CPU and CUDA; torch keeps registrations while they live
  const bool cuda = key == "CUDA";
  torch_abi = FindTorchAbi();
  if (torch_abi == nullptr) return false;
  if (cuda && torch_abi->current_cuda_stream == nullptr) return false;
  void*& library = libraries[cuda ? 1 : 0];
  if (library == nullptr) {
    CheckTorch(torch_abi->library_init("tensorferry", key.c_str(), "tensorferry", 0, &library),
               "the library of ops");
  }
  constexpr std::uint64_t kAbi =
      (std::uint64_t{2} << 56) | (std::uint64_t{10} << 48);  // torch 2.10
  for (const TorchOp& op : kTorchOps) {
    if (name == op.name)
      return torch_abi->library_impl(library, defined.c_str(), op.kernel, kAbi) == 0;
  }
  throw Raised(Error(Code::kInternal, name + " is not in kTorchOps; add it there"));
}

// The code and message of this thread's last error if `text` contains it, else None.
std::optional<std::pair<std::string, std::string>> RefusalIn(const std::string& text) {
  if (!last_refusal || text.find(last_refusal->message()) == std::string::npos) return std::nullopt;
  return std::pair(std::string(CodeName(last_refusal->code())), last_refusal->message());
}

}  // namespace

void BindTorchOps(nb::module_& module) {
  module.def("register_torch_op", &RegisterTorchOp, nb::arg("name"), nb::arg("key"),
             nb::arg("defined"));
  module.def("refusal_in", [](const std::string& text) -> nb::object {
    const auto found = RefusalIn(text);
    return found ? nb::object(nb::make_tuple(found->first, found->second)) : nb::none();
  });
}

}  // namespace ferry::python
