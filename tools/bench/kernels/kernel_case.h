// Cases of `ferry kernel-bench`: one function per op makes its cases.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"
#include "ferry/kernels/error_bound.h"
#include "ferry/kernels/tensor.h"

namespace ferry::tools {

struct KernelBuffer {
  enum class Holds : unsigned char {
    kNumbers,  // random numbers in [-1, 1)
    kLogits,   // bfloat16 random numbers as models produce them: normal, standard deviation 3
    kResults,  // results of the op, which must write all of them
    kTable,    // `table`
    kScratch,  // contents are not checked
  };
  Holds holds = Holds::kNumbers;
  kernels::DType dtype = kernels::DType::kBfloat16;  // of numbers
  std::uint64_t bytes = 0;
  bool shared = false;  // one for all sets of buffers
  std::vector<std::byte> table;
};

// Addresses of a case's buffers, in the order in which they were added.
using KernelAddresses = std::span<void* const>;

// One of a case's buffers as a contiguous tensor.
struct CaseTensor {
  std::size_t buffer = 0;
  kernels::Tensor view;  // without its memory

  kernels::Tensor At(KernelAddresses addresses) const {
    kernels::Tensor tensor = view;
    tensor.data = addresses[buffer];
    return tensor;
  }
};

// A range of a case's independent units: rows, tokens, sequences or queries.
struct KernelUnits {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

// Where a case runs: as a whole on a device's stream or, to compute the reference, some of its
// units on the CPU, which finds their memory through `memory`.
struct KernelStream {
  cuda::DeviceApi* api = nullptr;
  cuda::StreamRef stream = cuda::StreamRef::Foreign(0, nullptr);
  cuda::EmulatedMemory* memory = nullptr;  // not null: on the CPU
  KernelUnits units = {};                  // on the CPU: those to compute

  bool on_cpu() const noexcept { return memory != nullptr; }
  // The selected units of a tensor whose first size counts units; on a device the whole tensor.
  kernels::Tensor Of(const kernels::Tensor& tensor) const {
    return on_cpu() ? RowsOf(tensor) : tensor;
  }
  kernels::Tensor Of(const CaseTensor& tensor, KernelAddresses at) const {
    return Of(tensor.At(at));
  }
  kernels::Tensor RowsOf(kernels::Tensor tensor) const;
  template <class Args>
  Status Put(const cuda::Kernel& kernel, const Args& args) const {
    return on_cpu() ? kernel.emulate(*memory, &args)
                    : cuda::LaunchKernel(*api, stream, kernel, args);
  }
};

struct KernelSize {
  const char* name;
  std::int64_t value;
};

// One op, at one size.
struct KernelCase {
  std::string op;
  std::string variant;  // of ours; "" where there is one
  kernels::DType dtype = kernels::DType::kBfloat16;
  std::vector<KernelSize> sizes;
  std::uint64_t bytes = 0;  // that the op must move: what it reads once and what it writes
  double flops = 0;         // where they are what bounds it, and not the bytes
  bool comes_last = false;  // after all others, which a fault of it would spoil
  std::vector<KernelBuffer> buffers;
  std::int64_t units = 0;           // 0: no form for the CPU says what is right
  std::int64_t units_checked = 16;  // in a row, at each place that is looked at
  kernels::Roundings roundings;
  // An upper bound of the sum of term magnitudes of each element of a unit, if it exceeds the
  // element itself.
  std::function<double(std::int64_t unit)> terms = nullptr;
  // Launches the op on the stream. Called several times, the first time outside any graph capture.
  std::function<Status(const KernelStream&, KernelAddresses)> launch;

  using Shape = std::initializer_list<std::int64_t>;
  CaseTensor AddNumbers(kernels::DType of, Shape shape) {
    return Add(KernelBuffer::Holds::kNumbers, of, shape);
  }
  CaseTensor AddLogits(Shape shape) {
    return Add(KernelBuffer::Holds::kLogits, kernels::DType::kBfloat16, shape);
  }
  CaseTensor AddResults(kernels::DType of, Shape shape) {
    return Add(KernelBuffer::Holds::kResults, of, shape);
  }
  CaseTensor AddSharedNumbers(kernels::DType of, Shape shape);
  CaseTensor AddScratch(kernels::DType of, Shape shape);  // shared
  // A table of one number for each place of the shape.
  template <class T>
  CaseTensor AddTable(kernels::DType of, Shape shape, const std::vector<T>& values) {
    const CaseTensor added = Add(KernelBuffer::Holds::kTable, of, shape);
    const auto bytes_of_it = std::as_bytes(std::span(values));
    buffers.back().bytes = bytes_of_it.size();
    buffers.back().table = {bytes_of_it.begin(), bytes_of_it.end()};
    return added;
  }
  CaseTensor Add(KernelBuffer::Holds holds, kernels::DType of, Shape shape);
};

// "rows=2048 cols=4096"
std::string ShapeOf(const KernelCase& one);
// "rms_norm bf16 rows=2048 cols=4096", followed by the variant; unique among all cases.
std::string NameOf(const KernelCase& one);

struct KernelCaseOptions {
  cuda::DeviceFacts facts;  // for plans
  bool tiny = false;        // for machines without a GPU
};

// Cases of the ops on rows: fused_add_gelu, element_wise_mul_add, silu_and_mul, rms_norm,
// add_rms_norm, silu_and_mul_quant, rms_norm_quant.
void AddRowCases(const KernelCaseOptions& options, std::vector<KernelCase>* cases);
// Cases of the ops on tokens: rope, store_kvcache, qk_norm_rope_store.
void AddTokenCases(const KernelCaseOptions& options, std::vector<KernelCase>* cases);
// attention_decode, attention_prefill, merge_attention_states.
void AddAttentionCases(const KernelCaseOptions& options, std::vector<KernelCase>* cases);
void AddSamplerCases(const KernelCaseOptions& options, std::vector<KernelCase>* cases);
// All of them, in the order of measuring.
std::vector<KernelCase> KernelCases(const KernelCaseOptions& options);

}  // namespace ferry::tools
