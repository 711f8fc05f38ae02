// Launch plan of the quantised silu_and_mul: computed on the host, passed to the kernel by value.
#pragma once
#include "ferry/core/result.h"
#include "ferry/kernels/gated/gated_quant.h"
#include "ferry/kernels/rows.h"
#include "ferry/kernels/tiles.h"

namespace ferry::kernels {

// kTiles processes each word on its own, for a scale that is given. In the others a thread block
// has a row, whose results are held in registers, or computed a second time once the scale is
// known.
enum class GatedQuantForm : std::uint8_t { kTiles, kHeldWords, kTwoPass };

struct GatedQuantPlan {
  const void* gate = nullptr;
  const void* up = nullptr;  // the rows' other half
  void* out = nullptr;       // e4m3
  RowStrides x_strides;
  RowStrides out_strides;
  RowSizes sizes;
  RowTiles tiles;  // of kTiles
  QuantScale scale;
  DType dtype = DType::kFloat32;
  GatedQuantForm form = GatedQuantForm::kTiles;
  bool wide = false;          // words of 16 bytes of x, otherwise elements
  std::uint32_t rows = 0;     // 0: nothing to launch
  std::uint32_t words = 0;    // of half a row: accesses
  std::uint32_t threads = 0;  // of a row, whole warps, where it has a block
};
inline constexpr std::uint32_t kGatedQuantMaxThreads = 512;
// Words of each half that a thread holds in the form kHeldWords.
inline constexpr std::uint32_t kGatedQuantHeld = 4;

// Errors: as SiluAndMulQuant().
Result<GatedQuantPlan> PlanSiluAndMulQuant(const SiluAndMulQuantArgs& args);

}  // namespace ferry::kernels
