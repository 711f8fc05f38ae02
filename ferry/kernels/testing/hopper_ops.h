// The primitives of compute capability 9.0 as one op each, so that a failing test names the wrong
// primitive. All are for bf16 or fp16. Errors: kInvalidArgument for sizes other than those listed,
// kUnsupported on other GPUs.
#pragma once
#include <array>
#include <cstdint>

#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"
#include "ferry/kernels/tensor.h"

namespace ferry::kernels {

// prim::LoadTile() or prim::StoreTile(): a tile of 64 rows of 128 columns, of a tensor of 2 to 4
// sizes, the rows being the second to last, from tensor[..., row, 0] on. Elements outside the
// tensor are loaded as zeros and not stored. In shared memory the tile is laid out as
// PanelTile::At() defines.
struct TileArgs {
  static constexpr std::int64_t kRows = 64;
  static constexpr std::int64_t kColumns = 128;
  Tensor tensor;  // [..., rows, 128]
  Tensor tile;    // [64, 128], dense
  bool stores = false;
  int row = 0;
  std::array<int, 2> outer{};  // indices of the sizes outside of the rows, the innermost first
};
Status CopyTile(const TileArgs& args, cuda::StreamRef stream);
Status CopyTileCpu(const TileArgs& args);
extern const cuda::Kernel kCopyTileKernel;

// prim::MultiplyAddAsync(): c = a * b, of 16 * steps columns of a and rows of b.
struct ProductArgs {
  static constexpr std::int64_t kRows = 64;
  static constexpr std::int64_t kInner = 128;
  Tensor a;  // [64, 128]; all dense
  Tensor b;  // [128, 64] or [128, 128], or transposed so that each of its columns is dense
  Tensor c;  // fp32 [64, 64] or [64, 128]
  bool b_transposed = false;
  bool a_in_registers = false;
  int steps = 1;  // or 8
};
Status Product(const ProductArgs& args, cuda::StreamRef stream);
Status ProductCpu(const ProductArgs& args);
extern const cuda::Kernel kProductKernel;

// Exercises barriers, a ring, and registers that one warpgroup releases and another acquires: tiles
// of 64 rows are loaded by LoadTile() and written by ordinary stores.
struct RingArgs {
  static constexpr std::int64_t kRows = 64;
  static constexpr std::int64_t kColumns = 64;
  Tensor from;  // [64 * n, 64], dense
  Tensor to;
};
Status CopyByRing(const RingArgs& args, cuda::StreamRef stream);
Status CopyByRingCpu(const RingArgs& args);
extern const cuda::Kernel kCopyByRingKernel;

}  // namespace ferry::kernels
