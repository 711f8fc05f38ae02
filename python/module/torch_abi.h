// The part of torch's stable C ABI that the ops use, found in the loaded libraries of torch.
#pragma once
#include <cstddef>
#include <cstdint>

namespace ferry::python {

// A tensor reference of torch's. The holder deletes it.
struct TorchTensorOpaque;
using TorchHandle = TorchTensorOpaque*;
// An argument or result as torch passes it to boxed kernels.
using TorchValue = std::uint64_t;
using TorchKernel = void (*)(TorchValue* stack, std::uint64_t inputs, std::uint64_t outputs);
using TorchError = std::int32_t;  // 0: success

// Functions of torch/csrc/inductor/aoti_torch/c/shim.h and torch/csrc/stable/c/shim.h, declared
// here so that a build needs no torch and one binary serves torch 2.10 and newer.
struct TorchAbi {
  TorchError (*get_data_ptr)(TorchHandle, void**);
  TorchError (*get_dim)(TorchHandle, std::int64_t*);
  TorchError (*get_sizes)(TorchHandle, std::int64_t**);    // borrowed
  TorchError (*get_strides)(TorchHandle, std::int64_t**);  // borrowed
  TorchError (*get_dtype)(TorchHandle, std::int32_t*);
  TorchError (*get_device_type)(TorchHandle, std::int32_t*);
  TorchError (*get_device_index)(TorchHandle, std::int32_t*);
  TorchError (*delete_tensor)(TorchHandle);
  TorchError (*empty_strided)(std::int64_t rank, const std::int64_t* sizes,
                              const std::int64_t* strides, std::int32_t dtype,
                              std::int32_t device_type, std::int32_t device_index, TorchHandle*);
  TorchError (*library_init)(const char* name, const char* key, const char* file,
                             std::uint32_t line, void** library);
  TorchError (*library_impl)(void* library, const char* name, TorchKernel, std::uint64_t abi);
  // Null where torch has no CUDA.
  TorchError (*current_cuda_stream)(std::int32_t device, void** stream) = nullptr;
  TorchError (*create_cuda_guard)(std::int32_t device, void** guard) = nullptr;
  TorchError (*delete_cuda_guard)(void* guard) = nullptr;
  // Null where torch is older than this function.
  const char* (*why)() = nullptr;  // what the last function that failed on this thread says
  // Numbers that torch gives to element types and devices, in the order of kTorchTypeNames.
  static constexpr std::size_t kTypes = 12;
  static constexpr std::size_t kUint8 = 7;  // index of uint8
  std::int32_t types[kTypes];
  std::int32_t cpu = 0;
  std::int32_t cuda = 0;
};

// Names of the element types: those of kernels::DType first, in its order.
inline constexpr const char* kTorchTypeNames[TorchAbi::kTypes] = {
    "float32", "float16", "bfloat16", "float8_e4m3fn", "int32", "int64",
    "float64", "uint8",   "int8",     "int16",         "bool",  "float8_e5m2"};

// Looks the functions up, once. Null where torch is not loaded, or is older than 2.10.
const TorchAbi* FindTorchAbi();

}  // namespace ferry::python
