// Conventions that all ops follow, and the helper that makes an op a cuda::Kernel.
#pragma once
#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"
#include "ferry/kernels/tensor.h"

// What ops have in common. Each has `struct BarArgs`, of tensors and numbers, and three forms:
//
//   Status Bar(const BarArgs&, cuda::StreamRef)   on the stream, whose device is current; returns
//                                                 when the work is queued, allocates nothing and
//                                                 waits for nothing, so that graphs can capture it
//   Status BarCpu(const BarArgs&)                 the same, on memory that the CPU can reach
//   const cuda::Kernel kBarKernel                 both, for cuda::LaunchKernel(), with BarArgs
//
// Arguments are checked before anything is done. Any thread calls any of them.
namespace ferry::kernels {

// Of a build without CUDA.
Error NoDeviceCode(const char* op, SourceLoc at = SourceLoc::Current());

// Makes a view of device memory one of what the CPU finds there. Of none or of no elements:
// nothing.
Status MapTensor(cuda::EmulatedMemory& memory, Tensor* tensor);

namespace op_internal {

template <auto kFunction>
struct ArgsOf;
template <class Args, Status (*kCpu)(const Args&)>
struct ArgsOf<kCpu> {
  using Type = Args;
};

}  // namespace op_internal

// `constexpr` is all that is asked of the name, which must live on. kTensors are those members of
// the arguments that are tensors, each of them:
//
//   const cuda::Kernel kBarKernel = MakeKernel<Bar, BarCpu, &BarArgs::x, &BarArgs::out>("bar");
template <auto kBar, auto kBarCpu, auto... kTensors>
constexpr cuda::Kernel MakeKernel(const char* name) {
  using Args = typename op_internal::ArgsOf<kBarCpu>::Type;
  return {.name = name,
          .launch =
              [](cuda::StreamRef stream, const void* arguments) {
                return kBar(*static_cast<const Args*>(arguments), stream);
              },
          .emulate = [](cuda::EmulatedMemory& memory, const void* arguments) -> Status {
            Args args = *static_cast<const Args*>(arguments);
            Status mapped = Ok();
            // Until one fails.
            (void)((mapped = MapTensor(memory, &(args.*kTensors)), mapped.has_value()) && ...);
            if (!mapped) return mapped;
            return kBarCpu(args);
          }};
}

}  // namespace ferry::kernels
