// Launch plan of the gated activations: computed on the host, passed to the kernel by value.
#pragma once
#include "ferry/core/result.h"
#include "ferry/kernels/gated/gated.h"
#include "ferry/kernels/rows.h"
#include "ferry/kernels/tiles.h"

namespace ferry::kernels {

struct GatedPlan {
  const void* gate = nullptr;
  const void* up = nullptr;  // the rows' other half
  void* out = nullptr;
  RowStrides x_strides;
  RowStrides out_strides;
  RowSizes sizes;
  RowTiles tiles;
  DType dtype = DType::kFloat32;
  Gate activation = Gate::kSilu;
  bool wide = false;  // words of 16 bytes, otherwise elements
};

// Errors: as GatedMul().
Result<GatedPlan> PlanGated(const GatedArgs& args);

}  // namespace ferry::kernels
