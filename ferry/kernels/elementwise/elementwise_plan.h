// Launch plans of the elementwise ops: computed on the host, passed to the kernels by value.
#pragma once
#include <cstdint>

#include "ferry/core/result.h"
#include "ferry/kernels/elementwise/elementwise.h"
#include "ferry/kernels/rows.h"
#include "ferry/kernels/tiles.h"

namespace ferry::kernels {

struct AddGeluPlan {
  const void* x = nullptr;
  const void* bias = nullptr;
  void* out = nullptr;
  RowStrides x_strides;
  RowStrides out_strides;
  RowSizes sizes;
  RowTiles tiles;
  std::int64_t cols = 0;
  DType dtype = DType::kFloat32;
  GeluForm form = GeluForm::kExact;
  bool wide = false;  // words of 16 bytes, otherwise elements
};
// Words of x per thread.
inline constexpr std::uint32_t kAddGeluWords = 2;

struct MulAddPlan {
  const void* a = nullptr;
  const void* b = nullptr;
  const void* c = nullptr;
  void* out = nullptr;
  RowStrides a_strides;
  RowStrides b_strides;
  RowStrides c_strides;
  RowStrides out_strides;
  RowSizes sizes;
  RowTiles tiles;
  std::int64_t cols = 0;
  DType dtype = DType::kFloat32;
  bool wide = false;
};

// Checks the arguments and computes the plan. Errors: as the ops.
Result<AddGeluPlan> PlanAddGelu(const AddGeluArgs& args);
Result<MulAddPlan> PlanMulAdd(const MulAddArgs& args);

}  // namespace ferry::kernels
