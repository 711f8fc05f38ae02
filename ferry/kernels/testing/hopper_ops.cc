// Host side of the ops that expose single Hopper primitives to tests.

#include "ferry/kernels/testing/hopper_ops.h"

#include "ferry/kernels/argument.h"
#include "ferry/kernels/number.h"
#include "ferry/kernels/op.h"

namespace ferry::kernels {
namespace {

Status CheckTile(const TileArgs& args) {
  const Argument tensor{.op = "copy_tile", .name = "tensor", .tensor = args.tensor};
  const Argument tile{.op = "copy_tile", .name = "tile", .tensor = args.tile};
  FERRY_TRY(tensor.IsView(2, 4));
  FERRY_TRY(tensor.HasType({DType::kBfloat16, DType::kFloat16}));
  FERRY_TRY(tensor.HasDenseRows());
  FERRY_TRY(tile.HasTypeOf(tensor));
  FERRY_TRY(tile.HasShape({TileArgs::kRows, TileArgs::kColumns}, "64 rows of 128"));
  return tile.IsContiguous();
}

Status CheckProduct(const ProductArgs& args) {
  const Argument a{.op = "product", .name = "a", .tensor = args.a};
  const Argument b{.op = "product", .name = "b", .tensor = args.b};
  const Argument c{.op = "product", .name = "c", .tensor = args.c};
  FERRY_TRY(c.HasType({DType::kFloat32}));
  FERRY_TRY(c.HasShape({ProductArgs::kRows, args.c.last()}, "as many rows as a"));
  if (args.c.last() != 64 && args.c.last() != 128) return c.Wrong("of 64 or 128 columns");
  FERRY_TRY(a.HasType({DType::kBfloat16, DType::kFloat16}));
  FERRY_TRY(a.HasShape({ProductArgs::kRows, ProductArgs::kInner}, "64 rows of 128"));
  FERRY_TRY(b.HasTypeOf(a));
  FERRY_TRY(args.b_transposed
                ? b.HasShape({args.c.last(), ProductArgs::kInner}, "the columns of c by those of a")
                : b.HasShape({ProductArgs::kInner, args.c.last()}, "a's columns by those of c"));
  for (const Argument& each : {a, b, c}) FERRY_TRY(each.IsContiguous());
  if (args.steps == 1 || args.steps == 8) return Ok();
  return WrongNumber("product", "steps", args.steps, "1 or 8");
}

Status CheckRing(const RingArgs& args) {
  const Argument from{.op = "copy_by_ring", .name = "from", .tensor = args.from};
  const Argument to{.op = "copy_by_ring", .name = "to", .tensor = args.to};
  FERRY_TRY(from.HasType({DType::kBfloat16, DType::kFloat16}));
  FERRY_TRY(from.HasShape({args.from.shape[0], RingArgs::kColumns}, "rows of 64"));
  FERRY_TRY(to.HasShapeOf(from));
  FERRY_TRY(to.HasTypeOf(from));
  if (args.from.shape[0] % RingArgs::kRows == 0) return Ok();
  return from.Wrong("of tiles of 64 rows");
}

}  // namespace

Status CopyTileCpu(const TileArgs& args) {
  FERRY_TRY(CheckTile(args));
  const auto rank = static_cast<std::size_t>(args.tensor.rank);
  std::int64_t first = 0;
  bool inside = true;
  for (std::size_t i = 0; i + 2 < rank; ++i) {
    first += args.outer[i] * args.tensor.stride[rank - 3 - i];
    inside = inside && args.outer[i] >= 0 && args.outer[i] < args.tensor.shape[rank - 3 - i];
  }
  const std::int64_t rows = inside ? args.tensor.shape[rank - 2] : 0;
  for (std::int64_t r = 0; r < TileArgs::kRows; ++r) {
    const std::int64_t row = args.row + r;
    const bool there = row >= 0 && row < rows;
    for (std::int64_t column = 0; column < TileArgs::kColumns; ++column) {
      const std::int64_t at = first + row * args.tensor.stride[rank - 2] + column;
      const std::int64_t in_tile = r * TileArgs::kColumns + column;
      if (!args.stores) {
        WriteFloat(args.tile.data, args.tile.dtype, in_tile,
                   there ? ReadFloat(args.tensor.data, args.tensor.dtype, at) : 0.0F);
      } else if (there) {
        WriteFloat(args.tensor.data, args.tensor.dtype, at,
                   ReadFloat(args.tile.data, args.tile.dtype, in_tile));
      }
    }
  }
  return Ok();
}

Status ProductCpu(const ProductArgs& args) {
  FERRY_TRY(CheckProduct(args));
  const std::int64_t columns = args.c.last();
  for (std::int64_t row = 0; row < ProductArgs::kRows; ++row) {
    for (std::int64_t column = 0; column < columns; ++column) {
      double sum = 0;
      for (std::int64_t k = 0; k < 16 * args.steps; ++k) {
        const std::int64_t at =
            args.b_transposed ? column * ProductArgs::kInner + k : k * columns + column;
        sum += static_cast<double>(
                   ReadFloat(args.a.data, args.a.dtype, row * ProductArgs::kInner + k)) *
               static_cast<double>(ReadFloat(args.b.data, args.b.dtype, at));
      }
      WriteFloat(args.c.data, args.c.dtype, row * columns + column, static_cast<float>(sum));
    }
  }
  return Ok();
}

Status CopyByRingCpu(const RingArgs& args) {
  FERRY_TRY(CheckRing(args));
  for (std::int64_t i = 0; i < args.from.Numel(); ++i) {
    WriteFloat(args.to.data, args.to.dtype, i, ReadFloat(args.from.data, args.from.dtype, i));
  }
  return Ok();
}

#ifdef FERRY_HAVE_CUDA
// hopper_ops.cu
Status LaunchCopyTile(const TileArgs& args, cuda::StreamRef stream);
Status LaunchProduct(const ProductArgs& args, cuda::StreamRef stream);
Status LaunchCopyByRing(const RingArgs& args, cuda::StreamRef stream);
#else
namespace {

Status LaunchCopyTile(const TileArgs& /*args*/, cuda::StreamRef /*stream*/) {
  return NoDeviceCode("copy_tile");
}
Status LaunchProduct(const ProductArgs& /*args*/, cuda::StreamRef /*stream*/) {
  return NoDeviceCode("product");
}
Status LaunchCopyByRing(const RingArgs& /*args*/, cuda::StreamRef /*stream*/) {
  return NoDeviceCode("copy_by_ring");
}

}  // namespace
#endif

Status CopyTile(const TileArgs& args, cuda::StreamRef stream) {
  FERRY_TRY(CheckTile(args));
  return LaunchCopyTile(args, stream);
}
Status Product(const ProductArgs& args, cuda::StreamRef stream) {
  FERRY_TRY(CheckProduct(args));
  return LaunchProduct(args, stream);
}
Status CopyByRing(const RingArgs& args, cuda::StreamRef stream) {
  FERRY_TRY(CheckRing(args));
  return LaunchCopyByRing(args, stream);
}

const cuda::Kernel kCopyTileKernel =
    MakeKernel<CopyTile, CopyTileCpu, &TileArgs::tensor, &TileArgs::tile>("copy_tile");
const cuda::Kernel kProductKernel =
    MakeKernel<Product, ProductCpu, &ProductArgs::a, &ProductArgs::b, &ProductArgs::c>("product");
const cuda::Kernel kCopyByRingKernel =
    MakeKernel<CopyByRing, CopyByRingCpu, &RingArgs::from, &RingArgs::to>("copy_by_ring");

}  // namespace ferry::kernels
