#pragma once
#include <cstdint>

#include "ferry/core/result.h"
#include "ferry/kernels/elementwise/elementwise.h"
#include "ferry/kernels/rows.h"
#include "ferry/kernels/tiles.h"

// What is decided on the host before a launch; goes to the kernels as it is.
namespace ferry::kernels {

// What a thread has of x: words along a row, or as many rows' words of one column, which share the
// bias's word.
enum class AddGeluForm : std::uint8_t { kOneWord, kTwoWords, kFourWords, kTwoRows, kFourRows };

struct AddGeluPlan {
  const void* x = nullptr;
  const void* bias = nullptr;
  void* out = nullptr;
  RowStrides x_strides;
  RowStrides out_strides;
  RowSizes sizes;
  std::uint32_t rows = 0;
  RowTiles tiles;  // its rows are groups of as many as the form has
  std::int64_t cols = 0;
  DType dtype = DType::kFloat32;
  AddGeluForm form = AddGeluForm::kFourWords;
  bool wide = false;   // words of 16 bytes, otherwise elements
  bool early = false;  // may begin while the kernel before it ends
};

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
inline constexpr std::uint32_t kMulAddWords = 2;

// Gives a plan that has all else this form. Errors: as TileRows().
Status TakeForm(AddGeluForm form, AddGeluPlan* plan);

// Errors: as the ops have them.
Result<AddGeluPlan> PlanAddGelu(const AddGeluArgs& args);
Result<MulAddPlan> PlanMulAdd(const MulAddArgs& args);

}  // namespace ferry::kernels
