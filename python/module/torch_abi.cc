// Finds torch's stable C ABI in the libraries that the process has loaded.

#include "python/module/torch_abi.h"

#include <dlfcn.h>

#include <optional>
#include <string>

namespace ferry::python {
namespace {

template <class F>
bool Find(void* library, const char* name, F** to) {
  // dlsym() returns functions as void*, which POSIX allows to be cast back.
  *to = library == nullptr ? nullptr : reinterpret_cast<F*>(dlsym(library, name));
  return *to != nullptr;
}

bool FindNumber(void* library, const std::string& name, std::int32_t* to) {
  std::int32_t (*get)() = nullptr;
  if (!Find(library, name.c_str(), &get)) return false;
  *to = get();
  return true;
}

void FindCuda(TorchAbi* abi) {
  void* const cuda = dlopen("libtorch_cuda.so", RTLD_NOLOAD | RTLD_LAZY);
  const bool found = Find(cuda, "aoti_torch_get_current_cuda_stream", &abi->current_cuda_stream) &&
                     Find(cuda, "aoti_torch_create_cuda_guard", &abi->create_cuda_guard) &&
                     Find(cuda, "aoti_torch_delete_cuda_guard", &abi->delete_cuda_guard);
  if (!found) abi->current_cuda_stream = nullptr;
}

std::optional<TorchAbi> Load() {
  // The handle stays open: kernels are called until the process ends.
  void* const torch = dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY);
  TorchAbi abi{};
  bool found = Find(torch, "aoti_torch_get_data_ptr", &abi.get_data_ptr) &&
               Find(torch, "aoti_torch_get_dim", &abi.get_dim) &&
               Find(torch, "aoti_torch_get_sizes", &abi.get_sizes) &&
               Find(torch, "aoti_torch_get_strides", &abi.get_strides) &&
               Find(torch, "aoti_torch_get_dtype", &abi.get_dtype) &&
               Find(torch, "aoti_torch_get_device_type", &abi.get_device_type) &&
               Find(torch, "aoti_torch_get_device_index", &abi.get_device_index) &&
               Find(torch, "aoti_torch_delete_tensor_object", &abi.delete_tensor) &&
               Find(torch, "aoti_torch_empty_strided", &abi.empty_strided) &&
               Find(torch, "aoti_torch_library_init_impl", &abi.library_init) &&
               Find(torch, "torch_library_impl", &abi.library_impl) &&
               FindNumber(torch, "aoti_torch_device_type_cpu", &abi.cpu) &&
               FindNumber(torch, "aoti_torch_device_type_cuda", &abi.cuda);
  for (std::size_t i = 0; found && i < TorchAbi::kTypes; ++i) {
    found = FindNumber(torch, std::string("aoti_torch_dtype_") + kTorchTypeNames[i], &abi.types[i]);
  }
  if (!found) return std::nullopt;
  FindCuda(&abi);
  (void)Find(torch, "torch_exception_get_what_without_backtrace", &abi.why);
  return abi;
}

}  // namespace

const TorchAbi* FindTorchAbi() {
  static const std::optional<TorchAbi> abi = Load();
  return abi ? &*abi : nullptr;
}

}  // namespace ferry::python
