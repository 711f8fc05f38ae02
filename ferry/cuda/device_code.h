// Which GPUs the compiled device code runs on.
#pragma once
#include <string>
#include <string_view>

namespace ferry::cuda {

enum class CodeKind : unsigned char {
  kNone,
  kByPtx,   // the driver compiles PTX at the first use, without the forms for later GPUs
  kNative,  // machine code
};
const char* CodeKindName(CodeKind kind) noexcept;  // "none", "PTX", "native"

struct DeviceCode {
  CodeKind kind = CodeKind::kNone;
  std::string target;  // the entry that the GPU runs: "80-real" or "80-virtual"; "" for kNone
};

// What a GPU of this compute capability runs of code for `targets`: entries as those of
// CMAKE_CUDA_ARCHITECTURES, separated by commas or semicolons. "80-real" is machine code for 8.x
// with x >= 0, "80-virtual" is PTX for 8.0 and everything later, "80" is both; "90a" runs on 9.0
// only, as either. The latest entry of machine code wins, then the latest of PTX. Entries of other
// forms are skipped.
DeviceCode CodeFor(std::string_view targets, int major, int minor);

// What errors of launches for a GPU without code end with, and those of PTX that its driver cannot
// compile.
inline constexpr const char* kBuildForThisGpu = "build with FERRY_CUDA_ARCH for this GPU";
// Whether this is the message of such an error.
bool SaysNoCode(std::string_view message) noexcept;

// The entry to build with for such a GPU: "86-real"; "90a-real" for 9.0, whose code has wgmma; ""
// before 8.0, for which kernels do not compile.
std::string TargetFor(int major, int minor);

}  // namespace ferry::cuda
