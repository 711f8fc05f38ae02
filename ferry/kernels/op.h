// Conventions that all ops follow, and the helper that makes an op a cuda::Kernel.
#pragma once
#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"
#include "ferry/kernels/tensor.h"

// An op has a `struct BarArgs` of tensors and numbers, and three forms:
//
//   Status Bar(const BarArgs&, cuda::StreamRef)   on the stream, whose device is current; returns
//                                                 when the work is queued, allocates nothing and
//                                                 waits for nothing, so that graphs can capture it
//   Status BarCpu(const BarArgs&)                 the same, on memory that the CPU can reach
//   const cuda::Kernel kBarKernel                 both, for cuda::LaunchKernel(), with BarArgs
//
// Each form checks its arguments before it does any work. Any thread may call any of them.
namespace ferry::kernels {

// The error of every device form in a build without CUDA: kUnsupported.
Error NoDeviceCode(const char* op, SourceLoc at = SourceLoc::Current());

// Replaces the device address of a view with the address at which the CPU finds the emulated
// memory. Leaves a view without sizes or elements unchanged.
Status MapTensor(cuda::EmulatedMemory& memory, Tensor* tensor);

namespace op_internal {

template <auto kFunction>
struct ArgsOf;
template <class Args, Status (*kCpu)(const Args&)>
struct ArgsOf<kCpu> {
  using Type = Args;
};

}  // namespace op_internal

// Makes the op a kernel for cuda::LaunchKernel(). `name` must have static lifetime. kTensors lists
// every tensor member of the arguments:
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
