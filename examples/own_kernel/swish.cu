// A kernel of one's own behind a C function: swish(x) = x / (1 + exp(-beta x)), for swish.py.
//
//   nvcc -O3 -arch=native -Xcompiler -fPIC -shared swish.cu -o libswish.so

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace {

constexpr int kThreads = 256;
constexpr int kVectorBytes = 16;  // the widest load and store of a thread

template <class T>
__device__ T Swish(T x, float beta) {
  const float value = static_cast<float>(x);
  return static_cast<T>(value / (1.0f + expf(-beta * value)));
}

// Each thread handles 16 bytes of x: by one vector if x and out are aligned, otherwise, and at the
// end, element by element.
template <class T>
__global__ void SwishKernel(const T* x, T* out, std::int64_t count, float beta) {
  constexpr int kWidth = kVectorBytes / sizeof(T);
  struct alignas(kVectorBytes) Vector {
    T values[kWidth];
  };
  const std::int64_t first = (blockIdx.x * std::int64_t{kThreads} + threadIdx.x) * kWidth;
  const bool aligned =
      (reinterpret_cast<std::uintptr_t>(x) | reinterpret_cast<std::uintptr_t>(out)) %
          kVectorBytes ==
      0;
  if (aligned && first + kWidth <= count) {
    Vector vector = *reinterpret_cast<const Vector*>(x + first);
    for (T& value : vector.values) value = Swish(value, beta);
    *reinterpret_cast<Vector*>(out + first) = vector;
  } else {
    for (std::int64_t i = first; i < first + kWidth && i < count; ++i) out[i] = Swish(x[i], beta);
  }
}

template <class T>
cudaError_t Launch(const void* x, void* out, std::int64_t count, float beta, cudaStream_t stream) {
  constexpr std::int64_t kPerBlock = kThreads * (kVectorBytes / sizeof(T));
  const auto blocks = static_cast<unsigned>((count + kPerBlock - 1) / kPerBlock);
  SwishKernel<<<blocks, kThreads, 0, stream>>>(static_cast<const T*>(x), static_cast<T*>(out),
                                               count, beta);
  return cudaGetLastError();
}

}  // namespace

// Returns null if the kernel was launched, else CUDA's error text. type: 0 fp32, 1 fp16, 2 bf16;
// count above 0; runs on the current device.
extern "C" const char* swish(const void* x, void* out, std::int64_t count, float beta, int type,
                             void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  cudaError_t ended = cudaErrorInvalidValue;
  if (type == 0) ended = Launch<float>(x, out, count, beta, on);
  if (type == 1) ended = Launch<__half>(x, out, count, beta, on);
  if (type == 2) ended = Launch<__nv_bfloat16>(x, out, count, beta, on);
  return ended == cudaSuccess ? nullptr : cudaGetErrorString(ended);
}
